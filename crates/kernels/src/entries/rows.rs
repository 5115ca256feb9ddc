//! The rows of the lists, as the host sees them.

extern crate std;

use std::string::String;
use std::sync::LazyLock;
use std::vec::Vec;

use super::line::Line;
use super::list::{GEMM, LIST};
use super::{Entry, GemmEntry, Run};
use crate::variant::Variant;

/// Everything in the lists, those of attention first.
pub fn variants() -> impl Iterator<Item = Variant> {
    LIST.iter().chain(GEMM).flat_map(Line::variants)
}

/// All entries of attention.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    static ENTRIES: LazyLock<Vec<Entry>> =
        LazyLock::new(|| variants().filter_map(|variant| listed(&variant, Variant::entry)).collect());
    ENTRIES.iter()
}

/// All entries of matrix multiplication.
pub fn gemm_entries() -> impl Iterator<Item = &'static GemmEntry> {
    static ENTRIES: LazyLock<Vec<GemmEntry>> =
        LazyLock::new(|| variants().filter_map(|variant| listed(&variant, Variant::gemm_entry)).collect());
    ENTRIES.iter()
}

/// A variant's row with its native code. Rows live as long as the program, and so do their names.
fn listed<A, T>(
    variant: &Variant,
    row: impl Fn(&Variant, &'static str) -> Option<Entry<A, T>>,
) -> Option<Entry<A, T>> {
    let row = row(variant, String::leak(variant.name()))?;
    Some(Entry { run: native(row.name), ..row })
}

// The unit tests run no kernel, and would compile all of them once more.
#[cfg(all(feature = "sim", not(test)))]
fn native(name: &str) -> Option<Run> {
    let mut all = super::generated::NATIVE.into_iter().flatten();
    all.find(|(entry, _)| *entry == name).map(|(_, run)| *run)
}

#[cfg(not(all(feature = "sim", not(test))))]
fn native(_: &str) -> Option<Run> {
    None
}
