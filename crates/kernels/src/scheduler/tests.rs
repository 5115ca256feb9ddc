use super::*;

#[test]
fn every_tile_has_one_block_and_the_last_goes_first_under_a_causal_mask() {
    for (right, first) in [(UNLIMITED, 0), (0, 3)] {
        let params = AttentionParams {
            heads: 3,
            window_left: UNLIMITED,
            window_span: UNLIMITED + right,
            ..AttentionParams::default()
        };
        // SAFETY: there are tiles and heads, and no offsets to read.
        let work = |block| unsafe { WorkTile::of_index(&params, 4, block) };
        assert_eq!((work(0).tile, work(4).tile, work(4).head, work(12).batch), (first, first, 1, 1));
        let mut seen = [false; 24];
        for block in 0..24 {
            let WorkTile { tile, head, batch, .. } = work(block);
            seen[(tile + 4 * (head + 3 * batch)) as usize] = true;
        }
        assert_eq!(seen, [true; 24]);
    }
}

#[test]
fn the_blocks_of_a_grid_share_all_tiles() {
    for (snake_order, second_round) in [(0, [3, 4, 5]), (1, [5, 4, 3])] {
        for (tail_tiles, tiles) in [(0, 12), (0, 10), (1, 10), (3, 12), (5, 8)] {
            let params = PersistentParams { snake_order, tiles, tail_tiles, ..PersistentParams::default() };
            let mut taken = [0; 12];
            for block in 0..3 + tail_tiles {
                let mut of_block = Tiles::default();
                let mut next = || of_block.index(&params, block, 3 + tail_tiles);
                let first = if block < 3 { block } else { tiles - tail_tiles + block - 3 };
                assert_eq!(next(), Some(first));
                taken[first as usize] += 1;
                let second = next();
                assert!(second.is_none_or(|index| index == second_round[block as usize]));
                for index in core::iter::successors(second, |_| next()) {
                    assert!(index < tiles - tail_tiles);
                    taken[index as usize] += 1;
                }
            }
            assert!(taken[..tiles as usize].iter().all(|&times| times == 1), "{taken:?}");
            assert!(taken[tiles as usize..].iter().all(|&times| times == 0), "{taken:?}");
        }
    }
}

#[test]
fn a_section_goes_through_the_longest_tiles_of_its_heads_first() {
    let attention = AttentionParams {
        seqlen_q: 250,
        heads: 3,
        window_left: UNLIMITED,
        window_span: UNLIMITED,
        ..AttentionParams::default()
    };
    // Three tiles for each of 2·3 heads, in swizzles of four heads and then two.
    let params = PersistentParams {
        attention,
        tiles: 18,
        whole_tiles: 3,
        heads_per_swizzle: 4,
        ..PersistentParams::default()
    };
    let place = |index| place(&params, index);
    assert_eq!(
        [0, 1, 4, 11, 12, 13, 14, 17].map(place),
        [(2, 0), (2, 1), (1, 0), (0, 3), (2, 4), (2, 5), (1, 4), (0, 5)]
    );
    assert_each_once(&params);
}

#[test]
fn short_tiles_are_a_heads_first_rows_and_come_last() {
    let attention = AttentionParams {
        heads: 2,
        window_left: UNLIMITED,
        window_span: 2 * UNLIMITED,
        ..AttentionParams::default()
    };
    let params = PersistentParams {
        attention,
        tiles: 20,
        whole_tiles: 3,
        short_tiles: 2,
        heads_per_swizzle: 1,
        ..PersistentParams::default()
    };
    assert_eq!(
        [0, 2, 3, 11, 12, 13, 14, 19].map(|index| place(&params, index)),
        [(2, 0), (4, 0), (2, 1), (4, 3), (0, 0), (1, 0), (0, 1), (1, 3)]
    );
    assert_each_once(&params);
}

/// Tile and head with this index.
fn place(params: &PersistentParams, index: u32) -> (u32, u32) {
    // SAFETY: the index is below the number of tiles, and there are no offsets to read.
    let WorkTile { tile, head, batch, .. } = unsafe { WorkTile::of_persistent(params, index) };
    (tile, head + params.attention.heads * batch)
}

fn assert_each_once(params: &PersistentParams) {
    let mut seen = [false; 32];
    for index in 0..params.tiles {
        let (tile, head) = place(params, index);
        let place = tile + (params.whole_tiles + params.short_tiles) * head;
        assert!(!core::mem::replace(&mut seen[place as usize], true), "tile {tile} of head {head} again");
    }
}

#[test]
fn a_sequence_uses_no_more_rows_than_it_has_and_no_fewer_than_none() {
    let rows = Rows { first: 5, len: 7 };
    let lengths = [-3, 0, 3, 7, 8, i32::MAX, i32::MIN].map(|used| rows.up_to(used).len);
    assert_eq!(lengths, [0, 0, 3, 7, 7, 7, 0]);
    assert_eq!(rows.up_to(3).first, 5);
}
