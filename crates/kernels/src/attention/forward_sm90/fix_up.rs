//! The fix-up: a warp changes what has landed before it is multiplied, because tensor maps clip at the ends
//! of tensors alone.
//!
//! In launches that need it, the tiles of a tensor land at barriers of their own. The warp waits there,
//! changes them in shared memory, and fills the stage that the consumers wait for. In other launches tiles
//! land where the consumers wait.
//!
//! It clears the columns of Q and K before the head's own, which boxes bring along and which are another
//! head's. It clears the rows of V past the end of a sequence, which are the next one's of a packed batch, or
//! which it does not use. Both are multiplied with 0, but 0 · NaN is NaN.

use super::Pipeline;
use super::producer::key_head;
use super::scheduler::{Keys, TileSlots};
use super::tile::{KeyStages, Tile};
use crate::attention::alignment::Alignment as _;
use crate::attention::alignment::head_offset::HeadOffset;
use crate::hopper::ring::{Count, Ring, Stages};
use crate::hopper::roles::leads_warp;
use crate::params::PersistentParams;
use crate::ptx::{fence, index, warp};
use crate::tile::panels::{Extent, Panels};

/// Whether there is anything to fix up in a launch.
#[inline(always)]
pub(super) fn is_needed(params: &PersistentParams) -> bool {
    params.qk_fix_up != 0 || params.v_fix_up != 0
}

/// The warp that fixes up tiles.
pub(super) struct FixUp<T: Tile> {
    pipeline: Pipeline<T>,
    slots: TileSlots,
    keys: Ring<KeyStages<T>>,
    values: Ring<KeyStages<T>>,
}

impl<T: Tile> FixUp<T> {
    /// # Safety
    /// All lanes of one warp make one and call its methods together, in a launch as
    /// [`forward_sm90`](super::forward_sm90) says, where [`is_needed`]; the barriers are made.
    #[inline(always)]
    pub(super) unsafe fn new(pipeline: Pipeline<T>) -> Self {
        // SAFETY: this warp alone fills the stages that it waits for.
        unsafe {
            Self {
                pipeline,
                slots: TileSlots::consumer(pipeline.schedule()),
                keys: Ring::consumer(pipeline.k_barriers()),
                values: Ring::consumer(pipeline.v_barriers()),
            }
        }
    }

    /// Fixes up all tiles of this block, in the order that they are consumed in.
    #[inline(always)]
    pub(super) fn run(mut self, params: &PersistentParams) {
        while self.slots.wait() {
            let work = self.slots.work();
            let place = self.slots.keys::<T>();
            // SAFETY: the tile was announced, and is left at the end.
            let mut block = unsafe { place.seen_end::<T>(self.pipeline, place.blocks) };
            if T::Alignment::BY_RESIDUES {
                // Consumers move Q, and V's columns before the head's are none of O's.
                self.all_keys(params, &place);
                block = 0;
            }
            let head = key_head::<T>(params, place.head, 0);
            if !T::Alignment::BY_RESIDUES && params.qk_fix_up != 0 {
                if block > 0 {
                    self.next_keys(params, head);
                }
                self.queries(params, head);
            }
            while block > 0 {
                let last = block - 1;
                // SAFETY: as above.
                block = unsafe { place.seen_end::<T>(self.pipeline, last) };
                if params.qk_fix_up != 0 && block > 0 {
                    self.next_keys(params, head);
                }
                if params.v_fix_up != 0 {
                    self.next_values(params, work.keys.first + work.keys.len - place.row_of::<T>(last));
                }
            }
            // SAFETY: all lanes of the warp are here, and have read the slot.
            unsafe { warp::sync() };
            self.slots.leave(leads_warp());
        }
    }

    /// Clears the columns before the head's in all blocks of K, class by class.
    #[inline(always)]
    fn all_keys(&mut self, params: &PersistentParams, place: &Keys) {
        let mut pass = 0;
        while pass < T::Alignment::passes(&params.attention) {
            let mut block = 0;
            while block < place.blocks {
                self.next_keys(params, key_head::<T>(params, place.head, pass));
                block += 1;
            }
            pass += 1;
        }
    }

    /// Clears the columns before the head's in a block of K.
    #[inline(always)]
    fn next_keys(&mut self, params: &PersistentParams, head: HeadOffset) {
        // SAFETY: the stage is this warp's from the landing of its copies until it is filled.
        unsafe {
            self.keys.behind(params.qk_fix_up).wait();
            clear_foreign(self.pipeline.k().stage(self.keys.stage()), head);
            fill(&self.keys);
        }
        self.keys.advance();
    }

    /// Clears the rows of a block of V past the first `rows`.
    #[inline(always)]
    fn next_values(&mut self, params: &PersistentParams, rows: u32) {
        // SAFETY: the stage is this warp's from the landing of its copies until it is filled.
        unsafe {
            self.values.behind(params.v_fix_up).wait();
            if rows < T::BLOCK_N {
                self.pipeline.v().stage(self.values.stage()).clear_from_row(rows);
                fence::proxy_async();
            }
            fill(&self.values);
        }
        self.values.advance();
    }

    /// Clears the columns before the head's in a tile's rows of Q.
    #[inline(always)]
    fn queries(&self, params: &PersistentParams, head: HeadOffset) {
        let phase = self.slots.phase();
        let mut warpgroup = 0;
        while warpgroup < index::unknown(T::CONFIG.warpgroups()) {
            // SAFETY: the rows are this warp's from the landing of their copies until they are filled.
            unsafe {
                let queries = Ring::<Count<1>>::consumer_of_phase(self.pipeline.q_barriers(warpgroup), phase);
                queries.behind(params.qk_fix_up).wait();
                clear_foreign(self.pipeline.q(warpgroup), head);
                fill(&queries);
            }
            warpgroup += 1;
        }
    }
}

/// Clears the columns before the head's, for the products.
///
/// # Safety
/// As [`Panels::clear_before_column`].
#[inline(always)]
unsafe fn clear_foreign<X: Extent>(tile: Panels<X>, head: HeadOffset) {
    if head.foreign() > 0 {
        // SAFETY: the caller's lanes are together; the columns outside of the map are zeros.
        unsafe { tile.clear_before_column(head.shift) };
        fence::proxy_async();
    }
}

/// Hands the stage at hand to the consumers, behind the fences of what this warp has written.
///
/// # Safety
/// All lanes of the warp call this together.
#[inline(always)]
unsafe fn fill<S: Stages>(ring: &Ring<S>) {
    // SAFETY: the caller's lanes are together.
    unsafe { warp::sync() };
    if leads_warp() {
        // The copies were not counted here, so that this is the phase's only arrival.
        ring.fill();
    }
}
