//! Tensor maps: what a box of a tensor in global memory is, and where its bytes lie in shared memory
//! (PTX ISA, "Tensors" and "Tensor-map"; CUDA driver API, `cuTensorMapEncodeTiled`).

/// Most dimensions of a tensor.
pub(crate) const MAX_RANK: usize = 5;

/// First word of an encoded map.
const MAGIC: u64 = u64::from_le_bytes(*b"fa-sim-1");

/// A tensor map in tile mode without interleave, element strides 1, out-of-bounds fill zero.
///
/// Dimension 0 is the one whose elements are neighbours. Entries past `rank` are not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorMap {
    /// Address of element (0, …, 0) in global memory: a multiple of 16.
    pub address: u64,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub element_bytes: u32,
    /// Number of dimensions, 1 to 5.
    pub rank: u32,
    /// Elements in each dimension, 1 to 2^32.
    pub dims: [u64; MAX_RANK],
    /// Bytes from one index to the next in dimensions 1 to `rank` − 1: multiples of 16 below 2^40.
    pub strides: [u64; MAX_RANK - 1],
    /// Elements of a box in each dimension, 1 to 256. In dimension 0 they are a multiple of 16 bytes, and no
    /// more than the swizzle's span.
    pub box_dims: [u32; MAX_RANK],
    /// How the bytes of a box are permuted in shared memory.
    pub swizzle: Swizzle,
}

/// A permutation of chunks of 16 bytes in shared memory, by address (PTX ISA, "Swizzling modes").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// Rows of a box lie one behind the other.
    #[default]
    None,
    /// Address bit 4 is inverted where bit 7 is set: 2 chunks, repeats after 256 bytes.
    Bytes32,
    /// Address bits 4 and 5 are XORed with bits 7 and 8: 4 chunks, repeats after 512 bytes.
    Bytes64,
    /// Address bits 4 to 6 are XORed with bits 7 to 9: 8 chunks, repeats after 1,024 bytes.
    Bytes128,
}

impl Swizzle {
    /// Bytes within which chunks change places; 16 for none.
    pub(crate) fn span(self) -> u32 {
        match self {
            Self::None => 16,
            Self::Bytes32 => 32,
            Self::Bytes64 => 64,
            Self::Bytes128 => 128,
        }
    }

    /// Where the byte that would be at shared address `address` is.
    #[inline]
    pub fn apply(self, address: u32) -> u32 {
        address ^ ((address >> 3) & (self.span() - 16))
    }
}

impl TensorMap {
    /// The map as a kernel parameter of 128 bytes, for the simulator alone: the device's format is its own.
    ///
    /// # Errors
    /// The argument that `cuTensorMapEncodeTiled` would refuse, its value and its limit.
    pub fn encode(&self) -> Result<[u64; 16], String> {
        self.validate()?;
        let mut words = [0; 16];
        let swizzle = self.swizzle.span().trailing_zeros() - 4;
        words[0] = MAGIC;
        words[1] = self.address;
        words[2] = u64::from(self.element_bytes) | u64::from(self.rank) << 8 | u64::from(swizzle) << 16;
        words[3..8].copy_from_slice(&self.dims);
        words[8..12].copy_from_slice(&self.strides);
        for (dimension, &extent) in self.box_dims.iter().enumerate() {
            words[12 + dimension / 2] |= u64::from(extent) << (32 * (dimension % 2));
        }
        Ok(words)
    }

    /// What [`TensorMap::encode`] made; `None` for anything else.
    pub(crate) fn decode(words: &[u64; 16]) -> Option<Self> {
        let field = |shift: u32| (words[2] >> shift) as u8;
        let map = Self {
            address: words[1],
            element_bytes: field(0).into(),
            rank: field(8).into(),
            dims: std::array::from_fn(|dimension| words[3 + dimension]),
            strides: std::array::from_fn(|dimension| words[8 + dimension]),
            box_dims: std::array::from_fn(|dimension| {
                (words[12 + dimension / 2] >> (32 * (dimension % 2))) as u32
            }),
            swizzle: match field(16) {
                0 => Swizzle::None,
                1 => Swizzle::Bytes32,
                2 => Swizzle::Bytes64,
                3 => Swizzle::Bytes128,
                _ => return None,
            },
        };
        (words[0] == MAGIC && map.validate().is_ok()).then_some(map)
    }

