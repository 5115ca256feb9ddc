//! Which entry and how many splits a decode problem gets.

use super::few_queries::choose_entry;
use super::*;
use crate::Options;
use crate::decode::DecodeOptions;
use crate::plan::Tuned;
use crate::sim::Sim;
use crate::{DType, TensorLayout, Tensors};
use fa_kernels::entries::entries;
use fa_kernels::variant::Kernel;

pub(super) fn problem(
    batch: usize,
    heads: [usize; 2],
    sq: usize,
    sk: usize,
    head_dim: usize,
    dtype: DType,
) -> DecodeProblem {
    let q = TensorLayout::bshd(batch, sq, heads[0], head_dim);
    let k = TensorLayout::bshd(batch, sk, heads[1], head_dim);
    DecodeProblem::new(Tensors { q, k, v: k, o: q }, dtype, DecodeOptions::default()).unwrap()
}

/// By the kernel of GPUs before Hopper.
fn plan(problem: &DecodeProblem) -> DecodePlan {
    let request = DecodeRequest { kernel: Some(DecodeKernel::Decode), ..DecodeRequest::default() };
    Plan::new(problem, Sim::new(0).device(), &request).unwrap()
}

#[test]
fn splits_fill_the_multiprocessors_and_no_more() {
    let splits = |batch, sk| plan(&problem(batch, [32, 8], 1, sk, 128, DType::F16)).num_splits();
    // 8, 64, 128 and 512 tiles for 264 slots on 132 multiprocessors.
    assert_eq!(splits(1, 131_072), 33);
    assert_eq!(splits(8, 8192), 4);
    assert_eq!(splits(16, 8192), 1);
    assert_eq!(splits(64, 4096), 1);
    // No split has fewer than four key blocks.
    assert_eq!(splits(1, 64), 1);
    assert!(splits(1, 1024) <= 4);
}

/// On Hopper: the blocks of a cluster, the launches behind it, and splits.
pub(super) fn on_hopper(batch: usize, sk: usize, batch_invariant: Option<bool>) -> (u32, usize, usize) {
    let problem = problem(batch, [32, 8], 1, sk, 128, DType::F16);
    let request = DecodeRequest { batch_invariant, ..DecodeRequest::default() };
    let plan = Plan::new(&problem, Sim::new(0).device(), &request).unwrap();
    let [first, others @ ..] = plan.launches() else { panic!("no launch") };
    (first.cluster, others.len(), plan.num_splits())
}

#[test]
fn few_splits_are_merged_by_clusters_where_all_blocks_run_at_once() {
    let of = |batch, sk| on_hopper(batch, sk, Some(false));
    assert_eq!([of(1, 512), of(1, 1024), of(2, 1024)], [(4, 0, 4), (8, 0, 8), (8, 0, 8)]);
    assert_eq!([of(4, 1000), of(8, 1000), of(1, 4096)], [(4, 0, 4), (2, 0, 2), (8, 0, 8)]);
    assert_eq!(of(1, 8192), (1, 1, 16));
    assert_eq!(of(9, 1000), (1, 0, 1));
}

#[test]
fn one_split_needs_neither_workspace_nor_a_second_launch() {
    let one = plan(&problem(64, [32, 8], 1, 4096, 128, DType::Bf16));
    assert_eq!((one.launches().len(), one.workspace_bytes()), (1, 0));
    let four = plan(&problem(8, [32, 8], 1, 8192, 128, DType::Bf16));
    assert_eq!((four.launches().len(), four.workspace_bytes()), (2, 4 * 4 * 8 * 32 * 129));
    assert_eq!(four.launches()[1].grid, 8 * 32 / 4);
}

