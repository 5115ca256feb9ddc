//! The backward pass of FlashAttention-2 (arXiv:2307.08691, Algorithm 2): P and dS by recomputation, a tile
//! at a time.
//!
//! Two kinds of tasks, each with rows of its own across the lanes: keys, which go over the queries that see
//! them and give dK and dV, and queries, which go over their keys and give dQ. Scores and dO·Vᵀ are computed
//! by both, so that no two tasks add to the same rows, and each run gives the same bits.

mod scratch;
mod task;

use std::f32::consts::LOG2_E;
use std::ops::Range;

use rayon::prelude::*;

use super::gradient::RowStats;
use super::isa::{Isa, Kernels};
use super::memory::Buffer;
use super::pack::{Outputs, Source};
use super::tiles::Machine;
use super::{Stats, TileChoice, schedule};
use crate::backward::{BackwardInputs, BackwardOutputs, BackwardProblem};
use crate::{Element, Problem, Result, TensorLayout};
use scratch::Scratch;
use task::Task;

/// Rows of a task: they share each pass over the others, which are widened to fp32 once for all.
const OWNED: usize = 64;

/// Rows of the others at a time: their scores, for as many lanes as a panel has, stay in L1.
const STEP: usize = 48;

/// dQ, dK and dV, in fp32 arithmetic whatever the storage type, on the threads of the current rayon pool.
///
/// # Errors
/// When a buffer is too short or of another type than the problem, and when the scratch memory, two numbers
/// for each row and a few tiles per thread, cannot be had.
pub fn backward<T: Element>(
    problem: &BackwardProblem,
    inputs: &BackwardInputs<'_, T>,
    outputs: &mut BackwardOutputs<'_, T>,
) -> Result<Stats> {
    problem.check(inputs, outputs)?;
    let isa = Isa::widest_vectors();
    let kernels = isa.kernels();
    let forward = problem.forward();
    let rows = forward.lse_len();
    let mut stats = Buffer::new("lse and delta", 2 * rows as u128)?;
    row_stats(problem, inputs, stats.as_mut_ptr());
    if let Some(dsinks) = outputs.dsinks.as_deref_mut() {
        // SAFETY: `row_stats` has written both parts, of `rows` elements each.
        let deltas = unsafe { std::slice::from_raw_parts(stats.as_mut_ptr().add(rows), rows) };
        sink_gradients(forward, inputs, deltas, &mut dsinks[..problem.sinks()?]);
    }
    let owned = OWNED.next_multiple_of(kernels.panel.width);
    let scratch = Scratch::new(forward, owned, kernels.panel);
    let tasks = Tasks::new(forward, owned);
    let threads = Machine::here(kernels.panel).threads.min(tasks.len());
    let mut memory =
        Buffer::new("the scratch memory of all threads", scratch.total as u128 * threads as u128)?;
    let shifts = stats.as_mut_ptr().cast_const();
    let call = Call {
        problem,
        keys: Pair { first: Source::new(inputs.k), second: Source::new(inputs.v) },
        queries: Pair { first: Source::new(inputs.q), second: Source::new(inputs.dout) },
        dq: Outputs::new(outputs.dq, None),
        dk: Outputs::new(outputs.dk, None),
        dv: Outputs::new(outputs.dv, None),
        // SAFETY: the buffer has two parts of `rows` elements.
        stats: RowStats { shift: shifts, delta: unsafe { shifts.add(rows) } },
        kernels,
        scratch,
    };
    schedule::run(tasks.len(), threads, &mut memory, scratch.total, |index, memory| {
        let call = &call;
        if let Some(owned) = tasks.get(index, forward) {
            // SAFETY: the instruction set is available; the memory is this thread's own, and holds
            // `scratch.total` elements; tasks share no rows of a gradient.
            unsafe { Task { call, owned, memory }.run() }
        }
    });
    let reason = "the rows of a task, and of a step over the others".to_owned();
    let tile = TileChoice { block_m: owned, block_n: STEP, reason };
    Ok(Stats { extra_bytes: memory.bytes() + stats.bytes(), tile, threads, isa })
}

