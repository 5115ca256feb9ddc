//! Tensor maps as data: what a kernel's copies see of a tensor. Each backend encodes them in its own form, by
//! value with every launch.

/// A tensor, and the box of it that one copy moves, swizzled over 128 bytes of shared memory. Dimension 0 is
/// the innermost one; entries past `rank` are not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorMap {
    /// Address of element (0, …, 0): a multiple of 16.
    pub(crate) address: u64,
    /// Bytes of an element.
    pub(crate) element_bytes: u32,
    /// Number of dimensions, 1 to 5.
    pub(crate) rank: u32,
    /// Elements in each dimension.
    pub(crate) dims: [u64; 5],
    /// Bytes from one index to the next in dimensions 1 to `rank` − 1: multiples of 16 below 2^40.
    pub(crate) strides: [u64; 4],
    /// Elements of a box in each dimension, 1 to 256.
    pub(crate) box_dims: [u32; 5],
    /// Whether a miss in L2 brings 256 bytes, and not only what is asked for: worse for what is read once.
    pub(crate) promotes: bool,
}

#[cfg(feature = "sim")]
impl TensorMap {
    /// The map in the simulator's form.
    ///
    /// # Errors
    /// What the driver would refuse, with value and limit.
    pub(crate) fn encode(&self) -> Result<fa_kernels::ptx::tma::TensorMap, String> {
        let Self { address, element_bytes, rank, dims, strides, box_dims, .. } = *self;
        let swizzle = fa_sim::tma::Swizzle::Bytes128;
        let map = fa_sim::tma::TensorMap { address, element_bytes, rank, dims, strides, box_dims, swizzle };
        map.encode().map(fa_kernels::ptx::tma::TensorMap)
    }
}

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
/// first.
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
        promotes: true,
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
