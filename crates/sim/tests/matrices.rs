//! `ldmatrix`, `stmatrix` and `mma` as operations of a warp: who reads and writes, and who must be there.
//! What `ldmatrix` and `mma` compute is tested with their wrappers in `fa-kernels`.

mod common;

use common::{assert_contains, fails, run, word};
use fa_sim::{AccessKind, Error, Operation, barrier, index, ldmatrix, mma, shared, stmatrix};

const SEEDS: std::ops::Range<u64> = 0..24;

fn lane() -> u32 {
    index::thread() % 32
}

/// Each thread of the block writes its row of 16 bytes.
fn write_rows() {
    let thread = index::thread() as u16;
    shared::store(word(4 * index::thread()), [thread; 8]);
}

#[test]
fn a_row_is_read_by_the_lane_that_names_it() {
    for seed in SEEDS {
        let (error, message) = fails(64, seed, || {
            if index::thread() < 32 {
                write_rows();
            } else {
                ldmatrix::load::<4>(word(4 * lane()), false);
            }
        });
        let Error::Race { first, second, offset, .. } = error else { panic!("seed {seed}: {message}") };
        let (reader, writer) = if first.kind == AccessKind::Read { (first, second) } else { (second, first) };
        assert_eq!((reader.thread, writer.thread), (32 + offset / 16, offset / 16), "seed {seed}: {message}");
    }
}

#[test]
fn lanes_past_the_matrices_name_no_row() {
    for seed in SEEDS {
        run(32, seed, || {
            write_rows();
            barrier::sync(0, 32);
            let address = if lane() < 16 { word(4 * lane()) } else { u32::MAX };
            let [first, second] = ldmatrix::load::<2>(address, false);
            assert_eq!((first & 0xffff, second & 0xffff), (lane() / 4, 8 + lane() / 4));
        })
        .expect("lanes 0 to 15 name rows that are there");
    }
}

#[test]
fn rows_that_are_unwritten_misaligned_or_outside() {
    for seed in SEEDS {
        let (error, message) = fails(32, seed, || {
            if lane() != 19 {
                write_rows();
            }
            barrier::sync(0, 32);
            ldmatrix::load::<4>(word(4 * lane()), true);
        });
        let Error::SharedUninitialised { offset, access, .. } = error else {
            panic!("seed {seed}: {message}")
        };
        assert_eq!((offset, access.thread), (16 * 19, 19), "seed {seed}: {message}");
        for (shift, lane_9) in [(8, true), (4096, false)] {
            let (error, message) = fails(32, seed, || {
                write_rows();
                barrier::sync(0, 32);
                ldmatrix::load::<4>(word(4 * lane()) + if lane() == 9 { shift } else { 0 }, false);
            });
            match error {
                Error::SharedMisaligned { bytes: 16, access, .. } => assert!(lane_9 && access.thread == 9),
                Error::SharedOutOfBounds { bytes: 16, access, .. } => assert!(!lane_9 && access.thread == 9),
                _ => panic!("seed {seed}: {message}"),
            }
        }
    }
}

#[test]
fn a_load_orders_nothing() {
    for seed in SEEDS {
        let (error, message) = fails(32, seed, || {
            write_rows();
            barrier::sync(0, 32);
            ldmatrix::load::<4>(word(4 * lane()), false);
            // Lane 0 overwrites a row that lane 31 has just read.
            if lane() == 0 {
                shared::store(word(4 * 31), 1_u32);
            }
        });
        let Error::Race { first, second, .. } = error else { panic!("seed {seed}: {message}") };
        assert_eq!((first.thread, second.thread), (31, 0), "seed {seed}: {message}");
    }
}

#[test]
fn lanes_that_are_elsewhere_or_gone() {
    for seed in SEEDS {
        let (error, message) = fails(32, seed, || {
            let mut acc = [0.0; 4];
            if lane().is_multiple_of(2) {
                mma::m16n8k16_f16(&mut acc, [0; 4], [0; 2]);
            } else {
                mma::m16n8k16_bf16(&mut acc, [0; 4], [0; 2]);
            }
        });
        let Error::Divergence { first_operation, second_operation, .. } = error else {
            panic!("seed {seed}: {message}")
        };
        assert_ne!(first_operation, second_operation);
        assert_contains(&message, &["mma::m16n8k16_f16", "mma::m16n8k16_bf16"]);

        let (error, message) = fails(64, seed, || {
            if index::thread() != 40 {
                ldmatrix::load::<4>(word(0), true);
            }
        });
        // The whole warp reads what nobody has written; the other waits for its lane for ever.
        match error {
            Error::SharedUninitialised { access, .. } => {
                assert!(access.thread < 32, "seed {seed}: {message}")
            }
            _ => panic!("seed {seed}: {message}"),
        }

        let (error, message) = fails(32, seed, || {
            if lane() != 7 {
                mma::m16n8k16_f16(&mut [0.0; 4], [0; 4], [0; 2]);
            }
        });
        let Error::Deadlock { waiting, .. } = error else { panic!("seed {seed}: {message}") };
        assert_eq!(waiting[0].operation, Operation::MmaF16);
        assert!(waiting[0].warp_incomplete);
    }
}

#[test]
fn stores_of_matrices_put_each_element_in_its_row() {
    for seed in SEEDS {
        for transposed in [false, true] {
            run(32, seed, || {
                // Matrix m holds 64 m + 8 row + column; a lane's pair is two columns, or two rows.
                let (group, pair) = (lane() / 4, 2 * (lane() % 4));
                let element = |row: u32, column: u32| 8 * row + column;
                let join = |low: u32, high: u32| low | high << 16;
                let registers = std::array::from_fn(|matrix| {
                    let first = 64 * matrix as u32;
                    if transposed {
                        join(first + element(pair, group), first + element(pair + 1, group))
                    } else {
                        join(first + element(group, pair), first + element(group, pair + 1))
                    }
                });
                // Rows are laid out the last first.
                stmatrix::store_x4(word(4 * (31 - lane())), registers, transposed);
                barrier::sync(0, 32);
                let row = shared::load::<[u16; 8]>(word(4 * (31 - lane())));
                assert_eq!(row, std::array::from_fn(|column| 8 * lane() as u16 + column as u16));
            })
            .expect("rows do not overlap");
        }
    }
}

#[test]
fn a_row_is_written_by_the_lane_that_names_it() {
    for seed in SEEDS {
        let (error, message) = fails(64, seed, || {
            if index::thread() < 32 {
                stmatrix::store_x4(word(4 * lane()), [0; 4], false);
            } else {
                shared::load::<u32>(word(4 * lane()));
            }
        });
        let Error::Race { first, second, offset, .. } = error else { panic!("seed {seed}: {message}") };
        let (reader, writer) = if first.kind == AccessKind::Read { (first, second) } else { (second, first) };
        assert_eq!((reader.thread, writer.thread), (32 + offset / 16, offset / 16), "seed {seed}: {message}");
        let (error, message) = fails(32, seed, || stmatrix::store_x4(word(4 * (lane() / 2)), [0; 4], true));
        assert!(matches!(error, Error::Race { .. }), "two lanes name one row, seed {seed}: {message}");
        let (error, message) =
            fails(32, seed, || stmatrix::store_x4(word(4 * lane()) + 8 * (lane() / 20), [0; 4], true));
        assert!(matches!(error, Error::SharedMisaligned { bytes: 16, .. }), "seed {seed}: {message}");
    }
}
