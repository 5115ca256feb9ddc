//! Which kernel and tile a forward pass gets.

use fa_kernels::entries::entries;

use super::candidates::MAX_GRID;
use super::*;
use crate::backward::{BackwardProblem, BackwardRequest};
use crate::forward::{Addresses, Dropout};
use crate::sim::Sim;
use crate::{Options, Plan, TensorLayout, Tensors};

fn problem(dtype: DType, head_dim: usize) -> Problem {
    let layout = TensorLayout::bshd(1, 100, 2, head_dim);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    Problem::new(tensors, dtype, Options::default()).unwrap()
}

/// A GPU with so much shared memory per block.
fn device(shared_per_block: usize) -> Device {
    Device { backend: BackendKind::Cuda, shared_per_block, ..Sim::new(0).device().clone() }
}

fn tile(head_dim: usize, shared_per_block: usize) -> (usize, usize, u32) {
    let plan = plan(&problem(DType::F32, head_dim), &device(shared_per_block), &Request::default()).unwrap();
    let (block_m, block_n) = plan.tile.unwrap();
    (block_m, block_n, plan.launches[0].entry.tile.head_dim)
}

#[test]
fn the_smallest_head_dim_and_the_fastest_tile_that_fit_are_chosen() {
    assert_eq!(tile(128, 227 << 10), (64, 64, 128));
    assert_eq!(tile(129, 227 << 10), (64, 64, 160));
    assert_eq!(tile(1, 227 << 10), (64, 64, 32));
}

#[test]
fn every_head_dim_has_a_tile_on_the_smallest_device() {
    for head_dim in 1..=crate::forward::MAX_HEAD_DIM {
        let plan = plan(&problem(DType::F32, head_dim), &device(64 << 10), &Request::default()).unwrap();
        assert!(plan.launches[0].entry.shared_bytes <= 64 << 10);
    }
}

#[test]
fn more_tiles_than_a_grid_has_blocks_are_refused() {
    for options in [Options::default(), Options { causal: true, ..Options::default() }] {
        let layout = TensorLayout::bshd(1 << 16, 1, 1 << 16, 8);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let problem = Problem::new(tensors, DType::F16, options).unwrap();
        let request = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
        let error = plan(&problem, &device(227 << 10), &request).unwrap_err();
        let is_grid = matches!(error, Error::GridTooLarge { blocks: 0x1_0000_0000, limit: MAX_GRID });
        assert!(is_grid, "{error}");
    }
}

/// Going through 2^41 heads, one by one, would take hours, and a list of them 8 TiB.
#[test]
fn more_heads_than_a_grid_has_blocks_are_refused_before_any_is_looked_at() {
    let heads = 1 << 40;
    let layout = TensorLayout::bshd(1, 2, heads, 8);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let offsets = [0, 1, 2];
    let options = |causal| Options { causal, ..Options::default() };
    let packed = |causal| Problem::varlen(tensors, DType::F16, options(causal), &offsets, &offsets).unwrap();
    let dense = TensorLayout::bhsd(2, 1, heads, 9);
    let dense = Tensors { q: dense, k: dense, v: dense, o: dense };
    let dense = Problem::new(dense, DType::F16, Options::default()).unwrap();
    for problem in [packed(false), packed(true), dense] {
        let kernels = Kernel::of_backend(BackendKind::Cuda).iter().copied().map(Some);
        for kernel in kernels.chain([None]) {
            let request = Request { kernel, ..Request::default() };
            let error = plan(&problem, &device(227 << 10), &request).unwrap_err().to_string();
            assert_eq!(error, "the launch needs 2199023255552 blocks; the limit is 2147483647");
        }
        let backward = BackwardProblem::like(problem).unwrap();
        let error = Plan::new(&backward, &device(227 << 10), &BackwardRequest::default()).unwrap_err();
        assert_eq!(error.to_string(), "the launch needs 2199023255552 blocks; the limit is 2147483647");
    }
}

#[test]
fn a_packed_batch_of_so_many_tiles_that_orders_do_not_matter_is_not_dealt_out() {
    let layout = TensorLayout::bshd(1, 3, 1 << 29, 8);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let offsets = [0, 1, 2, 3];
    let problem = Problem::varlen(tensors, DType::F16, Options::default(), &offsets, &offsets).unwrap();
    let request = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
    let planned = plan(&problem, &Device { multiprocessors: 132, ..device(227 << 10) }, &request).unwrap();
    assert_eq!(planned.launches[0].grid, 132);
    assert!(planned.reasons.iter().any(|reason| reason.contains("for 1610612736 tiles")), "{planned:?}");
}

