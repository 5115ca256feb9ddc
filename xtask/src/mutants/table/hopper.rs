//! `forward_sm90` and what runs before it.

use super::{Family, defect, nth};

pub(super) const FAMILIES: &[Family] = &[
    Family {
        file: "crates/kernels/src/hopper/ring.rs",
        entries: "sm90",
        tests: &["hopper", "gemm"],
        defects: &[
            defect("ring_empty", "a stage is filled before all have left it", "self.wait_empty();", ""),
            defect("ring_phase", "the phase that is waited for stays the same", "self.parity ^= 1;", ""),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/forward_sm90/consumer.rs",
        entries: "forward_sm90",
        tests: &["hopper", "hopper_e4m3"],
        defects: &[
            nth(
                "wgmma_fence",
                "the fence before the first products of a tile is left out",
                1,
                "self.warpgroup.fence_products();",
                "",
            ),
            defect(
                "wgmma_wait",
                "the wait for the first scores of a tile is left out",
                "self.wait_scores::<0>();",
                "",
            ),
            defect(
                "wgmma_wait_step",
                "of two groups of products one too many is let run",
                "self.wait_scores::<1>();",
                "self.wait_scores::<2>();",
            ),
            defect(
                "values_early",
                "a stage of V is left before its products are over",
                "self.wait_output::<0>();\n        self.values.leave(Self::leads_warp());\n        self.round();",
                "self.values.leave(Self::leads_warp()); self.wait_output::<0>(); self.round();",
            ),
            defect("hopper_rescale", "O is not brought to the new maximum", "self.rescale(rescale);", ""),
            defect(
                "pass_over",
                "blocks that a warpgroup sees nothing of are not left",
                "self.pass_over(seen.begin);",
                "",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/forward_sm90/consumer/mma.rs",
        entries: "forward_sm90",
        tests: &["hopper", "hopper_e4m3", "functions"],
        defects: &[
            defect(
                "function_place",
                "a function is told of the first row for a thread's second",
                "behind(first, j)",
                "behind(first, j & !2)",
            ),
            defect("hopper_accumulate", "scores are added to those of the block before", "step > 0", "true"),
            defect(
                "score_mod_place",
                "ALiBi counts from one key further",
                "blocks.mask.place(T::BLOCK_M >> bits, blocks.first_key(block))",
                "blocks.mask.place(T::BLOCK_M >> bits, blocks.first_key(block) + 1)",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/forward_sm90/consumer/parts.rs",
        entries: "e4m3",
        tests: &["hopper_e4m3", "varlen"],
        defects: &[
            defect(
                "packed_factor",
                "a packed sequence has the factors of the first one",
                "of.of(slots.work().batch, slots.keys::<T>().head)",
                "of.of(slots.keys::<T>().batch, slots.keys::<T>().head)",
            ),
            defect(
                "v_descale",
                "the factor of 8-bit V is forgotten",
                "finished.map(|(factor, lse)| (factor * v, lse))",
                "finished",
            ),
            defect(
                "q_descale",
                "that of Q is forgotten",
                "attention.softmax_scale * factor(&q)",
                "attention.softmax_scale",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/score.rs",
        entries: "score_mod",
        tests: &["hopper"],
        defects: &[
            defect(
                "alibi_right",
                "right of the diagonal a row loses what it should win",
                "lost(-self.slope, corner, rows)",
                "lost(self.slope, corner, rows)",
            ),
            defect(
                "alibi_second_row",
                "a thread's second row lies on the first one's diagonal",
                "math::fma(rise, rows as f32, first)",
                "first",
            ),
            defect(
                "alibi_left",
                "keys left of the diagonal count from the first of their block, and their rows from the last",
                "column(j) as f32 - last as f32",
                "column(j) as f32",
            ),
            defect(
                "softcap_unit",
                "the softcap is left out of the unit",
                "            params.softcap\n",
                "            1.0\n",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/forward_sm90/consumer/residues.rs",
        entries: "residues",
        tests: &["hopper"],
        defects: &[
            defect(
                "class_tail",
                "the mask of a class is one column short",
                "8 * (j as u32 / 4) + j as u32 % 2 >= keys",
                "8 * (j as u32 / 4) + j as u32 % 2 > keys",
            ),
            defect(
                "class_move",
                "the column that comes in from the left of O is another lane's",
                "if first { before[row] } else { other }",
                "other",
            ),
            nth(
                "class_fence",
                "Q is multiplied before its moved columns are seen by the products",
                1,
                "fence::proxy_async();",
                "",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/forward_sm90/fix_up.rs",
        entries: "forward_sm90",
        tests: &["varlen", "hopper"],
        defects: &[
            nth(
                "amend_fence",
                "cleared rows of V are not fenced for the products",
                1,
                "fence::proxy_async();",
                "",
            ),
            defect(
                "amend_rows",
                "rows past the end of a packed sequence are not cleared in V",
                "self.pipeline.v().stage(self.values.stage()).clear_from_row(rows);",
                "",
            ),
            defect(
                "amend_row",
                "one row too few of them is cleared",
                "rows < T::BLOCK_N",
                "rows + 1 < T::BLOCK_N",
            ),
            defect(
                "amend_columns",
                "columns of the head before are not cleared in Q and K",
                "tile.clear_before_column(head.shift)",
                "()",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/forward_sm90/key_blocks.rs",
        entries: "forward_sm90",
        tests: &["hopper"],
        defects: &[
            defect(
                "whole_end",
                "a block that the first row sees in part counts as whole",
                "from_start(first.end) / T::BLOCK_N",
                "from_start(first.end).div_ceil(T::BLOCK_N)",
            ),
            defect(
                "first_block",
                "the first block that a row sees is left out",
                "from_start(first.first) / T::BLOCK_N",
                "from_start(first.first).div_ceil(T::BLOCK_N)",
            ),
            defect(
                "function_bounds",
                "rows of a warpgroup go on behind the bounds of their tile",
                "T::IN_CACHE || T::MaskMod::MASKS",
                "T::IN_CACHE",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/functions/block_map.rs",
        entries: "forward_sm90",
        tests: &["functions"],
        defects: &[
            defect(
                "map_rows",
                "the last of the rows of blocks that a tile meets is left out",
                "row <= end",
                "row < end",
            ),
            defect(
                "map_whole",
                "a block counts as seen whole whatever its cells say",
                "(some, all) = (some | cells & !others, all & (cells | others));",
                "(some, all) = (some | cells & !others, all);",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/forward_sm90/seen_blocks.rs",
        entries: "forward_sm90",
        tests: &["functions"],
        defects: &[
            defect(
                "seen_end",
                "of 32 runs the last that is seen is taken to lie one further on",
                "(run + 1 - skipped) << self.shift",
                "(run + 2 - skipped) << self.shift",
            ),
            defect(
                "seen_shift",
                "a bit stands for half of the blocks that it should",
                "(blocks.saturating_sub(1) / BITS).leading_zeros()",
                "(blocks.saturating_sub(1) / (2 * BITS)).leading_zeros()",
            ),
            defect(
                "seen_rows",
                "each warpgroup has the bits of the first one's rows",
                "ask(WARPGROUP_ROWS * warpgroup, WARPGROUP_ROWS)",
                "ask(0, WARPGROUP_ROWS)",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/forward_sm80/seen_blocks.rs",
        entries: "forward_sm80",
        tests: &["functions"],
        defects: &[defect(
            "seen_next",
            "the next block that is seen is passed over where blocks before it are not",
            "block + seen.trailing_zeros()",
            "block + seen.trailing_zeros() + u32::from(seen & 1 == 0)",
        )],
    },
    Family {
        file: "crates/kernels/src/attention/forward_sm90/producer.rs",
        entries: "forward_sm90",
        tests: &["hopper", "varlen"],
        defects: &[defect(
            "q_row",
            "Q of a packed sequence begins with the batch's first row",
            "work.queries.first + first_row::<T>(params, work.tile)",
            "first_row::<T>(params, work.tile)",
        )],
    },
    Family {
        file: "crates/kernels/src/attention/forward_sm90/scheduler.rs",
        entries: "forward_sm90",
        tests: &["hopper", "varlen"],
        defects: &[
            defect(
                "key_block",
                "every second block of keys is the one before",
                "self.row + block * T::BLOCK_N",
                "self.row + (block & !1) * T::BLOCK_N",
            ),
            defect(
                "packed_values",
                "8-bit V of a packed sequence is read where its keys are",
                "transpose::first_position(first, batch) + (keys.row - first)",
                "keys.row",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/hopper/scheduler.rs",
        entries: "forward_sm90",
        tests: &["hopper"],
        defects: &[defect(
            "slot_phase",
            "which of the two slots is at hand is confused",
            "A::BYTES * self.ring.stage()",
            "A::BYTES * (1 - self.ring.stage())",
        )],
    },
    Family {
        file: "crates/kernels/src/attention/forward_sm90/epilogue.rs",
        entries: "forward_sm90",
        tests: &["hopper", "varlen"],
        defects: &[
            defect(
                "output_fence",
                "O's rows are not fenced for the copies that take them",
                "fence::proxy_async();",
                "",
            ),
            defect(
                "output_cut",
                "a packed sequence's last rows leave by a box, over the next one's",
                "rows_left < lane.warp_row + WARP_ROWS",
                "false",
            ),
            defect(
                "output_read",
                "a panel is written again while its box still leaves",
                "tma::wait_group_read::<1>();",
                "",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/alignment/row_store.rs",
        entries: "forward_sm90",
        tests: &["hopper"],
        defects: &[
            defect(
                "panel_granule",
                "the last chunk of a row is stored whole",
                "(self.end - self.end % CHUNK).max(first)",
                "self.end.next_multiple_of(CHUNK).max(first)",
            ),
            nth(
                "panel_fence",
                "rows are not fenced for the copies that take them",
                2,
                "fence::proxy_async();",
                "",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/softmax.rs",
        entries: "forward",
        tests: &["hopper_e4m3"],
        defects: &[defect(
            "negative_rows",
            "rows without a score from 0 on have the least of them as their maximum",
            "f32::from_bits((a.to_bits() as i32).min(b.to_bits() as i32) as u32)",
            "f32::from_bits((a.to_bits() as i32).max(b.to_bits() as i32) as u32)",
        )],
    },
    Family {
        file: "crates/kernels/src/attention/forward_sm90/operand.rs",
        entries: "e4m3",
        tests: &["hopper_e4m3"],
        defects: &[defect(
            "e4m3_order",
            "two keys change places in P",
            "convert::pack_e4m3x4([p(first), p(first + 1), p(first + 4), p(first + 5)])",
            "convert::pack_e4m3x4([p(first), p(first + 4), p(first + 1), p(first + 5)])",
        )],
    },
    Family {
        file: "crates/kernels/src/attention/transpose.rs",
        entries: "transpose",
        tests: &["hopper_e4m3", "varlen", "used_keys"],
        defects: &[
            defect(
                "transpose_used",
                "keys that a sequence does not use are copied",
                "rows.used(sequences.seqused, sequence).len",
                "rows.len",
            ),
            defect(
                "transpose_order",
                "two keys change places in V",
                "a | b << 8 | c << 16 | d << 24",
                "a | c << 8 | b << 16 | d << 24",
            ),
            defect(
                "transpose_tail",
                "one row past the last key is read",
                "(i as u32) < keys.keys",
                "(i as u32) <= keys.keys",
            ),
            defect(
                "transpose_head",
                "the second head lands where the first one does",
                "(batch as u64 * tensor.heads as u64 + head as u64) * tensor.columns as u64",
                "(batch as u64 * tensor.heads as u64) * tensor.columns as u64",
            ),
            defect(
                "transpose_bytes",
                "keys of V that is read byte by byte lie in another order",
                "i % 2 + i / 8 * 2",
                "i / 8 + i % 2 * 2",
            ),
            defect(
                "transpose_copied",
                "the last column of Q and K that are copied is left out",
                "tensor.columns.saturating_sub(column + 4 * i as u32)",
                "tensor.columns.saturating_sub(column + 4 * i as u32 + 1)",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/forward_sm90/producer.rs",
        entries: "forward_sm90",
        tests: &["hopper"],
        defects: &[
            nth(
                "hopper_copied_keys",
                "K and Q are read before they have been copied",
                1,
                "place.wait_for_copies::<T>(&params.copies);",
                "",
            ),
            nth(
                "hopper_copied_values",
                "V is read before it has been copied",
                2,
                "place.wait_for_copies::<T>(&params.copies);",
                "",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/pack/rows.rs",
        entries: "pack",
        tests: &["hopper"],
        defects: &[
            defect(
                "pack_shift",
                "a row that starts in the middle of a word is not shifted",
                "CLASS.is_multiple_of(2)",
                "true",
            ),
            defect("pack_tail", "a column past the last is kept", "0xffff", "!0"),
            defect(
                "pack_edge",
                "the last element of a tensor is not copied",
                "column + 1 < self.place.columns",
                "column + 2 < self.place.columns",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/pack.rs",
        entries: "pack",
        tests: &["hopper"],
        defects: &[
            defect(
                "pack_count",
                "a unit counts for the group of heads behind its own",
                "params.group(unit)",
                "params.group(unit) + 1",
            ),
            defect("pack_leave", "rows are overwritten that are still copied", "stored.wait();", ""),
        ],
    },
];
