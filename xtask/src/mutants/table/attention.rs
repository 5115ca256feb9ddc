//! Kernels on fp32 FMA and `mma.sync`, and what all kernels of attention share.

use super::{Family, defect, nth};

pub(super) const FAMILIES: &[Family] = &[
    Family {
        file: "crates/kernels/src/attention/forward_simt.rs",
        entries: "forward_simt",
        tests: &["simulator", "simulator_properties"],
        defects: &[
            nth(
                "simt_barrier",
                "the barrier before K overwrites V is left out",
                1,
                "barrier::sync(0, T::THREADS);",
                "",
            ),
            nth(
                "simt_barrier_p",
                "the barrier between P's rows and their reads is left out",
                4,
                "barrier::sync(0, T::THREADS);",
                "",
            ),
            defect(
                "simt_rescale",
                "O is not brought to the new maximum",
                "rescale_output(&mut acc, &rescale);",
                "",
            ),
            defect(
                "simt_dropout_factor",
                "the factor on weights that are kept is forgotten",
                "if T::DROPOUT { params.dropout.scale } else { 1.0 }",
                "1.0",
            ),
            defect("simt_rows", "rows past the last query are stored", "row < o_tile.rows", "true"),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/forward_sm80.rs",
        entries: "forward_sm80",
        tests: &["simulator", "simulator_properties"],
        defects: &[
            nth(
                "sm80_wait",
                "a stage is read before its copies have landed",
                2,
                "cp_async::wait_group::<0>();",
                "cp_async::wait_group::<1>();",
            ),
            defect(
                "sm80_barrier",
                "the barrier between the copies and their reads is left out",
                "barrier::sync(0, T::THREADS);",
                "",
            ),
            defect(
                "sm80_tail",
                "the next block of keys is copied as if all of it existed",
                "k.copy(keys - to_next, next);",
                "k.copy(T::BLOCK_N, next);",
            ),
            defect(
                "sm80_clear",
                "columns of Q past head_dim are not cleared",
                "q_shared.clear_columns(first_of_k, T::BLOCK_M, T::THREADS);",
                "",
            ),
            nth(
                "sm80_store_sync",
                "a warp's rows of O leave before all lanes have written them",
                2,
                "warp::sync();",
                "",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/tile/mma_copy.rs",
        entries: "forward_sm80",
        tests: &["simulator", "simulator_properties"],
        defects: &[
            defect(
                "realign_shift",
                "a row that starts in the middle of a word is shifted without the next word",
                "low >> 16 | high << 16",
                "low >> 16",
            ),
            defect(
                "realign_last",
                "the last element of an odd row is not copied",
                "2 * (self.columns % 2) + if Self::is_late(start) { 2 } else { 0 }",
                "if Self::is_late(start) { 2 } else { 0 }",
            ),
            defect(
                "foreign_columns",
                "one foreign column too few is masked in rows that start alike",
                "column >= shift",
                "column + 1 >= shift",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/tile/mma_store.rs",
        entries: "forward_sm80",
        tests: &["simulator", "simulator_properties"],
        defects: &[
            defect(
                "store_granule",
                "16 bytes are stored where fewer columns are left",
                "UNIT == 8 && from == 0 && to == UNIT",
                "UNIT == 8 && from == 0 && to > 0",
            ),
            defect("store_rows", "rows past the last query are stored", "rows.min(target.rows)", "rows"),
        ],
    },
    Family {
        file: "crates/kernels/src/softmax.rs",
        entries: "forward",
        tests: &["simulator", "simulator_properties", "hopper"],
        defects: &[
            defect(
                "sink_weight",
                "a sink joins the log-sum-exp and not the sum",
                "factor * kept * math::reciprocal(sum)",
                "factor",
            ),
            defect(
                "sum_rescale",
                "the running sum is not brought to the new maximum",
                "self.sum[i] *= math::exp2(-growth);",
                "",
            ),
            defect(
                "max_lanes",
                "each lane has a maximum of its own",
                "max = unsafe { reduce::<LANES>(max, math::max) };",
                "",
            ),
            defect("lse_factor", "lse stays in base 2", "lse * core::f32::consts::LN_2", "lse"),
            defect(
                "acc_rescale",
                "O is not brought to the new maximum on mma.sync",
                "acc[i][j] *= rescale[i];",
                "",
            ),
            nth(
                "turn_sum",
                "the running sum is not brought to the new maximum on wgmma",
                1,
                "self.sum[i] *= rescale[i];",
                "",
            ),
            nth(
                "turn_max",
                "on wgmma the maximum stays that of the first block",
                2,
                "growth > Self::GROWTH",
                "growth > 1e30",
            ),
            nth("empty_row", "a row that sees no key divides by 0", 1, "sum == 0.0", "false"),
        ],
    },
    Family {
        file: "crates/kernels/src/mask.rs",
        entries: "forward",
        tests: &["simulator", "simulator_properties", "hopper"],
        defects: &[
            defect(
                "mask_tail",
                "the mask is one column short past the last key",
                "keys >= self.keys",
                "keys > self.keys",
            ),
            defect(
                "mask_window",
                "the window is one key too wide",
                "from_left > params.window_span",
                "from_left > params.window_span + 1",
            ),
            defect(
                "mask_last_key",
                "a row does not reach the last key that it sees",
                "(diagonal + 1 + right)",
                "(diagonal + right)",
            ),
            defect(
                "mask_whole",
                "a block that the mask cuts by one key counts as whole",
                "(first.end + 1).wrapping_sub(keys)",
                "(first.end + 2).wrapping_sub(keys)",
            ),
            defect(
                "mask_first_query",
                "the first query that sees a block of keys is left out",
                "(first_key + seqlen_q).saturating_sub(seqlen_k + right)",
                "(first_key + seqlen_q + 1).saturating_sub(seqlen_k + right)",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/score.rs",
        entries: "forward",
        tests: &["simulator", "simulator_properties", "hopper"],
        defects: &[
            defect(
                "alibi_row",
                "ALiBi counts from one row further",
                "diagonal.wrapping_add(row(0))",
                "diagonal.wrapping_add(row(0) + 1)",
            ),
            nth(
                "softcap_scale",
                "softcap does not divide before tanh",
                1,
                "params.softmax_scale * math::reciprocal(params.softcap)",
                "params.softmax_scale",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/params.rs",
        entries: "forward",
        tests: &["simulator", "simulator_properties", "hopper"],
        defects: &[defect(
            "alibi_batch",
            "all sequences have the first one's slopes",
            "batch as u64 * self.batch_stride + head as u64",
            "head as u64 + 0 * u64::from(batch)",
        )],
    },
    Family {
        file: "crates/kernels/src/scheduler.rs",
        entries: "forward",
        tests: &["simulator", "varlen", "used_keys", "hopper"],
        defects: &[
            defect(
                "gqa_head",
                "heads meet the keys of every second head in turn",
                "self.head / params.group",
                "self.head % (params.heads / params.group)",
            ),
            defect(
                "cu_seqlens",
                "all sequences but the first lack their last row",
                "end.wrapping_sub(first)",
                "end.wrapping_sub(first).saturating_sub((first != 0) as u32)",
            ),
            defect(
                "seqused_k",
                "the last used key of a sequence is left out",
                "self.len.min(rows.max(0) as u32)",
                "self.len.min(rows.max(1) as u32 - 1)",
            ),
            defect(
                "found_behind",
                "tiles of a packed batch are counted from the end of the 32 sequences that are looked at",
                "warp::broadcast(end, behind - 1)",
                "warp::broadcast(end, 31)",
            ),
            defect(
                "tile_twice",
                "of the tiles that are a block each the first is visited twice, and the last not",
                "tiles + block - blocks",
                "tiles + (block - blocks).saturating_sub(1)",
            ),
            defect(
                "tile_left_out",
                "the last tile that is taken in turn is left out",
                "if index < tiles { Some(index) } else { None }",
                "if index + 1 < tiles || tiles == 1 { Some(index) } else { None }",
            ),
            defect(
                "swizzle_heads",
                "the last swizzle of heads counts as full",
                "(heads - first_head).min(swizzle)",
                "swizzle",
            ),
            defect(
                "batch_index",
                "a packed batch is addressed as if it had a batch axis",
                "if params.cu_seqlens_q == 0 { self.batch } else { 0 }",
                "self.batch",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/standard.rs",
        entries: "standard",
        tests: &["simulator"],
        defects: &[
            nth(
                "standard_sum",
                "the sum lacks a row's last key",
                2,
                "key < scores.columns",
                "key + 1 < scores.columns",
            ),
            nth(
                "standard_barrier",
                "the barrier before the next step is left out",
                1,
                "barrier::sync(0, THREADS);",
                "",
            ),
        ],
    },
];