#[test]
fn plans_for_any_batch_have_one_tile_and_no_short_ones() {
    let hopper = Device { compute_capability: 90, multiprocessors: 132, ..device(227 << 10) };
    let (mut short_tiles, mut entries) = (0, Vec::new());
    let shapes = (1..40).flat_map(|batch| [64, 300, 1100, 4096].map(|seqlen| (batch, seqlen)));
    for (batch, seqlen) in shapes {
        let layout = TensorLayout::bshd(batch, seqlen, 16, 128);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let problem = Problem::new(tensors, DType::F16, Options::default()).unwrap();
        let planned = |batch_invariant| {
            plan(&problem, &hopper, &Request { batch_invariant, ..Request::default() }).unwrap()
        };
        short_tiles += planned(false).launches[0].details.order.short_tiles;
        let alike = planned(true);
        assert_eq!(alike.launches[0].details.order.short_tiles, 0);
        entries.push(alike.launches[0].entry.name);
    }
    entries.dedup();
    assert!(short_tiles > 0 && entries.len() == 1, "{short_tiles} {entries:?}");
}

#[test]
fn few_queries_on_many_keys_are_decoded() {
    let hopper = Device { compute_capability: 90, multiprocessors: 132, ..device(227 << 10) };
    let of = |[batch, heads, sq, sk]: [usize; 4], options: Options, request: Request| {
        let (q, k) = (TensorLayout::bshd(batch, sq, heads, 128), TensorLayout::bshd(batch, sk, 2, 128));
        let problem = Problem::new(Tensors { q, k, v: k, o: q }, DType::F16, options).unwrap();
        plan(&problem, &hopper, &request)
    };
    let chosen = |shape| of(shape, Options::default(), Request::default()).unwrap();
    let few = chosen([1, 8, 16, 131_072]);
    assert_eq!((few.kernel, few.launches.len()), (Kernel::Decode, 2));
    let splits = few.launches[0].details.splits.num_splits as u64;
    let unaligned = few.unaligned[0].details.splits.num_splits as u64;
    assert_eq!(few.workspace_bytes, 4 * splits.max(unaligned) * 8 * 16 * 129);
    assert!(few.reasons[0].contains("8 heads are 8 tiles for 132 multiprocessors"), "{few:?}");
    let more = chosen([1, 8, 500, 131_072]);
    let entry = more.launches[0].entry;
    assert_eq!((more.kernel, entry.algorithm), (Kernel::Decode, Algorithm::ForwardSm90Cached));
    // Tiles of queries enough, few keys, heads enough, and what fixes the tile.
    for shape in [[1, 8, 1100, 131_072], [1, 8, 1, 2047], [34, 2, 1, 131_072]] {
        assert_eq!(chosen(shape).kernel, Kernel::ForwardSm90, "{shape:?}");
    }
    let drops =
        Options { dropout: Some(Dropout { probability: 0.5, seed: 1, offset: 0 }), ..Options::default() };
    assert_eq!(of([1, 8, 1, 4096], drops, Request::default()).unwrap().kernel, Kernel::ForwardSm90);
    let fixed = [
        Request { block_m: Some(128), ..Request::default() },
        Request { batch_invariant: true, ..Request::default() },
    ];
    for request in fixed {
        assert_eq!(of([1, 8, 1, 4096], Options::default(), request).unwrap().kernel, Kernel::ForwardSm90);
    }
    let decode = Request { kernel: Some(Kernel::Decode), ..Request::default() };
    let refused = |shape, request| of(shape, Options::default(), request).unwrap_err().to_string();
    let tile = Request { block_n: Some(64), ..decode };
    assert!(
        refused([1, 8, 1, 64], tile).ends_with("its tile follows from the rows that share a key/value head")
    );
    assert_eq!(of([1, 8, 17, 64], Options::default(), decode).unwrap().kernel, Kernel::Decode);
    let alike = Request { batch_invariant: true, ..decode };
    let splits =
        |batch| of([batch, 8, 16, 4096], Options::default(), alike).unwrap().launches[0].details.splits;
    assert_eq!([1, 64].map(|batch| splits(batch).num_splits), [8, 8]);
}

