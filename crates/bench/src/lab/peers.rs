//! Other people's kernels in a contest: their calls as entrants, or rows that say why there are none.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;
use flash_attention::Problem;

use super::case::Case;
use super::document::Row;
use super::race::Entrant;
use super::run::Lab;
use super::timed::{Many, Probe, Timed};
use crate::peer::{AttentionCall, Call, Form, Implementation, Pass, Peer, Prepared};
use crate::problem::Layout;
use crate::record::ProblemRecord;
use crate::timer::Pace;

/// What is asked of every implementation of attention.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) layout: Layout,
    pub(crate) pass: Pass,
    /// Operations of the pass.
    pub(crate) flops: f64,
}

impl<'a> Work<'a> {
    pub(crate) fn forward(problem: &'a Problem, layout: Layout) -> Self {
        Self { problem, layout, pass: Pass::Forward, flops: problem.flops() }
    }
}

/// A prepared call whose runs are timed in turns with ours.
struct PeerCall {
    peer: Rc<RefCell<Peer>>,
    number: usize,
}

impl Timed for PeerCall {
    fn time(&mut self, runs: usize, pace: Pace) -> Result<Vec<f64>> {
        self.peer.borrow_mut().time(self.number, runs, pace)
    }

    fn probe(&mut self) -> Result<Probe> {
        let (device, host) = self.peer.borrow_mut().probe(self.number)?;
        Ok(Probe { device, host })
    }

    fn time_many(&mut self, runs: usize) -> Result<Many> {
        let replayed = self.peer.borrow_mut().replayed(self.number, runs)?;
        Ok(Many { queued: None, replayed })
    }
}

impl Lab {
    /// The peer's attention with each implementation that takes part.
    ///
    /// # Errors
    /// When the peer is gone.
    pub(crate) fn peer_attention(
        &self,
        template: &Row,
        work: Work<'_>,
        form: Form,
    ) -> Result<Vec<Entrant<'static>>> {
        let Work { problem, layout, pass, flops } = work;
        let implementations = self.implementations.iter().copied().filter(|one| one.takes(pass, form));
        let call =
            |implementation| Call::Attention(AttentionCall { problem, layout, implementation, form, pass });
        self.peer_entrants(template, flops, implementations.map(call).collect())
    }

    /// Times the peer's attention alone, between copies to contiguous [B, H, S, D] tensors and back.
    ///
    /// # Errors
    /// When the peer is gone, or Ctrl-C is pressed.
    pub(crate) fn peer_with_copies(&mut self, case: &Case<Problem>, layout: Layout) -> Result<()> {
        let Case { name, x, problem } = case;
        let record = ProblemRecord::new(problem, layout);
        let template = Row { case: name.clone(), x: *x, problem: Some(record), ..Row::default() };
        let entrants = self.peer_attention(&template, Work::forward(problem, layout), Form::Copies)?;
        if entrants.is_empty() { Ok(()) } else { self.race(entrants, 0).map(drop) }
    }

    /// The peer's calls that are ready, and rows for those that it refuses: one in all for what it lacks.
    ///
    /// # Errors
    /// When the peer is gone.
    pub(super) fn peer_entrants(
        &self,
        template: &Row,
        flops: f64,
        calls: Vec<Call<'_>>,
    ) -> Result<Vec<Entrant<'static>>> {
        let Some(peer) = &self.peer else { return Ok(Vec::new()) };
        let mut entrants = Vec::new();
        for call in calls {
            if self.missing.borrow().contains(call.needs()) {
                continue;
            }
            let prepared = peer.borrow_mut().prepare(&call)?;
            let row = Row { series: call.series(), ..template.clone() };
            entrants.push(match prepared {
                Prepared::Ready(number) => {
                    Entrant::new(row, Box::new(PeerCall { peer: Rc::clone(peer), number }), flops)
                }
                Prepared::Refused(reason) => Entrant::refused(row, reason),
                Prepared::Missing(reason) => {
                    self.missing.borrow_mut().insert(call.needs());
                    Entrant::refused(row, reason)
                }
            });
        }
        Ok(entrants)
    }

    /// What takes part of the peer's attention; nothing without a peer.
    pub(crate) fn implementations(&self) -> &[Implementation] {
        &self.implementations
    }

    /// From here on, of the peer's attention only these take part.
    pub(crate) fn compare_with(&mut self, implementations: &[Implementation]) {
        self.implementations = implementations.to_vec();
    }
}
