//! Decode with numbers of keys that are none, in the simulator: they are the caller's promise, but what
//! breaks it writes nothing outside of O, and ends.
#![allow(clippy::unwrap_used)]

use fa_kernels::attention::combine::{self, combine};
use fa_kernels::attention::decode::{DecodeTile, Tile, decode};
use fa_kernels::attention::decode_sm90::{self, DecodeSm90Tile, decode_sm90};
use fa_kernels::attention::mla_sm90::{self, mla_sm90};
use fa_kernels::element::F16;
use fa_kernels::mask::UNLIMITED;
use fa_kernels::params::{CacheParams, DecodeParams, Divisor, Strides};
use fa_sim::tma::{Swizzle, TensorMap};
use fa_sim::{Buffer, Launch, Schedule, launch, launch_clusters};

type Of = DecodeTile<F16, 2, 64, 4, 4>;
type OfSm90<const ADDS_UP: bool> = DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 64, 1, 6, ADDS_UP>;

const HEAD_DIM: u32 = 64;
/// Keys that a sequence has room for.
const ROOM: u32 = 300;
const SPLITS: u32 = 3;
/// Blocks of clusters that have runs of splits.
const FEWER_BLOCKS: u32 = 2;
const POISON: u16 = 0x5a5a;

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Decode,
    DecodeSm90,
    /// The same, where a tile's splits are one block's.
    AddedUp,
    /// The same, where each is that of a block of a cluster.
    Cluster,
    /// The same, where a cluster has fewer blocks than a tile has splits.
    SmallCluster,
    /// Over keys that are their values.
    MlaSm90,
}

/// O and lse of a query of each sequence by a kernel, with guards behind them that are left alone.
fn decoded(by: By, used: &[i32], split_keys: u32, seed: u64) -> (Vec<u16>, Vec<u32>) {
    let (batch, columns) = (used.len(), HEAD_DIM as usize);
    // fp16 from 1 to below 2.
    let values = |len: usize| (0..len).map(|i| 0x3c00 | ((i as u16).wrapping_mul(37) & 0x3ff)).collect();
    let (q, kv): (Vec<u16>, Vec<u16>) = (values(batch * columns), values(batch * ROOM as usize * columns));
    let mut o = vec![POISON; (batch + 1) * columns];
    let mut lse = vec![f32::NAN; batch + 1];
    let mut partial_o = vec![f32::NAN; SPLITS as usize * batch * columns];
    let mut partial_lse = vec![f32::NAN; SPLITS as usize * batch];
    let buffers = [
        Buffer::read("q", &q),
        Buffer::read("k and v", &kv),
        Buffer::read("seqused_k", used),
        Buffer::read_write("o", &mut o),
        Buffer::read_write("lse", &mut lse),
        Buffer::read_write("partial_o", &mut partial_o),
        Buffer::read_write("partial_lse", &mut partial_lse),
    ];
    let [q, kv, used, o_at, lse_at, partial_o, partial_lse] = buffers.each_ref().map(|it| it.address);
    let rows = |rows: u32| Strides { batch: (rows * HEAD_DIM).into(), row: HEAD_DIM.into(), head: 0 };
    let params = DecodeParams {
        q,
        k: kv,
        v: kv,
        o: o_at,
        lse: lse_at,
        seqused_k: used,
        q_strides: rows(1),
        k_strides: rows(ROOM),
        v_strides: rows(ROOM),
        o_strides: rows(1),
        cache: CacheParams {
            partial_o,
            partial_lse,
            rows: batch as u64,
            num_splits: Divisor::new(SPLITS),
            split_keys,
            head_dim_v: HEAD_DIM,
            ..CacheParams::default()
        },
        batch: batch as u32,
        seqlen_k: ROOM,
        head_dim: HEAD_DIM,
        window_left: UNLIMITED,
        window_span: UNLIMITED,
        softmax_scale: 0.125,
        enough_sequences: if by == By::AddedUp { 1.0 } else { 0.0 },
        ..DecodeParams::default()
    };
    let config = |name, grid, block, shared_bytes| Launch {
        name,
        grid,
        block,
        shared_bytes,
        schedule: Schedule::from_seed(seed),
        buffers: &buffers,
    };
    if by == By::Decode {
        let (threads, bytes) = (Of::THREADS, Of::CONFIG.shared_bytes());
        let config = config("decode", SPLITS * batch as u32, threads, bytes);
        // SAFETY: the parameters describe the launch's buffers.
        launch(&config, &|| unsafe { decode::<Of>(&params) }).unwrap();
    } else {
        let row = u64::from(2 * HEAD_DIM);
        let map = TensorMap {
            address: kv,
            element_bytes: 2,
            rank: 4,
            dims: [HEAD_DIM.into(), ROOM.into(), 1, batch as u64, 0],
            strides: [row, 16, row * u64::from(ROOM), 0],
            box_dims: [64, if by == By::MlaSm90 { mla_sm90::BLOCK_N } else { 128 }, 1, 1, 0],
            swizzle: Swizzle::Bytes128,
        };
        let maps = [map.encode().unwrap(); 2];
        let maps = maps.as_ptr().addr() as u64;
        // Fewer blocks than items.
        if by == By::MlaSm90 {
            let config = config("mla_sm90", 5, mla_sm90::THREADS, mla_sm90::SHARED_BYTES);
            // SAFETY: the parameters and the maps, which outlive it, describe the launch's buffers.
            launch(&config, &|| unsafe { mla_sm90::<F16>(&params, maps) }).unwrap();
        } else {
            use decode_sm90::Tile;
            let tile = OfSm90::<false>::CONFIG;
            let (threads, bytes) = (tile.threads(), tile.shared_bytes());
            // SAFETY: as above.
            let plain = || unsafe { decode_sm90::<OfSm90<false>>(&params, maps) };
            // SAFETY: as above.
            let adding = || unsafe { decode_sm90::<OfSm90<true>>(&params, maps) };
            let cluster = |blocks, bytes, kernel: &(dyn Fn() + Sync)| {
                let config = config("decode_sm90", blocks * batch as u32, threads, bytes);
                launch_clusters(&config, blocks, kernel).unwrap();
            };
            match by {
                By::Cluster => cluster(SPLITS, bytes, &plain),
                By::SmallCluster => cluster(FEWER_BLOCKS, bytes + 2 * tile.part_bytes(), &adding),
                By::AddedUp => drop(launch(&config("decode_sm90", 5, threads, bytes), &adding).unwrap()),
                _ => drop(launch(&config("decode_sm90", 5, threads, bytes), &plain).unwrap()),
            }
            if matches!(by, By::Cluster | By::SmallCluster) {
                return checked(o, &lse);
            }
        }
    }
    let merging = config("combine", (batch as u32).div_ceil(combine::ROWS), combine::THREADS, 0);
    // SAFETY: as above.
    launch(&merging, &|| unsafe { combine::<F16>(&params) }).unwrap();
    checked(o, &lse)
}

