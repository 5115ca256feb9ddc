//! Random problems: what a seed stands for.

mod attention;
mod decode;
mod product;
mod spoil;

use flash_attention::{BackendKind, DType};

use super::case::{Case, Data, Operation, Seed};
use super::draw::Draw;
use super::place::Place;

/// What problems are drawn for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    pub(super) backend: BackendKind,
    /// Any where absent.
    pub(super) operation: Option<Operation>,
}

/// Of so many problems one is spoiled, and most of those must be refused.
const SPOILED: usize = 16;

/// The problem of a name.
pub(super) fn case(name: u64, scope: Scope) -> Case {
    let mut draw = Draw::new(name);
    let operations =
        [(5, Operation::Forward), (2, Operation::Backward), (2, Operation::Decode), (1, Operation::Gemm)];
    let operation = scope.operation.unwrap_or_else(|| draw.weighted(&operations));
    let size = Size::of(scope.backend, &mut draw);
    let case = match operation {
        Operation::Forward => Case::Forward(attention::forward(&mut draw, scope.backend, size)),
        Operation::Backward => Case::Backward(attention::backward(&mut draw, scope.backend, size)),
        Operation::Decode => Case::Decode(decode::draw(&mut draw, scope.backend, size)),
        Operation::Gemm => Case::Gemm(product::draw(&mut draw, scope.backend, size)),
    };
    if draw.once_in(SPOILED) { spoil::spoil(case, &mut draw) } else { case }
}

/// How much a problem may take.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// Rows of queries and of keys of a sequence, and of a matrix.
    rows: usize,
    /// Multiplications of whole tiles of [`Self::tile`] rows by as many.
    products: usize,
    /// Rows of the least that a block computes.
    tile: usize,
    /// Elements of a tensor.
    elements: usize,
}

impl Size {
    /// Mostly small; one in 32 is longer than the others, but for the simulator.
    fn of(backend: BackendKind, draw: &mut Draw) -> Self {
        let long = draw.once_in(32);
        match backend {
            BackendKind::Cuda => {
                let rows = if long { 8192 } else { 2048 };
                Self { rows, products: if long { 1 << 28 } else { 1 << 25 }, tile: 1, elements: 1 << 18 }
            }
            BackendKind::Cpu => {
                let rows = if long { 8192 } else { 2048 };
                Self { rows, products: 1 << 24, tile: 1, elements: 1 << 18 }
            }
            BackendKind::Sim => Self { rows: 400, products: 3 << 20, tile: 64, elements: 1 << 17 },
        }
    }

    /// What a reference that goes through whole heads has time for.
    fn of_whole_heads(self) -> Self {
        let products = if self.tile == 1 { 1 << 21 } else { self.products / 2 };
        Self { products, rows: self.rows.min(1024), ..self }
    }

    fn tiles(self, rows: usize) -> usize {
        rows.next_multiple_of(self.tile)
    }
}

/// A length: any, or near a multiple of what tiles and copies are made of.
fn length(draw: &mut Draw, most: usize) -> usize {
    let of = |draw: &mut Draw, step: usize| {
        let multiple = step * draw.logarithmic(1, (most / step).max(1));
        (multiple + draw.below(3)).saturating_sub(1)
    };
    let drawn = match draw.below(10) {
        0..6 => draw.logarithmic(1, most),
        6..8 => of(draw, 64),
        _ => 8 * draw.logarithmic(1, (most / 8).max(1)),
    };
    drawn.clamp(1, most)
}

/// A head_dim: any, a usual one, or near a multiple of 8.
fn head_dim(draw: &mut Draw) -> usize {
    match draw.below(3) {
        0 => draw.between(1, 256),
        1 => draw.pick(&[32, 40, 64, 64, 80, 96, 128, 128, 128, 160, 192, 256]),
        _ => (8 * draw.between(1, 32) + draw.below(3) - 1).min(256),
    }
}

/// Halves the largest of `lengths` until they cost no more than `most`.
fn shrink_to(lengths: &mut [&mut usize], most: usize, cost: impl Fn(&[usize]) -> usize) {
    loop {
        let values: Vec<_> = lengths.iter().map(|length| **length).collect();
        let Some(largest) = lengths.iter_mut().max_by_key(|length| ***length).filter(|length| ***length > 1)
        else {
            return;
        };
        if cost(&values) <= most {
            return;
        }
        **largest /= 2;
    }
}

