//! Problems with a number that is none, or far too large: most must be refused, and none may panic.

use serde_json::Value;

use super::super::case::Case;
use super::super::draw::Draw;
use super::super::place::{Field, Spoil};

/// Numbers at the ends of what types, sizes and grids hold.
const EXTREMES: [u64; 16] = [
    0,
    1,
    2,
    257,
    1 << 16,
    (1 << 30) + 1,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 40,
    1 << 61,
    (1 << 62) + 1,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

/// The same of factors and probabilities; JSON has no others.
const FACTORS: [f64; 8] = [0.0, -1.0, 1.0, 1e-42, 1e38, -3e38, 0.999_999_99, 1.5];

/// The problem with one or two of its numbers replaced, or with a field of a layout.
pub(super) fn spoil(mut case: Case, draw: &mut Draw) -> Case {
    if draw.once_in(2) {
        let spoil = Spoil {
            tensor: draw.pick(tensors(&case)).to_owned(),
            field: draw.pick(&Field::ALL),
            value: draw.pick(&EXTREMES) as usize,
        };
        spoils(&mut case).push(spoil);
        return case;
    }
    let Ok(mut value) = serde_json::to_value(&case) else { return case };
    for _ in 0..draw.between(1, 2) {
        let count = numbers(&mut value).len();
        if count > 0 {
            let number = numbers(&mut value).swap_remove(draw.below(count));
            *number = replaced(number, draw);
        }
    }
    // A number that the field does not hold leaves the problem as it was.
    serde_json::from_value(value).unwrap_or(case)
}

fn replaced(number: &Value, draw: &mut Draw) -> Value {
    if number.is_f64() { draw.pick(&FACTORS).into() } else { draw.pick(&EXTREMES).into() }
}

/// All numbers of a document.
fn numbers(value: &mut Value) -> Vec<&mut Value> {
    match value {
        Value::Number(_) => vec![value],
        Value::Array(items) => items.iter_mut().flat_map(numbers).collect(),
        Value::Object(fields) => fields.values_mut().flat_map(numbers).collect(),
        _ => Vec::new(),
    }
}

const fn tensors(case: &Case) -> &'static [&'static str] {
    match case {
        Case::Forward(_) | Case::Decode(_) => &["q", "k", "v", "o"],
        Case::Backward(_) => &["q", "k", "v", "o", "dout", "dq", "dk", "dv"],
        Case::Gemm(_) => &["a", "b", "c"],
    }
}

const fn spoils(case: &mut Case) -> &mut Vec<Spoil> {
    match case {
        Case::Forward(case) => &mut case.spoil,
        Case::Backward(case) => &mut case.forward.spoil,
        Case::Decode(case) => &mut case.spoil,
        Case::Gemm(case) => &mut case.spoil,
    }
}
