//! `decode`, `combine`, the K/V cache, and what is appended to it.

use super::{Family, defect, nth};

pub(super) const FAMILIES: &[Family] = &[
    Family {
        file: "crates/kernels/src/attention/decode.rs",
        entries: "decode",
        tests: &["decode"],
        defects: &[
            defect("decode_wait", "a warp reads keys before its copies have landed", "T::wait();", ""),
            nth("decode_sync", "a stage is filled while other lanes still read it", 2, "warp::sync();", ""),
            nth(
                "decode_barrier",
                "results are merged before all warps have written them",
                2,
                "barrier::sync(0, T::THREADS);",
                "",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/decode/scores.rs",
        entries: "decode",
        tests: &["decode"],
        defects: &[
            defect(
                "decode_mask",
                "the mask begins one block too late",
                "first_key + WARP_KEYS > self.whole.end.min(end)",
                "first_key > self.whole.end.min(end)",
            ),
            defect(
                "decode_window",
                "blocks that a window begins in are not masked",
                "first_key < self.whole.first",
                "false",
            ),
            defect(
                "decode_end",
                "keys past the sequence's end, or the next block's, count",
                "place > params.window_span || key >= end",
                "place > params.window_span",
            ),
            defect(
                "decode_alibi",
                "ALiBi counts from the first query's diagonal",
                "self.diagonals[i].wrapping_sub(first_key + lane.column(j))",
                "self.diagonals[0].wrapping_sub(first_key + lane.column(j))",
            ),
            defect(
                "decode_slope",
                "all rows of a lane have the slope of its first",
                "slope_address(self.q, lane.row(i))",
                "slope_address(self.q, lane.row(0))",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/split_work.rs",
        entries: "decode",
        tests: &["decode"],
        defects: &[
            defect(
                "decode_head",
                "query heads of a group are those of every group",
                "self.kv_head * params.group.get() + of_group",
                "self.kv_head + of_group * params.kv_heads.get()",
            ),
            nth(
                "decode_position",
                "a tile looks at the keys of other rows than its own",
                2,
                "packed / params.group",
                "packed",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/splits.rs",
        entries: "decode",
        tests: &["decode", "batch_invariance"],
        defects: &[
            defect(
                "decode_split",
                "the first longer splits shift nothing",
                "split * least + split.min(longer)",
                "split * least",
            ),
            defect(
                "split_end",
                "the last keys of each split are the next one's too",
                "((first + splits) * keys).min(seen.end)",
                "((first + splits) * keys + 1).min(seen.end)",
            ),
            defect(
                "decode_used",
                "all of the cache counts as used",
                "(used.max(0) as u32).min(params.seqlen_k)",
                "params.seqlen_k",
            ),
            defect(
                "split_count",
                "a sequence of one split is merged where others have more",
                "used.div_ceil(keys).max(1)",
                "self.cache.num_splits.get()",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/decode/merge.rs",
        entries: "decode",
        tests: &["decode"],
        defects: &[
            nth("decode_sink", "each split counts the sink", 2, "!self.of_split", "true"),
            defect(
                "merge_share",
                "shares of the warps are not divided by their sum",
                "shares[warp] *= inverse_sum;",
                "",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/combine.rs",
        entries: "decode",
        tests: &["decode", "batch_invariance"],
        defects: &[
            defect("combine_base", "weights of splits are powers of 2", "lse * LOG2_E", "lse"),
            defect(
                "combine_last",
                "the last split has no part in the sum",
                "split < splits",
                "split + 1 < splits",
            ),
            defect(
                "combine_many",
                "splits past the first 32 are left out",
                "first < splits",
                "first < splits.min(LANES)",
            ),
            defect(
                "combine_round",
                "exponents of weights are no whole numbers",
                "math::max(math::round(x), Self::LEAST)",
                "math::max(x, Self::LEAST)",
            ),
            defect(
                "combine_kept",
                "what was taken in keeps its weight under a larger maximum",
                "self.sum * share.kept",
                "self.sum",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/merge.rs",
        entries: "merge",
        tests: &["merge"],
        defects: &[
            nth(
                "merge_last",
                "the last part has no weight",
                1,
                "(i as u32) < params.count",
                "(i as u32) + 1 < params.count",
            ),
            defect("merge_sum", "factors are not divided by their sum", "factors[i] *= inverse_sum;", ""),
            defect("merge_empty", "O of a part without keys is read", "factors[i] != 0.0", "true"),
            defect(
                "merge_lse",
                "the log-sum-exps of parts lie as their O",
                "at.of(&part.lse_strides)",
                "at.of(&part.o_strides)",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/params/cache.rs",
        entries: "decode",
        tests: &["decode"],
        defects: &[
            defect(
                "page_entry",
                "the last key of a page is looked up in the next one",
                "(key / self.page_size, key % self.page_size)",
                "((key + 1) / self.page_size, key % self.page_size)",
            ),
            defect(
                "page_before",
                "a key lies in the page before",
                "entries + 4 * entry as u64",
                "entries + 4 * entry.saturating_sub(1) as u64",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/tile/kv_cache.rs",
        entries: "decode",
        tests: &["decode"],
        defects: &[
            defect(
                "page_tail",
                "one key past the last is looked up and read",
                "first + lane_row(i) < end",
                "first + lane_row(i) <= end",
            ),
            defect("cache_columns", "columns past head_dim are read", "(2 * left).min(CHUNK)", "CHUNK"),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/widen.rs",
        entries: "widen",
        tests: &["widen", "widened"],
        defects: &[
            defect(
                "widen_pages",
                "numbers that name no page are followed",
                "batch >= params.num_pages",
                "batch as i32 >= params.num_pages as i32",
            ),
            defect(
                "widen_end",
                "the last row's piece is read past the tensor's end",
                "source + CHUNK as u64 <= tensor.end",
                "source < tensor.end",
            ),
            defect(
                "widen_window",
                "the window begins at the last query",
                "queries.len.saturating_add(params.attention.window_left)",
                "params.attention.window_left.saturating_add(1)",
            ),
            defect(
                "widen_step",
                "steps of the attention begin before the first widened key",
                "seen - seen % params.block_n",
                "seen",
            ),
            defect(
                "widen_head",
                "heads of all sequences share one copy",
                "self.batch as u64 * params.heads as u64 + self.head as u64",
                "self.head as u64",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/append.rs",
        entries: "append",
        tests: &["append"],
        defects: &[
            defect(
                "append_room",
                "lengths that leave no room write behind the cache",
                "position < 0 || position >= params.seqlen_k as i64",
                "position < 0",
            ),
            defect(
                "append_pages",
                "numbers that name no page are followed",
                "sequence >= params.num_pages",
                "sequence as i32 >= params.num_pages as i32",
            ),
            defect(
                "append_row",
                "a row of a page is counted from the sequence's first",
                "tensor.target_strides.offset(sequence, row, place.head)",
                "tensor.target_strides.offset(sequence, position, place.head)",
            ),
            defect(
                "append_queries",
                "queries are in order where they see all keys",
                "params.rotary.queries_in_order == 1",
                "true",
            ),
            defect("append_turn", "keys are turned the other way", "-(b * sin)", "b * sin"),
            defect(
                "append_angle",
                "neighbours take every second angle",
                "(first / 2) as u64",
                "first as u64",
            ),
            defect(
                "append_tail",
                "the last piece of a row has all of its columns",
                "self.columns.saturating_sub(first).min(elements)",
                "elements",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/tree_mask.rs",
        entries: "decode",
        tests: &["decode"],
        defects: &[
            defect(
                "tree_half",
                "keys from the 33rd newest on have the bits of the first",
                "newest & 32 == 0",
                "true",
            ),
            defect("tree_older", "keys before the newest are hidden as these", "newest < 0", "false"),
        ],
    },
];