#[test]
fn the_tile_holds_the_packed_rows_where_one_is_large_enough() {
    let tile = |heads, sq, head_dim| {
        plan(&problem(1, heads, sq, 100, head_dim, DType::F16)).launches()[0].entry.name
    };
    assert_eq!(tile([8, 1], 1, 128), "decode_f16_m16_d128_w4_s3");
    assert_eq!(tile([8, 1], 4, 128), "decode_f16_m32_d128_w4_s3");
    assert_eq!(tile([8, 1], 16, 128), "decode_f16_m32_d128_w4_s3");
    assert_eq!(tile([4, 1], 16, 33), "decode_f16_m64_d64_w4_s5");
    assert_eq!(tile([8, 1], 16, 130), "decode_f16_m16_d192_w4_s2");
}

#[test]
fn tiles_of_as_many_rows_are_tried_as_they_were_measured() {
    const DEVICE: &str = "NVIDIA Test";
    const TABLE: &[Tuned] = &[Tuned {
        device: DEVICE,
        kernel: Kernel::Attention(Algorithm::Decode),
        dtype: "f16",
        head_dim: 128,
        causal: false,
        // The fastest holds more rows than are needed.
        entries: &["decode_f16_m32_d128_w4_s3", "decode_f16_m16_d128_w4_s2", "decode_f16_m16_d128_w4_s3"],
    }];
    let device = Device { name: DEVICE.to_owned(), ..Sim::new(0).device().clone() };
    let chosen = |table, group| {
        let problem = problem(1, [group, 1], 1, 100, 128, DType::F16);
        let (entry, why) =
            choose_entry(&Cache::of(&problem), &device, DecodeKernel::Decode, None, table).unwrap();
        (entry.name, why)
    };
    let measured = "the fastest tile measured on NVIDIA Test".to_owned();
    assert_eq!(chosen(TABLE, 8), ("decode_f16_m16_d128_w4_s2", measured.clone()));
    assert_eq!(chosen(TABLE, 24), ("decode_f16_m32_d128_w4_s3", measured));
    let listed = "the first tile listed, the fastest where the list was made,".to_owned();
    assert_eq!(chosen(&[], 8), ("decode_f16_m16_d128_w4_s3", listed));
}

#[test]
fn hopper_has_a_kernel_of_its_own_where_tensor_maps_describe_the_cache() {
    let planned = |problem: &DecodeProblem| {
        let plan = Plan::new(problem, Sim::new(0).device(), &DecodeRequest::default()).unwrap();
        (plan.kernel(), plan.launches()[0].entry.name, plan.launches()[0].grid, plan.num_splits())
    };
    let of = |batch, sk, head_dim| planned(&problem(batch, [32, 8], 1, sk, head_dim, DType::F16));
    let (name, adds_up) = ("decode_sm90_f16_m16_n128_d128_s3", "decode_sm90_f16_m16_n128_d128_s3_adds_up");
    // A block on each multiprocessor reads as fast as two; more go through the list.
    assert_eq!(of(1, 131_072, 128), (DecodeKernel::DecodeSm90, name, 128, 16));
    assert_eq!(of(1, 1024, 128), (DecodeKernel::DecodeSm90, name, 64, 8));
    assert_eq!(of(64, 4096, 128), (DecodeKernel::DecodeSm90, adds_up, 264, 8));
    assert_eq!(of(16, 4096, 128), (DecodeKernel::DecodeSm90, adds_up, 128, 8));
    // Rows of 258 bytes.
    let odd = problem(1, [32, 8], 1, 1000, 129, DType::F16);
    assert_eq!(planned(&odd).0, DecodeKernel::Decode);
    let plan = Plan::new(&odd, Sim::new(0).device(), &DecodeRequest::default()).unwrap();
    let why =
        "not decode_sm90: k's seqlen stride is 1032 elements, and tensor maps take positive multiples of 8";
    assert!(!plan.reasons().iter().any(|reason| reason.starts_with(why)), "1032 is a multiple of 8");
    assert!(plan.reasons().iter().any(|reason| reason.contains("k's heads stride is 129 elements")));
    let paged = |page_size| {
        let q = TensorLayout::bshd(2, 1, 8, 64);
        let pages = TensorLayout::bshd(10, page_size, 2, 64);
        let options = DecodeOptions { max_pages: Some(4), ..DecodeOptions::default() };
        let tensors = Tensors { q, k: pages, v: pages, o: q };
        planned(&DecodeProblem::new(tensors, DType::Bf16, options).unwrap()).0
    };
    assert_eq!([paged(8), paged(48), paged(256)], [DecodeKernel::DecodeSm90; 3]);
    assert_eq!([paged(1), paged(100)], [DecodeKernel::Decode; 2]);
}

