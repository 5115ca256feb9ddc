//! Ranks as threads of one process, over host memory: what schedules and their order are tested with.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::{Attend, Gather, Schedule, Work, request_of_one};
use crate::append::{AppendInputs, AppendOutputs};
use crate::forward::Outputs;
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

    /// Gathers in place; the schedule's gather of this index.
    ///
    /// # Errors
    /// When another rank has gone.
    fn all_gather(&mut self, at: (usize, usize), gather: &Gather, into: &mut [T]) -> Result<()> {
        let world = self.senders.len();
        let own = into[gather.piece_of(self.rank, world)].to_vec();
        for (rank, sender) in self.senders.iter().enumerate() {
            if rank != self.rank {
                let piece = Piece { gather: at, rank: self.rank, elements: own.clone() };
                sender.send(piece).map_err(|_| lost(rank))?;
            }
        }
        let mut missing = world - 1;
        let mut take = |piece: Piece<T>| {
            into[gather.piece_of(piece.rank, world)].copy_from_slice(&piece.elements);
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
                    let into = &mut gathered[gather.tensor.index()];
                    peers.all_gather((*stage, index), gather, into)?;
                }
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

/// Runs `rank` once for each rank, each in a thread of its own, and returns what they return, in their order.
pub fn in_threads<T: Element, R: Send>(world: usize, rank: impl Fn(Peers<T>) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let ranks: Vec<_> = Peers::new(world).into_iter().map(|peers| scope.spawn(|| rank(peers))).collect();
        let joined = ranks.into_iter().map(|rank| rank.join());
        joined.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}
