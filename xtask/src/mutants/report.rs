//! The table of who catches what.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::judge::Stage;
use super::table;

/// Who caught a defect first, and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Caught {
    pub(super) stage: Stage,
    pub(super) judge: String,
    /// The test or entry that failed.
    pub(super) what: String,
    /// What it said.
    pub(super) why: String,
}

/// What became of a defect.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) caught: Option<Caught>,
}

/// The last result of each defect, by its name.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Records(BTreeMap<String, Record>);

/// The longest reason that is printed.
const REASON: usize = 110;

impl Records {
    /// Those in `file`; none where there is no such file.
    pub(super) fn read(file: &Path) -> Result<Self> {
        match fs::read_to_string(file) {
            Ok(text) => {
                serde_json::from_str(&text).with_context(|| format!("cannot read {}", file.display()))
            }
            Err(_) => Ok(Self::default()),
        }
    }

    pub(super) fn write(&self, file: &Path) -> Result<()> {
        fs::write(file, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("cannot write {}", file.display()))
    }

    pub(super) fn insert(&mut self, name: &str, record: Record) {
        self.0.insert(name.to_owned(), record);
    }
}

/// In a few words, who caught a defect.
pub(super) fn verdict(caught: Option<&Caught>) -> String {
    match caught {
        None => "NOBODY".to_owned(),
        Some(Caught { stage, judge, what, why }) => {
            format!("{}: {judge}: {what}: {}", stage.name(), short(why))
        }
    }
}

fn short(reason: &str) -> String {
    let mut text: String = reason.chars().take(REASON).collect();
    if text.len() < reason.len() {
        text += "…";
    }
    text
}

/// Writes the table.
pub(super) fn write(output: &Path, records: &Records) -> Result<()> {
    fs::write(output, markdown(records)).with_context(|| format!("cannot write {}", output.display()))
}

fn of_all(
    records: &Records,
) -> impl Iterator<Item = (&'static str, &'static table::Defect, Option<&Record>)> {
    table::numbered().map(|(family, _, defect)| (family.file, defect, records.0.get(defect.name)))
}

fn markdown(records: &Records) -> String {
    let stage = |record: Option<&Record>| record.and_then(|it| it.caught.as_ref()).map(|it| it.stage);
    let count = |wanted| of_all(records).filter(|(.., record)| stage(*record) == Some(wanted)).count();
    let all = of_all(records).count();
    let not_run = of_all(records).filter(|(.., record)| record.is_none()).count();
    let (quick, ci) = (count(Stage::Quick), count(Stage::Ci));
    let mut text = format!(
        "# Who catches a defect\n\n\
         `cargo xtask mutants` puts these defects into kernels and planner, one at a time, and asks first the parts of\n\
         `cargo xtask test` (its tests, `verify --families` among them), and then those of `cargo xtask ci` (`verify` of the\n\
         entries that have the defect, and random problems). The first that fails is named, with what it says. Of {all} defects `test` catches\n\
         {quick}, `ci` another {ci}, and nobody {}; {not_run} are not run.\n",
        all - quick - ci - not_run
    );
    let mut last = "";
    for (file, defect, record) in of_all(records) {
        if file != last {
            text +=
                &format!("\n## {file}\n| defect | caught by | where | what it says |\n|---|---|---|---|\n");
            last = file;
        }
        let row = match record.map(|record| &record.caught) {
            None => "not run | | ".to_owned(),
            Some(None) => "**nobody** | | ".to_owned(),
            Some(Some(Caught { stage, judge, what, why })) => {
                format!("{} | {judge}: {} | {}", stage.name(), cell(what), cell(&short(why)))
            }
        };
        text += &format!("| `{}`: {} | {row} |\n", defect.name, defect.what);
    }
    text
}

/// Text that stays inside its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_row_for_each_defect_and_counts_them() {
        let mut records = Records::default();
        let names: Vec<_> = table::numbered().map(|(.., defect)| defect.name).collect();
        let caught = |stage| Caught {
            stage,
            judge: "flash-attention hopper".to_owned(),
            what: "a_test".to_owned(),
            why: format!("left | right {}", "x".repeat(200)),
        };
        records.insert(names[0], Record { caught: Some(caught(Stage::Quick)) });
        records.insert(names[1], Record { caught: Some(caught(Stage::Ci)) });
        records.insert(names[2], Record { caught: None });
        let text = markdown(&records);
        let not_run = names.len() - 3;
        let counts = format!("`test` catches\n1, `ci` another 1, and nobody 1; {not_run} are not run.");
        assert!(text.contains(&counts), "{text}");
        assert!(names.iter().all(|name| text.contains(&format!("| `{name}`: "))));
        let row = text.lines().find(|line| line.contains(&format!("`{}`", names[0]))).unwrap();
        assert!(row.contains("| test | flash-attention hopper: a_test | left \\| right x"), "{row}");
        assert!(row.ends_with("x… |"), "{row}");
        assert!(text.contains("| **nobody** | |  |"), "{text}");
    }
}
