//! How a problem ends.

use std::fmt;

use flash_attention::Error;

/// Why a problem did not come to its end, or not to a right one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The library takes no such problem, and says why.
    Refused(String),
    /// It was planned; running it would take more memory or time than a problem may.
    Large,
    Failed(Failure),
}

/// What speaks against the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    what: String,
}

/// Failures that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The library panicked.
    Panicked,
    /// It refused a problem in something else than one line, or one that it had planned.
    Refusal,
    /// Something was written that is no output.
    Overwritten,
    /// An input changed.
    InputChanged,
    /// An element of an output was not written, or is NaN.
    Unwritten,
    /// An element is further from the reference than its bound.
    Inexact,
    /// The simulator or the driver stopped a kernel.
    Fault,
    /// A kernel did not end.
    Endless,
}

impl Failure {
    pub(super) fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into() }
    }
}

impl fmt::Display for Failure {
    /// One line, also where a simulator's report has several.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.what.lines().map(str::trim).filter(|line| !line.is_empty());
        f.write_str(&lines.collect::<Vec<_>>().join(" | "))
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Error> for Stop {
    /// What a problem or its plan was refused with. Use [`ran`] for what stopped a run.
    fn from(error: Error) -> Self {
        let text = error.to_string();
        if text.is_empty() || text.contains('\n') {
            return Failure::new(Kind::Refusal, format!("refused in other than one line: {text}")).into();
        }
        Self::Refused(text)
    }
}

/// A run of what was planned: nothing may stop it.
pub(super) fn ran<T>(result: flash_attention::Result<T>) -> Result<T, Failure> {
    result.map_err(|error| {
        let kind = if error.is_usage() { Kind::Refusal } else { Kind::Fault };
        let what = if error.is_usage() { "planned, and refused as it ran: " } else { "" };
        Failure::new(kind, format!("{what}{error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_one_line_and_failures_shown_as_one() {
        let refused = Stop::from(Error::Softcap { value: -1.0, least: f32::MIN_POSITIVE, limit: 1e30 });
        assert_eq!(
            refused,
            Stop::Refused("softcap is -1.0; 0 (off) or 1.1754944e-38 to 1e30 is needed".to_owned())
        );
        let jit = || Error::Jit { entry: "e".into(), name: "n".into(), log: "line\n  other".into() };
        assert!(matches!(Stop::from(jit()), Stop::Failed(Failure { kind: Kind::Refusal, .. })));
        let failure = ran::<()>(Err(jit())).unwrap_err();
        assert_eq!(failure.kind, Kind::Fault);
        assert_eq!(failure.to_string(), "the driver could not compile e: n | line | other");
    }
}
