//! Tensor maps as data: what a kernel's copies see of a tensor. Each backend encodes them in its own form, by
//! value with every launch.

pub(crate) use fa_sim::tma::TensorMap;

use fa_sim::tma::Swizzle;

/// One dimension of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dimension {
    /// Its length in elements.
    pub(crate) length: usize,
    /// Elements from one index to the next; a multiple of 16 bytes, but for the innermost dimension, where it
    /// is 1.
    pub(crate) stride: usize,
    /// Elements of it in a box.
    pub(crate) boxed: u32,
}

/// The map of a tensor at `address`, a multiple of 16, of elements of so many bytes, the innermost dimension
/// first. Boxes are swizzled over 128 bytes.
pub(crate) fn swizzled<const RANK: usize>(
    (address, element_bytes): (u64, u32),
    dimensions: [Dimension; RANK],
) -> TensorMap {
    let mut map = TensorMap {
        address,
        element_bytes,
        rank: RANK as u32,
        dims: [0; 5],
        strides: [0; 4],
        box_dims: [0; 5],
        swizzle: Swizzle::Bytes128,
    };
    for (index, dimension) in dimensions.into_iter().enumerate() {
        map.dims[index] = dimension.length as u64;
        map.box_dims[index] = dimension.boxed;
        if let Some(outer) = index.checked_sub(1) {
            map.strides[outer] = u64::from(element_bytes) * dimension.stride as u64;
        }
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_are_bytes_of_the_outer_dimensions() {
        let dimension = |length, stride, boxed| Dimension { length, stride, boxed };
        let map = swizzled((0x1000, 2), [dimension(100, 1, 64), dimension(30, 104, 128)]);
        assert_eq!(
            (map.rank, &map.dims[..2], &map.strides[..1], &map.box_dims[..2]),
            (2, &[100, 30][..], &[208][..], &[64, 128][..])
        );
        assert!(map.encode().is_ok());
    }
}
