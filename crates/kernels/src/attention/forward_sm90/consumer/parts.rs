//! Sums of 8-bit products in two levels.
//!
//! The tensor cores cut each addend of a sum of 8-bit products at 2^−13 of the largest, the sum so far among
//! them, so a sum over thousands of keys loses most of what it adds up. The product of P with each block of V
//! therefore starts from zero, some of V's columns at a time, and O is the sum of these parts in fp32.

use super::Consumer;
use crate::attention::forward_sm90::key_blocks::KeyBlocks;
use crate::attention::forward_sm90::scheduler::TileSlots;
use crate::attention::forward_sm90::tile::{KeyStages, Tile, ValueBlock};
use crate::hopper::ring::Ring;
use crate::params::{AttentionParams, Descale, PersistentParams};
use crate::ptx::math;
use crate::ptx::wgmma::Accumulator;
use crate::registers::Registers as _;
use crate::tile::panels::Panels;

impl<T: Tile> Consumer<T> {
    /// [`Self::main_loop`] with the factors of the tile's heads, V's in 1/l.
    #[inline(always)]
    pub(super) fn main_loop_of_descaled(
        &mut self,
        params: &PersistentParams,
        slots: &TileSlots,
    ) -> [(f32, f32); 2] {
        let [q, k, v] = params.descale;
        let attention = params.attention;
        // SAFETY: the factors that the launch describes are readable, and the head is one of theirs.
        let factor = |of: &Descale| unsafe { of.of(slots.work().batch, slots.keys::<T>().head) };
        let softmax_scale = attention.softmax_scale * factor(&q) * factor(&k);
        let of_tile =
            PersistentParams { attention: AttentionParams { softmax_scale, ..attention }, ..*params };
        let finished = self.main_loop(&of_tile, &slots.work(), 0);
        let v = factor(&v);
        finished.map(|(factor, lse)| (factor * v, lse))
    }

    /// Scores and P of a block, and its product with V. Q is left behind its product where that is Q's
    /// `last`.
    ///
    /// Scores and parts of O are never held at once, so that they share registers; the other warpgroups
    /// multiply meanwhile.
    #[inline(always)]
    pub(super) fn step_in_parts<const MASKED: bool>(
        &mut self,
        params: &PersistentParams,
        blocks: &KeyBlocks<T>,
        block: u32,
        last: bool,
    ) {
        self.values = self.values_beside_keys();
        self.keys.wait();
        self.warpgroup.fence_products();
        self.begin_scores();
        self.wait_scores::<0>();
        self.release_operands(params, last);
        let lost = self.change_and_mask::<MASKED>(params, blocks, block);
        let rescale = self.exponentiate::<MASKED>(lost);
        self.round();
        self.add_values(rescale);
        self.values.leave(Self::leads_warp());
    }

    /// V's place in its ring, where both rings are gone around alike: one place in registers in place of two.
    #[inline(always)]
    pub(super) fn values_beside_keys(&self) -> Ring<KeyStages<T>> {
        // SAFETY: the barriers of V lie behind those of K, and its stages are left in step with them.
        unsafe { self.keys.behind(Ring::<KeyStages<T>>::BYTES) }
    }

    /// O = `rescale`·O + P·V with the next stage of V.
    #[inline(always)]
    fn add_values(&mut self, rescale: [f32; 2]) {
        let columns = const { T::CONFIG.part_columns() };
        let mut first = 0;
        while first < T::HEAD_DIM_V {
            match columns.min(T::HEAD_DIM_V - first) {
                128 => self.add_part::<[f32; 64]>(first, rescale),
                96 => self.add_part::<[f32; 48]>(first, rescale),
                64 => self.add_part::<[f32; 32]>(first, rescale),
                _ => self.add_part::<[f32; 16]>(first, rescale),
            }
            first += columns;
        }
    }

    /// As [`Self::add_values`], of the columns of `A` from column `first` on.
    #[inline(always)]
    fn add_part<A: Accumulator>(&mut self, first: u32, rescale: [f32; 2]) {
        let mut part = A::ZERO;
        // Between two parts this loop keeps ptxas from holding both, and O's sums back, in registers that it
        // lacks.
        self.values.wait();
        self.warpgroup.fence_products();
        self.begin_part(&mut part, first);
        // SAFETY: the warpgroup's threads are together.
        unsafe { part.wait_group::<0>() };
        let mut j = 0;
        while j < A::LEN {
            let o = &mut self.o[first as usize / 2 + j];
            *o = math::fma(*o, rescale[j / 2 % 2], part[j]);
            j += 1;
        }
    }

    /// Begins the product of P with the columns of V from column `first` on.
    #[inline(always)]
    fn begin_part<A: Accumulator>(&mut self, part: &mut A, first: u32) {
        let [_, _, v] = self.operands;
        let v = v
            .behind(self.values.stage() * Panels::<ValueBlock<T>>::BYTES)
            .behind(Panels::<ValueBlock<T>>::row(first));
        let mut step = 0;
        while step < T::P::LEN / 4 {
            let a = [self.p[4 * step], self.p[4 * step + 1], self.p[4 * step + 2], self.p[4 * step + 3]];
            let b = v.behind(Panels::<ValueBlock<T>>::columns(step as u32)).bits();
            // SAFETY: the stage is there and stays until the wait; the warpgroup's threads are together.
            unsafe {
                if step == 0 {
                    part.begin_rs::<T::Element>(a, b)
                } else {
                    part.multiply_rs::<T::Element, false>(a, b, true)
                }
            }
            step += 1;
        }
        self.warpgroup.commit_products();
    }
}