#[test]
fn tensor_cores_are_chosen_where_type_and_device_have_them() {
    let chosen = |dtype, compute_capability| {
        let device = Device { compute_capability, ..device(227 << 10) };
        let plan = plan(&problem(dtype, 100), &device, &Request::default()).unwrap();
        (plan.kernel, plan.reasons[0].clone())
    };
    for dtype in [DType::F16, DType::Bf16] {
        assert_eq!(chosen(dtype, 80).0, Kernel::ForwardSm80);
        let (kernel, reason) = chosen(dtype, 75);
        assert_eq!(kernel, Kernel::ForwardSimt);
        assert!(reason.ends_with("because simulated GPU is sm_75, and mma.sync needs sm_80"), "{reason}");
    }
    assert_eq!(chosen(DType::F32, 90).0, Kernel::ForwardSimt);
}

#[test]
fn hopper_has_a_kernel_of_its_own_for_what_tensor_maps_describe() {
    let planned = |head_dim, compute_capability| {
        let device = Device { compute_capability, multiprocessors: 2, ..device(227 << 10) };
        plan(&problem(DType::F16, head_dim), &device, &Request::default()).unwrap()
    };
    for head_dim in (8..=crate::forward::MAX_HEAD_DIM).step_by(8) {
        let plan = planned(head_dim, 90);
        assert_eq!(plan.kernel, Kernel::ForwardSm90);
        // Two heads of 100 rows; addresses turn out at the launch.
        assert_eq!(plan.launches[0].grid, 2);
        assert_eq!(plan.unaligned[0].entry.algorithm, Algorithm::ForwardSm80);
    }
    assert_eq!(planned(128, 100).kernel, Kernel::ForwardSm80);
    let layout = TensorLayout::bshd(1, 100, 2, 64);
    let o = TensorLayout::strided([1, 100, 2, 64], [100 * 131, 131, 65, 1]);
    let tensors = Tensors { q: layout, k: layout, v: layout, o };
    let scattered = Problem::new(tensors, DType::F16, Options::default()).unwrap();
    let plan_of_o = plan(&scattered, &device(227 << 10), &Request::default()).unwrap();
    assert_eq!(plan_of_o.kernel, Kernel::ForwardSm90);
    assert!(
        plan_of_o
            .reasons
            .iter()
            .any(|reason| reason.starts_with("O is stored row by row: o's seqlen stride is 131"))
    );
}

/// A problem whose tensors are [B, H, S, D], with so many rows of Q and of K.
fn of_heads(sq: usize, sk: usize, head_dim: usize, options: Options) -> Problem {
    let layout = |rows| TensorLayout::bhsd(16, rows, 16, head_dim);
    let tensors = Tensors { q: layout(sq), k: layout(sk), v: layout(sk), o: layout(sq) };
    Problem::new(tensors, DType::F16, options).unwrap()
}

