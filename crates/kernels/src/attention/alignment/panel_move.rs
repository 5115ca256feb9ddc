//! Moving the columns of rows of a tile of panels, in shared memory.

use crate::ptx::{index, shared, warp};
use crate::tile::panels::{Extent, Panels};

/// Columns of a chunk of 16 bytes.
const CHUNK: u32 = 8;

/// Columns that both lanes of a row have between them.
const PAIR: u32 = 2 * CHUNK;

/// Rows of a warp: two lanes have each.
const WARP_ROWS: u32 = 16;

/// Chunks of a lane in a panel: every second one.
const LANE_CHUNKS: u32 = 4;

/// A lane's part of its warp's rows: every second chunk of one of them. No other lane accesses them, so that
/// chunks move in place; what crosses from one to the next goes by shuffles.
struct LaneChunks<X: Extent> {
    rows: Panels<X>,
    /// Index of the row.
    row: u32,
    /// 0 for even chunks, 1 for odd ones.
    half: u32,
}

impl<X: Extent> LaneChunks<X> {
    const COUNT: u32 = X::COLUMNS / PAIR;
    const PANELS: u32 = Self::COUNT.div_ceil(LANE_CHUNKS);

    #[inline(always)]
    fn new(rows: Panels<X>) -> Self {
        let lane = index::reread_thread() % 32;
        Self { rows, row: lane % WARP_ROWS, half: lane / WARP_ROWS }
    }

    /// How many there are of a panel.
    #[inline(always)]
    fn of_panel(panel: u32) -> u32 {
        (Self::COUNT - LANE_CHUNKS * panel).min(LANE_CHUNKS)
    }

    /// Address of a chunk of a panel.
    #[inline(always)]
    fn at(&self, panel: u32, chunk: u32) -> u32 {
        // Bits 4 to 6 of an address are the chunk, swizzled: from one chunk to another some of them flip.
        self.rows.at(self.row, LANE_CHUNKS * 2 * panel + self.half) ^ (32 * chunk)
    }

    /// Reads the chunks of a panel, all at once: what follows may write.
    ///
    /// # Safety
    /// As [`move_left`].
    #[inline(always)]
    unsafe fn load(&self, panel: u32) -> [[u32; 4]; LANE_CHUNKS as usize] {
        let mut words = [[0; 4]; LANE_CHUNKS as usize];
        let mut chunk = 0;
        while chunk < Self::of_panel(panel) {
            // SAFETY: the chunk is this lane's, and no other thread accesses it.
            words[chunk as usize] = unsafe { shared::load4(self.at(panel, chunk)) }.map(f32::to_bits);
            chunk += 1;
        }
        words
    }
}

/// The word of the lane that has the row's other chunks.
///
/// # Safety
/// All 32 lanes of the warp call this together.
#[inline(always)]
#[track_caller]
unsafe fn others(word: u32) -> u32 {
    // SAFETY: all lanes of the warp are here.
    unsafe { warp::shuffle_xor(f32::from_bits(word), WARP_ROWS) }.to_bits()
}

/// Moves the columns of a warp's 16 rows to the left, each row's by `by` columns, below 8, of its lanes (row
/// r is that of lanes r and 16 + r). Zeros come in from the right.
///
/// # Safety
/// All 32 lanes of a warp call this together; nobody else accesses the rows, which begin with a multiple of
/// eight.
#[inline(always)]
pub unsafe fn move_left<X: Extent>(rows: Panels<X>, by: u32) {
    let lane = LaneChunks::new(rows);
    let masks = [4, 2, 1].map(|columns| if by & columns != 0 { u32::MAX } else { 0 });
    // Of the other lane, its chunk behind the one before.
    let mut behind = [0; 4];
    let mut panel = LaneChunks::<X>::PANELS;
    while panel > 0 {
        panel -= 1;
        // SAFETY: all lanes are here, and no other thread accesses this lane's chunks.
        unsafe {
            let words = lane.load(panel);
            let mut chunk = LaneChunks::<X>::of_panel(panel);
            while chunk > 0 {
                chunk -= 1;
                let own = words[chunk as usize];
                let other = [others(own[0]), others(own[1]), others(own[2]), others(own[3])];
                let next = if lane.half == 0 { other } else { behind };
                shared::store4(lane.at(panel, chunk), moved_by(own, next, masks));
                behind = other;
            }
        }
    }
}

/// Moves the columns of a warp's 16 rows to the right by one. A zero comes in from the left.
///
/// # Safety
/// As [`move_left`].
#[inline(always)]
pub unsafe fn move_right_by_one<X: Extent>(rows: Panels<X>) {
    let lane = LaneChunks::new(rows);
    // Of the other lane, its chunk before the one before.
    let mut before = 0;
    let mut panel = 0;
    while panel < LaneChunks::<X>::PANELS {
        // SAFETY: all lanes are here, and no other thread accesses this lane's chunks.
        unsafe {
            let words = lane.load(panel);
            let mut chunk = 0;
            while chunk < LaneChunks::<X>::of_panel(panel) {
                let [a, b, c, d] = words[chunk as usize];
                let other = others(d);
                let last = if lane.half == 0 { before } else { other };
                let moved = [odd(last, a), odd(a, b), odd(b, c), odd(c, d)];
                shared::store4(lane.at(panel, chunk), moved);
                before = other;
                chunk += 1;
            }
        }
        panel += 1;
    }
}

/// Of the chunks `low` and `high`, which follow one another, the eight columns from the one on that is the
/// sum of those of 4, 2 and 1 whose mask has all bits: lanes differ, and take no branches.
#[inline(always)]
fn moved_by(low: [u32; 4], high: [u32; 4], [by_4, by_2, by_1]: [u32; 3]) -> [u32; 4] {
    let choose = |mask: u32, without: u32, with: u32| (without & !mask) | (with & mask);
    let [a, b, c, d] = low;
    let [e, f, g, h] = high;
    let [a, b, c] = [choose(by_4, a, c), choose(by_4, b, d), choose(by_4, c, e)];
    let [d, e, f] = [choose(by_4, d, f), choose(by_4, e, g), choose(by_4, f, h)];
    let [a, b, c] = [choose(by_2, a, b), choose(by_2, b, c), choose(by_2, c, d)];
    let [d, e] = [choose(by_2, d, e), choose(by_2, e, f)];
    let half = |low: u32, high: u32| choose(by_1, low, odd(low, high));
    [half(a, b), half(b, c), half(c, d), half(d, e)]
}

/// The odd column of one word and the even one of the next.
#[inline(always)]
fn odd(low: u32, high: u32) -> u32 {
    (low >> 16) | (high << 16)
}
