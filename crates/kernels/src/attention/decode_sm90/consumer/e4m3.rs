//! Products with K and V in e4m3, whose elements are widened on their way to registers.

use crate::config::DecodeSm90Config;
use crate::ptx::shared;
use crate::ptx::wgmma::Accumulator as _;
use crate::registers::Matrix as _;
use crate::tile::panels::Panels;

use super::super::fragments::{self, Depth};
use super::super::tile::{CacheRows, QueryRows, Tile, WeightRows};
use super::Consumer;

impl<T: Tile> Consumer<T> {
    /// Sᵀ = K·Qᵀ of the stage of K at hand, which is there, and so is Q; products of one line run while the
    /// next is widened.
    #[inline(always)]
    pub(super) fn products_of_widened_keys(&self) -> T::S {
        let tile: Panels<CacheRows<T>> = self.memory.ring().stage(self.ring.stage());
        let q = self.memory.q().stage(self.queries.stage()).descriptor();
        let mut s = T::S::zero();
        let mut product = 0;
        while product < T::S::ROWS {
            let first_row = product as u32 * DecodeSm90Config::PRODUCT_KEYS;
            let mut line = 0;
            while line < Panels::<CacheRows<T>>::COUNT {
                // SAFETY: the stage has landed.
                let a = unsafe { fragments::of_keys::<T>(tile, self.lane, first_row, line) };
                self.warpgroup.fence_products();
                let mut step = 0;
                while step < Depth::<T>::PRODUCTS {
                    let columns = Panels::<QueryRows<T>>::columns(Depth::<T>::PRODUCTS * line + step);
                    let (a, b) = (a[step as usize], q.behind(columns).bits());
                    // SAFETY: Q is there and stays until the wait; the warpgroup's threads are together.
                    unsafe {
                        if line == 0 && step == 0 {
                            s[product].begin_rs::<T::Operand>(a, b);
                        } else {
                            s[product].multiply_rs::<T::Operand, false>(a, b, true);
                        }
                    }
                    step += 1;
                }
                self.warpgroup.commit_products();
                line += 1;
            }
            product += 1;
        }
        self.warpgroup.sync_warps(); // All lanes have read the stage, which the first leaves.
        s
    }

    /// Oᵀ += Vᵀ·Pᵀ of the stage of V at hand, which is there, and so is P.
    #[inline(always)]
    pub(super) fn begin_products_of_widened_values(&mut self) {
        let tile: Panels<CacheRows<T>> = self.memory.ring().stage(self.ring.stage());
        let p = self.memory.p().descriptor();
        let mut panel = 0;
        while panel < T::O::ROWS {
            // SAFETY: the stage has landed; all lanes are here.
            let a = unsafe { fragments::of_values::<T>(tile, panel as u32) };
            self.warpgroup.fence_products();
            let mut step = 0;
            while step < T::BLOCK_N / super::DEPTH {
                let b = p.behind(Panels::<WeightRows<T>>::columns(step)).bits();
                // SAFETY: P is there and stays until the wait; the warpgroup's threads are together.
                unsafe { self.o[panel].multiply_rs::<T::Operand, false>(a[step as usize], b, true) };
                step += 1;
            }
            self.warpgroup.commit_products();
            panel += 1;
        }
        self.warpgroup.sync_warps(); // All lanes have read the stage, which the first leaves.
    }

    /// Multiplies the scores of each row with its factor: what its Q and K were divided by.
    #[inline(always)]
    pub(super) fn scale_rows(&self, s: &mut T::Scores) {
        let mut i = 0;
        while i < Self::ROWS {
            let row = self.memory.row(self.queries.stage(), self.lane.column(i));
            // SAFETY: the word is the row's, and was written before Q was handed on.
            let factor = unsafe { shared::load(row + 8) };
            let mut j = 0;
            while j < T::Scores::COLS {
                s[i][j] *= factor;
                j += 1;
            }
            i += 1;
        }
    }
}
