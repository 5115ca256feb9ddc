//! `verify` as a user runs it: what it goes through, and what it says.
#![allow(clippy::unwrap_used)]

mod common;

use common::{fails, json, stdout};

/// Every entry runs in `cargo xtask ci`, and here one of each kernel: the covering array of its cases.
#[test]
fn every_kernel_passes_on_the_simulator() {
    use fa_kernels::entries::{entries, gemm_entries};
    use std::collections::BTreeSet;

    let document = json("verify --backend sim --families --schedules 2 --json");
    let records = document["entries"].as_array().unwrap();
    assert!(records.iter().all(|entry| entry["runs"].as_u64().unwrap() >= 2));
    assert_eq!(document["passed"], true);
    let named: BTreeSet<&str> = records.iter().map(|entry| entry["entry"].as_str().unwrap()).collect();
    // `mma_peak` multiplies nothing that could be compared.
    let products = gemm_entries().filter(|entry| entry.tile.block_m > 0);
    let bytes = |dtype: &str| if dtype == "f32" { 4 } else { usize::from(dtype != "e4m3") + 1 };
    let built = entries().map(|entry| (entry.name, format!("{:?} {}", entry.algorithm, bytes(entry.dtype))));
    let built = built
        .chain(products.map(|entry| (entry.name, format!("{:?} {}", entry.algorithm, bytes(entry.dtype)))));
    // `tile_schedule` belongs to batches that a GPU alone has the time for; `flash-attention` tests it.
    let built: Vec<_> = built.filter(|(name, _)| *name != "tile_schedule").collect();
    let all: BTreeSet<_> = built.iter().map(|(_, family)| family).collect();
    let there: BTreeSet<_> =
        built.iter().filter(|(name, _)| named.contains(name)).map(|(_, family)| family).collect();
    assert_eq!(there, all, "kernels by storage size");
}

#[test]
fn verify_takes_one_kernel_or_entry() {
    let text = stdout("verify --backend sim --entry forward_simt_f16_m32_n32_d64");
    assert!(text.contains("pass forward_simt_f16_m32_n32_d64 "), "{text}");
    assert!(text.contains("1 entries passed, 0 failed") && text.contains(" in 8 schedules"), "{text}");
    let small = stdout("verify --backend cpu --kernel forward_cpu --small");
    assert!(small.contains("each on cases that have all pairs"), "{small}");
    fails("verify --backend sim --entry nonsense", 2, "--entry nonsense: no entry has this in its name");
    let text = stdout("verify --backend sim --schedules 1 --kernel gemm_simt");
    assert!(text.contains("pass gemm_simt_f32_m64_n64 ") && !text.contains("forward"), "{text}");
    fails("verify --backend sim --kernel forward_cpu", 2, "kernel forward_cpu does not run on backend sim");
    fails("verify --backend sim --schedules 0", 2, "'--schedules <COUNT>'");
}

#[test]
fn verify_runs_each_case_again() {
    let line = "verify --backend cpu --small --kernel gemm_cpu";
    let text = stdout(&format!("{line} --repeats 4"));
    assert!(text.lines().any(|line| line.starts_with("pass ") && line.contains(" runs, each 4 times: max")));
    let document = json(&format!("{line} --json"));
    for entry in document["entries"].as_array().unwrap() {
        assert_eq!(
            (&entry["repeats"], &entry["replayed"]),
            (&3.into(), &false.into()),
            "no graphs on the CPU"
        );
    }
    let document = json("verify --backend sim --schedules 2 --repeats 2 --entry decode_f16_m16_d64 --json");
    assert_eq!((&document["passed"], &document["entries"][0]["repeats"]), (&true.into(), &2.into()));
    fails("verify --repeats 0", 2, "'--repeats <COUNT>'");
}
