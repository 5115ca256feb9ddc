//! Makes a failing problem smaller while it fails.
//!
//! It knows nothing of problems: it leaves out fields, which then have their defaults, drops elements of
//! lists, and lowers numbers in the problem's document, and asks whether what remains still fails.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::case::Case;

/// How long to try.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) attempts: usize,
    pub(super) time: Duration,
}

/// The smallest problem found that still fails as `fails` says, and how many were tried.
pub(super) fn shrink(case: &Case, patience: Patience, mut fails: impl FnMut(&Case) -> bool) -> (Case, usize) {
    let end = Instant::now() + patience.time;
    let mut smallest = case.clone();
    let mut attempts = 0;
    loop {
        let Ok(document) = smallest.to_value() else { return (smallest, attempts) };
        let mut found = None;
        for candidate in smaller(&document) {
            if attempts >= patience.attempts || Instant::now() >= end {
                return (smallest, attempts);
            }
            let Ok(candidate) = serde_json::from_value::<Case>(candidate) else { continue };
            if candidate == smallest {
                continue;
            }
            attempts += 1;
            if fails(&candidate) {
                found = Some(candidate);
                break;
            }
        }
        match found {
            Some(found) => smallest = found,
            None => return (smallest, attempts),
        }
    }
}

/// The document with one thing less each, those that leave out most first.
///
/// Each has fewer fields and elements, or a number that is nearer to 0, so that a chain of them ends.
fn smaller(document: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    // The outermost field names the operation.
    let Value::Object(operation) = document else { return all };
    for (name, problem) in operation {
        for candidate in less(problem) {
            let mut document = document.clone();
            document[name.as_str()] = candidate;
            all.push(document);
        }
    }
    all
}

fn less(value: &Value) -> Vec<Value> {
    match value {
        Value::Object(fields) => {
            let without = fields.keys().map(|key| {
                let mut fields = fields.clone();
                fields.remove(key);
                Value::Object(fields)
            });
            let inside = fields.iter().flat_map(|(key, field)| {
                less(field).into_iter().map(move |field| {
                    let mut fields = fields.clone();
                    fields.insert(key.clone(), field);
                    Value::Object(fields)
                })
            });
            without.chain(inside).collect()
        }
        Value::Array(items) => {
            let without = (0..items.len()).map(|index| {
                let mut items = items.clone();
                items.remove(index);
                Value::Array(items)
            });
            let inside = items.iter().enumerate().flat_map(|(index, item)| {
                less(item).into_iter().map(move |item| {
                    let mut items = items.clone();
                    items[index] = item;
                    Value::Array(items)
                })
            });
            without.chain(inside).collect()
        }
        Value::Number(number) => match number.as_u64() {
            Some(number) => lower(number).into_iter().map(Value::from).collect(),
            None => [0.0, 1.0]
                .into_iter()
                .filter(|&simple| number.as_f64().is_some_and(|number| number.abs() > simple))
                .map(Value::from)
                .collect(),
        },
        Value::Bool(true) => vec![Value::Bool(false)],
        Value::Null | Value::Bool(false) | Value::String(_) => Vec::new(),
    }
}

/// Numbers below one that are likely to do as well.
fn lower(number: u64) -> Vec<u64> {
    let mut all = vec![
        0,
        1,
        number / 8,
        number / 2,
        number - number / 4,
        number - number / 16,
        number.saturating_sub(1),
    ];
    all.retain(|&lower| lower < number);
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::super::case::{Attention, Gemm, Seed};
    use super::super::generate::{self, Scope};
    use super::*;
    use flash_attention::BackendKind;

    const PATIENCE: Patience = Patience { attempts: 5000, time: Duration::from_secs(100) };

    #[test]
    fn what_does_not_matter_goes_and_what_does_is_least() {
        let case =
            Case::Gemm(Gemm { m: 300, n: 77, k: 1000, seed: Seed(5), realign: true, ..Gemm::default() });
        let (smallest, _) = shrink(&case, PATIENCE, |case| {
            let Case::Gemm(case) = case else { unreachable!("the operation stays") };
            case.n >= 33 && case.k > 4
        });
        assert_eq!(smallest.text(), r#"{"gemm":{"k":5,"n":33}}"#);
    }

    #[test]
    fn lists_and_places_become_smaller_too() {
        let fails = |case: &Case| {
            let Case::Forward(case) = case else { unreachable!("the operation stays") };
            case.o.gaps[0] % 8 == 1 && case.sequences.iter().any(|lengths| lengths[0] > 2)
        };
        let mut case = Attention { sequences: vec![[9, 3], [0, 7], [200, 4]], ..Attention::default() };
        case.o.gaps = [17, 5, 0];
        case.q.repeat[1] = true;
        let (smallest, attempts) = shrink(&Case::Forward(case), PATIENCE, fails);
        assert_eq!(smallest.text(), r#"{"forward":{"o":{"gaps":[1,0,0]},"sequences":[[3,0]]}}"#);
        assert!(attempts < 200, "{attempts}");
    }

    #[test]
    fn every_problem_becomes_the_simplest_where_all_fail() {
        let scope = Scope { backend: BackendKind::Cuda, operation: None };
        for name in 0..40 {
            let case = generate::case(name, scope);
            let (smallest, _) = shrink(&case, PATIENCE, |_| true);
            let simplest = format!(r#"{{"{}":{{}}}}"#, case.operation().name());
            assert_eq!(smallest.text(), simplest, "{}", case.text());
        }
    }

    #[test]
    fn without_patience_it_stays() {
        let case = Case::Gemm(Gemm { m: 300, ..Gemm::default() });
        let impatient = Patience { attempts: 0, ..PATIENCE };
        assert_eq!(shrink(&case, impatient, |_| true), (case, 0));
    }
}