#[test]
fn hopper_reads_copies_of_what_no_tensor_map_describes_where_they_pay() {
    let h200 = Device { multiprocessors: 132, ..device(227 << 10) };
    let planned = |problem: &Problem| plan(problem, &h200, &Request::default()).unwrap();
    let trap = of_heads(2048, 2048, 129, Options { causal: true, ..Options::default() });
    let plan_of_trap = planned(&trap);
    let algorithms: Vec<_> = plan_of_trap.launches.iter().map(|launch| launch.entry.algorithm).collect();
    assert_eq!(algorithms, [Algorithm::Pack, Algorithm::Pack, Algorithm::ForwardSm90]);
    assert_eq!(
        plan_of_trap.launches.iter().map(|launch| launch.beside).collect::<Vec<_>>(),
        [false, false, true]
    );
    // 144 columns of 2 bytes for each row of Q, K and V; counters of tiles and of each head.
    let rows = 3 * 16 * 16 * 2048;
    assert_eq!(plan_of_trap.workspace_bytes, rows * 288 + 4 * (1 + 16 * 16));
    assert_eq!(plan_of_trap.launches[0].grid, 132);
    assert!((33..=66).contains(&plan_of_trap.launches[1].grid), "{}", plan_of_trap.launches[1].grid);
    let name = Plan::new(&trap, &h200, &Request::default()).unwrap().workspace();
    assert_eq!(name, "the copies of Q, K and V");
    let reason = plan_of_trap.reasons.iter().find(|reason| reason.contains("copied")).unwrap();
    assert!(reason.starts_with("before it, q, k, v copied to rows of whole 32-byte sectors"), "{reason}");
    assert!(reason.contains("q's seqlen stride is 129"), "{reason}");
    assert!(reason.contains("452984832 bytes of workspace"), "{reason}");

    // Few queries would wait for copies of many keys; one row of keys, and a mask that hides most of them,
    // likewise.
    let window = Options { window: (Some(16), Some(0)), ..Options::default() };
    for short in [
        of_heads(1, 8192, 129, Options::default()),
        of_heads(2048, 1, 129, Options::default()),
        of_heads(2048, 2048, 129, window),
    ] {
        let plan = planned(&short);
        assert_eq!((plan.kernel, plan.workspace_bytes), (Kernel::ForwardSm80, 0));
        assert!(
            plan.reasons[0].contains("copying rows for tensor maps would take about"),
            "{:?}",
            plan.reasons
        );
        let asked = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
        assert!(super::plan(&short, &h200, &asked).unwrap().launches.len() >= 2);
    }

    let full = Device { memory: 4 * 2 * 16 * 16 * 2048 * 129 + rows * 288 - 1, ..h200.clone() };
    let plan_of_full = plan(&trap, &full, &Request::default()).unwrap();
    assert_eq!(plan_of_full.kernel, Kernel::ForwardSm80);
    assert!(plan_of_full.reasons[0].contains("do not fit beside the tensors'"), "{:?}", plan_of_full.reasons);
}

#[test]
fn hopper_reads_rows_by_classes_where_that_is_quicker_than_copies() {
    let h200 = Device { multiprocessors: 132, ..device(227 << 10) };
    let planned = |sq: usize, sk: usize, head_dim: usize, request: Request| {
        plan(&of_heads(sq, sk, head_dim, Options::default()), &h200, &request).unwrap()
    };
    let any = Request::default();
    for head_dim in [116, 132] {
        let plan = planned(2048, 2048, head_dim, any);
        let launch = &plan.launches[0];
        assert_eq!((plan.launches.len(), plan.workspace_bytes), (1, 0), "{head_dim}");
        assert_eq!(launch.entry.algorithm, Algorithm::ForwardSm90Residues, "{head_dim}");
        assert!(launch.entry.tile.head_dim as usize >= head_dim + 4, "{head_dim}");
        assert!(plan.reasons.iter().any(|reason| reason.contains("classes by where their rows start")));
        assert_eq!(plan.unaligned[0].entry.algorithm, Algorithm::ForwardSm80);
    }
    let reasons = planned(2048, 2048, 132, any).reasons;
    assert!(
        reasons.iter().any(|reason| reason.ends_with("where rows start up to 4 elements behind a multiple of 16 bytes")),
        "{reasons:?}"
    );
    // What crossings take counts for less there, but so do copies, and each step by classes is slower.
    let copied = planned(8192, 8192, 129, any);
    assert_eq!(copied.launches[0].entry.algorithm, Algorithm::Pack);
    // A block of keys for each class of eight is eight blocks for one.
    assert_eq!(planned(64, 64, 129, any).kernel, Kernel::ForwardSm80);
    // A tile that classes have none of.
    let tile = Request { block_m: Some(192), block_n: Some(80), ..any };
    let algorithms: Vec<_> =
        planned(4096, 4096, 121, tile).launches.iter().map(|launch| launch.entry.algorithm).collect();
    assert_eq!(algorithms, [Algorithm::Pack, Algorithm::Pack, Algorithm::ForwardSm90]);
    let entry = entries().find(|entry| entry.name == "forward_sm90_f16_m192_n64_d128_residues").unwrap();
    let refused = |problem: &Problem| plan_entry(problem, &h200, entry).unwrap_err().to_string();
    assert_eq!(
        refused(&of_heads(64, 60, 121, Options::default())),
        "entry forward_sm90_f16_m192_n64_d128_residues cannot be run: it takes keys by where their rows start: \
         k's 60 rows are no multiple of their 8 classes"
    );
    assert_eq!(
        refused(&of_heads(64, 64, 123, Options::default())),
        "entry forward_sm90_f16_m192_n64_d128_residues cannot be run: its HEAD_DIM is 128, the problem's rows reach \
         to column 130"
    );
}

