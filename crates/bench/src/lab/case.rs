//! What is compared with what.

use flash_attention::{Error, Plan, Problem};

use crate::problem::Layout;

/// What is the same for all that is compared.
pub(crate) struct Case<P> {
    pub(crate) name: String,
    /// Where it stands on the document's axis.
    pub(crate) x: Option<f64>,
    pub(crate) problem: P,
}

impl<P> Case<P> {
    /// As in `S=1024`, at 1024.
    pub(crate) fn at(letter: &str, value: usize, problem: P) -> Self {
        Self { name: format!("{letter}={value}"), x: Some(value as f64), problem }
    }

    /// A case that is on no axis.
    pub(crate) fn named(name: impl Into<String>, problem: P) -> Self {
        Self { name: name.into(), x: None, problem }
    }
}

/// A kernel of the library's, or why it has no plan.
pub(crate) struct Contender<P> {
    pub(crate) series: String,
    pub(crate) plan: Result<P, Error>,
}

/// A case with what runs in it.
pub(crate) struct Group<'a> {
    pub(crate) case: &'a Case<Problem>,
    pub(crate) layout: Layout,
    pub(crate) contenders: Vec<Contender<Plan>>,
}
