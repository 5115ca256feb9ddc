//! Hopper's instructions: products of a warpgroup, copies by tensor maps, and what orders them.

use std::sync::Mutex;

use fa_kernels::element::{Bf16, F16};
use fa_kernels::ptx::wgmma::{self, Accumulator, Format};
use fa_kernels::ptx::{barrier, fence, index, mbarrier, setmaxnreg, shared, stmatrix, tma, warp};
use fa_kernels::tile::mma::MmaElement;
use fa_kernels::tile::mma_block::{AlongK, AlongSpan, Panel};
use fa_kernels::tile::wgmma::{BOX_BYTES, Descriptor, chunk};
use fa_sim::tma::{Swizzle, TensorMap};
use fa_sim::{Buffer, Launch, launch};
use half::f16;

use super::{SEEDS, one_block};

const THREADS: u32 = 128;

/// Small integers, whose products and sums are exact in every type.
fn a(row: u32, k: u32) -> f32 {
    ((row * 5 + k * 3) % 7) as f32 - 3.0
}

fn b(k: u32, column: u32) -> f32 {
    ((k * 11 + column * 2) % 5) as f32 - 2.0
}

/// Writes the panel at `address` whose element at (`span`, `k`) is `value(span, k)`, two at a time.
unsafe fn fill<E: MmaElement, P: Panel>(address: u32, value: impl Fn(u32, u32) -> f32) {
    let mut pair = index::thread();
    while pair < P::SPAN * P::DEPTH / 2 {
        let at = |pair: u32| {
            if P::ALONG_K {
                (2 * pair / P::DEPTH, 2 * pair % P::DEPTH)
            } else {
                (2 * pair % P::SPAN, 2 * pair / P::SPAN)
            }
        };
        let (span, k) = at(pair);
        let next = if P::ALONG_K { value(span, k + 1) } else { value(span + 1, k) };
        let (part, line, element) =
            if P::ALONG_K { (0, span, k) } else { (span / 64 * BOX_BYTES, k, span % 64) };
        let address = chunk(address + part, line, element / 8) + 2 * (element % 8);
        // SAFETY: one word for each pair; a barrier follows.
        unsafe { shared::store_b32(address, E::pack(value(span, k), next)) };
        pair += THREADS;
    }
}

/// A lane's part of the 16 × 16 of A from row `row` and column `k` on, laid out as for `mma`.
fn fragment<E: MmaElement>(row: u32, k: u32) -> [u32; 4] {
    let lane = index::thread() % 32;
    let pair = |row: u32, k: u32| E::pack(a(row, k), a(row, k + 1));
    let (row, k) = (row + lane / 4, k + lane % 4 * 2);
    [pair(row, k), pair(row + 8, k), pair(row, k + 8), pair(row + 8, k + 8)]
}

/// Multiplies 64 × 64 by 64 × N twice, from shared memory and from registers, and checks every element.
fn multiplies<E: MmaElement + Format, A: Panel, B: Panel, const ACC: usize>(trans: (bool, bool))
where
    [f32; ACC]: Accumulator,
{
    let kernel = || {
        let (a_at, b_at) = (shared::base(), shared::base() + A::BYTES);
        let (a_from, b_from) = (Descriptor::new::<A>(a_at), Descriptor::new::<B>(b_at));
        // Without `accumulate` this must not show.
        let mut acc = [f32::NAN; ACC];
        // SAFETY: both panels are written and fenced before the barrier; whole warpgroups run this alike.
        unsafe {
            fill::<E, A>(a_at, a);
            fill::<E, B>(b_at, |column, k| b(k, column));
            fence::proxy_async();
            barrier::sync(0, THREADS);
            wgmma::fence();
            let mut step = 0;
            while step < 4 {
                let (a, b) = (a_from.at::<A>(step), b_from.at::<B>(step));
                match trans {
                    (false, false) => acc.multiply_ss::<E, false, false>(a, b, step > 0),
                    (false, true) => acc.multiply_ss::<E, false, true>(a, b, step > 0),
                    (true, false) => acc.multiply_ss::<E, true, false>(a, b, step > 0),
                    (true, true) => acc.multiply_ss::<E, true, true>(a, b, step > 0),
                }
                step += 1;
            }
            wgmma::commit_group();
            acc.wait_group::<0>();
            let fragments = [0, 16, 32, 48].map(|k| fragment::<E>(index::thread() / 32 * 16, k));
            wgmma::fence();
            let mut step = 0;
            while step < 4 {
                let (a, b) = (fragments[step as usize], b_from.at::<B>(step));
                match trans.1 {
                    false => acc.multiply_rs::<E, false>(a, b, true),
                    true => acc.multiply_rs::<E, true>(a, b, true),
                }
                step += 1;
            }
            wgmma::commit_group();
            acc.wait_group::<0>();
        }
        let (warp, lane) = (index::thread() / 32, index::thread() % 32);
        for (i, &value) in acc.iter().enumerate() {
            let i = i as u32;
            let (row, column) = (16 * warp + lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + lane % 4 * 2 + i % 2);
            let exact: f32 = (0..64).map(|k| a(row, k) * b(k, column)).sum();
            assert_eq!(value, 2.0 * exact, "({row}, {column}) of {} columns, {trans:?}", 2 * ACC);
        }
    };
    for seed in SEEDS {
        let shared_bytes = A::BYTES + B::BYTES;
        launch(&Launch { shared_bytes, ..one_block(THREADS, seed) }, &kernel).unwrap();
    }
}

