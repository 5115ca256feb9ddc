//! `fuzz` as a user runs it.
#![allow(clippy::unwrap_used)]

mod common;

use common::{fa_bench, fails, json, stdout, words};
use serde_json::Value;

#[test]
fn random_problems_are_right_on_the_cpu_and_in_the_simulator() {
    let document = json("fuzz --backend cpu --runs 20 --seed 1 --json");
    assert_eq!(
        (&document["experiment"], &document["runs"], &document["passed"]),
        (&"fuzz".into(), &20.into(), &true.into())
    );
    let counts = document["problems"].as_object().unwrap();
    let count = |of: &Value, part: &str| of[part].as_u64().unwrap();
    let sum = |part| counts.values().map(|of| count(of, part)).sum::<u64>();
    assert_eq!(["passed", "refused", "planned", "failed"].map(sum).iter().sum::<u64>(), 20);
    assert!(sum("passed") >= 10, "{document}");
    assert_eq!(document["failures"], Value::Array(Vec::new()));
    let text = stdout("fuzz --backend sim --runs 4 --seed 2 --operation gemm");
    assert!(text.contains("4 problems (4 gemm) in ") && text.contains(" 0 failed"), "{text}");
}

#[test]
fn a_seed_names_the_same_problems_again() {
    let counts = || json("fuzz --backend cpu --runs 30 --seed 7 --json")["problems"].clone();
    assert_eq!(counts(), counts());
}

#[test]
fn a_time_ends_it() {
    let document = json("fuzz --backend cpu --seconds 0.2 --json");
    assert!(document["runs"].as_u64().unwrap() > 0);
    assert!(document["seconds"].as_f64().unwrap() < 60.0);
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_it_and_it_says_what_ran() {
    let mut child = common::command(&words("fuzz --backend cpu --seconds 100"));
    let child =
        child.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let (text, error) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(text.lines().last().unwrap().contains(" problems ("), "{text}");
    assert!(
        error.starts_with("error: fuzz: ") && error.contains("problems ran: interrupted by Ctrl-C"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn a_problem_can_be_run_alone() {
    let run = |problem: &str| fa_bench(&["fuzz", "--backend", "cpu", "--problem", problem]);
    let output = run(r#"{"forward":{"dtype":"f16","seq":5,"head_dim":63,"o":{"gaps":[9,0,0]}}}"#);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().ends_with("right\n"));
    let output = run(r#"{"gemm":{"m":0}}"#);
    assert_eq!(output.status.code(), Some(2));
    let refusal = "error: a: axis rows has length 0; at least 1 is needed\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), refusal);
    let output = run(r#"{"gemm":{"m":1073741824,"n":1073741824}}"#);
    assert!(String::from_utf8(output.stdout).unwrap().contains("planned; too large to be run here"));
}

/// A row that sees two keys and a sink, whose O is between two numbers of bf16 and rounded one way in half of
/// its columns; and one that sees two keys that are alike, of which dropout keeps one.
#[test]
fn dq_is_not_held_to_the_luck_of_a_computation_that_stores_no_o() {
    let of_sink = r#"{"backward":{"forward":{"dtype":"bf16","head_dim":147,"scores":"equal",
        "seed":"8909945958963882778","sequences":[[0,0],[0,0],[0,1],[3,11]],"sinks":"all","values":"mean-one",
        "window":[0,1]}}}"#;
    let of_dropout = r#"{"backward":{"forward":{"batch":2,"dropout":0.8999999761581421,"dtype":"f16",
        "group":2,"head_dim":79,"kv_heads":5,"kv_seq":3,"scores":"equal","seed":"2315569956421457600","seq":7,
        "softcap":5.0,"values":"mean-one","window":[null,0]}}}"#;
    for problem in [of_sink, of_dropout] {
        for backend in ["cpu", "sim"] {
            let output = fa_bench(&["fuzz", "--backend", backend, "--problem", problem]);
            assert!(output.status.success(), "{output:?}");
        }
    }
}

#[test]
fn what_is_asked_for_wrongly_is_refused_in_a_line() {
    for (line, message) in [
        ("fuzz --runs 0", "'0' for '--runs <COUNT>'"),
        ("fuzz --seconds -1", "'-1'"),
        ("fuzz --operation attention", "[possible values: forward, backward, decode, gemm]"),
        ("fuzz --problem {}", "'{}' for '--problem <JSON>'"),
        ("fuzz --problem {\"gemm\":{}} --runs 3", "'--runs <COUNT>'"),
        ("fuzz --backend tpu", "[possible values: cuda, cpu, sim]"),
    ] {
        fails(line, 2, message);
    }
    let output = fa_bench(&words("fuzz --help"));
    assert!(output.status.success());
}