#[test]
fn many_rows_are_taken_by_the_kernel_of_the_forward_pass() {
    let of = |heads, sq, sk| {
        let problem = problem(1, heads, sq, sk, 128, DType::Bf16);
        let plan = Plan::new(&problem, Sim::new(0).device(), &DecodeRequest::default()).unwrap();
        (plan.kernel(), plan.launches()[0].grid, plan.num_splits())
    };
    // Four heads that share keys are rows of one tile; a pack has eight at most.
    assert_eq!(of([32, 8], 16, 65_536).0, DecodeKernel::DecodeSm90);
    assert_eq!(of([32, 8], 17, 65_536), (DecodeKernel::ForwardSm90, 128, 16));
    assert_eq!(of([32, 8], 64, 65_536), (DecodeKernel::ForwardSm90, 128, 8));
    assert_eq!(of([32, 8], 2048, 16_384), (DecodeKernel::ForwardSm90, 132, 1));
    assert_eq!(of([32, 1], 4, 4096), (DecodeKernel::ForwardSm90, 32, 8));
    assert_eq!(of([7, 1], 10, 100), (DecodeKernel::ForwardSm90, 7, 1));
}

#[test]
fn packed_queries_are_taken_by_the_kernel_of_the_forward_pass_alone() {
    let q = TensorLayout::bshd(1, 300, 32, 64);
    let pages = |size| TensorLayout::bshd(100, size, 8, 64);
    let options = || DecodeOptions { max_pages: Some(20), ..DecodeOptions::default() };
    let of = |size, request: DecodeRequest| {
        let tensors = Tensors { q, k: pages(size), v: pages(size), o: q };
        let problem = DecodeProblem::varlen(tensors, DType::F16, options(), &[0, 1, 200, 200, 300]).unwrap();
        let plan = Plan::new(&problem, Sim::new(0).device(), &request);
        plan.map(|plan| (plan.kernel(), plan.launches().len())).map_err(|error| error.to_string())
    };
    let any = DecodeRequest::default;
    assert_eq!(of(16, any()), Ok((DecodeKernel::ForwardSm90, 1)));
    let why = "pages have 4 rows, and copies take multiples of 8; no other kernel takes packed queries";
    assert_eq!(of(4, any()), Err(format!("kernel forward_sm90 cannot be run: {why}")));
    let two = DecodeRequest { num_splits: Some(2), ..any() };
    assert_eq!(of(16, two), Err("num_splits is 2; 1 to 1 are possible here".to_owned()));
    let decode = DecodeRequest { kernel: Some(DecodeKernel::DecodeSm90), ..any() };
    assert!(of(16, decode).unwrap_err().ends_with("it takes no packed queries"));
    // Of lengths that the device alone has, as many tiles as there may be.
    let tensors = Tensors { q, k: pages(16), v: pages(16), o: q };
    let problem = DecodeProblem::varlen_on_device(tensors, DType::F16, options(), 4, 200).unwrap();
    let plan = Plan::new(&problem, Sim::new(0).device(), &any()).unwrap();
    assert_eq!(plan.launches()[0].grid, 8 * ((4 * 300_u32).div_ceil(128) + 4));
}