/// What lies behind the guards, which are left alone.
fn checked(o: Vec<u16>, lse: &[f32]) -> (Vec<u16>, Vec<u32>) {
    let batch = lse.len() - 1;
    assert!(o[batch * HEAD_DIM as usize..].iter().all(|&value| value == POISON));
    assert!(lse[batch].is_nan());
    (o, lse[..batch].iter().map(|value| value.to_bits()).collect())
}

#[test]
fn lengths_beyond_the_room_are_the_room_and_negative_ones_none() {
    let wrong = [i32::MIN, i32::MAX, -1, ROOM as i32 + 1, 1 << 30, 77];
    let meant = [0, ROOM as i32, 0, ROOM as i32, ROOM as i32, 77];
    // Even splits, and splits of one length.
    for (seed, split_keys) in [0, 64].into_iter().enumerate() {
        let kernels = [By::Decode, By::DecodeSm90, By::AddedUp, By::Cluster, By::SmallCluster, By::MlaSm90];
        // A cluster of fewer blocks is for splits of one length alone.
        for by in kernels.into_iter().filter(|&by| by != By::SmallCluster || split_keys > 0) {
            let of = |used: &[i32], seed| decoded(by, used, split_keys, seed);
            assert_eq!(of(&wrong, seed as u64), of(&meant, 9), "{split_keys}, {by:?}");
        }
    }
}

#[test]
fn splits_are_the_same_whoever_takes_them_in() {
    let used = [300, 299, 256, 257, 0, 140];
    for seed in 0..8 {
        let of = |by| decoded(by, &used, 64, seed);
        let by_a_launch = of(By::DecodeSm90);
        for by in [By::AddedUp, By::Cluster, By::SmallCluster] {
            assert_eq!(of(by), by_a_launch, "{by:?}");
        }
    }
}
