//! Accumulators under way: the tags that their registers hold meanwhile, and their sums.

use std::panic::Location;

use crate::operation::Options;
use crate::site::Site;
use crate::tensor_core::wgmma::{self, M, WARP_ROWS};
use crate::threads::WARPGROUP_WARPS;

/// Bits of a signalling NaN; the tag of an accumulator is in the bits below. Arithmetic makes it a quiet one.
const SIGNALLING: u32 = 0x7f80_0000;
const QUIET: u32 = 0x7fc0_0000;
const TAGS: u32 = 0x003f_ffff;

/// The tag of an accumulator that is not under way.
pub(crate) const NONE: u32 = 0;

const TAKEN: &str = "its accumulator is a copy of one whose sums have been taken";

/// The accumulators of a warpgroup that are under way.
#[derive(Default)]
pub(crate) struct Accumulators {
    list: Vec<Accumulator>,
    last_tag: u32,
}

struct Accumulator {
    tag: u32,
    n: usize,
    /// M × n, by rows.
    sums: Vec<f32>,
    /// The group of its last product.
    group: u64,
    /// By warp, one bit for each lane that has taken its part.
    taken: [u32; WARPGROUP_WARPS],
    location: &'static Location<'static>,
}

impl Accumulators {
    /// What the registers of an accumulator hold while it is under way.
    pub(crate) fn poison(tag: u32) -> u32 {
        SIGNALLING | tag
    }

    fn get(&mut self, tag: u32) -> Option<&mut Accumulator> {
        self.list.iter_mut().find(|accumulator| accumulator.tag == tag)
    }

    /// The tag of the accumulator of a product, where the lanes bring one with tag `brought`.
    ///
    /// # Errors
    /// The accumulator is not one that the product can take.
    pub(crate) fn begin(
        &mut self,
        brought: u32,
        n: usize,
        group: u64,
        location: &'static Location<'static>,
    ) -> Result<u32, String> {
        if brought == NONE {
            self.last_tag = self.last_tag % TAGS + 1;
            let (tag, sums, taken) = (self.last_tag, vec![0.0; M * n], [0; WARPGROUP_WARPS]);
            self.list.push(Accumulator { tag, n, sums, group, taken, location });
            return Ok(tag);
        }
        let accumulator = self.get(brought).ok_or(TAKEN)?;
        if accumulator.n != n {
            return Err(format!("n is {n} for an accumulator under way with n = {}", accumulator.n));
        }
        (accumulator.group, accumulator.location) = (group, location);
        Ok(brought)
    }

    /// Gives an accumulator the rows that a warp brings.
    pub(crate) fn set_rows(&mut self, tag: u32, warp: usize, rows: &[f32]) {
        if let Some(accumulator) = self.get(tag) {
            let first = warp * WARP_ROWS * accumulator.n;
            accumulator.sums[first..first + rows.len()].copy_from_slice(rows);
        }
    }

    /// Where the last product of an accumulator was issued that the lane has not taken its part of.
    pub(crate) fn left(&self, warp: usize, lane: usize) -> Option<&'static Location<'static>> {
        let left = self.list.iter().find(|left| left.taken[warp] & (1 << lane) == 0);
        left.map(|left| left.location)
    }

    /// The tag that all elements of an accumulator hold.
    pub(crate) fn tag_of(elements: &[f32]) -> Option<u32> {
        let first = elements.first().map_or(0, |element| element.to_bits());
        let is_whole = is_tagged(first) && elements.iter().all(|element| element.to_bits() == first);
        is_whole.then_some(first & TAGS)
    }

    /// Where the last product was issued of an accumulator under way that some of `elements` are from.
    pub(crate) fn touched(&self, elements: &[f32]) -> Option<Site> {
        let touched = elements.iter().find_map(|element| {
            let bits = element.to_bits();
            let was_tagged = is_tagged(bits) || bits & QUIET == QUIET && bits & TAGS != 0;
            self.list.iter().find(|other| was_tagged && other.tag == bits & TAGS)
        });
        touched.map(|accumulator| accumulator.location.into())
    }

    /// Computes a product of M × `n` into the accumulator `tag`.
    pub(crate) fn multiply(&mut self, tag: u32, a: &[u16], b: &[u16], n: usize, options: Options) {
        let Some(accumulator) = self.get(tag) else { return };
        if !options.accumulate {
            accumulator.sums.fill(0.0);
        }
        wgmma::multiply_add(&mut accumulator.sums, a, b, n, options.element);
    }

    /// Gives a lane its part of the accumulator `tag`, if its last group is one of the first `complete`.
    ///
    /// # Errors
    /// All lanes have taken theirs.
    pub(crate) fn take(
        &mut self,
        tag: u32,
        warp: usize,
        lane: usize,
        complete: u64,
        elements: &mut [f32],
    ) -> Result<(), &'static str> {
        let from = self.get(tag).ok_or(TAKEN)?;
        if from.group >= complete {
            return Ok(());
        }
        let n = from.n;
        let sums = &from.sums[warp * WARP_ROWS * n..];
        for (element, value) in elements.iter_mut().enumerate() {
            let (row, column) = wgmma::accumulator_place(lane, element);
            *value = sums[row * n + column];
        }
        from.taken[warp] |= 1 << lane;
        if from.taken == [u32::MAX; WARPGROUP_WARPS] {
            self.list.retain(|accumulator| accumulator.tag != tag);
        }
        Ok(())
    }
}

/// Whether an element is as an accumulator under way has them.
fn is_tagged(bits: u32) -> bool {
    bits & !TAGS == SIGNALLING && bits & TAGS != 0
}