#[test]
fn caches_that_start_elsewhere_are_taken_by_the_older_kernel() {
    let plan = Plan::new(
        &problem(1, [8, 1], 1, 9000, 64, DType::F16),
        Sim::new(0).device(),
        &DecodeRequest::default(),
    )
    .unwrap();
    let at = |k| {
        let addresses = crate::decode::DecodeAddresses { k, v: 64, ..Default::default() };
        plan.launches_at(&addresses)[0].entry.algorithm
    };
    assert_eq!([at(32), at(34)], [Algorithm::DecodeSm90, Algorithm::Decode]);
    assert!(plan.workspace_bytes() > 0 && plan.unaligned().len() == 2);
}

#[test]
fn one_entry_is_planned_if_it_takes_the_problem() {
    let of = |name: &str| entries().find(|entry| entry.name == name).unwrap();
    let planned = |name, head_dim| {
        let problem = problem(1, [8, 1], 1, 100, head_dim, DType::F16);
        Plan::of_entry(&problem, Sim::new(0).device(), of(name))
    };
    let plan = planned("decode_f16_m32_d128_w4_s3", 64).unwrap();
    assert_eq!((plan.tile(), plan.launches()[0].entry.name), (Some((32, 64)), "decode_f16_m32_d128_w4_s3"));
    assert!(plan.reasons()[2].contains("asked for, with "), "{:?}", plan.reasons());
    for (name, reason) in [
        ("decode_f16_m32_d64_w4_s5", "its HEAD_DIM is 64, the problem's head_dim 65"),
        ("decode_bf16_m16_d128_w4_s3", "it is for bf16, the problem is f16"),
        ("decode_combine_f16", "it is no kernel for decoding"),
        (
            "decode_sm90_f16_m16_n128_d128_s3",
            "k's seqlen stride is 65 elements, and tensor maps take positive multiples of 8 below 2^39",
        ),
    ] {
        let message = planned(name, 65).unwrap_err().to_string();
        assert_eq!(message, format!("entry {name} cannot be run: {reason}"));
    }
}

#[test]
fn every_head_dim_has_an_entry_on_the_smallest_device() {
    let device =
        crate::Device { shared_per_block: 99 << 10, compute_capability: 86, ..Sim::new(0).device().clone() };
    for head_dim in 1..=crate::forward::MAX_HEAD_DIM {
        let problem = problem(1, [8, 1], 1, 1000, head_dim, DType::Bf16);
        let plan = Plan::new(&problem, &device, &DecodeRequest::default()).unwrap();
        assert!(plan.launches()[0].entry.shared_bytes <= 99 << 10);
    }
}

#[test]
fn what_cannot_run_is_refused_in_one_line() {
    let refused = |dtype, device: &Device, request: &DecodeRequest| {
        Plan::new(&problem(1, [8, 1], 1, 100, 64, dtype), device, request).unwrap_err().to_string()
    };
    let sim = Sim::new(0).device().clone();
    let splits = |num_splits| DecodeRequest { num_splits: Some(num_splits), ..DecodeRequest::default() };
    let none = DecodeRequest::default();
    assert_eq!(refused(DType::F32, &sim, &none), "kernel decode has no f32 entry; it has f16, bf16");
    assert_eq!(refused(DType::F16, &sim, &splits(0)), "num_splits is 0; 1 to 128 are possible here");
    let entry = DecodeRequest { entry: Some("decode_f16".to_owned()), ..DecodeRequest::default() };
    assert_eq!(
        refused(DType::F16, &sim, &entry),
        "entry decode_f16 is not built, or not for f16 at head_dim 64"
    );
    assert_eq!(refused(DType::F16, &sim, &splits(129)), "num_splits is 129; 1 to 128 are possible here");
    let old = Device { compute_capability: 75, ..sim.clone() };
    assert_eq!(refused(DType::F16, &old, &none), "kernel decode needs sm_80; simulated GPU is sm_75");
    let small = Device { shared_per_block: 48 << 10, ..sim };
    assert!(refused(DType::F16, &small, &none).contains("bytes of shared memory; simulated GPU has 49152"));
}

