//! Ranks as threads of one process, over host memory: what schedules and their order are tested with.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

#[cfg(feature = "sim")]
use super::decode::{DecodeShard, SharedPlan, merging, of_splits};
use super::{Attend, Schedule, Work, request_of_one};
use crate::append::{AppendInputs, AppendOutputs};
#[cfg(feature = "sim")]
use crate::decode::{DecodeInputs, DecodePlan, DecodeRequest};
use crate::forward::Outputs;
#[cfg(feature = "sim")]
use crate::sim::Sim;
use crate::{Backend, Element, Error, Plan, Request, Result};

/// A piece of a gathered tensor on its way: which gather of the schedule, whose, and its elements.
struct Piece<T> {
    gather: (usize, usize),
    rank: usize,
    elements: Vec<T>,
}

/// What a rank has of the others: where it sends pieces, and those that came before it asked for them.
pub struct Peers<T> {
    rank: usize,
    senders: Vec<Sender<Piece<T>>>,
    receiver: Receiver<Piece<T>>,
    early: HashMap<(usize, usize), Vec<Piece<T>>>,
}

impl<T: Element> Peers<T> {
    /// Those of each of so many ranks.
    pub fn new(world: usize) -> Vec<Self> {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..world).map(|_| channel()).unzip();
        let of_rank =
            |(rank, receiver)| Self { rank, senders: senders.clone(), receiver, early: HashMap::new() };
        receivers.into_iter().enumerate().map(of_rank).collect()
    }

    /// Index of the rank.
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Gathers in place: the gather of this index, of pieces that lie where `piece_of` says.
    ///
    /// # Errors
    /// When another rank has gone.
    fn all_gather(
        &mut self,
        at: (usize, usize),
        piece_of: impl Fn(usize) -> Range<usize>,
        into: &mut [T],
    ) -> Result<()> {
        let world = self.senders.len();
        let own = into[piece_of(self.rank)].to_vec();
        for (rank, sender) in self.senders.iter().enumerate() {
            if rank != self.rank {
                let piece = Piece { gather: at, rank: self.rank, elements: own.clone() };
                sender.send(piece).map_err(|_| lost(rank))?;
            }
        }
        let mut missing = world - 1;
        let mut take = |piece: Piece<T>| {
            into[piece_of(piece.rank)].copy_from_slice(&piece.elements);
        };
        for piece in self.early.remove(&at).unwrap_or_default() {
            take(piece);
            missing -= 1;
        }
        while missing > 0 {
            let piece = self.receiver.recv().map_err(|_| lost(self.rank))?;
            if piece.gather == at {
                take(piece);
                missing -= 1;
            } else {
                self.early.entry(piece.gather).or_default().push(piece);
            }
        }
        Ok(())
    }
}

fn lost(rank: usize) -> Error {
    Error::Context { reason: format!("rank {rank} is gone") }
}

/// Computes a rank's O and lse by its schedule, on a backend that reads host memory, in the tiles that
/// `whole` has: a plan for the whole problem.
///
/// # Errors
/// As [`Backend::run`], and when another rank has gone.
pub fn forward<T: Element>(
    schedule: &Schedule,
    (backend, whole): (&Backend, &Plan),
    peers: &mut Peers<T>,
    (q, k, v): (&[T], &[T], &[T]),
    Outputs { o, mut lse }: Outputs<'_, T>,
) -> Result<()> {
    let (block_m, block_n) = whole.tile().unzip();
    let tile = Request { kernel: Some(whole.kernel()), block_m, block_n, ..Request::default() };
    let request = request_of_one(whole.problem(), &tile);
    let mut gathered = schedule.gathered.map(|len| vec![T::from_f32(f32::NAN); len]);
    for step in &schedule.steps {
        match &step.work {
            Work::Place(place) => {
                let plan = backend.plan(&place.problem, &())?;
                let before = [place.before as i32];
                let inputs =
                    AppendInputs { seqused_k: &before, ..AppendInputs::new(&k[place.k..], &v[place.v..]) };
                let [k_cache, v_cache] = &mut gathered;
                let (k_cache, v_cache) = (&mut k_cache[place.k_cache..], &mut v_cache[place.v_cache..]);
                backend.run(&plan, inputs, AppendOutputs { k_cache, v_cache, q: &mut [] })?;
            }
            Work::Gather { stage, gathers } => {
                for (index, gather) in gathers.iter().enumerate() {
                    let (world, into) = (peers.senders.len(), &mut gathered[gather.tensor.index()]);
                    peers.all_gather((*stage, index), |rank| gather.piece_of(rank, world), into)?;
                }
            }
            Work::Own(problem) => {
                let plan = backend.plan(&**problem, &request)?;
                let lse = lse.as_deref_mut();
                backend.run(&plan, (q, k, v), Outputs { o: &mut *o, lse })?;
            }
            Work::Attend(attend) => {
                let Attend {
                    problem, q: first_q, k: first_k, v: first_v, o: first_o, lse: first_lse, ..
                } = &**attend;
                let plan = backend.plan(problem, &request)?;
                let inputs = (&q[*first_q..], &gathered[0][*first_k..], &gathered[1][*first_v..]);
                let lse = lse.as_deref_mut().map(|lse| &mut lse[*first_lse..]);
                backend.run(&plan, inputs, Outputs { o: &mut o[*first_o..], lse })?;
            }
        }
    }
    Ok(())
}

/// Decodes a rank's part in the simulator, and gives the plan that it ran. Pieces of what splits give are
/// fp32.
///
/// # Errors
/// As [`Plan::new`] and [`Sim::run`], and when another rank has gone.
#[cfg(feature = "sim")]
pub fn decode<T: Element>(
    shard: &DecodeShard,
    (sim, request): (&Sim, &DecodeRequest),
    peers: &mut Peers<f32>,
    inputs: DecodeInputs<'_, T>,
    mut outputs: Outputs<'_, T>,
) -> Result<DecodePlan> {
    let SharedPlan { plan, partials } = SharedPlan::new(shard, sim.device(), request)?;
    let len = plan.workspace_bytes() as usize / size_of::<f32>();
    // Kernels load 16 bytes at a time; what is read before it is written shows as NaN.
    let mut memory = vec![f32::NAN; len + 3];
    let first = memory.as_ptr().align_offset(16);
    let workspace = &mut memory[first..first + len];
    sim.run_some(&plan, of_splits, (inputs, &mut outputs), workspace)?;
    for (index, partials) in partials.iter().enumerate() {
        let piece_of = |rank| {
            let bytes = partials.piece_of(rank);
            bytes.start / size_of::<f32>()..bytes.end / size_of::<f32>()
        };
        peers.all_gather((0, index), piece_of, workspace)?;
    }
    sim.run_some(&plan, merging, (inputs, &mut outputs), workspace)?;
    Ok(plan)
}

/// Runs `rank` once for each rank, each in a thread of its own, and returns what they return, in their order.
pub fn in_threads<T: Element, R: Send>(world: usize, rank: impl Fn(Peers<T>) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let ranks: Vec<_> = Peers::new(world).into_iter().map(|peers| scope.spawn(|| rank(peers))).collect();
        let joined = ranks.into_iter().map(|rank| rank.join());
        joined.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}
