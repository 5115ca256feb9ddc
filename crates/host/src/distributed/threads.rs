//! Ranks as threads of one process, over host memory: what schedules and their order are tested with.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

#[cfg(feature = "sim")]
use super::decode::{DecodeShard, SharedPlan, merging, of_splits};
use super::{Attend, Differentiate, Gather, Gathered, Place, Requests, Schedule, Work};
use crate::append::{AppendInputs, AppendOutputs};
use crate::backward::{BackwardInputs, BackwardOutputs, BackwardPart, BackwardPlan};
#[cfg(feature = "sim")]
use crate::decode::{DecodeInputs, DecodePlan, DecodeRequest};
use crate::forward::Outputs;
use crate::operation::bytes_mut;
#[cfg(feature = "sim")]
use crate::sim::Sim;
use crate::{Backend, Element, Error, Plan, Result};

/// A piece of a gathered tensor on its way: which gather of the schedule, whose, and its bytes.
struct Piece {
    gather: (usize, usize),
    rank: usize,
    bytes: Vec<u8>,
}

/// What a rank has of the others: where it sends pieces, and those that came before it asked for them.
pub struct Peers {
    rank: usize,
    senders: Vec<Sender<Piece>>,
    receiver: Receiver<Piece>,
    early: HashMap<(usize, usize), Vec<Piece>>,
}

impl Peers {
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

