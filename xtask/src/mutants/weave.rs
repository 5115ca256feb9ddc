//! Weaving defects into source text: each becomes an arm of an `if` beside what it replaces, chosen when the
//! program runs.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};

use super::table::{Defect, Edit, Place};

/// Weaves all `defects`, each with its number, into `text`.
///
/// A text that ends in `;` is a statement, any other an expression.
///
/// # Errors
/// When what a defect replaces is not there as often as it says, or overlaps what another one replaces.
pub(super) fn weave(text: &str, defects: &[(usize, &Defect)]) -> Result<String> {
    // Several defects may replace the same text: they share its `if`.
    let mut places: BTreeMap<usize, (&str, Vec<Arm<'_>>)> = BTreeMap::new();
    for &(number, defect) in defects {
        let name = defect.name;
        for edit in defect.edits() {
            let (start, original) = find(text, name, edit)?;
            let (there, arms) = places.entry(start).or_insert_with(|| (original, Vec::new()));
            ensure!(*there == original, "defect {name}: it overlaps another one");
            arms.push(Arm { number, name, replacement: edit.replacement });
        }
    }
    let mut woven = String::with_capacity(2 * text.len());
    let mut end = 0;
    for (start, (original, arms)) in places {
        ensure!(start >= end, "defect {}: it overlaps another one", arms[0].name);
        woven += &text[end..start];
        woven += &switch(original, &arms);
        end = start + original.len();
    }
    woven += &text[end..];
    Ok(woven)
}

/// What stands in a text's place where the defect of this number is chosen.
struct Arm<'a> {
    number: usize,
    name: &'a str,
    replacement: &'a str,
}

/// Where what an edit of the defect `name` replaces begins, and what that is.
fn find(text: &str, name: &str, edit: &Edit) -> Result<(usize, &'static str)> {
    let (original, nth) = match edit.place {
        Place::Only(original) => (original, None),
        Place::Nth(nth, original) => (original, Some(nth)),
    };
    let found: Vec<_> = text.match_indices(original).map(|(start, _)| start).collect();
    match (nth, &found[..]) {
        (_, []) => bail!("defect {name}: its text is not there: {original}"),
        (None, [start]) => Ok((*start, original)),
        (None, found) => bail!("defect {name}: its text is there {} times: {original}", found.len()),
        (Some(nth), found) => match nth.checked_sub(1).and_then(|index| found.get(index)) {
            Some(start) => Ok((*start, original)),
            None => bail!("defect {name}: its text is there {} times, not {nth}: {original}", found.len()),
        },
    }
}

/// The `if` that chooses between a text and what replaces it.
fn switch(original: &str, arms: &[Arm<'_>]) -> String {
    let mut text = String::new();
    for Arm { number, replacement, .. } in arms {
        text += &format!("if fa_mutant::is({number}) {{ {replacement} }} else ");
    }
    text += &format!("{{ {original} }}");
    if original.ends_with(';') { text } else { format!("({text})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "fn f(a: u32) -> u32 {\n    sync();\n    sync(); // Both.\n    a + 1\n}\n";

    fn defect(place: Place, replacement: &'static str) -> Defect {
        Defect { name: "one", what: "", edit: Edit { place, replacement }, also: &[] }
    }

    fn woven(defects: &[Defect]) -> Result<String> {
        let numbered: Vec<_> =
            defects.iter().enumerate().map(|(index, defect)| (index + 1, defect)).collect();
        weave(TEXT, &numbered)
    }

    #[test]
    fn a_defect_stands_beside_what_it_replaces() {
        let expression = woven(&[defect(Place::Only("a + 1"), "a + 2")]).unwrap();
        assert_eq!(expression, TEXT.replace("a + 1", "(if fa_mutant::is(1) { a + 2 } else { a + 1 })"));
        let statement = woven(&[defect(Place::Nth(2, "sync();"), "")]).unwrap();
        let switched = "if fa_mutant::is(1) {  } else { sync(); } // Both.";
        assert_eq!(statement, TEXT.replace("sync(); // Both.", switched));
    }

    #[test]
    fn defects_of_the_same_text_share_its_switch() {
        let both = [defect(Place::Only("a + 1"), "a"), defect(Place::Only("a + 1"), "1")];
        let switched = "(if fa_mutant::is(1) { a } else if fa_mutant::is(2) { 1 } else { a + 1 })";
        assert_eq!(woven(&both).unwrap(), TEXT.replace("a + 1", switched));
    }

    #[test]
    fn a_defect_may_change_several_places() {
        const ALSO: &[Edit] = &[Edit { place: Place::Nth(1, "sync();"), replacement: "" }];
        let both = Defect { also: ALSO, ..defect(Place::Only("a + 1"), "a") };
        let text = woven(&[both]).unwrap();
        assert_eq!(text.matches("fa_mutant::is(1)").count(), 2, "{text}");
    }

    #[test]
    fn a_text_that_is_not_there_or_not_alone_is_an_error_with_its_name() {
        let message = |place| woven(&[defect(place, "")]).unwrap_err().to_string();
        assert_eq!(message(Place::Only("a + 3")), "defect one: its text is not there: a + 3");
        assert_eq!(message(Place::Only("sync();")), "defect one: its text is there 2 times: sync();");
        assert_eq!(
            message(Place::Nth(3, "sync();")),
            "defect one: its text is there 2 times, not 3: sync();"
        );
        assert_eq!(
            message(Place::Nth(0, "sync();")),
            "defect one: its text is there 2 times, not 0: sync();"
        );
    }

    #[test]
    fn texts_that_overlap_are_refused() {
        for second in ["a + ", "+ 1"] {
            let both = [defect(Place::Only("a + 1"), "a"), defect(Place::Only(second), "1")];
            assert_eq!(woven(&both).unwrap_err().to_string(), "defect one: it overlaps another one");
        }
    }
}
