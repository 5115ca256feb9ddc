//! Taking a PTX text apart into entries that stand on their own.

use anyhow::{Context as _, Result, bail};

use crate::spec::EntrySpec;

/// A PTX module, in parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// PTX ISA version, as in `6.3`.
    pub version: String,
    /// Target, as in `sm_75`.
    pub target: String,
    /// Bits of an address.
    pub address_size: String,
    /// Module-level variables, and functions without a body.
    pub declarations: Vec<Declaration>,
    /// Names of the functions with a body.
    pub functions: Vec<String>,
    /// The entries, in the text's order.
    pub entries: Vec<Entry>,
}

/// A module-level declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// The name that it declares.
    pub name: String,
    /// Its text, with the semicolon.
    pub text: String,
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// From its linking directive to the `)` of its parameters.
    pub signature: String,
    /// From `{` to `}`.
    pub body: String,
}

impl Module {
    /// Reads a PTX text as LLVM writes it. Comments and layout are dropped.
    ///
    /// # Errors
    /// When the text has no header, or ends inside an item.
    pub fn parse(text: &str) -> Result<Self> {
        let text = compact(text);
        let mut module = Self::default();
        let mut rest = text.as_str();
        while let Some(item) = next_item(&mut rest)? {
            module.add(item)?;
        }
        for (directive, value) in [
            (".version", &module.version),
            (".target", &module.target),
            (".address_size", &module.address_size),
        ] {
            if value.is_empty() {
                bail!("the PTX has no {directive}");
            }
        }
        Ok(module)
    }

    fn add(&mut self, item: Item<'_>) -> Result<()> {
        let Item { head, body } = item;
        let directive = |word: &str| head.split_whitespace().any(|part| part == word);
        let header = |name: &str| head.strip_prefix(name).map(|value| value.trim().to_owned());
        if let Some(version) = header(".version ") {
            self.version = version;
        } else if let Some(target) = header(".target ") {
            self.target = target;
        } else if let Some(bits) = header(".address_size ") {
            self.address_size = bits;
        } else if directive(".entry") {
            let name = callable_name(head, ".entry").context("an entry without a name in the PTX")?;
            let body = body.with_context(|| format!("entry {name} has no body in the PTX"))?;
            self.entries.push(Entry { name, signature: head.to_owned(), body: body.to_owned() });
        } else if directive(".func") {
            let name = callable_name(head, ".func").context("a function without a name in the PTX")?;
            match body {
                Some(_) => self.functions.push(name),
                None => self.declarations.push(Declaration { name, text: format!("{head};") }),
            }
        } else {
            let name =
                variable_name(head).with_context(|| format!("no name in the PTX declaration `{head}`"))?;
            let text = format!("{head}{};", body.unwrap_or_default());
            self.declarations.push(Declaration { name, text });
        }
        Ok(())
    }

    /// An entry as a module of its own: the header, the declarations that it names, and the entry with its
    /// launch bounds and the alignment of its parameter. Labels lose their function's number, so that the
    /// text does not depend on the other entries of this module.
    pub fn standalone(&self, entry: &Entry, spec: &EntrySpec) -> String {
        let mut text = format!(
            ".version {}\n.target {}\n.address_size {}\n",
            self.version, self.target, self.address_size
        );
        for declaration in self.declarations.iter().filter(|declaration| entry.names(&declaration.name)) {
            text.push_str(&declaration.text);
            text.push('\n');
        }
        text.push_str(&entry.aligned_signature());
        text.push_str(&format!("\n.maxntid {}, 1, 1\n.minnctapersm {}\n", spec.threads, spec.min_blocks));
        text.push_str(&without_function_numbers(&entry.body));
        text.push('\n');
        text
    }
}

impl Entry {
    /// Whether the body holds this name as a whole word.
    pub fn names(&self, name: &str) -> bool {
        self.body.split(|c: char| !is_name(c)).any(|word| word == name)
    }

    /// The signature, with a parameter whose address the entry takes aligned to 64 bytes: it begins with
    /// tensor maps, which the device wants so, and rustc passes nothing by value that is aligned to more than
    /// 16.
    fn aligned_signature(&self) -> String {
        let takes_address = self.opcodes().any(|opcode| opcode.starts_with("cvta.param"));
        if takes_address { self.signature.replace(".align 8 ", ".align 64 ") } else { self.signature.clone() }
    }

