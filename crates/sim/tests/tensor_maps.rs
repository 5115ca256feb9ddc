//! Copies of boxes between global and shared memory: what lands where, and what the device refuses.

mod common;
#[path = "common/tensors.rs"]
mod tensors;

use fa_sim::tma::{self, Swizzle, TensorMap};
use fa_sim::{Buffer, BufferAccess, Schedule, barrier, fence, index, shared};
use tensors::{bar, counting, launch_on, load_and, map};

const SEEDS: std::ops::Range<u64> = 0..16;

/// Loads the box at `coordinates` to the beginning of shared memory and compares its elements with
/// `expected`, an element by the number of its place.
fn check_load<const N: usize>(
    map: &TensorMap,
    values: &[u128],
    coordinates: [i32; N],
    expected: &(dyn Fn(usize) -> u16 + Sync),
) {
    let encoded = map.encode().expect("a map that the device takes");
    let address = encoded.as_ptr().expose_provenance() as u64;
    let elements = map.box_dims[..N].iter().product::<u32>();
    let buffers = [Buffer::read("values", values)];
    for seed in SEEDS {
        let kernel = || {
            // SAFETY: the map and the buffer are this launch's.
            let issue = || unsafe { tma::load(shared::base(), address, bar(), coordinates) };
            load_and(2 * elements, issue, || {
                for place in (index::thread()..elements).step_by(64) {
                    let found = shared::load::<u16>(shared::base() + 2 * place);
                    assert_eq!(found, expected(place as usize), "place {place}");
                }
            });
        };
        let report = launch_on(Schedule::from_seed(seed), &buffers, &kernel);
        report.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn boxes_of_each_rank_land_row_by_row() {
    let values = counting(4096);
    let at = |index: [usize; 5], dims: [usize; 5]| {
        (0..5).rev().fold(0, |linear, dimension| linear * dims[dimension] + index[dimension]) as u16 + 1
    };
    check_load(&map(&values, [64], [32], Swizzle::None), &values, [8], &|place| 8 + place as u16 + 1);
    check_load(&map(&values, [16, 8], [8, 3], Swizzle::None), &values, [8, 2], &|place| {
        at([8 + place % 8, 2 + place / 8, 0, 0, 0], [16, 8, 1, 1, 1])
    });
    check_load(&map(&values, [16, 8, 4], [8, 3, 2], Swizzle::None), &values, [0, 5, 1], &|place| {
        at([place % 8, 5 + place / 8 % 3, 1 + place / 24, 0, 0], [16, 8, 4, 1, 1])
    });
    check_load(&map(&values, [8, 4, 4, 4], [8, 2, 3, 2], Swizzle::None), &values, [0, 1, 0, 2], &|place| {
        at([place % 8, 1 + place / 8 % 2, place / 16 % 3, 2 + place / 48, 0], [8, 4, 4, 4, 1])
    });
    check_load(
        &map(&values, [8, 4, 4, 4, 4], [8, 2, 1, 2, 2], Swizzle::None),
        &values,
        [0, 2, 3, 1, 2],
        &|place| at([place % 8, 2 + place / 8 % 2, 3, 1 + place / 16 % 2, 2 + place / 32], [8, 4, 4, 4, 4]),
    );
}

#[test]
fn what_is_outside_the_tensor_is_zero_and_not_read() {
    // 19 columns of rows of 24: the rest of a row is no part of the tensor.
    let values = counting(24 * 5);
    let mut tensor = map(&values, [24, 5], [32, 8], Swizzle::None);
    tensor.dims[0] = 19;
    for (column, row) in [(0, 0), (-8, -2), (16, 3), (24, 0), (0, -8), (0, 5), (i32::MAX - 7, 0)] {
        let expected = move |place: usize| {
            let (x, y) = (i64::from(column) + place as i64 % 32, i64::from(row) + place as i64 / 32);
            let inside = (0..19).contains(&x) && (0..5).contains(&y);
            if inside { (24 * y + x + 1) as u16 } else { 0 }
        };
        check_load(&tensor, &values, [column, row], &expected);
    }
}

/// Which chunk of 16 bytes of which row is at each place of the pattern, from the figures of PTX ISA, "Tensor
/// swizzling modes": rows of the table are 128 bytes of shared memory.
const PATTERN_128: [[usize; 8]; 8] = [
    [0, 1, 2, 3, 4, 5, 6, 7],
    [1, 0, 3, 2, 5, 4, 7, 6],
    [2, 3, 0, 1, 6, 7, 4, 5],
    [3, 2, 1, 0, 7, 6, 5, 4],
    [4, 5, 6, 7, 0, 1, 2, 3],
    [5, 4, 7, 6, 1, 0, 3, 2],
    [6, 7, 4, 5, 2, 3, 0, 1],
    [7, 6, 5, 4, 3, 2, 1, 0],
];
const PATTERN_64: [[usize; 8]; 4] =
    [[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6], [2, 3, 0, 1, 6, 7, 4, 5], [3, 2, 1, 0, 7, 6, 5, 4]];
const PATTERN_32: [[usize; 8]; 2] = [[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6]];

#[test]
fn swizzles_permute_chunks_as_the_figures_say() {
    let values = counting(64 * 32);
    let patterns: [(Swizzle, u32, &[[usize; 8]]); 3] = [
        (Swizzle::Bytes128, 64, &PATTERN_128),
        (Swizzle::Bytes64, 32, &PATTERN_64),
        (Swizzle::Bytes32, 16, &PATTERN_32),
    ];
    for (swizzle, columns, pattern) in patterns {
        let tensor = map(&values, [columns.into(), 2048 / u64::from(columns)], [columns, 32], swizzle);
        check_load(&tensor, &values, [0, 0], &|place| {
            let (line, chunk) = (place / 64, place % 64 / 8);
            (64 * line + 8 * pattern[line % pattern.len()][chunk] + place % 8) as u16 + 1
        });
    }
}

#[test]
fn the_pattern_follows_the_address_and_not_the_box() {
    // A box that begins 384 bytes behind the pattern: its row 0 is permuted as row 3.
    let values = counting(64 * 8);
    let tensor = map(&values, [64, 8], [64, 8], Swizzle::Bytes128).encode().expect("valid");
    let address = tensor.as_ptr().expose_provenance() as u64;
    let kernel = || {
        // SAFETY: the map and the buffer are this launch's.
        let issue = || unsafe { tma::load(shared::base() + 384, address, bar(), [0, 0]) };
        load_and(1024, issue, || {
            for (row, chunk) in (0..8).flat_map(|row| (0..8).map(move |chunk| (row, chunk))) {
                let place = shared::base() + 384 + 128 * row as u32 + 16 * chunk as u32;
                let found = shared::load::<u16>(place);
                assert_eq!(usize::from(found), 64 * row + 8 * PATTERN_128[(row + 3) % 8][chunk] + 1);
            }
        });
    };
    launch_on(Schedule::from_seed(2), &[Buffer::read("values", &values)], &kernel).expect("aligned to 128");
}

#[test]
fn stores_write_what_is_inside_and_the_rest_of_its_last_16_bytes() {
    for (swizzle, seed) in
        [Swizzle::None, Swizzle::Bytes128].into_iter().flat_map(|s| SEEDS.map(move |n| (s, n)))
    {
        let mut values = vec![0_u128; 3 * 10];
        let mut tensor = map(&values, [24, 10], [64, 4], swizzle);
        tensor.dims = [19, 9, 0, 0, 0];
        let encoded = tensor.encode().expect("valid");
        let address = encoded.as_ptr().expose_provenance() as u64;
        let buffers = [Buffer::read_write("values", &mut values)];
        let kernel = || {
            for place in (index::thread()..64 * 4).step_by(64) {
                let to = swizzle.apply(shared::base() + 2 * place);
                shared::store(to, place as u16 + 1);
            }
            fence::proxy_async();
            barrier::sync(0, 64);
            if index::thread() == 0 {
                // SAFETY: the map and the buffer are this launch's.
                unsafe { tma::store(address, shared::base(), [8, 7]) };
                tma::commit_group();
                tma::wait_group(0);
            }
        };
        let report = launch_on(Schedule::from_seed(seed), &buffers, &kernel).expect("a sound store");
        // 19 columns end within the third 16 bytes of a row, which is written to its end.
        assert_eq!(report.global_bytes_written, 2 * 16 * 2);
        let found: &[u16] = bytemuck::cast_slice(&values);
        for (place, &found) in found.iter().enumerate() {
            let (x, y) = (place % 24, place / 24);
            let inside = (8..24).contains(&x) && (7..9).contains(&y);
            assert_eq!(found, if inside { ((y - 7) * 64 + x - 8) as u16 + 1 } else { 0 }, "({x}, {y})");
        }
    }
}

#[test]
fn a_store_past_the_rows_of_its_view_is_an_error() {
    for (columns, is_sound) in [(16, true), (19, false)] {
        let mut values = vec![0_u128; 3 * 10];
        let mut tensor = map(&values, [24, 10], [64, 4], Swizzle::Bytes128);
        tensor.dims[0] = columns;
        let encoded = tensor.encode().expect("valid");
        let address = encoded.as_ptr().expose_provenance() as u64;
        let rows = (0..10).map(|row| 48 * row..48 * row + 2 * columns as usize);
        let buffers = [Buffer::read_write("o", &mut values).reaching(rows)];
        let kernel = || {
            for place in (index::thread()..64 * 4).step_by(64) {
                shared::store(Swizzle::Bytes128.apply(shared::base() + 2 * place), 1_u16);
            }
            fence::proxy_async();
            barrier::sync(0, 64);
            if index::thread() == 0 {
                // SAFETY: the map and the buffer are this launch's.
                unsafe { tma::store(address, shared::base(), [0, 3]) };
                tma::commit_group();
                tma::wait_group(0);
            }
        };
        let result = launch_on(Schedule::from_seed(0), &buffers, &kernel);
        assert_eq!(result.is_ok(), is_sound, "{columns} columns: {result:?}");
        if let Err(error) = result {
            let message = error.to_string();
            let parts = ["block 0 of boxes", "thread 0", "byte 182 of buffer `o`, which no view reaches"];
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    }
}

#[test]
fn stores_of_bytes_write_them_alone() {
    for seed in SEEDS {
        let mut values = vec![0_u128; 8];
        let address = values.as_ptr().expose_provenance() as u64;
        let buffers = [Buffer::read_write("values", &mut values)];
        let kernel = || {
            shared::store(shared::base() + 2 * index::thread(), index::thread() as u16 + 1);
            fence::proxy_async();
            barrier::sync(0, 64);
            if index::thread() < 2 {
                let from = 48 * index::thread();
                // SAFETY: the bytes are the buffer's.
                unsafe { tma::store_bytes(address + 16 + u64::from(from), shared::base() + from, 32) };
            }
            tma::commit_group();
            tma::wait_group(0);
        };
        let report = launch_on(Schedule::from_seed(seed), &buffers, &kernel).expect("a sound store");
        assert_eq!(report.global_bytes_written, 64);
        let found: &[u16] = bytemuck::cast_slice(&values);
        for (place, &found) in found.iter().enumerate() {
            let stored = (8..24).contains(&place) || (32..48).contains(&place);
            assert_eq!(found, if stored { place as u16 - 7 } else { 0 }, "{place}");
        }
    }
}

#[test]
fn maps_that_the_device_does_not_take() {
    let values = counting(64);
    let valid = map(&values, [64, 8, 2], [64, 8, 1], Swizzle::Bytes128);
    let with = |change: &dyn Fn(&mut TensorMap)| {
        let mut map = valid;
        change(&mut map);
        map.encode().expect_err("the map is invalid")
    };
    assert!(valid.encode().is_ok());
    for (message, part) in [
        (with(&|map| map.address += 8), "not a multiple of 16"),
        (with(&|map| map.element_bytes = 3), "element_bytes is 3, not 1, 2, 4 or 8"),
        (with(&|map| map.rank = 0), "rank is 0, not 1 to 5"),
        (with(&|map| map.rank = 6), "rank is 6, not 1 to 5"),
        (with(&|map| map.dims[1] = 0), "dims[1] is 0, not 1 to 2^32"),
        (with(&|map| map.dims[0] = (1 << 32) + 1), "dims[0] is 4294967297, not 1 to 2^32"),
        (with(&|map| map.strides[0] = 24), "strides[0] is 24, not a positive multiple of 16 below 2^40"),
        (with(&|map| map.strides[1] = 1 << 40), "strides[1] is 1099511627776"),
        (with(&|map| map.box_dims[1] = 257), "box_dims[1] is 257, not 1 to 256"),
        (with(&|map| map.box_dims[2] = 0), "box_dims[2] is 0, not 1 to 256"),
        (with(&|map| map.box_dims[0] = 12), "a row of the box has 24 bytes, not a multiple of 16"),
        (with(&|map| map.box_dims[0] = 72), "a row of the box has 144 bytes, the swizzle spans 128"),
    ] {
        assert!(message.contains(part), "`{part}` is missing from: {message}");
    }
}

#[test]
fn transfers_that_the_device_does_not_take() {
    let values = counting(64 * 8);
    let encoded = map(&values, [64, 8], [64, 8], Swizzle::Bytes128).encode().expect("valid");
    let other = [7_u64; 16];
    let [good, bad] = [&encoded, &other].map(|words| words.as_ptr().expose_provenance() as u64);
    let mut short = [Buffer::read("values", &values)];
    short[0].bytes = 1000;
    let read_only = [Buffer::read("values", &values)];
    let base = shared::base();
    // SAFETY: whatever is wrong is found before anything is read.
    let message = |buffers: &[Buffer], transfer: &(dyn Fn() + Sync)| {
        let kernel = || load_and(1024, transfer, || {});
        launch_on(Schedule::from_seed(0), buffers, &kernel).expect_err("the transfer is invalid").to_string()
    };
    // SAFETY: as above.
    let load = |to, map, at: [i32; 2]| move || unsafe { tma::load(to, map, bar(), at) };
    // SAFETY: as above.
    let store = |from, map, at: [i32; 2]| move || unsafe { tma::store(map, from, at) };
    // SAFETY: as above.
    let store_bytes = |to, from, bytes| move || unsafe { tma::store_bytes(to, from, bytes) };
    let values_at = values.as_ptr().expose_provenance() as u64;
    for (message, part) in [
        (message(&read_only, &load(base, bad, [0, 0])), "the map is not what TensorMap::encode made"),
        (message(&read_only, &load(base + 64, good, [0, 0])), "is not a multiple of 128"),
        (
            message(&read_only, &load(base, good, [4, 0])),
            "coordinate 0 is 4, which is byte 8, no multiple of 16",
        ),
        (
            message(&read_only, &store(base, good, [-8, 0])),
            "coordinate 0 of a store is -8, below 0: an illegal instruction",
        ),
        (message(&read_only, &load(base + 16 * 1024, good, [0, 0])), "out of bounds"),
        (message(&short, &load(base, good, [0, 0])), "global access out of bounds"),
        (
            message(&read_only, &store_bytes(values_at, base + 8, 16)),
            "shared address 1032 is not a multiple of 16",
        ),
        (message(&read_only, &store_bytes(values_at + 8, base, 16)), "not a multiple of 16"),
        (message(&read_only, &store_bytes(values_at, base, 24)), "24 bytes, not a multiple of 16"),
        (message(&read_only, &store_bytes(values_at, base, 0)), "dims[0] is 0, not 1 to 2^32"),
        (message(&read_only, &store_bytes(values_at, base, 32)), "which is in buffer `values`, read-only"),
        (message(&short, &store_bytes(values_at + 992, base, 16)), "global access out of bounds"),
        (
            // SAFETY: as above.
            message(&read_only, &|| unsafe { tma::load(base, good, bar(), [0, 0, 0]) }),
            "3 coordinates for a map of rank 2",
        ),
        (
            // SAFETY: as above.
            message(&read_only, &|| unsafe { tma::store(good, base, [0, 0]) }),
            "which is in buffer `values`, read-only",
        ),
    ] {
        assert!(message.contains(part), "`{part}` is missing from: {message}");
    }
    assert_eq!(read_only[0].access, BufferAccess::Read);
}
