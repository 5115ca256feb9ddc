//! Arrays in registers, whose lengths follow from a tile's sizes.

use core::ops::IndexMut;

/// What one or a few registers hold.
pub trait Register: Copy {
    /// Zeros.
    const ZERO: Self;
}

impl Register for f32 {
    const ZERO: Self = 0.0;
}

impl Register for u32 {
    const ZERO: Self = 0;
}

impl Register for [f32; 2] {
    const ZERO: Self = [0.0; 2];
}

impl Register for [u32; 4] {
    const ZERO: Self = [0; 4];
}

/// What a thread holds of an operand: `[f32; N]`, for one, with indices that the compiler knows.
pub trait Registers: Copy + IndexMut<usize, Output = Self::Value> {
    /// What a register holds, or a few do.
    type Value: Register;
    /// As many of something else.
    type Of<V: Register>: Registers<Value = V>;
    /// N.
    const LEN: usize;
    /// Zeros.
    const ZERO: Self;

    /// The same value N times.
    fn splat(value: Self::Value) -> Self;
}

impl<V: Register, const N: usize> Registers for [V; N] {
    type Value = V;
    type Of<W: Register> = [W; N];
    const LEN: usize = N;
    const ZERO: Self = [V::ZERO; N];

    #[inline(always)]
    fn splat(value: V) -> Self {
        [value; N]
    }
}

/// A thread's part of a product: the registers of each of its rows.
pub trait Matrix: Copy + IndexMut<usize, Output = Self::Row> {
    /// A row.
    type Row: Registers<Value = f32>;
    /// One value for each row.
    type Column<V: Register>: Registers<Value = V>;
    /// Rows.
    const ROWS: usize;
    /// Columns.
    const COLS: usize = Self::Row::LEN;

    /// Zeros.
    fn zero() -> Self;
}

impl<R: Registers<Value = f32>, const ROWS: usize> Matrix for [R; ROWS] {
    type Row = R;
    type Column<V: Register> = [V; ROWS];
    const ROWS: usize = ROWS;

    #[inline(always)]
    fn zero() -> Self {
        [R::splat(0.0); ROWS]
    }
}

/// `N` columns of a tile. Array lengths cannot be computed from parameters, so that [`Width`] gives the
/// arrays.
#[derive(Clone, Copy, Debug)]
pub struct Columns<const N: u32>;

/// What a thread holds of [`Columns`] in one row.
pub trait Width: Copy {
    /// N.
    const COLUMNS: u32;
    /// Where four lanes share the row, as in products of `mma.sync` and of `wgmma`.
    type Quarter: Registers<Value = f32>;
    /// Words that four weights of a row that four lanes share have of a draw, of two rows.
    type Eighth: Registers<Value = u32>;
    /// Where 16 lanes do, as in the scores of `tile::simt`.
    type Sixteenth: Registers<Value = f32>;
    /// Where 16 lanes hold pairs of columns, as in the outputs of `tile::simt`; of multiples of 32.
    type Pairs: Registers<Value = [f32; 2]>;
}

/// The arrays of each N.
macro_rules! widths {
    ($($columns:literal)*) => {
        $(impl Width for Columns<$columns> {
            const COLUMNS: u32 = $columns;
            type Quarter = [f32; $columns / 4];
            type Eighth = [u32; $columns / 8];
            type Sixteenth = [f32; $columns / 16];
            type Pairs = [[f32; 2]; $columns / 32];
        })*
    };
}

widths! { 16 32 48 64 80 96 112 128 144 160 176 192 208 224 240 256 }
