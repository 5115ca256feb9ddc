//! What the blocks of a grid have to do when each has taken its tiles.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::TileOrder;
use crate::plan::cost::Costs;
use crate::plan::cost::h200::BLOCK_CYCLES;

/// The cost of the block with the largest share.
pub(super) fn longest_share(costs: &Costs, heads: usize, order: TileOrder, blocks: usize) -> u64 {
    let tiles = heads * (costs.whole.len() + costs.short.len());
    let mut shares = Shares::new(blocks, order, tiles);
    shares.take(&costs.whole, heads, order.heads_per_swizzle as usize);
    shares.take(&costs.short, heads, order.heads_per_swizzle as usize);
    shares.longest()
}

/// What the blocks of a grid have taken so far, and where one has ended those that begin in its place.
pub(super) struct Shares {
    /// Of each block, while tiles are taken in turn.
    costs: Vec<u64>,
    snake_order: bool,
    taken: usize,
    /// Tiles that are taken in turn; the others are a block each.
    in_turn: usize,
    /// The same, from when there is nothing left to be taken in turn.
    free: BinaryHeap<Reverse<u64>>,
    /// What a tile costs beside its own cost when it is taken by whoever is free.
    free_cost: u64,
}

impl Shares {
    /// Of so many blocks that take tiles in turn, of so many in all.
    pub(super) fn new(blocks: usize, order: TileOrder, tiles: usize) -> Self {
        Self {
            costs: vec![0; blocks],
            snake_order: order.snake_order,
            taken: 0,
            in_turn: if order.is_found_before { 0 } else { tiles - order.tail_tiles as usize },
            free: BinaryHeap::new(),
            free_cost: if order.is_found_before { 0 } else { BLOCK_CYCLES },
        }
    }

    /// Deals out the tiles of so many heads, swizzle by swizzle.
    pub(super) fn take(&mut self, costs: &[u64], heads: usize, swizzle: usize) {
        let swizzles = (0..heads).step_by(swizzle).map(|first| swizzle.min(heads - first));
        let ordered =
            swizzles.flat_map(|heads| costs.iter().flat_map(move |&cost| std::iter::repeat_n(cost, heads)));
        for cost in ordered {
            if self.taken < self.in_turn {
                self.take_in_turn(cost);
            } else {
                self.take_where_free(cost);
            }
            self.taken += 1;
        }
    }

    fn take_in_turn(&mut self, cost: u64) {
        let blocks = self.costs.len();
        let (round, place) = (self.taken / blocks, self.taken % blocks);
        let back = self.snake_order && round % 2 == 1;
        self.costs[if back { blocks - 1 - place } else { place }] += cost;
    }

    fn take_where_free(&mut self, cost: u64) {
        if self.free.is_empty() {
            self.free = std::mem::take(&mut self.costs).into_iter().map(Reverse).collect();
        }
        if let Some(mut least) = self.free.peek_mut() {
            least.0 += cost + self.free_cost;
        }
    }

    pub(super) fn longest(&self) -> u64 {
        let free = self.free.iter().map(|Reverse(cost)| *cost);
        self.costs.iter().copied().chain(free).max().unwrap_or(0)
    }
}