    /// Gathers in place: the gather of this index, of pieces whose bytes lie where `piece_of` says.
    ///
    /// # Errors
    /// When another rank has gone.
    fn all_gather(
        &mut self,
        at: (usize, usize),
        piece_of: impl Fn(usize) -> Range<usize>,
        into: &mut [u8],
    ) -> Result<()> {
        let own = into[piece_of(self.rank)].to_vec();
        for (rank, sender) in self.senders.iter().enumerate() {
            if rank != self.rank {
                let piece = Piece { gather: at, rank: self.rank, bytes: own.clone() };
                sender.send(piece).map_err(|_| lost(rank))?;
            }
        }
        let mut missing = self.senders.len() - 1;
        let mut take = |piece: Piece| into[piece_of(piece.rank)].copy_from_slice(&piece.bytes);
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

/// What a rank has gathered: K, V, Q and dO, and lse and delta.
struct Memory<T> {
    rows: [Vec<T>; 4],
    stats: [Vec<f32>; 2],
}

impl<T: Element> Memory<T> {
    /// Of a schedule, filled with NaN.
    fn new(schedule: &Schedule) -> Self {
        let [k, v, q, dout, lse, delta] = schedule.gathered;
        let stats = [lse, delta].map(|len| vec![f32::NAN; len]);
        Self { rows: [k, v, q, dout].map(|len| vec![T::from_f32(f32::NAN); len]), stats }
    }

    /// A tensor's bytes, and those of an element.
    fn bytes(&mut self, tensor: Gathered) -> (&mut [u8], usize) {
        match tensor.index().checked_sub(Gathered::Lse.index()) {
            Some(index) => (bytes_mut(&mut self.stats[index]), size_of::<f32>()),
            None => (bytes_mut(&mut self.rows[tensor.index()]), size_of::<T>()),
        }
    }

    /// Takes a gather's pieces of all ranks.
    fn gather(&mut self, peers: &mut Peers, at: (usize, usize), gather: &Gather) -> Result<()> {
        let (world, (into, element)) = (peers.senders.len(), self.bytes(gather.tensor));
        let piece_of = |rank| {
            let piece = gather.piece_of(rank, world);
            piece.start * element..piece.end * element
        };
        peers.all_gather(at, piece_of, into)
    }
}

/// Appends a rank's rows of two tensors to gathered ones.
fn append<T: Element>(
    backend: &Backend,
    place: &Place,
    [k, v]: [&[T]; 2],
    [k_cache, v_cache]: [&mut Vec<T>; 2],
) -> Result<()> {
    let plan = backend.plan(&place.problem, &())?;
    let before = [place.before as i32];
    let [from_k, from_v] = place.from;
    let inputs = AppendInputs { seqused_k: &before, ..AppendInputs::new(&k[from_k..], &v[from_v..]) };
    let [to_k, to_v] = place.to;
    let (k_cache, v_cache) = (&mut k_cache[to_k..], &mut v_cache[to_v..]);
    backend.run(&plan, inputs, AppendOutputs { k_cache, v_cache, q: &mut [] })
}

/// Computes a rank's O and lse by its schedule, on a backend that reads host memory, in the tiles that
/// `whole` has: a plan for the whole problem.
///
/// # Errors
/// As [`Backend::run`], and when another rank has gone.
pub fn forward<T: Element>(
    schedule: &Schedule,
    (backend, whole): (&Backend, &Plan),
    peers: &mut Peers,
    (q, k, v): (&[T], &[T], &[T]),
    Outputs { o, mut lse }: Outputs<'_, T>,
) -> Result<()> {
    let requests = Requests::of_forward(whole);
    let mut gathered = Memory::<T>::new(schedule);
    for step in &schedule.steps {
        match &step.work {
            Work::Place(place) => {
                let [k_cache, v_cache, ..] = &mut gathered.rows;
                append(backend, place, [k, v], [k_cache, v_cache])?;
            }
            Work::Gather { stage, gathers } => {
                for (index, gather) in gathers.iter().enumerate() {
                    gathered.gather(peers, (*stage, index), gather)?;
                }
            }
            Work::Own(problem) => {
                let plan = backend.plan(&**problem, requests.attend())?;
                let lse = lse.as_deref_mut();
                backend.run(&plan, (q, k, v), Outputs { o: &mut *o, lse })?;
            }
            Work::Attend(attend) => {
                let Attend {
                    problem, q: first_q, k: first_k, v: first_v, o: first_o, lse: first_lse, ..
                } = &**attend;
                let plan = backend.plan(problem, requests.attend())?;
                let [k, v, ..] = &gathered.rows;
                let inputs = (&q[*first_q..], &k[*first_k..], &v[*first_v..]);
                let lse = lse.as_deref_mut().map(|lse| &mut lse[*first_lse..]);
                backend.run(&plan, inputs, Outputs { o: &mut o[*first_o..], lse })?;
            }
            Work::Differentiate(_) => return Err(other_pass()),
        }
    }
    Ok(())
}

/// Computes a rank's gradients by its schedule, as [`forward`] its outputs.
///
/// # Errors
/// As [`forward`].
pub fn backward<T: Element>(
    schedule: &Schedule,
    (backend, whole): (&Backend, &BackwardPlan),
    peers: &mut Peers,
    inputs: BackwardInputs<'_, T>,
    outputs: BackwardOutputs<'_, T>,
) -> Result<()> {
    let requests = Requests::of_backward(whole);
    let BackwardInputs { q, k, v, o, lse, dout, .. } = inputs;
    let BackwardOutputs { dq, dk, dv, .. } = outputs;
    let mut delta = vec![f32::NAN; lse.len()];
    let mut gathered = Memory::<T>::new(schedule);
    for step in &schedule.steps {
        match &step.work {
            Work::Place(place) => {
                let Memory { rows: [k_rows, v_rows, q_rows, dout_rows], stats: [lse_rows, delta_rows] } =
                    &mut gathered;
                match place.tensors[0] {
                    Gathered::K => append(backend, place, [k, v], [k_rows, v_rows])?,
                    Gathered::Q => append(backend, place, [q, dout], [q_rows, dout_rows])?,
                    _ => append(backend, place, [lse, &delta], [lse_rows, delta_rows])?,
                }
            }
            Work::Gather { stage, gathers } => {
                for (index, gather) in gathers.iter().enumerate() {
                    gathered.gather(peers, (*stage, index), gather)?;
                }
            }
            Work::Differentiate(part) => {
                let plan = backend.plan(&part.problem, &requests.differentiate(&part.problem))?;
                let Differentiate { q: at_q, k: at_k, v: at_v, o: at_o, lse: at_lse, .. } = **part;
                let nothing = BackwardInputs {
                    q: &[],
                    k: &[],
                    v: &[],
                    o: &[],
                    lse: &[],
                    dout: &[],
                    dlse: None,
                    delta: None,
                };
                let no_outputs =
                    BackwardOutputs { dq: &mut [], dk: &mut [], dv: &mut [], dsinks: None, delta: None };
                let Memory { rows: [all_k, all_v, all_q, all_dout], stats: [all_lse, all_delta] } = &gathered;
                match part.problem.computes() {
                    BackwardPart::Keys => {
                        let inputs = BackwardInputs {
                            q: &all_q[at_q..],
                            k: &k[at_k..],
                            v: &v[at_v..],
                            dout: &all_dout[at_o..],
                            lse: &all_lse[at_lse..],
                            delta: Some(&all_delta[at_lse..]),
                            ..nothing
                        };
                        let (dk, dv) = (&mut dk[at_k..], &mut dv[at_v..]);
                        backend.run(&plan, inputs, BackwardOutputs { dk, dv, ..no_outputs })?;
                    }
                    BackwardPart::Delta => {
                        let inputs = BackwardInputs { o: &o[at_o..], dout: &dout[at_o..], ..nothing };
                        let delta = Some(&mut delta[at_lse..]);
                        backend.run(&plan, inputs, BackwardOutputs { delta, ..no_outputs })?;
                    }
                    BackwardPart::Queries | BackwardPart::All => {
                        let inputs = BackwardInputs {
                            q: &q[at_q..],
                            k: &all_k[at_k..],
                            v: &all_v[at_v..],
                            dout: &dout[at_o..],
                            lse: &lse[at_lse..],
                            delta: Some(&delta[at_lse..]),
                            ..nothing
                        };
                        let dq = &mut dq[at_q..];
                        backend.run(&plan, inputs, BackwardOutputs { dq, ..no_outputs })?;
                    }
                }
            }
            Work::Attend(_) | Work::Own(_) => return Err(other_pass()),
        }
    }
    Ok(())
}

fn other_pass() -> Error {
    Error::Context { reason: "the schedule is of another pass".to_owned() }
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
    peers: &mut Peers,
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
        peers.all_gather((0, index), |rank| partials.piece_of(rank), bytes_mut(workspace))?;
    }
    sim.run_some(&plan, merging, (inputs, &mut outputs), workspace)?;
    Ok(plan)
}

/// Runs `rank` once for each rank, each in a thread of its own, and returns what they return, in their order.
pub fn in_threads<R: Send>(world: usize, rank: impl Fn(Peers) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let ranks: Vec<_> = Peers::new(world).into_iter().map(|peers| scope.spawn(|| rank(peers))).collect();
        let joined = ranks.into_iter().map(|rank| rank.join());
        joined.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}
