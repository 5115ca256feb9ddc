//! Every number that the planner was fitted to an H200 with, and what each was fitted to. The sweeps' order
//! of tiles is `tuned.rs`. Other devices are planned with the same numbers.

/// Bytes of K and V that stay in L2, of which Hopper has 50 MiB.
pub(in crate::plan) const L2_BYTES: usize = 32 << 20;

/// What is left of a block's speed where K and V come from device memory, as a reciprocal.
pub(in crate::plan) const UNCACHED: f64 = 1.05;

/// Beyond so many tiles a block, the one that ends last hardly matters.
pub(in crate::plan) const MANY_TILES: usize = 64;

/// Cycles of a tile from which on all are a block each, whose start is nothing beside them: of 131,072 keys
/// they took 1 to 3 % less time, of 262,144 (HEAD_DIM 64) 6 %, of 524,288 10 %.
pub(in crate::plan) const LONG_TILE: u64 = 500_000;

/// The most rounds of tiles that are a block each.
pub(in crate::plan) const MAX_SINGLE_ROUNDS: u32 = 4;

/// Rounds of tiles that are a block each where lengths are not known. By the model of shares, over 160 random
/// batches, two end 4 % after the best order of known lengths in the mean; none 18, one 5, four 5, all 7 %.
pub(in crate::plan) const BOUNDED_SINGLE_ROUNDS: usize = 2;

/// What tiles that are a block each must save, as a share; where less was estimated, there was no gain.
pub(in crate::plan) const WORTH_SINGLE_TILES: f64 = 0.01;

/// The most short tiles of a head: three times two are as many rows as twice three.
pub(in crate::plan) const MAX_SHORT_TILES: u32 = 8;

/// Cycles of a tile that is a block of its own, beside those of a tile among others: nothing overlaps with
/// its start and end. It took 1.1 us longer.
pub(in crate::plan) const BLOCK_CYCLES: u64 = 1_900;

/// Cycles of a step of `forward_sm90` beside its scores.
pub(in crate::plan) const STEP_CYCLES: f64 = 240.0;

/// Columns of 16 bits whose two multiply-adds for a score go through the tensor cores in a cycle, and the
/// share of that time that a step takes.
pub(in crate::plan) const COLUMNS_PER_CYCLE: (f64, f64) = (2_048.0, 0.94);

/// Cycles that a score takes at least: its exponential and what goes with it, where columns are few.
pub(in crate::plan) const LEAST_SCORE_CYCLES: f64 = 0.088;

/// What a masked block of keys takes longer, as a share of its scores.
pub(in crate::plan) const MASKED: f64 = 0.5;

/// Cycles of a tile's first scores, last product and way out: where a block has three warpgroups, and where
/// it has two.
pub(in crate::plan) const TILE_CYCLES: (u64, u64) = (4_200, 3_300);

/// Cycles of a tile, beside its steps, of which several share a multiprocessor; what a step takes longer for
/// all of their rows than one of three warpgroups; and as [`MASKED`]. Fitted to 64 to 1,024 rows of 64
/// columns.
pub(in crate::plan) const TOGETHER: (u64, f64, f64) = (3_600, 1.17, 2.0);

/// What a tile of three warpgroups takes longer for each row where one of them has rows, and where two have.
pub(in crate::plan) const FEW_WARPGROUPS: (f64, f64) = (1.7, 1.12);

/// What a tile of two warpgroups takes longer for each row than one of three.
pub(in crate::plan) const TWO_WARPGROUPS: f64 = 1.06;

/// How much later blocks that take tiles in turn are done where lengths are others than was assumed.
pub(in crate::plan) const OTHER_LENGTHS: f64 = 1.04;

/// Bytes that a multiprocessor copies in a cycle: 3.6 TB/s at 1.7 GHz, read and written.
pub(in crate::plan) const BYTES_PER_CYCLE: f64 = 16.0;

/// As [`BYTES_PER_CYCLE`], where few multiprocessors copy: 42 GB/s each.
pub(in crate::plan) const BYTES_PER_CYCLE_BESIDE: f64 = 22.0;

