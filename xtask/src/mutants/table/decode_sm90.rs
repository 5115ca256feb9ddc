//! `decode_sm90`, `mla_sm90`, and `forward_sm90` over a K/V cache.

use super::{Family, defect, nth};

pub(super) const FAMILIES: &[Family] = &[
    Family {
        file: "crates/kernels/src/attention/decode_sm90/consumer.rs",
        entries: "decode_sm90",
        tests: &["decode"],
        defects: &[
            defect(
                "hopper_decode_tail",
                "what lies behind a sequence's keys is multiplied",
                "self.clear_values(item.used - key);",
                "",
            ),
            defect(
                "hopper_decode_fence",
                "products read P before it is there for them",
                "fence::proxy_async();",
                "",
            ),
            nth(
                "hopper_decode_leave",
                "K is left before its scores are there",
                1,
                "unsafe { s[product].wait_group::<0>() };",
                "",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/decode_sm90/consumer/weights.rs",
        entries: "decode_sm90",
        tests: &["decode"],
        defects: &[
            defect(
                "hopper_decode_mask",
                "keys behind the item's are seen",
                "place > params.window_span || key >= item.keys.end",
                "place > params.window_span",
            ),
            defect(
                "hopper_decode_rescale",
                "O keeps the factor of an older maximum",
                "self.o[panel][register(i, 1)] *= factors[i];",
                "",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/mla_sm90/consumer.rs",
        entries: "mla_sm90",
        tests: &["latents"],
        defects: &[
            nth(
                "mla_weights",
                "P lies over keys that other warps' scores still read",
                1,
                "unsafe { self.warpgroup.sync(ALONE[SIDE]) };",
                "",
            ),
            nth("mla_fence", "products read P before it is there for them", 2, "fence::proxy_async();", ""),
            nth("mla_follow", "O keeps the factor of an older maximum", 3, "self.rescale(rescale);", ""),
            defect(
                "mla_tail",
                "what lies behind a sequence's keys is multiplied",
                "self.clear_values(place, used - key);",
                "",
            ),
            defect(
                "mla_mask",
                "keys behind the item's are seen",
                "key >= of_row.end.min(item.keys.end)",
                "key >= of_row.end",
            ),
            defect(
                "mla_leave",
                "keys and P are left before their products have read them",
                "unsafe { self.o.wait_group::<0>() };",
                "",
            ),
            defect(
                "mla_sums",
                "the right warpgroup's weights are not in the sum",
                "shared::load(at(0)) + shared::load(at(1))",
                "shared::load(at(0))",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/decode_sm90/consumer.rs",
        entries: "decode_sm90",
        tests: &["batch_invariance"],
        defects: &[
            defect(
                "added_up_first",
                "the first two splits of a window are one",
                "item.keys.first / item.split_keys",
                "item.keys.first / item.split_keys + 1",
            ),
            defect(
                "added_up_last",
                "the last split is not added",
                "self.added_up.take(&rows);",
                "if !is_last { self.added_up.take(&rows); }",
            ),
            defect(
                "cluster_run",
                "each block's splits end where the first block's do",
                "cluster::rank() * item.splits",
                "0",
            ),
            defect(
                "cluster_slots",
                "a block hands all of its splits on in one place",
                "rows.hand_on(split, self.lane, self.memory)",
                "rows.hand_on(0, self.lane, self.memory)",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/softmax.rs",
        entries: "decode_sm90",
        tests: &["decode"],
        defects: &[nth(
            "empty_row_beside_others",
            "a row that sees no key divides by 0 where rows are finished beside one another",
            2,
            "sum == 0.0",
            "false",
        )],
    },
    Family {
        file: "crates/kernels/src/attention/decode_sm90/rows.rs",
        entries: "decode_sm90",
        tests: &["batch_invariance", "decode"],
        defects: &[
            nth(
                "cluster_read",
                "blocks read what others of the cluster have not handed on yet",
                1,
                "cluster::sync();",
                "",
            ),
            nth("cluster_leave", "blocks end while others of the cluster read", 1, "cluster::leave();", ""),
            defect(
                "cluster_rows",
                "rows past the first of each warp are not merged",
                "chunk += blocks * WARPGROUP;",
                "chunk = item.rows * chunks;",
            ),
            defect(
                "added_up_kept",
                "a split that raises the exponent leaves what the others had",
                "(ends.kept[i], ends.weights[i]) = (kept, weight);",
                "(ends.kept[i], ends.weights[i]) = (kept.max(1.0), weight);",
            ),
            defect(
                "cluster_whole",
                "a sequence of one split is stored by a block that has no keys of it",
                "(rows, cluster::rank())",
                "(rows, cluster::rank() ^ 1)",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/decode_sm90/consumer/e4m3.rs",
        entries: "decode_sm90",
        tests: &["decode"],
        defects: &[
            nth(
                "e4m3_cache_keys",
                "K is left before all lanes have read it",
                1,
                "self.warpgroup.sync_warps();",
                "",
            ),
            defect("e4m3_cache_scale", "scores of a row keep the factor of its Q", "s[i][j] *= factor;", ""),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/decode_sm90/fragments.rs",
        entries: "decode_sm90",
        tests: &["decode"],
        defects: &[defect(
            "e4m3_cache_depth",
            "Q's columns have another order than K's",
            "4 * half",
            "4 * (1 - half)",
        )],
    },
    Family {
        file: "crates/kernels/src/attention/decode_sm90/queries.rs",
        entries: "decode_sm90",
        tests: &["decode"],
        defects: &[
            defect(
                "e4m3_cache_row",
                "each eight columns of Q are scaled by their own largest",
                "distance < row_chunks::<T>()",
                "distance < 1",
            ),
            defect(
                "hopper_decode_columns",
                "columns of Q past head_dim are read",
                "(params.head_dim - column).min(CHUNK / 2)",
                "CHUNK / 2",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/work_items.rs",
        entries: "decode_sm90",
        tests: &["decode"],
        defects: &[
            defect(
                "hopper_decode_items",
                "a block takes each item of the list",
                "self.next += index::blocks();",
                "self.next += 1;",
            ),
            defect(
                "hopper_decode_sequence",
                "items are those of the sequences before",
                "self.before += others;",
                "",
            ),
            defect(
                "hopper_decode_batch",
                "behind the last sequence comes another",
                "work.batch < params.batch",
                "work.batch <= params.batch",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/forward_sm90/cached.rs",
        entries: "forward_sm90_cached",
        tests: &["widened"],
        defects: &[
            defect(
                "cached_k_factor",
                "scores have the factor of the first sequence's head",
                "cache.k_descale.of(batch, kv_head)",
                "cache.k_descale.of(0, kv_head)",
            ),
            defect("cached_v_factor", "O lacks V's factor", "cache.v_descale.of(batch, kv_head)", "1.0"),
        ],
    },
];
