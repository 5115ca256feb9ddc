//! Numbers and tables for people.

use comfy_table::{CellAlignment, Table, presets};

use crate::check::Verdict;

/// A table that pastes into Markdown: first column to the left, the rest to the right.
pub(crate) fn table(titles: &[&str], rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(titles);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// `pass`, or `FAIL` with the reason.
pub(crate) fn judgement(verdict: &Verdict) -> String {
    if verdict.passed() {
        return "pass".to_owned();
    }
    let mut reasons = Vec::new();
    if verdict.unwritten > 0 {
        reasons.push(format!("{} elements unwritten or not finite", verdict.unwritten));
    }
    if !verdict.output.passed() {
        reasons.push("O".to_owned());
    }
    if !verdict.lse.passed() {
        reasons.push(format!("lse: {:.2e} over {:.2e}", verdict.lse.max_error, verdict.lse.bound));
    }
    format!("FAIL ({})", reasons.join(", "))
}

/// A time in the unit that leaves at least one digit before the point.
pub(crate) fn seconds(seconds: f64) -> String {
    let (factor, unit) = match seconds {
        s if s >= 1.0 => (1.0, "s"),
        s if s >= 1e-3 => (1e3, "ms"),
        _ => (1e6, "µs"),
    };
    format!("{} {unit}", significant(seconds * factor))
}

/// Bytes in the largest binary unit that they fill.
pub(crate) fn bytes(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|&(shift, _)| bytes >> shift > 0) {
        Some((shift, unit)) => format!("{} {unit}", significant(bytes as f64 / (1_u64 << shift) as f64)),
        None => format!("{bytes} B"),
    }
}

/// At least three significant digits, and all of them before the point.
pub(crate) fn significant(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        v if v >= 1e-3 => format!("{value:.4}"),
        _ => format!("{value:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_unit() {
        assert_eq!([12.3456, 0.012_345_6, 1.23e-6].map(seconds), ["12.3 s", "12.3 ms", "1.23 µs"]);
        assert_eq!([0, 1023, 1536, 1 << 31].map(bytes), ["0 B", "1023 B", "1.50 KiB", "2.00 GiB"]);
        assert_eq!([1234.5, 99.95, 0.5, 1e-6].map(significant), ["1234", "100.0", "0.5000", "1.00e-6"]);
    }

    #[test]
    fn tables_are_markdown() {
        let text = table(&["a", "b"], vec![vec!["x".into(), "10".into()]]).to_string();
        assert_eq!(text, "| a |  b |\n|---|----|\n| x | 10 |");
    }
}
