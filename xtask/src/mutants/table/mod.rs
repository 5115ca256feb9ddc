//! The defects, as data.
//!
//! A defect is one that somebody could make: each was chosen because it changes what a kernel or the planner
//! does, and none because a check of ours is known to find it. Those of `history` were made once, and found
//! from outside.

mod attention;
mod backward;
mod decode;
mod decode_sm90;
mod distributed;
mod gemm;
mod history;
mod hopper;
mod planner;

/// A change of a file that a careless author could make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defect {
    pub(super) name: &'static str,
    /// In words, for the table.
    pub(super) what: &'static str,
    pub(super) edit: Edit,
    /// What else changes with it.
    pub(super) also: &'static [Edit],
}

/// A text, and what stands in its place where the defect is chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edit {
    pub(super) place: Place,
    /// Rust that fits where the text stands; nothing for a statement that is left out.
    pub(super) replacement: &'static str,
}

impl Family {
    /// The operation of `fa-bench fuzz` that its entries are for.
    pub(super) fn operation(&self) -> &'static str {
        let is_of = |name: &&str| self.file.contains(*name) || self.entries.contains(*name);
        ["backward", "decode", "gemm"].into_iter().find(is_of).unwrap_or("forward")
    }
}

impl Defect {
    /// All that changes with it.
    pub(super) fn edits(&self) -> impl Iterator<Item = &Edit> {
        std::iter::once(&self.edit).chain(self.also)
    }
}

/// Which text an edit replaces: a statement if it ends in `;`, else an expression.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// One that its file has once.
    Only(&'static str),
    /// The n-th of several, from 1.
    Nth(usize, &'static str),
}

/// Defects of a file.
#[derive(Debug)]
pub(super) struct Family {
    /// Its path in the workspace.
    pub(super) file: &'static str,
    /// A part of the names of the entries that have the defects.
    pub(super) entries: &'static str,
    /// The tests of `flash-attention` that are most likely to find them: they are asked before the others.
    pub(super) tests: &'static [&'static str],
    pub(super) defects: &'static [Defect],
}

/// All of them.
const FAMILIES: [&[Family]; 9] = [
    history::FAMILIES,
    attention::FAMILIES,
    hopper::FAMILIES,
    decode::FAMILIES,
    decode_sm90::FAMILIES,
    backward::FAMILIES,
    gemm::FAMILIES,
    planner::FAMILIES,
    distributed::FAMILIES,
];

/// All defects with the numbers that switch them on.
pub(super) fn numbered() -> impl Iterator<Item = (&'static Family, usize, &'static Defect)> {
    let all =
        FAMILIES.into_iter().flatten().flat_map(|family| family.defects.iter().map(move |it| (family, it)));
    all.enumerate().map(|(index, (family, defect))| (family, index + 1, defect))
}

/// An edit of a text that stands once.
const fn only(original: &'static str, replacement: &'static str) -> Edit {
    Edit { place: Place::Only(original), replacement }
}

/// A defect of a text that stands once.
const fn defect(
    name: &'static str,
    what: &'static str,
    original: &'static str,
    replacement: &'static str,
) -> Defect {
    Defect { name, what, edit: only(original, replacement), also: &[] }
}

/// A defect of the n-th such text.
const fn nth(
    name: &'static str,
    what: &'static str,
    n: usize,
    original: &'static str,
    replacement: &'static str,
) -> Defect {
    Defect { name, what, edit: Edit { place: Place::Nth(n, original), replacement }, also: &[] }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;

    use super::*;
    use crate::mutants::weave::weave;

    #[test]
    fn every_defect_fits_the_sources_as_they_are() {
        let mut files: BTreeMap<&str, Vec<(usize, &Defect)>> = BTreeMap::new();
        for (family, number, defect) in numbered() {
            files.entry(family.file).or_default().push((number, defect));
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for (file, defects) in files {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            let woven = weave(&text, &defects).unwrap();
            assert_ne!(woven, text, "{file}");
            if let Err(error) = syn::parse_file(&woven) {
                panic!("{file}, with defects woven in: {error}");
            }
        }
    }

    /// What a switched statement binds is not there behind it.
    #[test]
    fn no_defect_is_a_binding() {
        for (.., defect) in numbered() {
            let (Place::Only(text) | Place::Nth(_, text)) = defect.edit.place;
            assert!(!text.starts_with("let "), "{}: {text}", defect.name);
        }
    }

    #[test]
    fn there_are_enough_and_each_has_a_name() {
        let names: BTreeSet<_> = numbered().map(|(.., defect)| defect.name).collect();
        assert_eq!(names.len(), numbered().count());
        assert!(names.len() >= 30);
    }
}
