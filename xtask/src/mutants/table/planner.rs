//! Plans, and the parameters that come of them.

use super::{Family, defect, nth};

pub(super) const FAMILIES: &[Family] = &[
    Family {
        file: "crates/host/src/plan/candidates.rs",
        entries: "forward",
        tests: &["simulator", "hopper"],
        defects: &[defect(
            "plan_head_dim",
            "a HEAD_DIM that is up to 8 columns too small is taken",
            "entry.tile.head_dim as usize >= needed",
            "entry.tile.head_dim as usize + 8 >= needed",
        )],
    },
    Family {
        file: "crates/host/src/plan/tile.rs",
        entries: "forward",
        tests: &["simulator", "hopper"],
        defects: &[defect(
            "plan_single",
            "the grid lacks the tiles that are a block each",
            "schedule.blocks + schedule.order.tail_tiles",
            "schedule.blocks",
        )],
    },
    Family {
        file: "crates/host/src/plan/geometry.rs",
        entries: "forward_sm90",
        tests: &["hopper", "varlen"],
        defects: &[defect(
            "plan_shift",
            "heads that start elsewhere need no more columns",
            "shift(layout, head) + layout.head_dim",
            "layout.head_dim",
        )],
    },
    Family {
        file: "crates/host/src/plan/cost.rs",
        entries: "forward_sm90",
        tests: &["hopper", "varlen"],
        defects: &[
            defect(
                "plan_last_tile",
                "the last tile of a packed sequence, of which a part exists, is not counted",
                "rows(batch).div_ceil(tile.block_m as usize)",
                "rows(batch) / tile.block_m as usize",
            ),
            defect(
                "plan_whole_tiles",
                "a head's last tile, of which a part exists, is not counted",
                "(problem.seqlen_q() as u32).saturating_sub(short_rows).div_ceil(tile.block_m)",
                "((problem.seqlen_q() as u32).saturating_sub(short_rows) / tile.block_m).max(1)",
            ),
        ],
    },
    Family {
        file: "crates/host/src/plan/pack.rs",
        entries: "pack",
        tests: &["hopper"],
        defects: &[defect(
            "plan_workspace",
            "each copy's workspace is one step too short",
            "aligned_bytes(copy_bytes(&layout))",
            "aligned_bytes(copy_bytes(&layout)) - ALIGNMENT",
        )],
    },
    Family {
        file: "crates/host/src/launch.rs",
        entries: "forward_sm90",
        tests: &["hopper", "varlen"],
        defects: &[
            defect(
                "launch_landed",
                "V of packed sequences is not fixed up",
                "if problem.has_rows_behind_keys() && element_bytes == 2 { landed } else { 0 }",
                "0",
            ),
            defect(
                "launch_batch",
                "a packed batch steps from sequence to sequence",
                "u64::from(!problem.is_packed())",
                "1",
            ),
            defect(
                "launch_window",
                "the window is one key too wide",
                "side(problem.window().0) + side(problem.window().1)",
                "side(problem.window().0) + side(problem.window().1) + 1",
            ),
            defect(
                "launch_pack_end",
                "a copy's last elements lie outside of its tensor",
                "2 * from.span() as u64",
                "2 * (from.span() as u64 + 8)",
            ),
            defect(
                "launch_o",
                "O that starts at no multiple of 16 bytes leaves by boxes",
                "!addresses.o.is_multiple_of(16)",
                "false",
            ),
        ],
    },
    Family {
        file: "crates/host/src/launch/maps.rs",
        entries: "forward_sm90",
        tests: &["hopper"],
        defects: &[defect(
            "map_length",
            "the map of heads that start elsewhere ends too early",
            "shift as usize + layout.head_dim",
            "layout.head_dim",
        )],
    },
    Family {
        file: "crates/host/src/decode/launch.rs",
        entries: "decode",
        tests: &["decode"],
        defects: &[defect(
            "decode_workspace",
            "log-sum-exps of splits lie where their O does",
            "workspace + (all_o + lse_before) as u64",
            "workspace + lse_before as u64",
        )],
    },
    Family {
        file: "crates/host/src/decode/plan/few_queries.rs",
        entries: "decode",
        tests: &["decode"],
        defects: &[nth(
            "decode_entry",
            "a HEAD_DIM that is too small is taken",
            2,
            "entry.tile.head_dim as usize >= head_dim",
            "entry.tile.head_dim as usize + 8 >= head_dim",
        )],
    },
    Family {
        file: "crates/host/src/plan/schedule.rs",
        entries: "forward_sm90",
        tests: &["batch_invariance"],
        defects: &[defect(
            "alike_short_tiles",
            "tiles that do not depend on the batch may be short ones",
            "self.order.short_tiles == 0",
            "self.order.short_tiles < 100",
        )],
    },
    Family {
        file: "crates/host/src/backward/plan.rs",
        entries: "backward",
        tests: &["backward"],
        defects: &[defect(
            "backward_grid",
            "the launch that owns keys has too few blocks",
            "forward.seqlen_k().div_ceil(entry.tile.block_n as usize)",
            "(forward.seqlen_k() / entry.tile.block_n as usize)",
        )],
    },
    Family {
        file: "crates/host/src/backward/packed.rs",
        entries: "backward_",
        tests: &["backward"],
        defects: &[
            defect(
                "backward_copies_dout",
                "dO that no tensor map describes is read where it is",
                "(dout, is_unmapped(\"dout\", dout))",
                "(dout, false)",
            ),
            defect(
                "backward_copies_place",
                "copies lie where delta does",
                "addresses.forward.workspace + stored::behind_delta(problem.forward())",
                "addresses.forward.workspace",
            ),
        ],
    },
    Family {
        file: "crates/host/src/backward/launch.rs",
        entries: "backward_",
        tests: &["backward"],
        defects: &[
            defect(
                "backward_copies_ds",
                "dS lies where the copies do",
                "stored::behind_delta(forward) + self.copies.bytes",
                "stored::behind_delta(forward)",
            ),
            defect(
                "backward_copies_address",
                "tensors that start anywhere are read by tensor maps",
                "copy.is_some() || address.is_multiple_of(16)",
                "copy.is_some() || address.is_multiple_of(2)",
            ),
        ],
    },
    Family {
        file: "crates/host/src/backward/stored.rs",
        entries: "backward",
        tests: &["backward"],
        defects: &[defect(
            "backward_workspace",
            "delta's workspace lacks the last row",
            "4 * forward.lse_len() as u64",
            "4 * (forward.lse_len() as u64 - 1)",
        )],
    },
    Family {
        file: "crates/host/src/gemm/plan/tile.rs",
        entries: "gemm",
        tests: &["gemm"],
        defects: &[defect(
            "gemm_tiles",
            "the last column of tiles is not counted",
            "matrices.c.columns.div_ceil(entry.tile.block_n as usize) as u128",
            "(matrices.c.columns / entry.tile.block_n as usize).max(1) as u128",
        )],
    },
];
