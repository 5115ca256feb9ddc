//! Matrix descriptors: where the chunks of an operand are in shared memory (PTX ISA, "Matrix Descriptor
//! Format" and "Shared Memory Matrix Layout" of `wgmma.mma_async`).

use std::ops::Range;

use super::wgmma::{CHUNK, K};
use crate::tensor_map::Swizzle;

/// An operand of K = 16 columns of 16-bit elements, and of rows as many as M or N.
///
/// The operand is a matrix of chunks of 8 elements that are neighbours along K (K-major), or along M or N
/// (MN-major). With a swizzle of s bytes:
/// * K-major: 8 rows, s bytes apart, make a group; groups are `stride` bytes apart; the second chunk of a row
///   is 16 bytes behind the first, and `leading` is not used. Without a swizzle rows are 16 bytes apart, and
///   the second chunk is `leading` bytes behind the first.
/// * MN-major: a row of K has s bytes, and 8 of these rows make a group; the second group is `stride` bytes
///   behind the first; what of M or N is past s bytes comes `leading` bytes further. Without a swizzle a row
///   of K has 16 bytes, and `stride` and `leading` change places.
///
/// Then the swizzle permutes chunks by the bits of their shared addresses, as in TMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    start: u32,
    leading: u32,
    stride: u32,
    swizzle: Swizzle,
}

impl Descriptor {
    /// Bits 0 to 13 hold the start address, 16 to 29 the leading dimension byte offset, 32 to 45 the stride
    /// dimension byte offset, each in units of 16 bytes, 49 to 51 the base offset, 62 and 63 the swizzle.
    ///
    /// # Errors
    /// Reserved bits are set, or the base offset is not 0: the PTX ISA asks for one where the pattern of the
    /// swizzle starts off its boundary, which neither TMA nor this crate does.
    pub(crate) fn decode(bits: u64) -> Result<Self, String> {
        let field = |shift: u32| ((bits >> shift) & 0x3fff) as u32 * 16;
        let reserved = Self::bits(14..16) | Self::bits(30..32) | Self::bits(46..49) | Self::bits(52..62);
        if bits & reserved != 0 {
            return Err(format!("descriptor {bits:#018x} has reserved bits set: {:#x}", bits & reserved));
        }
        let base_offset = (bits >> 49) & 7;
        if base_offset != 0 {
            return Err(format!("descriptor {bits:#018x} has base offset {base_offset}, only 0 is modelled"));
        }
        let swizzle = match bits >> 62 {
            0 => Swizzle::None,
            1 => Swizzle::Bytes128,
            2 => Swizzle::Bytes64,
            _ => Swizzle::Bytes32,
        };
        Ok(Self { start: field(0), leading: field(16), stride: field(32), swizzle })
    }

    fn bits(range: Range<u32>) -> u64 {
        (1 << range.end) - (1 << range.start)
    }

    /// Shared addresses of the chunks of an operand of `extent` rows. K-major: both chunks of row 0, those of
    /// row 1, and so on. MN-major (`transposed`): all chunks of K row 0, those of K row 1, and so on.
    pub(crate) fn chunks(self, extent: usize, transposed: bool) -> impl Iterator<Item = u32> {
        let along = extent / CHUNK;
        (0..extent * K / CHUNK).map(move |index| {
            let offset = if transposed {
                self.mn_major((index % along) as u32, (index / along) as u32)
            } else {
                self.k_major((index / 2) as u32, (index % 2) as u32)
            };
            self.swizzle.apply((self.start + offset) & 0x3_ffff)
        })
    }

    /// Offset of a half of a row.
    fn k_major(&self, row: u32, half: u32) -> u32 {
        let apart = if self.swizzle == Swizzle::None { self.leading } else { 16 };
        row / 8 * self.stride + row % 8 * self.swizzle.span() + half * apart
    }

    /// Offset of the `chunk`-th 8 elements of row `k` of K.
    fn mn_major(&self, chunk: u32, k: u32) -> u32 {
        let span = self.swizzle.span();
        let (across, down) = match self.swizzle {
            Swizzle::None => (self.stride, self.leading),
            _ => (self.leading, self.stride),
        };
        chunk % (span / 16) * 16 + chunk / (span / 16) * across + k % 8 * span + k / 8 * down
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