    fn validate(&self) -> Result<(), String> {
        let Self { address, element_bytes, rank, swizzle, .. } = *self;
        if !address.is_multiple_of(16) {
            return Err(format!("address is {address:#x}, not a multiple of 16"));
        }
        if !matches!(element_bytes, 1 | 2 | 4 | 8) {
            return Err(format!("element_bytes is {element_bytes}, not 1, 2, 4 or 8"));
        }
        if !(1..=MAX_RANK as u32).contains(&rank) {
            return Err(format!("rank is {rank}, not 1 to {MAX_RANK}"));
        }
        for (dimension, (&extent, &boxed)) in
            self.dims.iter().zip(&self.box_dims).take(rank as usize).enumerate()
        {
            if !(1..=1 << 32).contains(&extent) {
                return Err(format!("dims[{dimension}] is {extent}, not 1 to 2^32"));
            }
            if !(1..=256).contains(&boxed) {
                return Err(format!("box_dims[{dimension}] is {boxed}, not 1 to 256"));
            }
        }
        for (dimension, &stride) in self.strides[..rank as usize - 1].iter().enumerate() {
            if stride == 0 || !stride.is_multiple_of(16) || stride >= 1 << 40 {
                return Err(format!(
                    "strides[{dimension}] is {stride}, not a positive multiple of 16 below 2^40"
                ));
            }
        }
        let row = self.row_bytes();
        if !row.is_multiple_of(16) {
            return Err(format!("a row of the box has {row} bytes, not a multiple of 16"));
        }
        if swizzle != Swizzle::None && row > swizzle.span() {
            return Err(format!("a row of the box has {row} bytes, the swizzle spans {}", swizzle.span()));
        }
        Ok(())
    }

    /// Bytes of a box in dimension 0.
    pub(crate) fn row_bytes(&self) -> u32 {
        self.box_dims[0] * self.element_bytes
    }

    /// Rows of a box: the product of its other dimensions.
    pub(crate) fn rows(&self) -> u32 {
        self.box_dims[1..self.rank as usize].iter().product()
    }

    /// Alignment of a box in shared memory (CUDA C++ Programming Guide, "Swizzle modes").
    pub(crate) fn shared_alignment(&self) -> u32 {
        if self.swizzle == Swizzle::None { 16 } else { 128 }
    }

    /// Row `row` of the box whose first element has these `coordinates`.
    pub(crate) fn row(&self, row: u32, coordinates: [i32; MAX_RANK]) -> Row {
        let mut address = self.address;
        let mut rest = row;
        let outer = self.box_dims.iter().zip(&self.dims).zip(coordinates).take(self.rank as usize).skip(1);
        for (((&boxed, &extent), coordinate), &stride) in outer.zip(&self.strides) {
            let index = i64::from(coordinate) + i64::from(rest % boxed);
            rest /= boxed;
            if !u64::try_from(index).is_ok_and(|index| index < extent) {
                return Row { skipped: 0, bytes: 0, address: self.address };
            }
            address = address.wrapping_add((index as u64).wrapping_mul(stride));
        }
        let first = i64::from(coordinates[0]);
        let begin = first.max(0);
        let end = (first + i64::from(self.box_dims[0])).min(self.dims[0].min(1 << 32) as i64);
        let bytes = (end - begin).max(0) as u64 * u64::from(self.element_bytes);
        Row {
            skipped: ((begin - first) as u64 * u64::from(self.element_bytes)).min(self.row_bytes().into())
                as usize,
            bytes: bytes as usize,
            address: address.wrapping_add(begin as u64 * u64::from(self.element_bytes)),
        }
    }
}

impl Row {
    /// What a store writes of it: all of its last 16 bytes, inside the tensor or not, as seen on an H200.
    pub(crate) fn stored(self) -> Self {
        Self { bytes: self.bytes.next_multiple_of(16), ..self }
    }
}

/// The part of a box's row that is inside the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Bytes of the row before it.
    pub(crate) skipped: usize,
    /// Its bytes; 0 where all of the row is outside.
    pub(crate) bytes: usize,
    /// Where it is in global memory.
    pub(crate) address: u64,
}