#[test]
fn narrower_values_are_multiplied_at_their_own_width() {
    let h200 = Device { multiprocessors: 132, ..device(227 << 10) };
    let of = |[head_dim, head_dim_v]: [usize; 2], options: Options| {
        let layout = |head_dim| TensorLayout::bshd(1, 8192, 16, head_dim);
        let (q, v) = (layout(head_dim), layout(head_dim_v));
        Problem::new(Tensors { q, k: q, v, o: v }, DType::Bf16, options).unwrap()
    };
    let causal = Options { causal: true, ..Options::default() };
    let any = Request::default();
    for options in [Options::default(), causal.clone()] {
        let columns = |head_dims, request| {
            let tile = plan(&of(head_dims, options.clone()), &h200, &request).unwrap().launches[0].entry.tile;
            (tile.head_dim, tile.head_dim_v)
        };
        assert_eq!([[192, 128], [192, 64], [176, 96]].map(|of| columns(of, any)), [(192, 128); 3]);
        assert_eq!([[192, 192], [192, 136], [128, 192]].map(|of| columns(of, any)), [(192, 192); 3]);
        // As many products in tiles of one width, or fewer.
        assert_eq!([[136, 128], [144, 64]].map(|of| columns(of, any)), [(144, 144); 2]);
        assert_eq!([[128, 128], [200, 128]].map(|of| columns(of, any)), [(128, 128), (208, 208)]);
        let tile = Request { block_m: Some(128), block_n: Some(64), ..any };
        assert_eq!(columns([192, 128], tile), (192, 192));
    }
    let reasons = plan(&of([184, 120], causal.clone()), &h200, &any).unwrap().reasons;
    let why = "HEAD_DIM 192, and HEAD_DIM_V 128 in place of it for V and O: they hold head_dim 184 and head_dim_v 120";
    assert_eq!(reasons[1], why);
    // Scores that are changed have tiles of one width.
    let softcap = Options { softcap: 20.0, ..causal };
    let changed = plan(&of([192, 128], softcap.clone()), &h200, &any).unwrap();
    assert_eq!(changed.launches[0].entry.tile.head_dim_v, 256);

    let entry = entries().find(|entry| entry.name == "forward_sm90_bf16_m192_n80_d192_v128").unwrap();
    let refused = |problem: &Problem| plan_entry(problem, &h200, entry).unwrap_err().to_string();
    let unfit = |reason: &str| format!("entry {} cannot be run: {reason}", entry.name);
    assert_eq!(
        refused(&of([192, 160], Options::default())),
        unfit("its HEAD_DIM is 192 and HEAD_DIM_V 128, the problem's head_dim 192 and head_dim_v 160")
    );
    assert_eq!(
        refused(&of([192, 128], softcap)),
        unfit("it leaves scores and weights as they are, the problem does not")
    );
    // Its last head starts 7 elements behind a multiple of 16 bytes.
    assert_eq!(
        refused(&of([184, 127], Options::default())),
        unfit(
            "its HEAD_DIM is 192 and HEAD_DIM_V 128, the problem's rows reach to column 184 and those of v to 134"
        )
    );
    assert!(plan_entry(&of([64, 128], Options::default()), &h200, entry).is_ok());
}

#[test]
fn addresses_matter_where_a_tensor_is_not_copied() {
    let layout = |head_dim| TensorLayout::bhsd(1, 600, 2, head_dim);
    let tensors = Tensors { q: layout(128), k: layout(128), v: layout(129), o: layout(129) };
    let problem = Problem::new(tensors, DType::F16, Options::default()).unwrap();
    let asked = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
    let plan = Plan::new(&problem, &device(227 << 10), &asked).unwrap();
    let launched = |q, k, v, o| {
        let launches = plan.launches_at(&Addresses { q, k, v, o, ..Addresses::default() });
        launches.iter().map(|launch| launch.entry.algorithm).collect::<Vec<_>>()
    };
    let copies = [Algorithm::Pack, Algorithm::ForwardSm90];
    assert_eq!(launched(16, 32, 48, 64), copies);
    assert_eq!(launched(16, 32, 50, 66), copies);
    assert_eq!(launched(18, 32, 48, 64), [Algorithm::ForwardSm80]);
    assert_eq!(launched(16, 34, 48, 64), [Algorithm::ForwardSm80]);
}