/// A cache in e4m3 of eight heads, with rows of so many elements.
fn of_e4m3(head_dim: usize, row: usize, dtype: DType) -> DecodeProblem {
    let q = TensorLayout::bshd(16, 1, 32, head_dim);
    let k = TensorLayout { head_dim, ..TensorLayout::bshd(16, 8192, 8, row) };
    let e4m3_cache = Some(crate::decode::E4m3Cache::default());
    let options = DecodeOptions { e4m3_cache, ..DecodeOptions::default() };
    DecodeProblem::new(Tensors { q, k, v: k, o: q }, dtype, options).unwrap()
}

#[test]
fn a_cache_in_e4m3_has_kernels_on_hopper_alone() {
    let sim = Sim::new(0).device().clone();
    let plan = Plan::new(&of_e4m3(128, 128, DType::Bf16), &sim, &DecodeRequest::default()).unwrap();
    let entry = plan.launches()[0].entry;
    assert_eq!((entry.algorithm, entry.dtype, entry.tile.head_dim), (Algorithm::DecodeSm90E4m3, "bf16", 128));
    assert!(plan.unaligned().is_empty());
    let same = problem(16, [32, 8], 1, 8192, 128, DType::Bf16);
    let refused = Plan::of_entry(&same, &sim, entry).unwrap_err().to_string();
    assert!(refused.ends_with("cannot be run: it is for another cache than one in bf16"), "{refused}");

    let refused = |problem: &DecodeProblem, device: &Device, request: &DecodeRequest| {
        Plan::new(problem, device, request).unwrap_err().to_string()
    };
    let any = DecodeRequest::default();
    let ampere = Device { compute_capability: 80, ..sim.clone() };
    assert_eq!(
        refused(&of_e4m3(128, 128, DType::F16), &ampere, &any),
        "kernel decode cannot be run: it takes no cache in e4m3; not decode_sm90: kernel decode_sm90 needs sm_90a; simulated \
         GPU is sm_80"
    );
    assert_eq!(
        refused(&of_e4m3(100, 100, DType::F16), &sim, &any),
        "kernel decode cannot be run: it takes no cache in e4m3; not decode_sm90: k's heads stride is 100 elements, and in \
         e4m3 it takes positive multiples of 16 below 2^40"
    );
    assert_eq!(
        refused(&of_e4m3(128, 128, DType::F32), &sim, &any),
        "kernel decode cannot be run: it takes no cache in e4m3; not decode_sm90: it has no f32 entry"
    );
    let older = DecodeRequest { kernel: Some(DecodeKernel::Decode), ..any };
    assert_eq!(
        refused(&of_e4m3(128, 128, DType::F16), &sim, &older),
        "kernel decode cannot be run: it takes no cache in e4m3; decode_sm90 and forward_sm90 do"
    );
}

/// A cache in e4m3 of eight heads and 64 pages for each of two sequences, of whose queries rows have so many
/// elements.
fn of_many(queries: usize, page_size: usize, row: usize) -> DecodeProblem {
    let q = TensorLayout { head_dim: 100, ..TensorLayout::bshd(2, queries, 32, row) };
    let pages = TensorLayout { head_dim: 100, ..TensorLayout::bshd(200, page_size, 8, 112) };
    let e4m3_cache = Some(crate::decode::E4m3Cache::default());
    let options = DecodeOptions { e4m3_cache, max_pages: Some(64), ..DecodeOptions::default() };
    DecodeProblem::new(Tensors { q, k: pages, v: pages, o: q }, DType::Bf16, options).unwrap()
}

