//! What a block consists of: values that know nothing of the block, nor of each other but what they hold.
//!
//! Their methods take what they need and return what is wrong as values, which the block makes errors of.

pub(crate) mod accumulators;
pub(crate) mod barriers;
pub(crate) mod cluster;
pub(crate) mod copies;
pub(crate) mod global;
pub(crate) mod mbarriers;
pub(crate) mod registers;
pub(crate) mod shared;
pub(crate) mod sites;
pub(crate) mod transfers;
pub(crate) mod warp;
pub(crate) mod warpgroup;
