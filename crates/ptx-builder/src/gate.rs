//! What must never ship: each rule names the entry that breaks it.

use std::collections::BTreeSet;
use std::fmt;

use fa_kernels::shipped::Resources;

use crate::assemble::Assembled;
use crate::ptx::{Entry, Module};
use crate::spec::EntrySpec;

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The entry, or the target of a whole module.
    pub subject: String,
    /// The rule.
    pub rule: Rule,
    /// What was found, against what is allowed.
    pub detail: String,
}

/// The rules, and why they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Arrays in local memory: they were meant to be registers.
    LocalMemory,
    /// Registers spilled, or a stack frame, in ptxas's report.
    Spill,
    /// A call, or a function without a body: nothing will link it, and inlining failed.
    Call,
    /// Another number of barriers than the source has: a copied barrier hangs the block.
    Barriers,
    /// No wait in an entry whose launch begins before the one in front has ended: it would race with that.
    NoWait,
    /// wgmma instructions that ptxas runs one after another (its C75xx messages).
    WgmmaSerialised,
    /// setmaxnreg instructions that ptxas leaves out (its C7508 message).
    RegistersKept,
    /// Static shared memory, which the launch's reckoning does not know of.
    StaticShared,
    /// Global data: panic messages and tables, which kernels have no use for.
    GlobalData,
    /// In the list, and not in the PTX.
    Missing,
    /// In the PTX, and not in the list.
    Unlisted,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LocalMemory => "local memory",
            Self::Spill => "spill",
            Self::Call => "call",
            Self::Barriers => "barriers",
            Self::NoWait => "no wait",
            Self::WgmmaSerialised => "wgmma serialised",
            Self::RegistersKept => "setmaxnreg ignored",
            Self::StaticShared => "static shared memory",
            Self::GlobalData => "global data",
            Self::Missing => "missing entry",
            Self::Unlisted => "unlisted entry",
        })
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.subject, self.rule, self.detail)
    }
}

/// Checks a whole module against the list of entries: those of its target must be there, and no other.
pub fn module(module: &Module, specs: &[EntrySpec]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let built: BTreeSet<&str> = module.entries.iter().map(|entry| &*entry.name).collect();
    for spec in specs.iter().filter(|spec| spec.target == module.target && !built.contains(&*spec.name)) {
        let detail = format!("it is listed for {}, and the PTX has no such entry", spec.target);
        violations.push(Violation { subject: spec.name.clone(), rule: Rule::Missing, detail });
    }
    for name in built {
        let detail = match specs.iter().find(|spec| spec.name == name) {
            None => "the PTX has it, and the list of entries does not".to_owned(),
            Some(spec) if spec.target == module.target => continue,
            Some(spec) => {
                format!("the PTX for {} has it, and it is listed for {}", module.target, spec.target)
            }
        };
        violations.push(Violation { subject: name.to_owned(), rule: Rule::Unlisted, detail });
    }
    for declaration in &module.declarations {
        let (rule, what) = match &declaration.text {
            text if text.contains(".func") => (Rule::Call, "the function without a body"),
            text if text.contains(".shared") && text.contains(".extern") => continue,
            text if text.contains(".shared") => (Rule::StaticShared, "the shared variable"),
            _ => (Rule::GlobalData, "the variable"),
        };
        let users = module.entries.iter().filter(|entry| entry.names(&declaration.name));
        let mut subjects: Vec<String> = users.map(|entry| entry.name.clone()).collect();
        if subjects.is_empty() {
            subjects.push(format!("the module of {}", module.target));
        }
        violations.extend(subjects.into_iter().map(|subject| {
            let detail = format!("{what} {}", declaration.name);
            Violation { subject, rule, detail }
        }));
    }
    violations
}

/// Checks one entry's text.
pub fn entry(entry: &Entry, spec: &EntrySpec) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut violate = |rule, detail| {
        violations.push(Violation { subject: spec.name.clone(), rule, detail });
    };
    let of_space = |opcode: &&str, space: &str| opcode.split(['.', ':']).any(|part| part == space);
    if let Some(opcode) = entry.opcodes().find(|opcode| of_space(opcode, "local")) {
        violate(Rule::LocalMemory, format!("`{opcode}` in the PTX"));
    }
    if let Some(opcode) = entry.opcodes().find(|opcode| opcode.split('.').next() == Some("call")) {
        violate(Rule::Call, format!("`{opcode}` in the PTX"));
    }
    let barriers = barriers(entry);
    if barriers != spec.barriers {
        violate(Rule::Barriers, format!("{barriers} in the PTX, {} in the source", spec.barriers));
    }
    if spec.begins_early && !entry.opcodes().any(|opcode| opcode == "griddepcontrol.wait") {
        violate(Rule::NoWait, "its launch begins early, and the PTX has no griddepcontrol.wait".to_owned());
    }
    violations
}

/// Checks what ptxas made of an entry: its figures and its messages.
pub fn assembled(spec: &EntrySpec, assembled: &Assembled) -> Vec<Violation> {
    let mut violations = resources(&spec.name, &assembled.resources);
    for line in assembled.messages.iter().filter(|line| line.contains("(C75")) {
        let rule = if line.contains("(C7508)") { Rule::RegistersKept } else { Rule::WgmmaSerialised };
        let detail = format!("`{line}` on {}", assembled.resources.arch);
        violations.push(Violation { subject: spec.name.clone(), rule, detail });
    }
    violations
}

/// Checks ptxas's figures of an entry.
pub fn resources(name: &str, resources: &Resources) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut violate = |rule, detail| {
        let detail = format!("{detail} on {}", resources.arch);
        violations.push(Violation { subject: name.to_owned(), rule, detail });
    };
    let (stores, loads, stack) = (resources.spill_stores, resources.spill_loads, resources.stack);
    if stores != 0 || loads != 0 || stack != 0 {
        let detail =
            format!("{stores} bytes of spill stores, {loads} of spill loads, {stack} of stack frame");
        violate(Rule::Spill, detail);
    }
    if resources.static_shared != 0 {
        violate(Rule::StaticShared, format!("{} bytes", resources.static_shared));
    }
    violations
}

/// Block barriers in an entry (PTX ISA 9.7.13.1): `bar` and `barrier` with sync, arrive or red, but
/// neither those of a warp nor those of a cluster.
pub fn barriers(entry: &Entry) -> u32 {
    let is_barrier = |opcode: &&str| {
        let mut parts = opcode.split('.');
        let is_bar = matches!(parts.next(), Some("bar" | "barrier"));
        let operation = parts.find(|part| *part != "cta");
        is_bar && matches!(operation, Some("sync" | "arrive" | "red"))
    };
    entry.opcodes().filter(is_barrier).map(|_| 1).sum()
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
