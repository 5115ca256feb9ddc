//! What parts of a problem are asked for, so that they have the bits of one device.

use std::fmt;

use super::request_of_one;
use crate::backward::{BackwardKernel, BackwardPart, BackwardPlan, BackwardProblem, BackwardRequest};
use crate::{Plan, Request};

/// The requests of a schedule's parts, in the tiles that one device has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    attend: Request,
    kernel: Option<BackwardKernel>,
    queries: Option<String>,
    keys: Option<String>,
}

impl Requests {
    /// Of a forward pass that one device has planned so.
    pub(crate) fn of_forward(whole: &Plan) -> Self {
        let (block_m, block_n) = whole.tile().unzip();
        let tile = Request { kernel: Some(whole.kernel()), block_m, block_n, ..Request::default() };
        Self { attend: request_of_one(whole.problem(), &tile), ..Self::default() }
    }

    /// Of a backward pass that one device has planned so, without dS that is stored.
    pub(crate) fn of_backward(whole: &BackwardPlan) -> Self {
        let entry = |part: BackwardPart| {
            let mut launches = whole.launches().iter();
            let found = launches.find(|launch| part.has_launch(launch.entry.algorithm));
            found.map(|launch| launch.entry.name.to_owned())
        };
        Self {
            kernel: Some(whole.kernel()),
            queries: entry(BackwardPart::Queries),
            keys: entry(BackwardPart::Keys),
            ..Self::default()
        }
    }

    /// Of a part of the forward pass.
    pub(crate) const fn attend(&self) -> &Request {
        &self.attend
    }

    /// Of a part of the backward pass.
    pub(crate) fn differentiate(&self, problem: &BackwardProblem) -> BackwardRequest {
        let entry = match problem.computes() {
            BackwardPart::Queries => self.queries.clone(),
            BackwardPart::Keys => self.keys.clone(),
            BackwardPart::All | BackwardPart::Delta => None,
        };
        BackwardRequest { kernel: self.kernel, entry, workspace_limit: Some(0), ..BackwardRequest::default() }
    }
}

/// What one device computes it with, for people and for other ranks.
impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request { kernel, block_m, block_n, .. } = &self.attend;
        match (&self.queries, &self.keys, kernel) {
            (Some(queries), Some(keys), _) => write!(f, "{queries} and {keys}"),
            (.., Some(kernel)) => match block_m.zip(*block_n) {
                Some((m, n)) => write!(f, "{} in tiles of {m}x{n}", kernel.name()),
                None => f.write_str(kernel.name()),
            },
            _ => f.write_str("none"),
        }
    }
}