#[test]
fn many_rows_over_e4m3_are_the_forward_passs_over_a_widened_copy() {
    let sim = Sim::new(0).device().clone();
    let planned =
        |problem: &DecodeProblem, request: &DecodeRequest| Plan::new(problem, &sim, request).unwrap();
    let names =
        |plan: &DecodePlan| plan.launches().iter().map(|launch| launch.entry.name).collect::<Vec<_>>();
    let any = DecodeRequest::default();
    let plan = planned(&of_many(512, 64, 104), &any);
    let attention = "forward_sm90_cached_bf16_m128_n128_d128";
    assert_eq!((plan.kernel(), names(&plan)), (DecodeKernel::ForwardSm90, vec!["widen_bf16", attention]));
    // Of either tensor 64 pages of 64 rows, of 104 columns that are 13 pieces: a block has 8·19 rows.
    let copy = 2 * 2 * 8 * 64 * 64 * 104_u64;
    assert_eq!(plan.workspace_bytes(), 2 * copy);
    assert_eq!(plan.launches()[0].grid, 2 * 2 * 8 * (64 * 64_u32).div_ceil(8 * 19));
    let why = format!("widens the keys in use to bf16, in {} bytes of the workspace", 2 * copy);
    assert!(plan.reasons().iter().any(|reason| reason.ends_with(&why)), "{:?}", plan.reasons());
    // Splits' results come first.
    let plan = planned(&of_many(40, 60, 104), &any);
    assert_eq!(names(&plan), ["widen_bf16", attention, "decode_combine_sm90_bf16"]);
    let splits = plan.num_splits() as u64;
    let partial = splits * 4 * 2 * 32 * 40 * (100 + 1);
    let copy = (2 * 2 * 8 * 64 * 60 * 104_u64).next_multiple_of(256);
    assert_eq!(plan.workspace_bytes(), partial.next_multiple_of(256) + 2 * copy);
    // Whose tensor maps cannot have such pages, the other kernel does not stand in for.
    assert!(plan.unaligned().is_empty());
    let plan = planned(&of_many(40, 64, 104), &any);
    assert_eq!(plan.unaligned()[0].entry.algorithm, Algorithm::DecodeSm90E4m3);
    let at = |q| plan.launches_at(&crate::decode::DecodeAddresses { q, ..Default::default() }).len();
    assert_eq!(at(8), plan.unaligned().len());
    // Few rows, rows of Q that no tensor map describes, and what was asked for.
    assert_eq!(planned(&of_many(16, 64, 104), &any).kernel(), DecodeKernel::DecodeSm90);
    let plan = planned(&of_many(40, 64, 100), &any);
    let why = "not forward_sm90: q's heads stride is 100 elements, and tensor maps take positive multiples of 8 below 2^39";
    assert_eq!((plan.kernel(), plan.reasons().last().unwrap().as_str()), (DecodeKernel::DecodeSm90, why));
    let asked = |kernel| DecodeRequest { kernel: Some(kernel), ..any.clone() };
    assert_eq!(names(&planned(&of_many(1, 64, 104), &asked(DecodeKernel::ForwardSm90)))[0], "widen_bf16");
    let decode = planned(&of_many(512, 64, 104), &asked(DecodeKernel::DecodeSm90));
    assert_eq!(decode.launches()[0].entry.algorithm, Algorithm::DecodeSm90E4m3);
    let named = DecodeRequest { entry: Some(attention.to_owned()), ..any.clone() };
    assert_eq!(names(&planned(&of_many(1, 64, 104), &named))[..2], ["widen_bf16", attention]);
    let entry = entries().find(|entry| entry.name == attention).unwrap();
    let plan = Plan::of_entry(&of_many(512, 64, 104), &sim, entry).unwrap();
    assert_eq!(names(&plan), ["widen_bf16", attention]);
}