#[test]
fn a_warpgroup_multiplies_operands_of_every_order_and_type() {
    multiplies::<F16, AlongK<64, 64>, AlongK<64, 64>, 32>((false, false));
    multiplies::<F16, AlongK<64, 64>, AlongSpan<128, 64>, 64>((false, true));
    multiplies::<F16, AlongSpan<64, 64>, AlongK<256, 64>, 128>((true, false));
    multiplies::<F16, AlongSpan<64, 64>, AlongSpan<192, 64>, 96>((true, true));
    multiplies::<Bf16, AlongK<64, 64>, AlongK<128, 64>, 64>((false, false));
    multiplies::<Bf16, AlongSpan<64, 64>, AlongSpan<64, 64>, 32>((true, true));
}

#[test]
fn every_number_of_columns_has_an_accumulator() {
    // A panel of 256 columns, of which a product takes the first N.
    macro_rules! check {
        ($($columns:literal)*) => { $(
            multiplies::<F16, AlongK<64, 64>, AlongK<256, 64>, { $columns / 2 }>((false, false));
        )* };
    }
    check!(16 32 48 64 80 96 112 128 144 160 176 192 208 224 240 256);
}

/// Copies a box by a map of `RANK` dimensions into shared memory and out to another place.
macro_rules! copies_a_box {
    ($rank:literal, $load:ident, $store:ident) => {{
        let dims: [u64; 5] = [72, 5, 3, 2, 1];
        let elements: u64 = dims[..$rank].iter().product();
        // The tensor's address must be a multiple of 16.
        let source: Vec<[u16; 8]> =
            (0..elements as u16 / 8).map(|i| std::array::from_fn(|j| 8 * i + j as u16)).collect();
        let mut target = vec![[u16::MAX; 8]; source.len()];
        let mut strides = [0; 4];
        for outer in 0..$rank - 1 {
            strides[outer] = 2 * dims[..=outer].iter().product::<u64>();
        }
        // The first element is the second box's; the box reaches over both ends of the second dimension.
        let at: [i32; $rank] = std::array::from_fn(|dimension| [16, -1, 1, 1][dimension]);
        let box_dims = [64, 8, 1, 1, 1];
        for seed in SEEDS {
            target.fill([u16::MAX; 8]);
            let buffers = [Buffer::read("source", &source), Buffer::read_write("target", &mut target)];
            let map = |address| {
                let map = TensorMap {
                    address,
                    element_bytes: 2,
                    rank: $rank,
                    dims,
                    strides,
                    box_dims,
                    swizzle: Swizzle::Bytes128,
                };
                tma::TensorMap(map.encode().unwrap())
            };
            let maps = [map(buffers[0].address), map(buffers[1].address)];
            let first = maps.as_ptr().expose_provenance() as u64;
            let kernel = || {
                if index::thread() != 0 {
                    return;
                }
                let (full, bytes) = (shared::base() + 2048, 64 * 8 * 2);
                // SAFETY: one thread makes the barrier, waits for its bytes, and waits for its store.
                unsafe {
                    mbarrier::init(full, 1);
                    mbarrier::fence_init();
                    tma::prefetch(first);
                    mbarrier::arrive_expect_tx(full, bytes);
                    tma::$load(shared::base(), first, full, at);
                    mbarrier::wait(full, 0);
                    tma::$store(first + tma::TensorMap::BYTES, shared::base(), at);
                    tma::commit_group();
                    tma::wait_group_read::<0>();
                    tma::wait_group::<0>();
                }
            };
            launch(&Launch { buffers: &buffers, ..one_block(32, seed) }, &kernel).unwrap();
            for (index, (&source, &target)) in
                source.as_flattened().iter().zip(target.as_flattened()).enumerate()
            {
                let mut rest = index as u64;
                let inside = (0..$rank).all(|dimension| {
                    let coordinate = (rest % dims[dimension]) as i32;
                    rest /= dims[dimension];
                    (at[dimension]..at[dimension] + box_dims[dimension] as i32).contains(&coordinate)
                });
                assert_eq!(target, if inside { source } else { u16::MAX }, "element {index}, rank {}", $rank);
            }
        }
    }};
}

