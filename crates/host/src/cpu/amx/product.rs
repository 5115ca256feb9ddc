//! C = A·B in tiles: two by two of C at a time, which are half of the eight, beside two of A and two of B.

/// Rows of a tile.
pub(super) const TILE_ROWS: usize = 16;
/// Bytes of a row: 16 fp32, or 32 bf16, or 16 pairs of bf16.
pub(super) const TILE_ROW_BYTES: usize = 64;
/// Bytes of a tile.
pub(super) const TILE_BYTES: usize = TILE_ROWS * TILE_ROW_BYTES;
/// bf16 along the depth that one instruction takes: those of a row of A, or the pairs of a column of B.
pub(super) const STEP: usize = 32;
/// Rows and columns of C that are computed at a time: two tiles.
pub(super) const BLOCK: usize = 2 * TILE_ROWS;

/// Eight tiles of 16 rows of 64 bytes each, numbered from 0.
pub(super) trait Tiles: Sized {
    /// Makes all tiles whole, on the thread that runs.
    ///
    /// # Safety
    /// The CPU has the instructions.
    unsafe fn configure();

    /// Gives the tiles back.
    ///
    /// # Safety
    /// The CPU has the instructions, and no value of the type is left.
    unsafe fn release();

    /// The thread's tiles.
    ///
    /// # Safety
    /// The thread is between [`Self::configure`] and [`Self::release`], and has no other value of the type.
    unsafe fn new() -> Self;

    /// T = 0.
    fn zero<const T: usize>(&mut self);

    /// T = 16 rows of 64 bytes, `stride` bytes apart.
    ///
    /// # Safety
    /// The rows are readable.
    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize);

    /// 16 rows of 64 bytes, `stride` bytes apart, = T.
    ///
    /// # Safety
    /// The rows are writable.
    unsafe fn store<const T: usize>(&self, to: *mut u8, stride: usize);

    /// C[i, j] += Σ A[i, 2k]·B[k, 2j] + A[i, 2k + 1]·B[k, 2j + 1] over the 16 k: C in fp32, A and B in bf16.
    fn multiply<const C: usize, const A: usize, const B: usize>(&mut self);
}

/// Where the tiles of an operand lie; all distances are in bytes.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    pub(super) data: *const u8,
    /// From a row of a tile to the next.
    pub(super) row: usize,
    /// From a tile to that of the next 16 rows of A, or columns of B.
    pub(super) tile: usize,
    /// From a tile to that of the next [`STEP`] of the depth.
    pub(super) step: usize,
    /// From a tile of the upper part to that of the lower one, where the operand is a sum of two.
    pub(super) part: usize,
}

/// A product of matrices.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) a: Operand,
    pub(super) b: Operand,
    /// Which parts of A and B are multiplied with one another.
    pub(super) parts: &'static [(usize, usize)],
    /// Depth, in steps.
    pub(super) steps: usize,
    /// Blocks of 32 rows, and of 32 columns.
    pub(super) blocks: (usize, usize),
    /// C, row-major in fp32.
    pub(super) c: *mut f32,
    /// Elements from a row of C to the next.
    pub(super) c_stride: usize,
    /// Whether the product is added to what C holds.
    pub(super) adds: bool,
}

/// Computes a product.
///
/// # Safety
/// The thread is between [`Tiles::configure`] and [`Tiles::release`]. Both operands are readable for all
/// tiles that the product names, and C is readable and writable for its blocks and overlaps neither.
#[inline(always)]
pub(super) unsafe fn multiply<T: Tiles>(product: &Product) {
    let (rows, columns) = product.blocks;
    // SAFETY: no other value of the type is in use, and the block is one of the product's.
    unsafe {
        let mut tiles = T::new();
        for i in 0..rows {
            for j in 0..columns {
                block(&mut tiles, product, (i, j));
            }
        }
    }
}

/// Computes block (i, j) of C.
///
/// # Safety
/// As [`multiply`]; the product has such a block.
#[inline(always)]
unsafe fn block<T: Tiles>(tiles: &mut T, product: &Product, (i, j): (usize, usize)) {
    let Product { a, b, c_stride, .. } = *product;
    let (a_data, b_data) = (a.data.wrapping_add(2 * i * a.tile), b.data.wrapping_add(2 * j * b.tile));
    let upper = product.c.wrapping_add(i * BLOCK * c_stride + j * BLOCK);
    let lower = upper.wrapping_add(TILE_ROWS * c_stride).cast::<u8>();
    let (upper, c_row) = (upper.cast::<u8>(), c_stride * size_of::<f32>());
    // SAFETY: the caller vouches for the two by two tiles of C and the two of each operand at each step.
    unsafe {
        if product.adds {
            tiles.load::<0>(upper, c_row);
            tiles.load::<1>(upper.add(TILE_ROW_BYTES), c_row);
            tiles.load::<2>(lower, c_row);
            tiles.load::<3>(lower.add(TILE_ROW_BYTES), c_row);
        } else {
            tiles.zero::<0>();
            tiles.zero::<1>();
            tiles.zero::<2>();
            tiles.zero::<3>();
        }
        for step in 0..product.steps {
            for (a_part, b_part) in product.parts {
                let from_a = a_data.add(step * a.step + a_part * a.part);
                let from_b = b_data.add(step * b.step + b_part * b.part);
                tiles.load::<4>(from_a, a.row);
                tiles.load::<6>(from_b, b.row);
                tiles.load::<7>(from_b.add(b.tile), b.row);
                tiles.multiply::<0, 4, 6>();
                tiles.multiply::<1, 4, 7>();
                tiles.load::<5>(from_a.add(a.tile), a.row);
                tiles.multiply::<2, 5, 6>();
                tiles.multiply::<3, 5, 7>();
            }
        }
        tiles.store::<0>(upper, c_row);
        tiles.store::<1>(upper.add(TILE_ROW_BYTES), c_row);
        tiles.store::<2>(lower, c_row);
        tiles.store::<3>(lower.add(TILE_ROW_BYTES), c_row);
    }
}