/// Cycles that copies must take before it is worth to make them beside what reads them: of 44,000 that lost
/// 1 %, of 63,000 it gained 1 %, and of 73,000 8.
pub(in crate::plan) const LEAST_CYCLES_BESIDE: f64 = 60_000.0;

/// How many times as fast as they are read copies are made beside it, if enough multiprocessors are there.
pub(in crate::plan) const COPYING_AHEAD: f64 = 1.25;

/// Cycles that one more launch takes.
pub(in crate::plan) const LAUNCH_CYCLES: f64 = 4_000.0;

/// Cycles for each of a tile's columns in which Q and O move by one column between classes of rows, or the
/// rows of Q are aligned.
pub(in crate::plan) const MOVE_CYCLES: f64 = 11.0;

/// What a step by classes of rows takes longer, as a share: rows start in the middle of sectors, and foreign
/// columns are cleared.
pub(in crate::plan) const SLOWER_BY_CLASSES: f64 = 0.07;

/// How many times as long as `forward_sm90` over aligned rows `forward_sm80` is counted on to take over rows
/// that start anywhere; at head_dim 129 it takes 2.5 to 3 times as long.
pub(in crate::plan) const SM80_OVER_ALIGNED: f64 = 2.0;

/// Keys of a split where splits may not depend on the batch. At head_dim 128 and a group of four the splits'
/// results are 1.6 % of what is read: of 4,096 keys of 64 sequences they take 257 µs in place of 245.
pub(crate) const SPLIT_KEYS: usize = 512;

/// The least number that such splits of a sequence may be limited to; 128 of 1,024 keys take 147 µs where 33
/// take 130.
pub(crate) const FEWEST_IN_ANY_BATCH: usize = 32;

/// As [`FEWEST_IN_ANY_BATCH`], of `decode_sm90`: where lengths are spread over decades, 16 take 335 µs,
/// 24 343 and 32 341.
pub(crate) const SM90_FEWEST_IN_ANY_BATCH: usize = 16;

/// Key blocks that each split of a decode problem has at least: a shorter one costs more to merge than it
/// saves.
pub(crate) const LEAST_SPLIT_BLOCKS: usize = 4;

/// As [`LEAST_SPLIT_BLOCKS`], of latents: O of a split is as large as three blocks of its keys.
pub(crate) const MLA_LEAST_SPLIT_BLOCKS: usize = 4;

/// Share of the best efficiency that a smaller number of splits may give up: 33 instead of 30, which fill all
/// places, gain 2 %.
pub(crate) const GOOD_ENOUGH: f64 = 0.99;

/// As [`GOOD_ENOUGH`], of `decode_sm90`, of which a block on each multiprocessor is enough: of 131,072 keys
/// of 8 heads 16 splits take 128 µs, 33 take 130, and 17, of which some meet on a multiprocessor, 136.
pub(crate) const SM90_GOOD_ENOUGH: f64 = 0.95;

/// Share of the longest of a batch's lengths that they have on average where blocks take whole tiles: of 100
/// to 32,000 keys, half of that, those take 1,062 µs, and splits that are merged 987.
pub(crate) const ALIKE: f64 = 0.9;

/// Steps of `decode_sm90` that a cluster's merging takes as long as: 1,024 keys of a sequence take 8.8 µs in
/// eight splits of one step, 2,048 10.1 and 4,096 12.1.
pub(crate) const CLUSTER_STEPS: usize = 1;

/// As [`CLUSTER_STEPS`], of a launch that merges: 1,024 keys took 1.5 µs more, 2,048 in 16 splits 2.1.
pub(crate) const COMBINE_STEPS: usize = 3;

/// Share of the multiprocessors that unsplit blocks must occupy to be left unsplit: 128 of them read K and V
/// as fast as 256 halves do, and leave nothing to merge.
pub(crate) const BUSY: f64 = 0.8;

/// Elements of a row of A or a column of B whose way to the tensor cores takes as long as the products of one
/// element of C with each of them: what a tile of a matrix multiplication saves by being larger.
pub(crate) const LOAD_COST: f64 = 32.0;
