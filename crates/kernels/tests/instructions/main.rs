//! Each instruction wrapper against its contract, through its simulator twin.
#![allow(clippy::unwrap_used)]

mod cp_async;
mod hopper;
mod tensor_cores;

use fa_kernels::element::{Bf16, F16, Widened as _};
use fa_kernels::ptx::{barrier, convert, global, index, math, shared, warp};
use fa_sim::{Buffer, Launch, Schedule, launch};
use half::{bf16, f16};

/// The schedules that each test runs under.
const SEEDS: std::ops::Range<u64> = 0..8;

/// A launch of one block with 4 KiB of shared memory and no buffers.
fn one_block(threads: u32, seed: u64) -> Launch<'static> {
    Launch {
        name: "instruction",
        grid: 1,
        block: threads,
        shared_bytes: 4096,
        schedule: Schedule::from_seed(seed),
        buffers: &[],
    }
}

/// Runs `kernel` on `grid` blocks of 64 threads over `out`, under several schedules.
fn run(grid: u32, out: &mut [u32], kernel: impl Fn(u64) + Sync) {
    for seed in SEEDS {
        out.fill(u32::MAX);
        let buffers = [Buffer::read_write("out", out)];
        let address = buffers[0].address;
        let config = Launch { grid, buffers: &buffers, ..one_block(64, seed) };
        launch(&config, &|| kernel(address)).unwrap();
    }
}

#[test]
fn indices_cover_the_grid_once() {
    let mut out = [0; 192];
    run(3, &mut out, |base| {
        let element = 64 * index::block() + index::thread();
        assert_eq!(index::reread_thread(), index::thread());
        // SAFETY: one element per thread of the grid.
        unsafe { global::store_b32(base + 4 * u64::from(element), element + 1000 * index::blocks()) };
    });
    assert!(out.iter().enumerate().all(|(i, &value)| value == 3000 + i as u32));
}

#[test]
fn shuffle_exchanges_lanes_that_differ_in_the_mask() {
    for mask in [1, 2, 4, 8, 16] {
        let mut out = [0; 64];
        run(1, &mut out, |base| {
            let thread = index::thread();
            // SAFETY: whole warps shuffle; one element per thread.
            unsafe {
                let value = warp::shuffle_xor(thread as f32, mask);
                global::store_b32(base + 4 * u64::from(thread), value as u32);
            }
        });
        assert!(out.iter().enumerate().all(|(i, &value)| value == i as u32 ^ mask));
    }
}

#[test]
fn shuffle_gives_each_lane_the_value_of_the_lane_that_it_names() {
    let mut out = [0; 64];
    run(1, &mut out, |base| {
        let thread = index::thread();
        // SAFETY: whole warps shuffle; one element per thread.
        unsafe {
            let value = warp::shuffle(thread as f32, thread * 7 % 32);
            global::store_b32(base + 4 * u64::from(thread), value as u32);
        }
    });
    assert!(out.iter().enumerate().all(|(i, &value)| value as usize == i / 32 * 32 + i * 7 % 32));
}

#[test]
fn a_vote_sees_every_lane_of_its_own_warp() {
    for lane in [0, 13, 31] {
        let mut out = [0; 64];
        run(1, &mut out, |base| {
            let thread = index::thread();
            // SAFETY: whole warps vote; one element per thread.
            unsafe {
                let any = u32::from(warp::vote_any(thread == 32 + lane));
                let all = warp::ballot(thread == 32 + lane);
                global::store_b32(base + 4 * u64::from(thread), any + all);
            }
        });
        let of_second = (1 << lane) + 1;
        assert!(out.iter().enumerate().all(|(i, &value)| value == if i < 32 { 0 } else { of_second }));
    }
}