/// What elements are drawn from.
fn data(draw: &mut Draw) -> Data {
    draw.weighted(&[(5, Data::Normal), (3, Data::MeanOne), (1, Data::Huge), (1, Data::Equal)])
}

/// Where a tensor whose rows have so many elements lies.
fn place(draw: &mut Draw, dtype: DType, head_dim: usize, is_output: bool) -> Place {
    let chunk = 16 / dtype.bytes();
    let padding = |to: usize| head_dim.next_multiple_of(to) - head_dim;
    let mut gaps = [0; 3];
    let mut repeat = [false; 3];
    match draw.below(13) {
        0..4 => {}
        4..7 => gaps[0] = padding(chunk) + chunk * draw.pick(&[0, 0, 0, 1, 2]),
        7 => gaps[0] = padding(128 / dtype.bytes()),
        8..10 => gaps = [0; 3].map(|_| if draw.once_in(2) { 0 } else { draw.logarithmic(1, 70) }),
        // A slice of packed Q, K and V, or of more heads.
        10..12 => gaps[1] = head_dim * draw.between(1, 8),
        _ if is_output => gaps[2] = draw.logarithmic(1, 1000),
        _ => repeat[draw.below(3)] = true,
    }
    let offset = match draw.below(8) {
        0..4 => 0,
        4..6 => chunk * draw.below(16),
        _ => draw.below(64),
    };
    let order = draw.weighted(&[(6, 0), (5, 1), (1, 2), (1, 3), (1, 4), (1, 5)]);
    Place { order, gaps, repeat, offset }
}

fn result_dtype(draw: &mut Draw) -> DType {
    draw.weighted(&[(2, DType::F32), (4, DType::F16), (3, DType::Bf16)])
}

fn seed(draw: &mut Draw) -> Seed {
    Seed(draw.word())
}

/// Factor before the softmax: the usual one, or anything.
fn scale(draw: &mut Draw) -> Option<f32> {
    if draw.once_in(8) { Some(draw.pick(&[0.0, -0.1, 0.02, 0.5, 1.0])) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases(backend: BackendKind, operation: Option<Operation>) -> Vec<Case> {
        (0..400).map(|name| case(name, Scope { backend, operation })).collect()
    }

    #[test]
    fn a_name_stands_for_one_problem() {
        for backend in BackendKind::ALL {
            assert_eq!(cases(backend, None), cases(backend, None));
            for operation in Operation::ALL {
                assert!(cases(backend, Some(operation)).iter().all(|case| case.operation() == operation));
            }
        }
    }

    #[test]
    fn every_feature_is_drawn() {
        let mut forward = 0;
        let mut met = [false; 14];
        for case in cases(BackendKind::Cuda, Some(Operation::Forward)) {
            let Case::Forward(case) = case else { unreachable!("only these were asked for") };
            forward += 1;
            let of_case = [
                case.causal,
                case.window[0].is_some(),
                case.softcap > 0.0,
                case.alibi != super::super::case::Alibi::Off,
                case.dropout > 0.0,
                case.group > 1,
                case.head_dim_v.is_some(),
                case.sequences.iter().any(|lengths| lengths[1] == 0),
                case.q.repeat != [false; 3],
                case.o.gaps[0] > 0 && case.o.offset == 0 && case.o.gaps[0] < 8,
                case.o.offset % 2 == 1,
                !case.run.is_empty(),
                case.dtype == DType::E4m3,
                case.scores == Data::Huge,
            ];
            met.iter_mut().zip(of_case).for_each(|(met, has)| *met |= has);
        }
        assert_eq!((forward, met), (400, [true; 14]));
    }

    #[test]
    fn halving_ends() {
        let (mut a, mut b) = (100, 7);
        shrink_to(&mut [&mut a, &mut b], 50, |of| of[0] * of[1]);
        assert!(a * b <= 50 && a >= 1 && b >= 1);
        shrink_to(&mut [&mut a, &mut b], 0, |of| of[0] * of[1]);
        assert_eq!((a, b), (1, 1));
    }
}