/// Writes what each row's P and dS need beside products: lse in units of log2, +∞ where the row sees no key
/// and all P are 0, and behind all of these delta = rowsum(dO ∘ O) − dlse.
fn row_stats<T: Element>(problem: &BackwardProblem, inputs: &BackwardInputs<'_, T>, to: *mut f32) {
    let forward = problem.forward();
    let rows = forward.lse_len();
    // SAFETY: the caller's buffer has twice as many elements, and nobody else has its address yet; it holds
    // nothing that must not be overwritten, and every bit pattern is a number.
    let (shifts, deltas) = unsafe {
        to.write_bytes(0, 2 * rows);
        std::slice::from_raw_parts_mut(to, 2 * rows).split_at_mut(rows)
    };
    shifts.par_iter_mut().zip(inputs.lse).for_each(|(shift, &lse)| {
        *shift = if lse == f32::NEG_INFINITY { f32::INFINITY } else { lse * LOG2_E };
    });
    let (o, dout) = (&forward.tensors().o, &problem.layouts().dout);
    // Rows of one sequence axis, as lse has them: of a packed batch all sequences' together.
    deltas.par_chunks_mut(o.seqlen).enumerate().for_each(|(index, deltas)| {
        let (batch, head) = (index / o.heads, index % o.heads);
        for (row, delta) in deltas.iter_mut().enumerate() {
            let of = |layout: &TensorLayout| layout.row(batch, row, head)..;
            let pairs = inputs.o[of(o)].iter().zip(&inputs.dout[of(dout)]).take(o.head_dim);
            *delta = pairs.map(|(o, dout)| o.to_f32() * dout.to_f32()).sum();
        }
    });
    let Some(dlse) = inputs.dlse else { return };
    for (batch, head) in (0..forward.batch()).flat_map(|it| (0..o.heads).map(move |head| (it, head))) {
        for row in 0..forward.query_rows(batch).len() {
            // dlse of a row that sees no key may be NaN, and 0 · NaN is NaN.
            if !forward.visible_keys(batch, row).is_empty() {
                let at = forward.lse_index(batch, head, row);
                deltas[at] -= dlse[at];
            }
        }
    }
}

/// dsink = −Σ exp(sink − lse)·delta over the rows of each sink, in f64 and in their order.
fn sink_gradients<T: Element>(
    problem: &Problem,
    inputs: &BackwardInputs<'_, T>,
    deltas: &[f32],
    dsinks: &mut [f32],
) {
    let heads = problem.heads();
    let sequences = if dsinks.len() > heads { 1 } else { problem.batch() };
    dsinks.par_iter_mut().enumerate().for_each(|(index, dsink)| {
        let (first, head) = (index / heads, index % heads);
        let sink = problem.scores().sink(first, head);
        let mut sum = 0.0;
        for batch in first..first + sequences {
            for row in 0..problem.query_rows(batch).len() {
                let at = problem.lse_index(batch, head, row);
                let sees = !problem.visible_keys(batch, row).is_empty();
                let slope = if sees { -deltas[at] } else { inputs.dlse.map_or(0.0, |dlse| dlse[at]) };
                sum += f64::from((sink - inputs.lse[at]).exp()) * f64::from(slope);
            }
        }
        *dsink = sum as f32;
    });
}

/// What all tasks of a call share.
struct Call<'a> {
    problem: &'a BackwardProblem,
    /// K and V.
    keys: Pair<'a>,
    /// Q and dO.
    queries: Pair<'a>,
    dq: Outputs,
    dk: Outputs,
    dv: Outputs,
    /// Of all rows, in the order of lse.
    stats: RowStats,
    kernels: Kernels,
    scratch: Scratch,
}

// SAFETY: the pointers are to memory that outlives the call, which tasks only read; the outputs say for
// themselves.
unsafe impl Sync for Call<'_> {}

/// Two tensors with the same rows: the first is multiplied to scores, the second to dO·Vᵀ.
#[derive(Clone, Copy)]
struct Pair<'a> {
    first: Source<'a>,
    second: Source<'a>,
}

/// Rows that a task owns.
#[derive(Clone, Debug)]
struct Owned {
    batch: usize,
    kv_head: usize,
    kind: Kind,
    rows: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Keys,
    /// Of one query head.
    Queries(usize),
}

/// The tasks of a call: those of keys first, which take the longest.
#[derive(Clone, Copy)]
struct Tasks {
    owned: usize,
    key_blocks: usize,
    query_blocks: usize,
    of_keys: usize,
    of_queries: usize,
}

impl Tasks {
    fn new(problem: &Problem, owned: usize) -> Self {
        let (key_blocks, query_blocks) =
            (problem.seqlen_k().div_ceil(owned), problem.seqlen_q().div_ceil(owned));
        let of_keys = problem.batch() * problem.kv_heads() * key_blocks;
        let of_queries = problem.batch() * problem.heads() * query_blocks;
        Self { owned, key_blocks, query_blocks, of_keys, of_queries }
    }

    const fn len(&self) -> usize {
        self.of_keys + self.of_queries
    }

    /// The task at `index`, if its sequence has such rows. Under a causal mask the first keys are seen by the
    /// most queries, and the last queries see the most keys.
    fn get(&self, index: usize, problem: &Problem) -> Option<Owned> {
        let of_head = |index: usize, heads: usize| (index / heads, index % heads);
        let (batch, kv_head, kind, block, rows) = if index < self.of_keys {
            let (batch, kv_head) = of_head(index / self.key_blocks, problem.kv_heads());
            (batch, kv_head, Kind::Keys, index % self.key_blocks, problem.key_rows(batch).len())
        } else {
            let index = index - self.of_keys;
            let (batch, head) = of_head(index / self.query_blocks, problem.heads());
            let block = self.query_blocks - 1 - index % self.query_blocks;
            (batch, head / problem.group(), Kind::Queries(head), block, problem.query_rows(batch).len())
        };
        let rows = block * self.owned..rows.min((block + 1) * self.owned);
        (rows.start < rows.end).then_some(Owned { batch, kv_head, kind, rows })
    }
}
