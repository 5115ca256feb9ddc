//! Products of a warpgroup that lack something, and operands that are written too early or too late.

mod common;
#[path = "common/operands.rs"]
mod operands;

use common::{assert_contains, one_block};
use fa_sim::wgmma::{self, Element, Options};
use fa_sim::{Error, Launch, Schedule, barrier, fence, index, launch, shared};
use operands::*;

const SEEDS: std::ops::Range<u64> = 0..8;

/// One product whose parts a test leaves out or adds to.
fn one_product(before: impl Fn(), under_way: impl Fn(&mut [f32; 32]), after: impl Fn(&mut [f32; 32])) {
    let (a, b) = operands();
    let mut sums = [0.0; 32];
    before();
    wgmma::multiply_ss(&mut sums, a.descriptor(), b.descriptor(), options(a, b));
    under_way(&mut sums);
    after(&mut sums);
}

fn finish(sums: &mut [f32; 32]) {
    wgmma::commit_group();
    wgmma::wait_group(0, sums);
}

#[test]
fn products_that_lack_something() {
    for seed in SEEDS {
        run(seed, || one_product(wgmma::fence, |_| {}, finish)).expect("a sound product");
        let lacks = |part: &str, kernel: &(dyn Fn() + Sync)| {
            let (error, message) = fails(seed, kernel);
            assert!(matches!(error, Error::Wgmma { .. }), "seed {seed}: {message}");
            assert_contains(&message, &[part, file!()]);
        };
        lacks("no wgmma::fence since the last wgmma::wait_group", &|| one_product(|| {}, |_| {}, finish));
        lacks("no wgmma::commit_group closes the group", &|| {
            one_product(wgmma::fence, |_| {}, |sums| wgmma::wait_group(0, sums));
        });
        lacks("no wgmma::wait_group of the thread covers this product", &|| {
            one_product(wgmma::fence, |_| {}, |_| wgmma::commit_group());
        });
        lacks("no wgmma::wait_group has been given the accumulator", &|| {
            one_product(wgmma::fence, |_| {}, |_| finish(&mut [0.0; 32]));
        });
        lacks("or it has been overwritten under way", &|| {
            one_product(wgmma::fence, |sums| *sums = [0.0; 32], finish)
        });
        lacks("its accumulator has been used before the wgmma::wait_group", &|| {
            one_product(wgmma::fence, |sums| sums[5] *= 2.0, finish);
        });
        lacks("its accumulator has been used before the wgmma::wait_group", &|| {
            one_product(wgmma::fence, |sums| sums.iter_mut().for_each(|sum| *sum *= 0.5), finish);
        });
    }
}

#[test]
fn operands_that_are_written_too_early_or_too_late() {
    let write = || shared::store(shared::base() + 4 * (index::thread() % 8), 0_u32);
    for seed in SEEDS {
        let (error, message) = fails(seed, || {
            one_product(
                wgmma::fence,
                |_| {
                    if index::thread() == 9 {
                        write()
                    }
                },
                finish,
            );
        });
        match error {
            Error::NotAwaited { .. } => assert_contains(
                &message,
                &[
                    "thread 9 writes at",
                    "thread 0 multiplies by wgmma at",
                    "no wgmma::wait_group of that warpgroup",
                ],
            ),
            // The other warps have not issued it yet.
            Error::Race { .. } => {
                assert_contains(
                    &message,
                    &["multiplies by wgmma at", "thread 9 writes at", "no barrier between"],
                );
            }
            _ => panic!("seed {seed}: {message}"),
        }
        // Another warp writes after the wait of its own, and nothing orders that after this one's.
        run(seed, || {
            one_product(wgmma::fence, |_| {}, finish);
            if index::thread() == 127 {
                write();
            }
        })
        .expect("the product is complete for the whole warpgroup");
        let unfenced = |fence_late: bool| {
            move || {
                let (a, b) = default_layouts();
                a.write(M, a_at, Element::F16);
                b.write(64, b_at, Element::F16);
                barrier::sync(0, 128);
                if fence_late {
                    fence::proxy_async();
                }
                let mut sums = [0.0; 32];
                wgmma::fence();
                wgmma::multiply_ss(&mut sums, a.descriptor(), b.descriptor(), options(a, b));
                finish(&mut sums);
            }
        };
        for fence_late in [false, true] {
            let (error, message) = fails(seed, unfenced(fence_late));
            assert!(matches!(error, Error::MissingProxyFence { .. }), "seed {seed}: {message}");
            assert_contains(
                &message,
                &["multiplies by wgmma at", " writes at ", "no fence::proxy_async by thread"],
            );
        }
        let (error, message) = fails(seed, || {
            let (a, b) = default_layouts();
            a.write(M, a_at, Element::F16);
            b.write(64, b_at, Element::F16);
            fence::proxy_async();
            let mut sums = [0.0; 32];
            wgmma::fence();
            wgmma::multiply_ss(&mut sums, a.descriptor(), b.descriptor(), options(a, b));
            finish(&mut sums);
        });
        assert!(matches!(error, Error::Race { .. }), "seed {seed}: {message}");
        let (error, message) = fails(seed, || {
            let (a, b) = default_layouts();
            a.write(M, a_at, Element::F16);
            ready();
            let mut sums = [0.0; 32];
            wgmma::fence();
            wgmma::multiply_ss(&mut sums, a.descriptor(), b.descriptor(), options(a, b));
            finish(&mut sums);
        });
        assert!(matches!(error, Error::SharedUninitialised { .. }), "seed {seed}: {message}");
    }
}