#[test]
fn heads_that_start_anywhere_take_a_tile_that_holds_them_behind_their_shift() {
    let planned = |heads: [usize; 2], head_dims: [usize; 2]| {
        let layout = |heads, head_dim| TensorLayout::bshd(2, 100, heads, head_dim);
        let ([h, hk], [d, dv]) = (heads, head_dims);
        let tensors = Tensors { q: layout(h, d), k: layout(hk, d), v: layout(hk, dv), o: layout(h, dv) };
        let problem = Problem::new(tensors, DType::F16, Options::default()).unwrap();
        plan(&problem, &device(227 << 10), &Request::default()).unwrap()
    };
    let columns = |head_dims| {
        let plan = planned([16, 16], head_dims);
        assert_eq!(plan.kernel, Kernel::ForwardSm90);
        plan.launches[0].entry.tile.head_dim
    };
    // The last shift is that of a head: 7 elements of 129, 6 of 130, 4 of 132.
    assert_eq!([[129, 129], [130, 130], [137, 137], [138, 138]].map(columns), [144, 144, 144, 144]);
    assert_eq!([[128, 129], [129, 128], [121, 121], [122, 122]].map(columns), [144, 144, 128, 128]);
    assert_eq!(columns([249, 249]), 256);
    let reasons = planned([16, 16], [129, 129]).reasons;
    assert!(
        reasons[1].ends_with("head_dim 129 where heads start up to 7 elements behind a multiple of 16 bytes")
    );
    // Where the columns of Q and K would not meet, or not fit, copies that have no shift are read.
    let layout = |heads, head_dim| TensorLayout::bshd(2, 100, heads, head_dim);
    for (kv_heads, head_dim, reason) in [
        (16, 251, "reach to column 258 of tiles of 256"),
        (8, 129, "q's head 1 starts 1 elements behind a multiple of 8, its head 0 of k 0"),
    ] {
        let (q, kv) = (layout(16, head_dim), layout(kv_heads, head_dim));
        let problem =
            Problem::new(Tensors { q, k: kv, v: kv, o: q }, DType::F16, Options::default()).unwrap();
        let asked = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
        let plan = plan(&problem, &device(227 << 10), &asked).unwrap();
        assert_eq!(plan.launches.len(), 2);
        assert!(plan.reasons.iter().any(|text| text.contains(reason)), "{:?}", plan.reasons);
    }
}

#[test]
fn changed_scores_have_entries_of_their_own_where_they_would_cost_the_others() {
    let changes = |index: usize| match index % 2 {
        0 => Options { softcap: 20.0, ..Options::default() },
        _ => Options { alibi_slopes: Some(vec![0.5, 0.25]), ..Options::default() },
    };
    for head_dim in 1..=crate::forward::MAX_HEAD_DIM {
        let layout = TensorLayout::bshd(1, 100, 2, head_dim);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let problem = Problem::new(tensors, DType::F16, changes(head_dim)).unwrap();
        let sm80 = Request { kernel: Some(Kernel::ForwardSm80), ..Request::default() };
        let plan = plan(&problem, &device(227 << 10), &sm80).unwrap();
        assert_eq!(plan.launches[0].entry.algorithm, Algorithm::ForwardSm80ScoreMod);
        assert!(plan.reasons[0].ends_with("with the entries that change scores"), "{:?}", plan.reasons);
    }
    let sm80 = Request { kernel: Some(Kernel::ForwardSm80), ..Request::default() };
    let plan = plan(&problem(DType::F16, 64), &device(227 << 10), &sm80).unwrap();
    assert_eq!(plan.launches[0].entry.algorithm, Algorithm::ForwardSm80);
}

#[test]
fn a_kernel_that_the_device_or_type_lacks_is_refused() {
    let request = Request { kernel: Some(Kernel::ForwardSm80), ..Request::default() };
    let old = Device { compute_capability: 75, ..device(64 << 10) };
    let error = plan(&problem(DType::F16, 64), &old, &request).unwrap_err().to_string();
    assert_eq!(error, "kernel forward_sm80 needs sm_80; simulated GPU is sm_75");
    let error = plan(&problem(DType::F32, 64), &device(227 << 10), &request).unwrap_err().to_string();
    assert_eq!(error, "kernel forward_sm80 has no f32 entry; it has f16, bf16");
}

