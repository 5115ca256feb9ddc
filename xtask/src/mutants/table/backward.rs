//! The backward pass.

use super::{Family, defect, nth};

pub(super) const FAMILIES: &[Family] = &[
    Family {
        file: "crates/kernels/src/attention/gradient.rs",
        entries: "backward",
        tests: &["backward"],
        defects: &[
            defect(
                "delta_forgotten",
                "dS lacks delta",
                "dp * kept - stats[query(i, j).1].delta",
                "dp * kept",
            ),
            defect(
                "backward_dropout",
                "the factor on weights that are kept is forgotten",
                "if keeps { params.dropout.scale } else { 0.0 }",
                "if keeps { 1.0 } else { 0.0 }",
            ),
            defect("backward_lse", "lse is not brought to base 2", "lse * LOG2_E", "lse"),
            defect(
                "backward_softcap",
                "the derivative of softcap is forgotten",
                "for_each(ds, |distance, i, j| distance * CapAndBias::slope(params, p[i][j]));",
                "",
            ),
            defect(
                "backward_corner",
                "ALiBi counts from one key further",
                "work.queries.len + place.key",
                "work.queries.len + place.key + 1",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/backward_delta.rs",
        entries: "backward",
        tests: &["backward"],
        defects: &[
            defect(
                "delta_column",
                "delta lacks the last column",
                "column + j < o.columns",
                "column + j + 1 < o.columns",
            ),
            defect(
                "delta_chunk",
                "delta has columns behind the last one",
                "column + elements <= o.columns",
                "column < o.columns",
            ),
            defect(
                "delta_row",
                "delta of a block's last rows is left out",
                "i < BLOCK_M",
                "i < BLOCK_M - THREADS / ROW_LANES",
            ),
            defect("delta_dlse", "dlse has the other sign", "delta - dlse", "delta + dlse"),
            defect(
                "delta_unseen",
                "dlse of rows that see no key counts",
                "params.dlse != 0 && KeyRange::of_row(attention, &work, row).has_keys()",
                "params.dlse != 0",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/backward_sinks.rs",
        entries: "backward_sinks",
        tests: &["backward"],
        defects: &[
            defect(
                "sinks_row",
                "a fifth of the rows gives its sink nothing",
                "row += LOADS_IN_FLIGHT * threads",
                "row += (LOADS_IN_FLIGHT + 1) * threads",
            ),
            defect(
                "sinks_unseen",
                "dlse of rows that see no key gives their sink nothing",
                "exists && !sees && params.dlse != 0",
                "false",
            ),
            defect(
                "sinks_sequence",
                "sinks for all sequences have the rows of the first alone",
                "params.sequences_of_sink",
                "params.sequences_of_sink.min(1)",
            ),
            defect(
                "sinks_warps",
                "half of the warps are left out",
                "reduce::<WARPS>",
                "reduce::<{ WARPS / 2 }>",
            ),
            defect(
                "sinks_sum",
                "a sum of many rows loses digits",
                "self.excess = (sum - self.sum) - value;",
                "",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/backward_simt.rs",
        entries: "backward_keys_f",
        tests: &["backward"],
        defects: &[
            nth("dk_scale", "dK lacks softmax_scale", 1, "attention.softmax_scale", "1.0"),
            defect(
                "backward_group",
                "the last of the heads that share keys is left out",
                "head < attention.group",
                "head < attention.group.max(2) - 1",
            ),
            nth(
                "backward_barrier",
                "Q and dO are overwritten while they are still read",
                1,
                "barrier::sync(0, T::THREADS);",
                "",
            ),
            defect(
                "backward_warp",
                "dS overwrites P before dV has read it",
                "simt::multiply_accumulate(&mut dv, shared.product, shared.step[1], lane, rows);\n                warp::sync();",
                "simt::multiply_accumulate(&mut dv, shared.product, shared.step[1], lane, rows);",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/backward_sm80.rs",
        entries: "sm80_",
        tests: &["backward"],
        defects: &[
            nth(
                "backward_sm80_wait",
                "Q and dO are read before their copies have landed",
                1,
                "cp_async::wait_group::<1>();",
                "cp_async::wait_group::<2>();",
            ),
            nth(
                "backward_sm80_barrier",
                "a stage is filled while it is still read",
                1,
                "barrier::sync(0, T::THREADS);",
                "",
            ),
            defect(
                "backward_sm80_stage",
                "the two stages do not change places",
                "(member, first_row, stage) = (next_member, next_row, 1 - stage);",
                "(member, first_row, stage) = (next_member, next_row, stage);",
            ),
            defect(
                "backward_sm80_rows",
                "rows past the last are stored",
                "row < tile.rows && column < tile.columns",
                "column < tile.columns",
            ),
            defect(
                "backward_sm80_columns",
                "warps that share rows have the same columns of the gradients",
                "index::reread_thread() / 32 % T::COLUMN_WARPS * T::GRADIENT_COLUMNS",
                "index::reread_thread() / 32 * 0",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/backward_sm80/scores.rs",
        entries: "sm80_",
        tests: &["backward"],
        defects: &[
            defect(
                "backward_sm80_first_query",
                "steps of queries begin within a draw",
                "if T::DROPOUT { QUERY_MULTIPLE } else { ADDED_AT_ONCE }",
                "1",
            ),
            defect(
                "backward_sm80_first_key",
                "steps of keys begin within a draw",
                "if T::DROPOUT { KEY_MULTIPLE } else { ADDED_AT_ONCE }",
                "1",
            ),
            defect(
                "backward_sm80_slope",
                "ALiBi's bias is forgotten",
                "unsafe { CapAndBias::of_head(params, work) }",
                "CapAndBias::default()",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/dropout/fragment.rs",
        entries: "score_mod",
        tests: &["backward"],
        defects: &[
            defect(
                "kept_halves",
                "lanes of neighbouring keys take each other's draws",
                "if is_odd == 0 { 0x5410 } else { 0x3276 }",
                "if is_odd == 0 { 0x7632 } else { 0x1054 }",
            ),
            defect(
                "kept_words",
                "the second 16 of 32 keys have the draws of the first",
                "words[i as usize / 2 % 2 + 2]",
                "words[i as usize / 2 % 2]",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/backward_sm90/consumer.rs",
        entries: "backward_",
        tests: &["backward"],
        defects: &[
            defect(
                "backward_sm90_wait",
                "the next step's scores are begun before it has landed",
                "next.wait();",
                "",
            ),
            defect(
                "backward_sm90_ahead",
                "dP that was begun with the scores is read before it is there",
                "self.dp.wait_group::<0>();",
                "",
            ),
            defect(
                "backward_sm90_mask",
                "keys and queries change places in the mask",
                "near.hides(attention, keys, queries)",
                "near.hides(attention, queries, keys)",
            ),
            defect(
                "backward_sm90_statistic",
                "a column has its neighbour's lse and delta",
                "j / 4 * 2 + j % 2",
                "j / 4 * 2",
            ),
            defect("backward_sm90_gradient", "dV is made from Q", "of_values as usize", "0_usize"),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/backward_sm90/scores.rs",
        entries: "backward_keys_ds_sm90",
        tests: &["backward"],
        defects: &[
            defect(
                "backward_sm90_slope",
                "the derivative of softcap is forgotten",
                "p * CapAndBias::slope_of_masked(bent, inverse_softcap)",
                "p",
            ),
            defect(
                "backward_sm90_dropped",
                "dS does not learn which weights were dropped",
                "if is_kept { weight } else { -weight }",
                "weight",
            ),
            defect(
                "backward_sm90_follow",
                "all query heads of a group have the first one's slope and draws",
                "row == block.first",
                "row == block.first && self.head != block.work.head",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/backward_sm90/producer.rs",
        entries: "backward_",
        tests: &["backward"],
        defects: &[
            defect(
                "backward_sm90_stage",
                "lse and delta are written before all have left the stage",
                "ring.wait_empty();",
                "",
            ),
            defect(
                "backward_sm90_ends",
                "rows of the next packed sequence are multiplied",
                "rows < T::STEP",
                "rows > T::STEP",
            ),
            defect(
                "backward_sm90_head",
                "all query heads of a group have the first one's lse",
                "WorkTile { head, ..source.block().work }",
                "source.block().work",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/backward_sm90/queries.rs",
        entries: "backward_keys_ds_sm90",
        tests: &["backward"],
        defects: &[defect(
            "backward_queries_order",
            "rows of dQ stand where their queries stand in stored dS",
            "stored_ds::query(warp_row + row)",
            "(warp_row + row)",
        )],
    },
    Family {
        file: "crates/kernels/src/attention/backward_sm90/carried.rs",
        entries: "backward_keys_ds_sm90",
        tests: &["backward"],
        defects: &[defect(
            "backward_carried",
            "the second unit of a tile of keys begins with 0",
            "slots.began_before()",
            "false",
        )],
    },
    Family {
        file: "crates/kernels/src/attention/backward_sm90/block.rs",
        entries: "backward_keys_ds_sm90",
        tests: &["backward"],
        defects: &[defect(
            "backward_unit_row",
            "dS of a unit stands behind that of all queries before it",
            "(self.first - self.unit_row, key)",
            "(self.first, key)",
        )],
    },
    Family {
        file: "crates/kernels/src/attention/backward_sm90/sums.rs",
        entries: "backward_keys_dq_sm90",
        tests: &["backward"],
        defects: &[
            defect(
                "backward_sums_turn",
                "a sum is taken before the tile of keys before has added to it",
                "global::wait_at_least(step.counter(params, slots), before);",
                "global::wait_at_least(step.counter(params, slots), before - 1);",
            ),
            defect(
                "backward_sums_last",
                "dQ leaves with the tile before the last",
                "owned + GRANULE >= end",
                "owned + 2 * GRANULE >= end",
            ),
            defect(
                "backward_sums_panel",
                "dS of both warpgroups has the same place",
                "pipeline.ds_of_keys(ring.stage(), warpgroup.index())",
                "pipeline.ds_of_keys(ring.stage(), 0)",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/backward_delta.rs",
        entries: "backward_keys_dq_sm90",
        tests: &["backward"],
        defects: &[defect(
            "backward_sums_empty",
            "dQ of queries that see no key is left as it was",
            "params.tickets.steps_of_head > 0",
            "false",
        )],
    },
    Family {
        file: "crates/kernels/src/attention/backward_sm80/keys_ds/kept.rs",
        entries: "backward_keys_ds_sm80",
        tests: &["backward"],
        defects: &[defect(
            "backward_ds_sm80_first_unit",
            "dS of later heads does not take the place of the first ones'",
            "head.wrapping_sub(params.ds.first_unit * attention.group)",
            "head",
        )],
    },
    Family {
        file: "crates/kernels/src/attention/backward_sm80/keys_ds.rs",
        entries: "backward_keys_ds_sm80",
        tests: &["backward"],
        defects: &[defect(
            "backward_ds_sm80_panels",
            "the last panel of a head is left out where its second half has no queries",
            "seen.end.next_multiple_of(PANEL)",
            "seen.end",
        )],
    },
    Family {
        file: "crates/kernels/src/attention/backward_sm80/dq.rs",
        entries: "backward_dq_sm80",
        tests: &["backward"],
        defects: &[
            defect(
                "backward_dq_sm80_stored",
                "keys that no query of a granule sees count",
                "self.key >= self.stored.0 && self.key < self.stored.1",
                "self.key < self.stored.1",
            ),
            defect(
                "backward_dq_sm80_rows",
                "queries stay in the order in which dS has them",
                "place / PANEL * PANEL + stored_ds::query(place % PANEL)",
                "place",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/backward_tiles.rs",
        entries: "backward_keys_ds_sm90",
        tests: &["backward"],
        defects: &[
            defect(
                "backward_tiles_slot",
                "a unit's dS does not take the place of an earlier one's",
                "unit.number % tickets.ring * tickets.unit_heads",
                "unit.number * tickets.unit_heads",
            ),
            defect(
                "backward_tiles_single",
                "a tile that is in one unit counts among those that keep sums",
                "of_keys && exists && part.units > 1",
                "of_keys && exists && tickets.units_of_head > 1",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/backward_tiles/unit.rs",
        entries: "backward_keys_ds_sm90",
        tests: &["backward"],
        defects: &[
            defect(
                "backward_tiles_keys",
                "tiles of queries wait for one tile of keys too few",
                "(Unit::counter(self.unit.number, true), tickets.key_tiles)",
                "(Unit::counter(self.unit.number, true), tickets.key_tiles - 1)",
            ),
            defect(
                "backward_tiles_ring",
                "dS is overwritten before its queries are done",
                "unit.number >= tickets.ring",
                "unit.number > tickets.ring",
            ),
            nth(
                "backward_tiles_empty",
                "keys wait for a unit that stores no dS, and not for the one before it",
                1,
                "unit.stores(params, tickets)",
                "true",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/backward_tiles/part.rs",
        entries: "backward_keys_ds_sm90",
        tests: &["backward"],
        defects: &[
            defect(
                "backward_tiles_before",
                "a tile of keys forgets its units with query heads before",
                "unit.part / runs * runs_seen + run - first_run",
                "run - first_run",
            ),
            defect(
                "backward_tiles_goes_on",
                "a tile of keys ends with its first query head",
                "tickets.units_of_head / runs * runs_seen",
                "runs_seen",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/attention/alignment/row_store.rs",
        entries: "backward_keys_ds_sm90",
        tests: &["backward"],
        defects: &[
            defect(
                "store_chunks_aligned",
                "rows that start anywhere leave by whole chunks",
                "!bytes.is_multiple_of(16)",
                "!bytes.is_multiple_of(2)",
            ),
            defect(
                "store_chunks_columns",
                "chunks behind the last column are stored",
                "target_row < target.rows && CHUNK * column < target.columns",
                "target_row < target.rows",
            ),
        ],
    },
];
