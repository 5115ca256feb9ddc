//! Orders of tiles.

use super::*;
use crate::{DType, Options, TensorLayout, Tensors};

fn causal(batch: usize, seqlen: usize, heads: usize) -> Problem {
    let layout = TensorLayout::bshd(batch, seqlen, heads, 128);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    Problem::new(tensors, DType::F16, Options { causal: true, ..Options::default() }).unwrap()
}

#[test]
fn shares_of_a_causal_problem_are_nearly_even() {
    let tile = Tile { block_m: 192, block_n: 80, head_dim: 128, head_dim_v: 128 };
    for (batch, seqlen) in [(4, 4096), (16, 1024), (2, 8192), (1, 16_384)] {
        let problem = causal(batch, seqlen, 16);
        let (heads, blocks) = (16 * batch, 132);
        let costs = |order: TileOrder| Costs::of_head(&problem, &tile, order.short_tiles);
        let fair =
            (heads as u64 * costs(TileOrder::default()).whole.iter().sum::<u64>()) as f64 / f64::from(blocks);
        let share = |order| longest_share(&costs(order), heads, order, blocks as usize) as f64 / fair;
        let chosen = schedule(&problem, &tile, blocks).order;
        assert!(share(chosen) < 1.035, "{seqlen}: {chosen:?} {}", share(chosen));
        assert!(share(chosen) <= share(TileOrder { heads_per_swizzle: 16, ..TileOrder::default() }));
        // Where heads are few and long, swizzles that stay in the cache leave shares uneven.
        assert_eq!(chosen.tail_tiles > 0, seqlen >= 8192, "{seqlen}: {chosen:?}");
    }
}

/// As measured: long tiles are for whichever multiprocessor is done first, and short ones stay in turn.
#[test]
fn many_long_tiles_are_a_block_each() {
    let tile = Tile { block_m: 192, block_n: 80, head_dim: 128, head_dim_v: 128 };
    for (batch, seqlen, single) in [(1, 131_072, true), (1, 524_288, true), (256, 2048, false)] {
        let Schedule { order, tiles, blocks, .. } = schedule(&causal(batch, seqlen, 32), &tile, 132);
        assert_eq!(order.tail_tiles, if single { tiles - blocks } else { 0 }, "{seqlen}: {order:?}");
        assert_ne!(order.snake_order, single, "{seqlen}: {order:?}");
    }
}

#[test]
fn short_tiles_fill_the_last_round() {
    let tile = Tile { block_m: 192, block_n: 80, head_dim: 128, head_dim_v: 128 };
    for (batch, seqlen) in [(8, 2048), (4, 4096), (2, 8192), (1, 16_384)] {
        let layout = TensorLayout::bshd(batch, seqlen, 16, 128);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let problem = Problem::new(tensors, DType::F16, Options::default()).unwrap();
        let Schedule { order, cycles, tiles, .. } = schedule(&problem, &tile, 132);
        assert!(order.short_tiles > 0, "{seqlen}: {order:?}");
        let whole = whole_tiles(&problem, &tile, order.short_tiles);
        assert!(whole * 192 + order.short_tiles * 128 >= seqlen as u32);
        assert_eq!(tiles, (whole + order.short_tiles) * 16 * batch as u32);
        let alike = longest_share(&Costs::of_head(&problem, &tile, 0), 16 * batch, TileOrder::default(), 132);
        assert!(cycles < 0.985 * alike as f64, "{seqlen}: {order:?} {cycles} {alike}");
    }
}

#[test]
fn short_sequences_take_the_tile_that_they_fill() {
    let quickest = |seqlen: usize| {
        let layout = TensorLayout::bshd(16_384 / seqlen, seqlen, 16, 128);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let problem = Problem::new(tensors, DType::F16, Options::default()).unwrap();
        let cycles = |block_m, block_n| {
            schedule(&problem, &Tile { block_m, block_n, head_dim: 128, head_dim_v: 128 }, 132).cycles
        };
        if cycles(192, 80) < cycles(128, 128) { 192 } else { 128 }
    };
    assert_eq!([512, 16_384].map(quickest), [128, 192]);
}

#[test]
fn short_causal_sequences_take_short_steps() {
    let quickest = |seqlen: usize, causal| {
        let layout = TensorLayout::bshd(16_384 / seqlen, seqlen, 32, 64);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let problem = Problem::new(tensors, DType::F16, Options { causal, ..Options::default() }).unwrap();
        let cycles = |block_n| {
            schedule(&problem, &Tile { block_m: 192, block_n, head_dim: 64, head_dim_v: 64 }, 132).cycles
        };
        if cycles(64) < cycles(128) { 64 } else { 128 }
    };
    let lengths = [512, 1024, 2048, 4096, 16_384];
    assert_eq!(lengths.map(|seqlen| quickest(seqlen, true)), [64, 128, 128, 128, 128]);
    assert_eq!(lengths.map(|seqlen| quickest(seqlen, false)), [128; 5]);
}

/// As measured: of few steps those of which three share a multiprocessor are done first.
#[test]
fn sequences_of_few_steps_take_tiles_that_share_a_multiprocessor() {
    let quickest = |batch: usize, seqlen: usize, causal: bool| {
        let layout = TensorLayout::bshd(batch, seqlen, 16, 64);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let problem = Problem::new(tensors, DType::F16, Options { causal, ..Options::default() }).unwrap();
        let cycles = |&(block_m, block_n, places): &(u32, u32, u32)| {
            schedule(&problem, &Tile { block_m, block_n, head_dim: 64, head_dim_v: 64 }, places).cycles
        };
        let tiles = [(64, 64, 3 * 132), (128, 128, 132), (192, 64, 132), (192, 128, 132)];
        tiles.into_iter().min_by(|a, b| cycles(a).total_cmp(&cycles(b))).map(|tile| (tile.0, tile.1))
    };
    let short = [(128, 100, false), (64, 64, false), (64, 200, false)];
    assert_eq!(short.map(|(batch, seqlen, causal)| quickest(batch, seqlen, causal)), [Some((64, 64)); 3]);
    assert_eq!(quickest(2, 512, false), Some((128, 128)));
    assert_eq!(quickest(32, 512, false), Some((192, 128)));
    assert_eq!([8, 32].map(|batch| quickest(batch, 512, true)), [Some((192, 64)); 2]);
}
