//! What an experiment needs so that it reads as its recipe: a session, kernels timed in turns, rows and
//! figures that become a table and a document.

mod case;
mod ceilings;
mod clocks;
mod contest;
mod document;
mod peers;
mod race;
mod run;
mod summary;
mod table;
mod timed;
mod turns;

pub use document::{CheckRecord, Document, Figure, ProductRecord, Row, RunRecord, Unit};

pub use crate::record::PeerRecord;
pub(crate) use case::{Case, Contender, Group};
pub(crate) use ceilings::square;
pub(crate) use contest::is_refusal;
pub(crate) use peers::Work;
pub(crate) use race::{Entrant, MANY};
pub(crate) use run::{ITERATIONS, Lab, Recipe, Shared, command, run};
pub(crate) use timed::{Each, Many, Timed};
