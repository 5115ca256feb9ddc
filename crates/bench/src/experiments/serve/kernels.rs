//! The library's kernels as the player of a trace, on any backend, judged now and then.

use std::collections::BTreeSet;

use anyhow::Result;
use flash_attention::forward::Results;
use flash_attention::{Backend, Element};

use super::model::{Call, LayerTensors, Model, Outputs};
use super::scheduler::Step;
use super::service::Player;
use crate::check::Verdict;

/// Where the calls of a step run, in each layer.
pub(super) trait Engine<T: Element> {
    /// Seconds of the calls in all layers; where they are to be judged, their outputs in the last one too.
    ///
    /// # Errors
    /// When the device or a kernel fails.
    fn run(&mut self, calls: &[Call], outputs: Option<&mut Vec<Outputs<T>>>) -> Result<f64>;
}

/// The CPU and the simulator, which have all layers in one place.
pub(super) struct OnHost<'a, T> {
    pub(super) backend: &'a Backend,
    pub(super) model: Model,
    pub(super) tensors: &'a LayerTensors<T>,
}

impl<T: Element> Engine<T> for OnHost<'_, T> {
    fn run(&mut self, calls: &[Call], mut outputs: Option<&mut Vec<Outputs<T>>>) -> Result<f64> {
        let (mut first, mut seconds) = (0, 0.0);
        for call in calls {
            let (took, output) = self.one(call, first)?;
            first += call.rows() * self.model.row();
            seconds += took;
            if let Some(outputs) = &mut outputs {
                outputs.push(output);
            }
        }
        Ok(seconds)
    }
}

impl<T: Element> OnHost<'_, T> {
    fn one(&self, call: &Call, first: usize) -> Result<(f64, Outputs<T>)> {
        let mut prepared = self.backend.prepare(&call.plan, self.tensors.of_call(call, first))?;
        prepared.poison()?;
        let seconds = prepared.time_runs(self.model.layers)?.as_secs_f64();
        let Results { o, lse } = prepared.outputs()?;
        Ok((seconds, (o.clone(), lse.clone())))
    }
}

/// What is alike of steps of which one is judged: sequences that decode, up to a power of two, and whether
/// others begin to fill their cache, and go on with it.
type Kind = (usize, bool, bool);

/// A player that runs kernels.
pub(super) struct Kernels<'a, T, E> {
    pub(super) backend: &'a Backend,
    pub(super) model: Model,
    pub(super) tensors: &'a LayerTensors<T>,
    pub(super) engine: E,
    pub(super) seed: u64,
    judged: BTreeSet<Kind>,
    /// The one that fails, else the one that comes nearest to its bound; rows of all.
    pub(super) verdict: Option<Verdict>,
}

impl<'a, T: Element, E: Engine<T>> Kernels<'a, T, E> {
    pub(super) fn new(
        backend: &'a Backend,
        model: Model,
        tensors: &'a LayerTensors<T>,
        engine: E,
        seed: u64,
    ) -> Self {
        Self { backend, model, tensors, engine, seed, judged: BTreeSet::new(), verdict: None }
    }

    fn judge(&mut self, calls: &[Call], outputs: &[Outputs<T>]) {
        let mut first = 0;
        for (call, output) in calls.iter().zip(outputs) {
            let verdict = self.tensors.judge(call, first, output, self.seed);
            self.verdict = Some(self.verdict.map_or(verdict, |before| worse(before, verdict)));
            first += call.rows() * self.model.row();
        }
    }
}

/// The verdict that fails, else the one that comes nearer to its bound, with the rows of both.
fn worse(one: Verdict, other: Verdict) -> Verdict {
    let share = |verdict: &Verdict| {
        let failed = if verdict.passed() { 0.0 } else { f64::INFINITY };
        failed + verdict.output.max_error / verdict.output.bound
    };
    let rows = one.rows + other.rows;
    if share(&other) > share(&one) { Verdict { rows, ..other } } else { Verdict { rows, ..one } }
}

impl<T: Element, E: Engine<T>> Player for Kernels<'_, T, E> {
    fn play(&mut self, step: &Step) -> Result<f64> {
        let calls = self.model.calls(self.backend, step)?;
        let filling = || step.chunks.iter().filter(|chunk| chunk.tokens > 1);
        let decoding = match step.decoding() {
            0 => 0,
            some => some.next_power_of_two(),
        };
        let begins = filling().any(|chunk| chunk.cached == 0);
        let goes_on = filling().any(|chunk| chunk.cached > 0);
        if self.judged.insert((decoding, begins, goes_on)) {
            // Its time does not count: a first launch loads what later ones find.
            let mut outputs = Vec::new();
            self.engine.run(&calls, Some(&mut outputs))?;
            self.judge(&calls, &outputs);
        }
        self.engine.run(&calls, None)
    }
}
