//! Attention over several GPUs that hold a part of each sequence (context parallelism), with the bits of one.
//!
//! Each rank has two chunks of each sequence's rows of Q, K, V and O ([`Partition`]). Keys and values are
//! gathered, some heads at a time, while those gathered before are attended to; nothing that was computed is
//! ever merged. So each query meets the same keys in the same order as on one GPU. A backward pass gathers
//! queries too, for each rank's keys. Packed sequences that are short are one rank's as they are.
//!
//! ```text
//!            rank 0        rank 1
//! rows       0 and 3       1 and 2        of four chunks of a sequence, in a zigzag
//! copies     gather(0)     gather(0)      K and V of the first heads, to all ranks
//!            gather(1)     gather(1)      while ...
//! attention  chunks 0, 3   chunks 1, 2    ... those heads' queries meet keys up to their own
//! ```
//!
//! A [`Shard`] is a rank's part of a problem, and a [`Schedule`] its work, as data. Decoding is bound by the
//! bytes of keys and values instead: they stay where they are, and results of splits are gathered and merged
//! ([`DecodeShard`]).

mod decode;
mod frame;
mod group;
mod partition;
#[cfg(any(feature = "cuda", feature = "testing"))]
mod requests;
mod schedule;
mod shard;
#[cfg(feature = "testing")]
pub mod threads;
mod world;

pub use decode::DecodeShard;
pub use group::{Fingerprint, Group, PeerCause};
pub use partition::{Cut, Half, Partition};
pub use schedule::{
    Attend, Differentiate, Gather, Gathered, Place, Schedule, Stage, StageHeads, Step, Stream, Work,
};
pub use shard::{Run, Shard, request_of_one};
pub use world::World;

#[cfg(feature = "cuda")]
pub use crate::cuda::ranks::{
    Distributed, LocalDecode, LocalRanks, RankDecode, RankPlan, ShardAddresses, Sharded, Transport,
};
#[cfg(feature = "cuda")]
pub(crate) use decode::{SharedPlan, merging, of_splits};
#[cfg(any(feature = "cuda", feature = "testing"))]
pub(crate) use requests::Requests;

use crate::{Error, Result};

/// An error with this reason.
fn refuse<T>(reason: String) -> Result<T> {
    Err(Error::Context { reason })
}