#[test]
fn a_warp_barrier_orders_its_own_lanes_and_no_others() {
    let exchange = |partner: fn(u32) -> u32| {
        move |base: u64| {
            let thread = index::thread();
            // SAFETY: one element per thread; where the partner is in the same warp, a barrier is before the
            // read.
            unsafe {
                shared::store(shared::base() + 4 * thread, thread as f32);
                warp::sync();
                let value = shared::load(shared::base() + 4 * partner(thread));
                global::store_b32(base + 4 * u64::from(thread), value as u32);
            }
        }
    };
    let mut out = [0; 64];
    run(1, &mut out, exchange(|thread| thread ^ 5));
    assert!(out.iter().enumerate().all(|(i, &value)| value == i as u32 ^ 5));
    let buffers = [Buffer::read_write("out", &mut out)];
    let (address, other_warp) = (buffers[0].address, exchange(|thread| thread ^ 32));
    for seed in SEEDS {
        let error = launch(&Launch { buffers: &buffers, ..one_block(64, seed) }, &|| other_warp(address));
        assert!(matches!(error, Err(fa_sim::Error::Race { .. })), "{error:?}");
    }
}

#[test]
fn wide_shared_loads_see_what_narrow_stores_wrote() {
    let mut out = [0; 64];
    run(1, &mut out, |base| {
        let thread = index::thread();
        // SAFETY: one element per thread, a barrier before the reads, addresses aligned to the access.
        unsafe {
            shared::store(shared::base() + 4 * thread, thread as f32);
            barrier::sync(0, 64);
            let four = shared::load4(shared::base() + 16 * (thread / 4));
            let two = shared::load2(shared::base() + 8 * (thread / 2));
            let one = shared::load(shared::base() + 4 * thread);
            let (e, pair) = ((thread % 4) as usize, (thread % 2) as usize);
            let agree = four[e] == one && two[pair] == one;
            global::store_b32(base + 4 * u64::from(thread), if agree { one as u32 } else { u32::MAX });
        }
    });
    assert!(out.iter().enumerate().all(|(i, &value)| value == i as u32));
}

#[test]
fn wide_global_stores_write_four_words_in_order() {
    #[repr(align(16))]
    struct Aligned([u32; 256]);
    let Aligned(out) = &mut Aligned([0; 256]);
    run(1, out, |base| {
        let thread = index::thread();
        let words = [4 * thread, 4 * thread + 1, 4 * thread + 2, 4 * thread + 3];
        // SAFETY: 16 aligned bytes per thread.
        unsafe { global::store4(base + 16 * u64::from(thread), words) };
    });
    assert!(out.iter().enumerate().all(|(i, &value)| value == i as u32));
}

#[test]
fn narrow_global_accesses_leave_their_neighbours_alone() {
    let mut out = [0; 32];
    run(1, &mut out, |base| {
        let address = base + 2 * u64::from(index::thread());
        // SAFETY: two bytes per thread, read back by the thread that wrote them.
        unsafe {
            global::store_b16(address, index::thread() as u16);
            let absent = global::load_b16_if(false, u64::MAX);
            global::store_b16(address, global::load_b16_if(true, address) + 100 + absent);
        }
    });
    for (i, &word) in out.iter().enumerate() {
        assert_eq!(word, (100 + 2 * i as u32) | (101 + 2 * i as u32) << 16);
    }
}

#[test]
fn small_loads_read_what_exists_and_no_more() {
    let mut out = [0; 128];
    run(1, &mut out, |base| {
        let thread = index::thread();
        let address = base + 8 * u64::from(thread);
        // SAFETY: eight aligned bytes per thread, read back by the thread that wrote them.
        unsafe {
            global::store_b32(address, 0x0403_0201);
            global::store_b32(address + 4, thread);
            let [low, high] = global::load2_if(true, address);
            let third = global::load_b8_if(true, address + 2);
            let absent =
                global::load2_if(false, u64::MAX - 7)[1] + global::load_b8_if(false, u64::MAX) as u32;
            global::store_b32(address, low + u32::from(third) + absent);
            global::store_b32(address + 4, high + 1);
        }
    });
    for (i, pair) in out.chunks_exact(2).enumerate() {
        assert_eq!(pair, [0x0403_0204, i as u32 + 1]);
    }
}