#[test]
fn tiles_that_do_not_fit_or_do_not_exist_say_so() {
    let message = |block_m, block_n| {
        let request = Request { block_m: Some(block_m), block_n: Some(block_n), ..Request::default() };
        plan(&problem(DType::F32, 128), &device(64 << 10), &request).unwrap_err().to_string()
    };
    assert_eq!(
        message(64, 64),
        "BLOCK_M = 64, BLOCK_N = 64 at head_dim 128 needs 84992 bytes of shared memory; \
         simulated GPU has 65536 per block"
    );
    assert_eq!(
        message(512, 512),
        "BLOCK_M = 512, BLOCK_N = 512 at head_dim 128 needs 1597440 bytes of shared memory; \
         simulated GPU has 65536 per block"
    );
    assert_eq!(
        message(32, 16),
        "BLOCK_M = 32, BLOCK_N = 16 is not built for forward_simt at head_dim 128; built: 64x64, 64x32, 32x32"
    );
}

#[test]
fn a_tile_that_the_fastest_kernel_lacks_comes_from_the_next_that_has_it() {
    let planned = |request, shared| plan(&problem(DType::F16, 64), &device(shared), &request);
    let blocks = |block_m, block_n| Request { block_m, block_n, ..Request::default() };
    let chosen = planned(blocks(Some(32), Some(32)), 227 << 10).unwrap();
    assert_eq!((chosen.kernel, chosen.tile), (Kernel::ForwardSimt, Some((32, 32))));
    assert_eq!(
        chosen.reasons[0],
        "forward_simt: forward_sm90, which would be faster, has no such tile for this problem"
    );
    assert_eq!(planned(blocks(Some(128), Some(64)), 227 << 10).unwrap().kernel, Kernel::ForwardSm80);
    // No kernel has it: the answer is that of the fastest.
    let error = planned(blocks(Some(48), None), 227 << 10).unwrap_err().to_string();
    assert!(error.contains("is not built for forward_sm90 at head_dim 64"), "{error}");
    // A kernel asked for is the only one.
    let only = Request { kernel: Some(Kernel::ForwardSm80), ..blocks(Some(32), Some(32)) };
    assert!(matches!(planned(only, 227 << 10), Err(Error::NoSuchTile { .. })));
}

#[test]
fn one_entry_is_planned_if_it_takes_the_problem() {
    let of = |name: &str| entries().find(|entry| entry.name == name).unwrap();
    let planned = |name, dtype, head_dim| plan_entry(&problem(dtype, head_dim), &device(64 << 10), of(name));
    let plan = planned("forward_simt_f32_m32_n32_d128", DType::F32, 100).unwrap();
    assert_eq!((plan.kernel, plan.tile, plan.launches[0].grid), (Kernel::ForwardSimt, Some((32, 32)), 8));
    let message = |name, dtype, head_dim| planned(name, dtype, head_dim).unwrap_err().to_string();
    assert_eq!(
        message("forward_simt_f32_m32_n32_d128", DType::F16, 100),
        "entry forward_simt_f32_m32_n32_d128 cannot be run: it is for f32, the problem is f16"
    );
    assert_eq!(
        message("forward_simt_f32_m32_n32_d64", DType::F32, 65),
        "entry forward_simt_f32_m32_n32_d64 cannot be run: its HEAD_DIM is 64, the problem's head_dim 65"
    );
    assert_eq!(
        message("standard_scores_f32", DType::F32, 64),
        "entry standard_scores_f32 cannot be run: it is one of several launches"
    );
    assert!(message("forward_simt_f32_m64_n64_d128", DType::F32, 128).contains("84992 bytes"));
}

#[test]
fn grids_beyond_a_launch_are_refused() {
    let layout = TensorLayout::strided([1 << 16, 1 << 16, 1, 1], [1 << 16, 1, 1, 1]);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let problem = Problem::new(tensors, DType::F16, Options::default()).unwrap();
    let request = Request { kernel: Some(Kernel::Standard), ..Request::default() };
    let error = plan(&problem, &device(227 << 10), &request).unwrap_err().to_string();
    assert_eq!(error, "the launch needs 68719476736 blocks; the limit is 2147483647");
}
