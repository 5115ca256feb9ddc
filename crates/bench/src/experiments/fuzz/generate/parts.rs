//! What problems of all operations are drawn from: sizes, lengths, places and data.

use flash_attention::{BackendKind, DType};

use super::super::case::{Data, HeadList, Seed};
use super::super::draw::Draw;
use super::super::place::Place;

/// How much a problem may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// Rows of queries and of keys of a sequence, and of a matrix.
    pub(super) rows: usize,
    /// Multiplications of whole tiles of [`Self::tile`] rows by as many.
    pub(super) products: usize,
    /// Rows of the least that a block computes.
    pub(super) tile: usize,
    /// Elements of a tensor.
    pub(super) elements: usize,
}

impl Size {
    /// Mostly small; one in 32 is longer than the others, but for the simulator.
    pub(super) fn of(backend: BackendKind, draw: &mut Draw) -> Self {
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
    pub(super) fn of_whole_heads(self) -> Self {
        let products = if self.tile == 1 { 1 << 21 } else { self.products / 2 };
        Self { products, rows: self.rows.min(1024), ..self }
    }

    pub(super) fn tiles(self, rows: usize) -> usize {
        rows.next_multiple_of(self.tile)
    }
}

/// Sides of a window over sequences of about so many keys.
pub(super) fn window(draw: &mut Draw, keys: usize) -> [Option<usize>; 2] {
    [0; 2].map(|_| if draw.once_in(3) { None } else { Some(draw.logarithmic(1, keys.max(4)) - 1) })
}

/// A softcap, once in nine.
pub(super) fn softcap(draw: &mut Draw) -> f32 {
    if draw.once_in(9) { draw.pick(&[0.5, 5.0, 30.0]) } else { 0.0 }
}

/// A list with a value for each head, once in so many.
pub(super) fn head_list(draw: &mut Draw, once_in: usize) -> HeadList {
    if draw.once_in(once_in) { draw.pick(&[HeadList::Heads, HeadList::All]) } else { HeadList::Off }
}

/// A length: any, or near a multiple of what tiles and copies are made of.
pub(super) fn length(draw: &mut Draw, most: usize) -> usize {
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
pub(super) fn head_dim(draw: &mut Draw) -> usize {
    match draw.below(3) {
        0 => draw.between(1, 256),
        1 => draw.pick(&[32, 40, 64, 64, 80, 96, 128, 128, 128, 160, 192, 256]),
        _ => (8 * draw.between(1, 32) + draw.below(3) - 1).min(256),
    }
}

/// Halves the largest of `lengths` until they cost no more than `most`.
pub(super) fn shrink_to(lengths: &mut [&mut usize], most: usize, cost: impl Fn(&[usize]) -> usize) {
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
pub(super) fn data(draw: &mut Draw) -> Data {
    draw.weighted(&[(5, Data::Normal), (3, Data::MeanOne), (1, Data::Huge), (1, Data::Equal)])
}

/// Where a tensor whose rows have so many elements lies.
pub(super) fn place(draw: &mut Draw, dtype: DType, head_dim: usize, is_output: bool) -> Place {
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

pub(super) fn result_dtype(draw: &mut Draw) -> DType {
    draw.weighted(&[(2, DType::F32), (4, DType::F16), (3, DType::Bf16)])
}

pub(super) fn seed(draw: &mut Draw) -> Seed {
    Seed(draw.word())
}

/// Factor before the softmax: the usual one, or anything.
pub(super) fn scale(draw: &mut Draw) -> Option<f32> {
    if draw.once_in(8) { Some(draw.pick(&[0.0, -0.1, 0.02, 0.5, 1.0])) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halving_ends() {
        let (mut a, mut b) = (100, 7);
        shrink_to(&mut [&mut a, &mut b], 50, |of| of[0] * of[1]);
        assert!(a * b <= 50 && a >= 1 && b >= 1);
        shrink_to(&mut [&mut a, &mut b], 0, |of| of[0] * of[1]);
        assert_eq!((a, b), (1, 1));
    }
}