#[test]
fn warps_that_disagree() {
    let warp = || index::thread() / 32;
    for seed in SEEDS {
        let disagree = |what: &str, kernel: &(dyn Fn(Layout, Layout, &mut [f32]) + Sync)| {
            let (error, message) = fails(seed, || {
                let (a, b) = operands();
                let mut sums = [0.0; 32];
                wgmma::fence();
                kernel(a, b, &mut sums);
                wgmma::commit_group();
                wgmma::wait_group(0, &mut sums);
            });
            assert!(matches!(error, Error::Wgmma { .. } | Error::Deadlock { .. }), "seed {seed}: {message}");
            assert_contains(&message, &[what]);
        };
        disagree("with other descriptors", &|a, b, sums| {
            let further = if warp() == 2 { 2 } else { 0 };
            wgmma::multiply_ss(sums, a.descriptor() + further, b.descriptor(), options(a, b));
        });
        disagree("with other places", &|a, b, sums| match warp() {
            1 => wgmma::multiply_ss(sums, a.descriptor(), b.descriptor(), options(a, b)),
            _ => wgmma::multiply_ss(sums, a.descriptor(), b.descriptor(), options(a, b)),
        });
        disagree("with other groups", &|a, b, sums| {
            if warp() == 3 {
                wgmma::commit_group();
            }
            wgmma::multiply_ss(sums, a.descriptor(), b.descriptor(), options(a, b));
        });
        disagree("with other operations", &|a, b, sums| {
            let accumulate = warp() == 0;
            let options = Options { accumulate, ..options(a, b) };
            wgmma::multiply_ss(sums, a.descriptor(), b.descriptor(), options);
        });
        disagree("lanes of the warp bring different descriptors", &|a, b, sums| {
            let further = if index::thread() == 70 { 2 } else { 0 };
            wgmma::multiply_ss(sums, a.descriptor() + further, b.descriptor(), options(a, b));
        });
        disagree("wait at wgmma::wait_group with 0 pending", &|a, b, sums| {
            if warp() != 2 {
                wgmma::multiply_ss(sums, a.descriptor(), b.descriptor(), options(a, b));
            }
        });
    }
}

#[test]
fn products_that_the_device_does_not_take() {
    let message = |threads, kernel: &(dyn Fn() + Sync)| {
        run_on(threads, 0, kernel).expect_err("the product is invalid").to_string()
    };
    let (a, b) = default_layouts();
    let multiply = |sums: &mut [f32], b_bits: u64| {
        wgmma::fence();
        wgmma::multiply_ss(sums, a.descriptor(), b_bits, options(a, b));
    };
    for (message, part) in [
        (
            message(128, &|| multiply(&mut [0.0; 6], b.descriptor())),
            "n is 12, not a multiple of 8 from 8 to 256",
        ),
        (message(128, &|| multiply(&mut [0.0; 132], b.descriptor())), "n is 264"),
        (message(64, &|| multiply(&mut [0.0; 32], b.descriptor())), "threads 0 on are no whole warpgroup"),
        (message(128, &|| multiply(&mut [0.0; 32], 1 << 49)), "base offset 1, only 0 is modelled"),
        (message(128, &|| multiply(&mut [0.0; 32], 1 << 47)), "reserved bits set"),
        (message(128, &|| multiply(&mut [0.0; 32], b.descriptor() | 0x3fff)), "out of bounds"),
    ] {
        assert!(message.contains(part), "`{part}` is missing from: {message}");
    }
}

#[test]
fn races_unreported_show_as_the_result_they_give() {
    let result = |seed| {
        let schedule = Schedule::from_seed(seed).without_race_detection();
        let config = Launch { shared_bytes: 64 * 1024, schedule, ..one_block(128, 0) };
        launch(&config, &|| {
            one_product(
                wgmma::fence,
                |_| {
                    barrier::sync(0, 128);
                    (index::thread()..5120).step_by(128).for_each(|word| {
                        shared::store(shared::base() + 4 * word, 0_u32);
                    });
                    barrier::sync(0, 128);
                },
                |sums| {
                    finish(sums);
                    assert_products(sums, 1.0);
                },
            );
        })
    };
    assert!(result(0).is_err(), "ascending order: computed at the wait");
    assert!(result(1).is_ok(), "descending order: computed at the issue");
}