#[test]
fn boxes_of_every_rank_are_copied_and_clipped() {
    copies_a_box!(2, load_2d, store_2d);
    copies_a_box!(3, load_3d, store_3d);
    copies_a_box!(4, load_4d, store_4d);
}

#[test]
fn consecutive_bytes_are_copied_in_one_piece() {
    for seed in SEEDS {
        let mut target = vec![[u16::MAX; 8]; 8];
        let buffers = [Buffer::read_write("target", &mut target)];
        let address = buffers[0].address;
        let kernel = || {
            let lane = index::thread();
            // SAFETY: the whole warp stores; what is copied was written before the fence, and is waited for.
            unsafe {
                shared::store_b16(shared::base() + 2 * lane, lane as u16);
                fence::proxy_async();
                warp::sync();
                assert_eq!(shared::load_b16(shared::base() + 2 * (31 - lane)), 31 - lane as u16);
                if lane == 5 {
                    tma::store_bytes(address + 16, shared::base() + 16, 48);
                    tma::commit_group();
                    tma::wait_group::<0>();
                }
            }
        };
        launch(&Launch { buffers: &buffers, ..one_block(32, seed) }, &kernel).unwrap();
        for (place, &found) in target.as_flattened().iter().enumerate() {
            assert_eq!(found, if (8..32).contains(&place) { place as u16 } else { u16::MAX }, "{place}");
        }
    }
}

/// The 16 rows that a warp makes of its fragment with `store`.
fn stored(store: impl Fn(u32, [u32; 4]) + Sync, seed: u64) -> [[f32; 16]; 16] {
    let rows: [Mutex<[f32; 16]>; 16] = Default::default();
    let kernel = || {
        let lane = index::thread();
        // SAFETY: the whole warp stores, and reads after a barrier.
        unsafe {
            store(lane, fragment::<F16>(0, 0));
            warp::sync();
            let words = [0, 1]
                .map(|c| [0, 4, 8, 12].map(|b| shared::load_b32(chunk(shared::base(), lane % 16, c) + b)));
            let element =
                |i: usize| f16::from_bits((words.as_flattened()[i / 2] >> (16 * (i % 2))) as u16).to_f32();
            *rows[lane as usize % 16].lock().unwrap() = std::array::from_fn(element);
        }
    };
    launch(&one_block(32, seed), &kernel).unwrap();
    rows.map(|row| row.into_inner().unwrap())
}

#[test]
fn a_warp_stores_the_rows_and_the_columns_of_a_product() {
    let at = |line, column| chunk(shared::base(), line, column);
    for seed in SEEDS {
        // SAFETY: the whole warp stores, to lines that nobody else accesses.
        let store = |lane, words| unsafe { stmatrix::store_x4(at(lane % 16, lane / 16), words) };
        let rows = stored(store, seed);
        assert_eq!(rows, std::array::from_fn(|row| std::array::from_fn(|k| a(row as u32, k as u32))));
        let transposed = |lane: u32, words| {
            let line = lane / 16 * 8 + lane % 8;
            // SAFETY: as above.
            unsafe { stmatrix::store_x4_transposed(at(line, lane / 8 % 2), words) }
        };
        let columns = stored(transposed, seed);
        assert_eq!(columns, std::array::from_fn(|k| std::array::from_fn(|row| a(row as u32, k as u32))));
    }
}

#[test]
fn one_warpgroup_hands_over_and_goes_on() {
    let sums = Mutex::new(0);
    let kernel = || {
        let thread = index::thread();
        // SAFETY: whole warpgroups run each branch; one barrier orders the stores before the loads.
        unsafe {
            let warpgroup = warp::broadcast(thread / THREADS, 0);
            assert_eq!(warp::broadcast(thread, 7), thread / 32 * 32 + 7);
            if warpgroup == 0 {
                setmaxnreg::decrease::<40>();
                shared::store_b32(shared::base() + 4 * thread, thread);
                barrier::arrive(1, 2 * THREADS);
            } else {
                setmaxnreg::increase::<232>();
                barrier::sync(1, 2 * THREADS);
                *sums.lock().unwrap() += shared::load_b32(shared::base() + 4 * (thread % THREADS));
            }
        }
    };
    for seed in SEEDS {
        launch(&one_block(2 * THREADS, seed), &kernel).unwrap();
        assert_eq!(std::mem::take(&mut *sums.lock().unwrap()), 128 * 127 / 2);
    }
}
