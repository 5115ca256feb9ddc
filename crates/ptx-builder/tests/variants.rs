//! Variants of a sweep, really built: where there is a device toolchain, with all that the gates say.

use std::sync::atomic::{AtomicUsize, Ordering};

use fa_kernels::config::{BackwardMmaConfig, DecodeConfig, GemmSm90Config, Limits};
use fa_kernels::entries::{Algorithm, GemmAlgorithm};
use fa_kernels::variant::{Config, Kernel, Layout, Sizes, Storage, Variant};
use fa_ptx_builder::ptx::Module;
use fa_ptx_builder::{Workspace, archive, source, toolchain, variant};

fn tile(algorithm: Algorithm, block_m: u32, block_n: u32, head_dim: u32, warps: u32) -> Variant {
    let kernel = Kernel::Attention(algorithm);
    let sizes =
        Sizes { block_m, block_n, head_dim, head_dim_v: head_dim, warps, stages: 0, layout: Layout::ALL[0] };
    let config = Config::new(kernel, Storage::F16, sizes).expect("its tile can be chosen");
    Variant { kernel, config, dtype: Storage::F16, min_blocks: 2 }
}

#[test]
fn variants_beside_the_list_build_and_a_spill_is_an_error_of_its_own() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let workspace = Workspace::new(root);
    let found = toolchain::search(&workspace.device()).expect("what is there runs");
    let Ok(toolchain) = found.choose(None) else {
        println!("no device toolchain here: nothing to build with");
        return;
    };
    let variants = [
        tile(Algorithm::ForwardSm80, 64, 48, 48, 4),
        tile(Algorithm::ForwardSimt, 32, 48, 32, 2),
        // 224 registers for S and O alone.
        tile(Algorithm::ForwardSm80, 128, 96, 128, 4),
    ];
    assert!(variants.iter().all(|variant| fa_kernels::entries::entries().all(|e| e.name != variant.name())));
    let built = AtomicUsize::new(0);
    let count = || {
        built.fetch_add(1, Ordering::Relaxed);
    };
    let results = variant::build(&workspace, &toolchain, &variants, &count).expect("core compiles");
    assert_eq!(built.into_inner(), 3);
    for (variant, result) in variants.iter().zip(&results).take(2) {
        let built = result.as_ref().expect("it builds");
        let module = Module::parse(&built.ptx).expect("it is PTX");
        assert_eq!(module.entries.len(), 1);
        assert_eq!(module.entries[0].name, variant.name());
        let bounds = format!(".maxntid {}, 1, 1", variant.config.threads());
        assert!(built.ptx.contains(&bounds) && built.ptx.contains(".minnctapersm 2"), "{}", variant.id());
        assert!(built.resources.iter().all(|resources| resources.registers > 0));
    }
    let refused = format!("{:#}", results[2].as_ref().expect_err("it spills"));
    assert!(refused.starts_with("the gates refuse it: spill: ") && refused.lines().count() == 1, "{refused}");
    // The second time they come from where they are kept.
    let again = variant::build(&workspace, &toolchain, &variants[..2], &|| ()).expect("core compiles");
    assert!(again.iter().zip(&results).all(|(again, first)| again.as_ref().ok() == first.as_ref().ok()));
}

#[test]
fn every_family_with_tiles_builds_beside_the_list() {
    let workspace = Workspace::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let found = toolchain::search(&workspace.device()).expect("what is there runs");
    let Ok(toolchain) = found.choose(None) else {
        println!("no device toolchain here: nothing to build with");
        return;
    };
    let decode = DecodeConfig { block_m: 16, head_dim: 64, warps: 2, stages: 4 };
    let backward = BackwardMmaConfig { owned: 64, step: 32, head_dim: 64, warps: 4, stores_ds: false };
    let gemm = GemmSm90Config { block_m: 128, block_n: 128, stages: 5 };
    let of = |kernel, config| Variant { kernel, config, dtype: Storage::F16, min_blocks: 1 };
    let variants = [
        of(Kernel::Attention(Algorithm::Decode), Config::Decode(decode)),
        of(Kernel::Attention(Algorithm::BackwardQueriesSm80), Config::BackwardMma(backward)),
        of(Kernel::Gemm(GemmAlgorithm::GemmSm90), Config::GemmSm90 { config: gemm, layout: Layout::ALL[1] }),
    ];
    assert!(variants.iter().all(|variant| variant.check(&Limits::of(90)) == Ok(())));
    let results = variant::build(&workspace, &toolchain, &variants, &|| ()).expect("core compiles");
    for (variant, result) in variants.iter().zip(results) {
        let module = Module::parse(&result.expect("it builds").ptx).expect("it is PTX");
        assert_eq!(module.entries[0].name, variant.name());
    }
}

#[test]
fn a_listed_tile_is_the_shipped_one() {
    let workspace = Workspace::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let shipped = archive::read(&workspace.shipped()).expect("the committed kernels can be read");
    let sources = source::hash(&workspace.kernel_sources()).expect("the sources can be read");
    let found = toolchain::search(&workspace.device()).expect("what is there runs");
    let Ok(toolchain) = found.choose(Some(&shipped.manifest)) else {
        println!("no device toolchain here: nothing to build with");
        return;
    };
    if (&toolchain.compiler.version, &sources)
        != (&shipped.manifest.compiler, &shipped.manifest.source_sha256)
    {
        println!("the committed kernels are of other sources or of another compiler: nothing to compare");
        return;
    }
    let variant = tile(Algorithm::ForwardSm80, 128, 48, 128, 4);
    let built = variant::build(&workspace, &toolchain, &[variant], &|| ()).expect("core compiles");
    let built = built[0].as_ref().expect("it builds");
    let row = shipped.manifest.entries.iter().find(|entry| entry.name == variant.name());
    let row = row.expect("it is listed");
    // Beside other entries LLVM may take the terms of a sum in another order, and nothing else.
    let instructions = |ptx: &str| -> Vec<String> {
        ptx.lines().filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
    };
    let text = &shipped.texts[&row.family][row.offset..row.offset + row.length];
    assert_eq!(instructions(&built.ptx), instructions(text));
    assert_eq!(built.resources, row.resources);
}