    /// The operations of the body: of each statement the first word after labels and predicate.
    pub fn opcodes(&self) -> impl Iterator<Item = &str> {
        self.body.split([';', '{', '}', '\n']).filter_map(opcode)
    }
}

/// A top-level piece of a PTX text: a directive, a variable, or a function.
struct Item<'a> {
    /// Up to `;`, `{` or, for a header directive, the line's end.
    head: &'a str,
    /// From `{` to `}`.
    body: Option<&'a str>,
}

/// Takes the next item off the front of compacted text.
fn next_item<'a>(rest: &mut &'a str) -> Result<Option<Item<'a>>> {
    let text = rest.trim_start();
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() {
        return Ok(None);
    }
    if [".version ", ".target ", ".address_size "].iter().any(|directive| line.starts_with(directive)) {
        *rest = &text[line.len()..];
        return Ok(Some(Item { head: line, body: None }));
    }
    let mut depth = 0_usize;
    let mut open = None;
    for (at, c) in text.char_indices() {
        match c {
            '{' => {
                depth += 1;
                open = open.or(Some(at));
            }
            '}' => {
                depth =
                    depth.checked_sub(1).with_context(|| format!("a stray }} after `{line}` in the PTX"))?
            }
            _ => {}
        }
        // An initialiser `= { … }` ends at its semicolon, a function at its brace.
        let is_function = || open.is_some_and(|open| !text[..open].contains('='));
        if depth == 0 && (c == ';' || c == '}' && is_function()) {
            let head_end = open.unwrap_or(at);
            let body_end = if c == ';' { at } else { at + 1 };
            *rest = &text[at + 1..];
            return Ok(Some(Item {
                head: text[..head_end].trim_end(),
                body: open.map(|open| &text[open..body_end]),
            }));
        }
    }
    bail!("the PTX ends inside `{line}`")
}

/// The name of a function or entry: behind its directive and the parenthesised result, if any.
fn callable_name(head: &str, directive: &str) -> Option<String> {
    let mut rest = head.split_once(directive)?.1.trim_start();
    if let Some(result) = rest.strip_prefix('(') {
        rest = result.split_once(')')?.1.trim_start();
    }
    let name: String = rest.chars().take_while(|&c| is_name(c)).collect();
    (!name.is_empty()).then_some(name)
}

/// The name of a variable: the last word before its bounds or its initialiser.
fn variable_name(head: &str) -> Option<String> {
    let declarator = head.split(['[', '=']).next()?;
    let name = declarator.split_whitespace().next_back()?;
    name.chars().all(is_name).then(|| name.to_owned())
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')
}

/// The first word of a statement behind its labels and its predicate.
fn opcode(statement: &str) -> Option<&str> {
    let mut rest = statement.trim_start();
    loop {
        let name = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let label = rest[name..].strip_prefix(':').filter(|tail| name > 0 && !tail.starts_with(':'));
        if let Some(tail) = label {
            rest = tail.trim_start();
        } else if rest.starts_with('@') {
            rest = rest.split_once(char::is_whitespace)?.1.trim_start();
        } else {
            return rest.split_whitespace().next();
        }
    }
}

/// The text without comments, blank lines, indentation and doubled blanks.
fn compact(text: &str) -> String {
    let text = without_comments(text);
    let mut compacted = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        compacted.push_str(first);
        for word in words {
            compacted.push(' ');
            compacted.push_str(word);
        }
        compacted.push('\n');
    }
    compacted
}

fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, comment) = rest.split_at(at);
        kept.push_str(before);
        rest = if comment.starts_with("//") {
            comment.find('\n').map_or("", |end| &comment[end..])
        } else if comment.starts_with("/*") {
            kept.push(' ');
            comment.find("*/").map_or("", |end| &comment[end + 2..])
        } else {
            kept.push('/');
            &comment[1..]
        };
    }
    kept.push_str(rest);
    kept
}

/// `$L__BB17_3` becomes `$L__BB_3`.
fn without_function_numbers(body: &str) -> String {
    const LABEL: &str = "$L__BB";
    let mut pieces = body.split(LABEL);
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        text.push_str(LABEL);
        text.push_str(piece.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    text
}

#[cfg(test)]
#[path = "ptx_tests.rs"]
mod tests;
