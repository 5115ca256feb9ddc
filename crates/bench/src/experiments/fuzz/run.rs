//! Runs a problem of any operation.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::bench::Bench;
use super::case::Case;
use super::machine::Machine;
use super::outcome::{Failure, Kind, Stop};
use super::start::suited;
use super::{attention, backward, decode, panics, product};

impl<M: Machine> Bench<M> {
    /// Plans, runs and judges a problem; a panic is a failure of it.
    ///
    /// # Errors
    /// Why it did not come to a right end.
    pub(super) fn run(&mut self, case: &Case) -> Result<(), Stop> {
        self.memory.clear();
        let case = suited(case.clone(), self.machine.device().backend);
        let run = AssertUnwindSafe(|| match &case {
            Case::Forward(case) => attention::run(self, case),
            Case::Backward(case) => backward::run(self, case),
            Case::Decode(case) => decode::run(self, case),
            Case::Gemm(case) => product::run(self, case),
        });
        catch_unwind(run).unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
            Err(Failure::new(Kind::Panicked, panics::described(&text)).into())
        })
    }
}