#[test]
fn approximate_functions_are_as_accurate_as_the_hardware_documents() {
    for x in (-1200..1200).map(|i| i as f32 / 10.0) {
        let exact = f64::from(x).exp2();
        assert!((f64::from(math::exp2(x)) - exact).abs() <= exact * 2.0_f64.powi(-22), "exp2({x})");
    }
    for x in (1..1000).map(|i| i as f32 * 0.37) {
        assert!(
            (f64::from(math::log2(x)) - f64::from(x).log2()).abs() <= 2.0_f64.powi(-22) * 10.0,
            "log2({x})"
        );
        assert!((math::reciprocal(x) * x - 1.0).abs() <= 2.0_f32.powi(-22), "reciprocal({x})");
    }
    assert_eq!(math::exp2(f32::NEG_INFINITY), 0.0);
    assert_eq!(math::exp2(-149.0), 0.0, "results below the normal range flush to zero");
    assert_eq!(math::max(f32::NAN, 1.0), 1.0);
    // One rounding: the product alone would round to 1.
    let x = 1.0 + 2.0_f32.powi(-12);
    assert_eq!(math::fma(x, x, -1.0), 2.0_f32.powi(-11) + 2.0_f32.powi(-24));
}

#[test]
fn e4m3_widens_to_the_same_number() {
    for bits in 0..=u8::MAX {
        let halves = convert::e4m3x4_to_f16x4(u32::from_le_bytes([bits, 0, 0x38, bits]));
        let halves = [halves[0], halves[0] >> 16, halves[1], halves[1] >> 16];
        let halves = halves.map(|half| convert::f16_to_f32(half as u16));
        assert_eq!(halves[1..3], [0.0, 1.0]);
        let back = convert::pack_e4m3x4([halves[0], halves[3], 0.0, 0.0]);
        match bits & 0x7f {
            0x7f => assert!(halves[0].is_nan() && halves[3].is_nan()),
            _ => assert_eq!(back, u32::from_le_bytes([bits, bits, 0, 0]), "{bits:#04x}"),
        }
    }
}

#[test]
fn e4m3_is_exact_in_both_types_of_16_bits() {
    for bits in 0..=u8::MAX {
        let four = u32::from_le_bytes([bits, 0x38, 0, bits]);
        let widened = [F16::from_e4m3x4(four), Bf16::from_e4m3x4(four)];
        let [halves, brains] = widened.map(|[low, high]| [low, low >> 16, high, high >> 16]);
        let halves = halves.map(|half| f16::from_bits(half as u16).to_f32());
        let brains = brains.map(|brain| bf16::from_bits(brain as u16).to_f32());
        // Bias 7, three bits of mantissa, and 2^-9 the smallest.
        let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
        let magnitude = match exponent {
            0 => mantissa * 2.0_f32.powi(-9),
            _ => (8.0 + mantissa) * 2.0_f32.powi(exponent - 10),
        };
        let exact = if bits & 0x80 == 0 { magnitude } else { -magnitude };
        for found in [halves, brains] {
            assert_eq!(found[1..3], [1.0, 0.0]);
            match bits & 0x7f {
                0x7f => assert!(found[0].is_nan() && found[3].is_nan()),
                _ => assert_eq!([found[0], found[3]].map(f32::to_bits), [exact.to_bits(); 2], "{bits:#04x}"),
            }
        }
    }
}

#[test]
fn conversions_round_to_nearest_even() {
    // Every upper half with lower halves around the tie: exhaustive in what decides the rounding.
    for high in 0..=u16::MAX {
        for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let x = f32::from_bits(u32::from(high) << 16 | low);
            let (ours, theirs) = (convert::f32_to_bf16(x), bf16::from_f32(x));
            assert!(ours == theirs.to_bits() || x.is_nan() && bf16::from_bits(ours).is_nan(), "bf16({x:e})");
            let (ours, theirs) = (convert::f32_to_f16(x), f16::from_f32(x));
            assert!(ours == theirs.to_bits() || x.is_nan() && f16::from_bits(ours).is_nan(), "f16({x:e})");
        }
        let (half, brain) = (convert::f16_to_f32(high), convert::bf16_to_f32(high));
        assert!(half == f16::from_bits(high).to_f32() || half.is_nan());
        assert!(brain == bf16::from_bits(high).to_f32() || brain.is_nan());
    }
}
