//! Accumulators under way: the tags that their registers hold meanwhile, and their sums.

use std::panic::Location;

use super::descriptor::CHUNK;
use super::product::{self, K, M, WARP_ROWS};
use crate::block::Block;
use crate::error::Error;
use crate::shared::BASE;
use crate::site::Site;
use crate::threads::{LANES, WARPGROUP_WARPS};

/// Bits of a signalling NaN; the tag of an accumulator is in the bits below. Arithmetic makes it a quiet one.
const SIGNALLING: u32 = 0x7f80_0000;
const QUIET: u32 = 0x7fc0_0000;
const TAGS: u32 = 0x003f_ffff;

/// The tag of an accumulator that is not under way.
pub(super) const NONE: u32 = 0;

/// The accumulators of a warpgroup that are under way.
#[derive(Default)]
pub(super) struct Accumulators {
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
    pub(super) fn poison(tag: u32) -> u32 {
        SIGNALLING | tag
    }

    fn get(&mut self, tag: u32) -> Option<&mut Accumulator> {
        self.list.iter_mut().find(|accumulator| accumulator.tag == tag)
    }

    /// The tag of the accumulator of a product, where the lanes bring one with tag `brought`.
    ///
    /// # Errors
    /// The accumulator is not one that the product can take.
    pub(super) fn begin(
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
    pub(super) fn set_rows(&mut self, tag: u32, warp: usize, rows: &[f32]) {
        if let Some(accumulator) = self.get(tag) {
            let first = warp * WARP_ROWS * accumulator.n;
            accumulator.sums[first..first + rows.len()].copy_from_slice(rows);
        }
    }

    /// Where the last product of an accumulator was issued that the lane has not taken its part of.
    pub(super) fn left(&self, warp: usize, lane: usize) -> Option<&'static Location<'static>> {
        let left = self.list.iter().find(|left| left.taken[warp] & (1 << lane) == 0);
        left.map(|left| left.location)
    }
}

const TAKEN: &str = "its accumulator is a copy of one whose sums have been taken";

impl Block {
    /// The tag of an accumulator, or, if it is not under way and `accumulate`, a copy of it.
    pub(super) fn stage_accumulator(
        &mut self,
        accumulator: &[f32],
        accumulate: bool,
        location: &'static Location<'static>,
    ) -> Result<u32, Box<Error>> {
        let n = 2 * accumulator.len();
        if !(8..=256).contains(&n) || !n.is_multiple_of(8) {
            let reason = format!("n is {n}, not a multiple of 8 from 8 to 256");
            return Err(self.wgmma_error(location, reason));
        }
        let tag = self.tag_of(accumulator, location)?;
        if tag == NONE && accumulate {
            let (warp, lane) = (self.current / LANES, self.current % LANES);
            let index = self.warpgroup_index(location)?;
            let staged = &mut self.warpgroups[index].warps[warp % WARPGROUP_WARPS].staged;
            staged.resize(WARP_ROWS * n, 0.0);
            for (element, &value) in accumulator.iter().enumerate() {
                let (row, column) = product::accumulator_place(lane, element);
                staged[row * n + column] = value;
            }
        }
        Ok(tag)
    }

    /// The tag that all elements of an accumulator hold; [`NONE`] where it is not under way.
    fn tag_of(&self, accumulator: &[f32], location: &'static Location<'static>) -> Result<u32, Box<Error>> {
        let first = accumulator.first().map_or(0, |element| element.to_bits());
        let is_tagged = |bits: u32| bits & !TAGS == SIGNALLING && bits & TAGS != 0;
        if is_tagged(first) && accumulator.iter().all(|element| element.to_bits() == first) {
            return Ok(first & TAGS);
        }
        let index = self.warpgroup_index(location)?;
        let under_way = &self.warpgroups[index].accumulators.list;
        let touched = accumulator.iter().find_map(|element| {
            let bits = element.to_bits();
            let was_tagged = is_tagged(bits) || bits & QUIET == QUIET && bits & TAGS != 0;
            under_way.iter().find(|other| was_tagged && other.tag == bits & TAGS)
        });
        let Some(product) = touched.map(|accumulator| Site::from(accumulator.location)) else {
            return Ok(NONE);
        };
        let reason = format!(
            "its accumulator has been used before the wgmma::wait_group that names it and covers the product \
             at {product}"
        );
        Err(self.wgmma_error(location, reason))
    }

    /// Computes the first `count` products, unless that is done.
    pub(super) fn compute_products(&mut self, index: usize, count: usize) -> Result<(), Box<Error>> {
        for number in 0..count {
            let product = &self.warpgroups[index].products[number];
            if product.computed {
                continue;
            }
            let (n, options, tag) = (product.n, product.options, product.tag);
            let chunks = self.chunks_of(product)?;
            let values = chunks.iter().map(|&chunk| self.shared.get::<[u16; CHUNK]>((chunk - BASE) as usize));
            let (a, b) = if product.a_bits.is_empty() {
                let a = product::gather_a(values.clone().take(M * K / CHUNK), options.transposed_a);
                (a, product::gather_b(values.skip(M * K / CHUNK), n, options.transposed_b))
            } else {
                (product.a_bits.clone(), product::gather_b(values, n, options.transposed_b))
            };
            let warpgroup = &mut self.warpgroups[index];
            warpgroup.products[number].computed = true;
            if let Some(accumulator) = warpgroup.accumulators.get(tag) {
                if !options.accumulate {
                    accumulator.sums.fill(0.0);
                }
                product::multiply_add(&mut accumulator.sums, &a, &b, n, options.element);
            }
        }
        Ok(())
    }

    /// Gives the running thread the sums of its accumulator, if it is under way and they are complete.
    pub(super) fn take_sums(
        &mut self,
        accumulator: &mut [f32],
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let tag = self.tag_of(accumulator, location)?;
        if tag == NONE {
            return Ok(());
        }
        let index = self.warpgroup_index(location)?;
        let (warp, lane) = (self.current / LANES % WARPGROUP_WARPS, self.current % LANES);
        let warpgroup = &mut self.warpgroups[index];
        let complete = warpgroup.warps[warp].complete;
        let Some(from) = warpgroup.accumulators.get(tag) else {
            return Err(self.wgmma_error(location, TAKEN.into()));
        };
        if from.group >= complete {
            return Ok(());
        }
        let n = from.n;
        let sums = &from.sums[warp * WARP_ROWS * n..];
        for (element, value) in accumulator.iter_mut().enumerate() {
            let (row, column) = product::accumulator_place(lane, element);
            *value = sums[row * n + column];
        }
        from.taken[warp] |= 1 << lane;
        if from.taken == [u32::MAX; WARPGROUP_WARPS] {
            warpgroup.accumulators.list.retain(|accumulator| accumulator.tag != tag);
        }
        Ok(())
    }
}
