//! Attention over several GPUs.

use super::{Family, defect};

pub(super) const FAMILIES: &[Family] = &[
    Family {
        file: "crates/host/src/distributed/schedule.rs",
        entries: "append",
        tests: &["distributed"],
        defects: &[
            defect("context_gathered", "attention does not wait for its keys", "vec![gather]", "vec![]"),
            defect(
                "context_placed",
                "a gather does not wait for the rank's own rows",
                "placed.into_iter().collect()",
                "vec![]",
            ),
        ],
    },
    Family {
        file: "crates/host/src/distributed/schedule/staged.rs",
        entries: "append",
        tests: &["distributed"],
        defects: &[
            defect(
                "context_diagonal",
                "keys end with the last query's row, however many more there are",
                "rows.end + seqlen_k - cut.queries.rows()",
                "rows.end",
            ),
            defect(
                "context_high",
                "high chunks come where low ones belong",
                "first + halves_before * behind",
                "first",
            ),
            defect("context_stage", "all stages read the first one's keys", "keys_before * k.head_dim", "0"),
            defect(
                "context_lse",
                "the high half's lse lies over the low half's",
                "(cut.batch * whole.heads() + heads.start) * lse_head + first_row",
                "(cut.batch * whole.heads() + heads.start) * lse_head",
            ),
            defect(
                "context_place",
                "both halves' keys go where the low half's belong",
                "keys.chunk_of(shard.rank(), half) * keys.chunk_len()",
                "keys.chunk_of(shard.rank(), Half::Low) * keys.chunk_len()",
            ),
        ],
    },
    Family {
        file: "crates/host/src/distributed/schedule/backward.rs",
        entries: "append",
        tests: &["distributed"],
        defects: &[
            defect(
                "context_keys_mask",
                "masks are aligned to the last of a chunk's keys as if it were the sequence's",
                "right.saturating_add(behind)",
                "right",
            ),
            defect(
                "context_statistics",
                "all heads' lse and delta are gathered where the first one's belong",
                "before + head * all",
                "before",
            ),
            defect(
                "context_delta",
                "lse and delta are sent before delta is there",
                "deltas.clone()",
                "vec![]",
            ),
        ],
    },
    Family {
        file: "crates/host/src/distributed/shard.rs",
        entries: "append",
        tests: &["distributed"],
        defects: &[defect(
            "context_tiles",
            "chunks begin anywhere where bits depend on tiles",
            "if counts_from_tiles(problem) { ALL_TILES_ROWS } else { 1 }",
            "1",
        )],
    },
    Family {
        file: "crates/host/src/distributed/partition.rs",
        entries: "append",
        tests: &["distributed"],
        defects: &[defect(
            "context_end",
            "the last chunk ends behind its sequence",
            "(chunk * self.chunk).min(self.rows)",
            "chunk * self.chunk",
        )],
    },
];