#[test]
fn packed_queries_over_e4m3_are_the_forward_passs_too() {
    let q = TensorLayout::bshd(1, 300, 32, 64);
    let pages = TensorLayout::bshd(100, 12, 8, 64);
    let e4m3_cache = Some(crate::decode::E4m3Cache::default());
    let options = DecodeOptions { e4m3_cache, max_pages: Some(20), ..DecodeOptions::default() };
    let of = |dtype, device: &Device| {
        let tensors = Tensors { q, k: pages, v: pages, o: q };
        let problem = DecodeProblem::varlen(tensors, dtype, options.clone(), &[0, 1, 200, 200, 300]).unwrap();
        let plan =
            Plan::new(&problem, device, &DecodeRequest::default()).map_err(|error| error.to_string())?;
        Ok::<_, String>(plan.launches().iter().map(|launch| launch.entry.algorithm).collect::<Vec<_>>())
    };
    let sim = Sim::new(0).device().clone();
    assert_eq!(of(DType::F16, &sim).unwrap(), [Algorithm::Widen, Algorithm::ForwardSm90Cached]);
    let ampere = Device { compute_capability: 80, ..sim.clone() };
    let needs =
        "kernel forward_sm90 needs sm_90a; simulated GPU is sm_80; no other kernel takes packed queries";
    assert_eq!(of(DType::F16, &ampere).unwrap_err(), format!("kernel forward_sm90 cannot be run: {needs}"));
    let missing = "it has no f32 entry; no other kernel takes packed queries";
    assert_eq!(of(DType::F32, &sim).unwrap_err(), format!("kernel forward_sm90 cannot be run: {missing}"));
}

/// 64 sequences of latents in pages of 64, of so many heads.
fn latents(heads: usize, seqlen_q: usize, attention: Options) -> DecodeProblem {
    let q = TensorLayout::bshd(64, seqlen_q, heads, 576);
    let k = TensorLayout::bshd(8192, 64, 1, 576);
    let v = TensorLayout { head_dim: 512, ..k };
    let o = TensorLayout::bshd(64, seqlen_q, heads, 512);
    let options = DecodeOptions { attention, max_pages: Some(128), latent: true, ..DecodeOptions::default() };
    DecodeProblem::new(Tensors { q, k, v, o }, DType::Bf16, options).unwrap()
}

#[test]
fn latents_have_a_kernel_of_their_own() {
    let sim = Sim::new(0).device().clone();
    let any = DecodeRequest::default();
    // 128 tiles fill the multiprocessors, 64 are split in two.
    for (heads, splits) in [(128, 1), (16, 2)] {
        let problem = latents(heads, 1, Options::default());
        let plan = Plan::new(&problem, &sim, &any).unwrap();
        let algorithms: Vec<_> = plan.launches().iter().map(|launch| launch.entry.algorithm).collect();
        let merging = &[Algorithm::MlaSm90, Algorithm::DecodeCombineSm90][..splits];
        assert_eq!((&algorithms[..], plan.num_splits()), (merging, splits));
        assert!(plan.unaligned().is_empty());
    }
    let refused = |problem: &DecodeProblem, device: &Device, request: &DecodeRequest| {
        Plan::new(problem, device, request).unwrap_err().to_string()
    };
    let plain = latents(128, 1, Options::default());
    let ampere = Device { compute_capability: 80, ..sim.clone() };
    assert_eq!(
        refused(&plain, &ampere, &any),
        "kernel decode cannot be run: it takes no cache of latents; not mla_sm90: kernel mla_sm90 needs sm_90a; simulated GPU \
         is sm_80"
    );
    let bent = latents(128, 1, Options { softcap: 30.0, ..Options::default() });
    assert_eq!(
        refused(&bent, &sim, &any),
        "kernel decode cannot be run: it takes no cache of latents; not mla_sm90: it takes no softcap, ALiBi, or softmax_scale \
         that is not positive"
    );
    let other = DecodeRequest { kernel: Some(DecodeKernel::DecodeSm90), ..any };
    assert_eq!(
        refused(&plain, &sim, &other),
        "kernel decode_sm90 cannot be run: it takes no cache of latents; mla_sm90 does"
    );
}
