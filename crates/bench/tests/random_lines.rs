//! Random command lines over the program's own arguments: new ones are covered as they come.
#![allow(clippy::unwrap_used)]

mod common;

use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use clap::error::ErrorKind;
use clap::{Arg, Command};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestRunner};
use rayon::prelude::*;

/// Values that are wrong for most arguments, and right for some.
const VALUES: [&str; 34] = [
    "0",
    "1",
    "2",
    "7",
    "16",
    "33",
    "64",
    "257",
    "-1",
    "0.5",
    "1e-3",
    "1e400",
    "-0",
    "nan",
    "inf",
    "-inf",
    "1073741825",
    "2147483648",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "99999999999999999999",
    "",
    " ",
    "x",
    "1,2",
    "0,5,4",
    "0,3,9",
    ",",
    "{}",
    "ü",
    "f16",
    "cpu",
    "--",
];

/// What a line consists of: an experiment, and arguments with values, by numbers that stand for some.
type Plan = (usize, Vec<(usize, usize, bool)>);

fn plans() -> impl Strategy<Value = Plan> {
    (any::<usize>(), prop::collection::vec((any::<usize>(), any::<usize>(), prop::bool::weighted(0.3)), 0..6))
}

/// The line that a plan stands for. Values are often those that clap itself names.
fn line(command: &Command, (experiment, arguments): &Plan) -> Vec<String> {
    let experiments: Vec<_> = command.get_subcommands().collect();
    let chosen = experiments.get(experiment % (experiments.len() + 1));
    let mut words = vec!["fa-bench".to_owned()];
    words.extend(chosen.map(|command| command.get_name().to_owned()));
    let of = chosen.map_or(command, |command| *command);
    let known: Vec<_> = of.get_arguments().filter(|argument| argument.get_long().is_some()).collect();
    for (argument, value, named) in arguments {
        let argument = known[argument % known.len()];
        words.push(format!("--{}", argument.get_long().unwrap()));
        if argument.get_action().takes_values() {
            words.push(value_of(argument, *value, *named));
        }
    }
    words
}

fn value_of(argument: &Arg, value: usize, named: bool) -> String {
    let possible = argument.get_possible_values();
    if named && !possible.is_empty() {
        return possible[value % possible.len()].get_name().to_owned();
    }
    VALUES[value % VALUES.len()].to_owned()
}

fn is_one_error_line(text: &str) -> bool {
    text.trim_end().lines().count() == 1 && text.starts_with("error: ")
}

#[test]
fn no_line_makes_the_parser_panic_and_refusals_are_one_line() {
    let command = fa_bench::command();
    let mut refused = 0;
    let config = Config { cases: 3000, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&plans(), |plan| {
            let words = line(&command, &plan);
            if let Err(error) = command.clone().try_get_matches_from(&words) {
                let text = fa_bench::failure::one_line(&error);
                // Without a word the help stands in for an error.
                let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
                prop_assert!(is_help || !error.use_stderr() || is_one_error_line(&text), "{words:?}: {text}");
            }
            Ok(())
        })
        .unwrap();
    let mut runner = TestRunner::deterministic();
    for _ in 0..200 {
        let words = line(&command, &plans().new_tree(&mut runner).unwrap().current());
        refused += usize::from(command.clone().try_get_matches_from(&words).is_err());
    }
    assert!((20..200).contains(&refused), "{refused} of 200 refused: the lines show nothing");
}

/// Runs a line for a moment: one that is accepted may measure for as long as it likes.
fn check(words: &[String], folder: &std::path::Path) {
    let mut process = Process::new(env!("CARGO_BIN_EXE_fa-bench"));
    process.args(&words[1..]).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = process.stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if begin.elapsed() > Duration::from_millis(400) => {
                child.kill().unwrap();
                child.wait().unwrap();
                return;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let text = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    match status.code() {
        Some(0) => {}
        Some(1 | 2) => assert!(is_one_error_line(&text), "{words:?}: {text}"),
        code => panic!("{words:?} ended with {code:?}: {text}"),
    }
}

#[test]
fn no_line_makes_the_program_panic_and_refusals_are_one_line() {
    let command = fa_bench::command();
    let folder = tempfile::tempdir().unwrap();
    let mut runner = TestRunner::deterministic();
    let mut lines = Vec::new();
    while lines.len() < 32 {
        let mut words = line(&command, &plans().new_tree(&mut runner).unwrap().current());
        // What the parser refuses was tried above. `all` writes reports for minutes.
        let is_all = words.get(1).is_some_and(|word| word == "all");
        if is_all || command.clone().try_get_matches_from(&words).is_err() {
            continue;
        }
        if !words.iter().any(|word| word == "--backend") {
            words.extend(["--backend".to_owned(), ["cpu", "sim"][lines.len() % 2].to_owned()]);
        }
        lines.push(words);
    }
    let threads = rayon::ThreadPoolBuilder::new().num_threads(8).build().unwrap();
    threads.install(|| lines.par_iter().for_each(|words| check(words, folder.path())));
}
