//! What a block is made of.

pub(crate) mod sites;
