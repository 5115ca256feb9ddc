//! Kernels of the backward pass beside one another.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use anyhow::Result;
use flash_attention::backward::{BackwardKernel, BackwardPlan, BackwardRequest};
use flash_attention::{Element, Problem};

use super::passes::{BothPasses, Passes, row_of};
use crate::lab::{Case, Entrant, Lab};
use crate::measure::Subject;
use crate::problem::Layout;

/// The backward pass of a case by each of these kernels that takes it, in turns: a row each.
///
/// # Errors
/// When a pass cannot be run, or as a race.
pub(crate) fn race_of_kernels<T: Element<Output = T>>(
    lab: &mut Lab,
    case: &Case<Problem>,
    kernels: &[BackwardKernel],
) -> Result<Range<usize>> {
    let session = Rc::clone(&lab.session);
    let subject = Subject::<T>::new(&case.problem, lab.seed);
    let default = BackwardRequest::default();
    let BothPasses { forward, backward, .. } =
        BothPasses::new(&session, &subject, (&case.problem, &default), lab.seed)?;
    drop(forward);
    let (gradients, inputs) = (&backward.gradients, &subject.inputs);
    let expected = gradients.expected(inputs);
    let mut plans: Vec<BackwardPlan> = Vec::new();
    for &kernel in kernels {
        let request = BackwardRequest { kernel: Some(kernel), ..default.clone() };
        match session.backend.plan(&gradients.problem, &request) {
            Ok(plan) => plans.push(plan),
            Err(reason) => lab.note(format!("{kernel} was not run: {reason}")),
        }
    }
    let mut rows = Vec::new();
    let mut prepared = Vec::new();
    for plan in &plans {
        let (pass, report, verdict) = gradients.judged(inputs, &expected, &session.backend, plan)?;
        rows.push(row_of((case, Layout::Bhsd), (plan, ""), (&report, &verdict)));
        prepared.push((pass.launches(), RefCell::new(pass)));
    }
    let flops = gradients.problem.flops();
    let mut entrants = Vec::new();
    for (row, (launches, pass)) in rows.into_iter().zip(&prepared) {
        let passes = Passes { forward: None, backward: Some(pass) };
        entrants.push(Entrant::new(row, Box::new(passes), flops).launching(*launches));
    }
    let ours = entrants.len();
    lab.race(entrants, ours)
}
