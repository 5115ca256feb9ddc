//! Elements of random tensors.

use flash_attention::{DType, Element};

use super::case::Data;
use super::draw::Draw;
use super::image::{Image, Slot};
use crate::inputs::normal_pair;

/// What a tensor's elements are drawn from, and what they are multiplied by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) data: Data,
    pub(super) factor: f32,
}

/// Magnitude of `Huge` elements: products of two, summed over rows and keys, stay finite in fp32.
pub(super) const fn huge(dtype: DType) -> f32 {
    match dtype {
        DType::F32 | DType::Bf16 => 1e15,
        DType::F16 => 6e4,
        DType::E4m3 => 448.0,
    }
}

impl Source {
    pub(super) const fn new(data: Data) -> Self {
        Self { data, factor: 1.0 }
    }

    /// Fills rows of so many elements, each from its first one on.
    pub(super) fn fill<T: Element>(
        self,
        image: &mut Image,
        slot: Slot,
        rows: impl Iterator<Item = usize>,
        len: usize,
        draw: &mut Draw,
    ) {
        let equal = draw.pick(&[1.0, -0.5, 0.1, 3.0]);
        let values = image.values_mut::<T>(slot);
        for first in rows {
            for pair in values[first..][..len].chunks_mut(2) {
                let drawn = self.pair(T::DTYPE, equal, draw);
                pair.iter_mut().zip(drawn).for_each(|(to, value)| *to = T::from_f32(self.factor * value));
            }
        }
    }

    fn pair(self, dtype: DType, equal: f32, draw: &mut Draw) -> [f32; 2] {
        match self.data {
            Data::Normal => normal_pair(draw.word()),
            Data::MeanOne => normal_pair(draw.word()).map(|x| 1.0 + 0.25 * x),
            Data::Equal => [equal; 2],
            Data::Huge => {
                // From half of the magnitude to all of it, of either sign.
                let word = draw.word();
                [word >> 40, word & 0xff_ffff].map(|bits| {
                    let magnitude = huge(dtype) * (0.5 + 0.5 * (bits >> 1) as f32 / (1 << 23) as f32);
                    if bits & 1 == 0 { magnitude } else { -magnitude }
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::image::INPUT_CANARY;
    use super::*;
    use half::f16;

    #[test]
    fn rows_are_filled_and_gaps_are_left() {
        for data in [Data::Normal, Data::MeanOne, Data::Huge, Data::Equal] {
            let mut image = Image::new(INPUT_CANARY);
            let slot = image.reserve((3000, 2), 1);
            image.fill();
            let rows = [0, 1500].into_iter();
            Source::new(data).fill::<f16>(&mut image, slot, rows, 1499, &mut Draw::new(3));
            let values = image.values::<f16>(slot);
            assert!(values[1499].is_nan() && values[2999].is_nan());
            let filled: Vec<_> =
                values[..1499].iter().chain(&values[1500..2999]).map(|x| x.to_f64()).collect();
            assert!(filled.iter().all(|x| x.is_finite()));
            let mean = filled.iter().sum::<f64>() / filled.len() as f64;
            let largest = filled.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
            match data {
                Data::Normal => assert!(mean.abs() < 0.1 && (2.5..6.0).contains(&largest)),
                Data::MeanOne => assert!((mean - 1.0).abs() < 0.05),
                Data::Huge => assert!((5.5e4..=6e4).contains(&largest) && mean.abs() < 3e3),
                Data::Equal => assert!(filled.iter().all(|&x| x == filled[0])),
            }
        }
    }
}
