//! The GPU kernels in the simulator, beyond "the result is right": what they touch, how often, and how far.
#![allow(clippy::unwrap_used)]

use flash_attention::accuracy::Expected;
use flash_attention::forward::Outputs;
use flash_attention::sim::Sim;
use flash_attention::{
    Backend, BackendKind, DType, Kernel, Options, Plan, Problem, Request, TensorLayout, Tensors, accuracy,
    reference,
};
use half::f16;
use half::vec::HalfBitsVecExt as _;

/// Small distinct values, so that a wrong index shows.
fn values(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0).collect()
}

fn halves(len: usize, seed: usize) -> Vec<f16> {
    values(len, seed).into_iter().map(f16::from_f32).collect()
}

const KERNELS: [Kernel; 4] =
    [Kernel::ForwardSm90, Kernel::ForwardSm80, Kernel::ForwardSimt, Kernel::Standard];

fn problem(q: TensorLayout, kv: TensorLayout, causal: bool) -> Problem {
    let tensors = Tensors { q, k: kv, v: kv, o: q };
    Problem::new(tensors, DType::F32, Options { causal, ..Options::default() }).unwrap()
}

#[test]
fn every_barrier_of_the_source_is_reached() {
    let sim = Sim::new(1);
    for kernel in KERNELS {
        // Rows at multiples of 16 bytes, at one distance from them, and anywhere: forward_sm80 has a loop for
        // each, and each has its own barrier.
        for (heads, head_dim) in [(2, 40), (8, 41), (2, 41)] {
            let loops = if kernel == Kernel::ForwardSm80 { 3 } else { 1 };
            let layout = TensorLayout::bshd(1, 70, heads, head_dim);
            let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
            let problem = Problem::new(tensors, DType::F16, Options::default()).unwrap();
            let inputs = [1, 2, 3].map(|seed| halves(layout.span(), seed));
            // Of forward_sm90 a tile whose warpgroups take no turns: they would in three loops, by one line
            // of the source.
            let block_m = (kernel == Kernel::ForwardSm90).then_some(192);
            let request = Request { kernel: Some(kernel), block_m, ..Request::default() };
            let plan = Plan::new(&problem, sim.device(), &request).unwrap();
            let mut o = vec![f16::ZERO; layout.span()];
            let traffic = sim
                .run(&plan, (&inputs[0], &inputs[1], &inputs[2]), Outputs { o: &mut o, lse: None })
                .unwrap();
            let declared: Vec<_> =
                plan.launches().iter().map(|launch| launch.entry.barriers as usize / loops).collect();
            assert_eq!(traffic.barrier_sites, declared, "{kernel}, head_dim {head_dim}");
        }
    }
}

#[test]
fn flash_attention_reads_keys_once_per_query_tile_and_writes_the_output_once() {
    let sim = Sim::new(2);
    let (seqlen, heads, head_dim) = (100, 3, 48);
    let layout = TensorLayout::bhsd(2, seqlen, heads, head_dim);
    let problem = problem(layout, layout, false);
    let request = Request { block_m: Some(32), ..Request::default() };
    let plan = Plan::new(&problem, sim.device(), &request).unwrap();
    let inputs = [1, 2, 3].map(|seed| values(layout.span(), seed));
    let (mut o, mut lse) = (vec![0.0; layout.span()], vec![0.0; problem.lse_len()]);
    let run =
        sim.run(&plan, (&inputs[0], &inputs[1], &inputs[2]), Outputs { o: &mut o, lse: Some(&mut lse) });
    let traffic = run.unwrap();
    let tensor = 4 * layout.elements() as u64;
    let query_tiles = seqlen.div_ceil(32) as u64;
    assert_eq!(traffic.bytes_read, tensor + query_tiles * 2 * tensor);
    assert_eq!(traffic.bytes_written, tensor + 4 * lse.len() as u64);
}

#[test]
fn a_causal_mask_halves_the_keys_read() {
    let sim = Sim::new(3);
    let layout = TensorLayout::bshd(1, 256, 1, 32);
    let inputs = [1, 2, 3].map(|seed| values(layout.span(), seed));
    let keys_read = |causal| {
        let problem = problem(layout, layout, causal);
        let request = Request { block_m: Some(64), block_n: Some(64), ..Request::default() };
        let plan = Plan::new(&problem, sim.device(), &request).unwrap();
        let mut o = vec![0.0; layout.span()];
        let run =
            sim.run(&plan, (&inputs[0], &inputs[1], &inputs[2]), Outputs { o: &mut o, lse: None }).unwrap();
        run.bytes_read - 4 * layout.elements() as u64
    };
    // Four query tiles see 1, 2, 3 and 4 of the four key tiles.
    assert_eq!(keys_read(true) * 16, keys_read(false) * 10);
}

#[test]
fn a_window_reads_no_block_outside_of_it() {
    let sim = Sim::new(4);
    let layout = TensorLayout::bshd(1, 256, 1, 32);
    let inputs = [1, 2, 3].map(|seed| values(layout.span(), seed));
    let keys_read = |window| {
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let options = Options { window, ..Options::default() };
        let problem = Problem::new(tensors, DType::F32, options).unwrap();
        let request = Request { block_m: Some(64), block_n: Some(32), ..Request::default() };
        let plan = Plan::new(&problem, sim.device(), &request).unwrap();
        let mut o = vec![0.0; layout.span()];
        let run =
            sim.run(&plan, (&inputs[0], &inputs[1], &inputs[2]), Outputs { o: &mut o, lse: None }).unwrap();
        (run.bytes_read as usize - 4 * layout.elements()) / (2 * 4 * 32)
    };
    // Four tiles of 64 rows. Blocks of 32 keys begin at a tile's first key.
    assert_eq!(keys_read((Some(0), Some(0))), 4 * 64);
    assert_eq!(keys_read((Some(32), Some(0))), 64 + 3 * 96);
    assert_eq!(keys_read((Some(0), Some(32))), 3 * 96 + 64);
    assert_eq!(keys_read((Some(64), None)), 256 + 256 + 192 + 128);
}

/// The second tile of queries sees its first key at an odd row, where rows of an odd head_dim start
/// differently.
#[test]
fn a_window_may_begin_at_any_row() {
    let layout = TensorLayout::bhsd(1, 200, 1, 33);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let [q, k, v] = [1, 2, 3].map(|seed| halves(layout.span(), seed));
    for left in [27, 28] {
        let options = Options { window: (Some(left), Some(0)), ..Options::default() };
        let problem = Problem::new(tensors, DType::F16, options).unwrap();
        let expected = Expected::new(&problem, (&q, &k, &v), reference::all(&problem));
        for kernel in KERNELS {
            let sim = Sim::new(5);
            let request = Request { kernel: Some(kernel), ..Request::default() };
            let plan = Plan::new(&problem, sim.device(), &request).unwrap();
            let mut o = vec![f16::NAN; layout.span()];
            sim.run(&plan, (&q, &k, &v), Outputs { o: &mut o, lse: None }).unwrap();
            let report = expected.judge(&problem, &o, None, DType::F16.roundoff());
            assert!(report.passed(), "{kernel}, window of {left}: {report:?}");
        }
    }
}

#[test]
fn nothing_beyond_a_sequence_leaks_even_if_it_is_nan() {
    let rows = 37;
    // Rows and heads lie apart, and what lies between them is NaN.
    let layout = TensorLayout::strided([2, rows, 2, 30], [64 * 128, 128, 40, 1]);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let options = Options { causal: true, ..Options::default() };
    let problem = Problem::new(tensors, DType::F16, options).unwrap();
    let mut inputs = [1, 2, 3].map(|seed| halves(layout.span(), seed));
    let mut inside = vec![false; layout.span()];
    for (batch, seq, head) in (0..2).flat_map(|b| (0..rows).flat_map(move |s| (0..2).map(move |h| (b, s, h))))
    {
        inside[layout.row(batch, seq, head)..][..30].fill(true);
    }
    for tensor in &mut inputs {
        tensor.iter_mut().zip(&inside).filter(|(_, inside)| !**inside).for_each(|(x, _)| *x = f16::NAN);
    }
    let (q, k, v) = (&inputs[0], &inputs[1], &inputs[2]);
    for kernel in KERNELS {
        let backend = Backend::open(Some(BackendKind::Sim)).unwrap();
        let plan = backend.plan(&problem, &Request { kernel: Some(kernel), ..Request::default() }).unwrap();
        let mut o = vec![f16::from_f32(-7.0); layout.span()];
        backend.run(&plan, (q, k, v), Outputs { o: &mut o, lse: None }).unwrap();
        for (i, &value) in o.iter().enumerate() {
            assert!(
                if inside[i] { value.is_finite() } else { value.to_f32() == -7.0 },
                "{kernel}: o[{i}] = {value}"
            );
        }
    }
}

/// Rows of [B, S, H, D] with an odd head_dim and eight heads start at one distance from a multiple of 16
/// bytes in each head, and are copied with their neighbours' elements before them.
#[test]
fn a_head_of_nan_does_not_leak_into_its_neighbours() {
    let (rows, heads, head_dim) = (37, 8, 33);
    let layout = TensorLayout::bshd(1, rows, heads, head_dim);
    let problem = Problem::new(
        Tensors { q: layout, k: layout, v: layout, o: layout },
        DType::F16,
        Options { causal: true, ..Options::default() },
    )
    .unwrap();
    let clean = [1, 2, 3].map(|seed| halves(layout.span(), seed));
    let mut tainted = clean.clone();
    for tensor in &mut tainted {
        for (row, head) in (0..rows).flat_map(|row| [1, 4].map(|head| (row, head))) {
            tensor[layout.row(0, row, head)..][..head_dim].fill(f16::NAN);
        }
    }
    for kernel in KERNELS {
        let sim = Sim::new(3);
        let request = Request { kernel: Some(kernel), ..Request::default() };
        let plan = Plan::new(&problem, sim.device(), &request).unwrap();
        let [o, beside_nan] = [&clean, &tainted].map(|[q, k, v]| {
            let mut o = vec![f16::ZERO; layout.span()];
            sim.run(&plan, (q, k, v), Outputs { o: &mut o, lse: None }).unwrap();
            o
        });
        for (row, head) in (0..rows).flat_map(|row| [0, 2, 3, 5, 6, 7].map(|head| (row, head))) {
            let at = layout.row(0, row, head);
            assert_eq!(o[at..][..head_dim], beside_nan[at..][..head_dim], "{kernel}, row {row}, head {head}");
        }
    }
}

/// Row strides that put the last rows beyond 2^31 elements, and 4 GiB, from the first.
#[test]
fn tensors_of_more_than_two_to_the_31_elements() {
    let (rows, head_dim) = (34, 16);
    let stride = (1_usize << 31) / (rows - 2);
    let far = TensorLayout::strided([1, rows, 1, head_dim], [0, stride, 0, 1]);
    assert!(far.span() > 1 << 31);
    let near = TensorLayout::bshd(1, rows, 1, head_dim);
    // Zeroed pages cost no memory until they are touched, and only the rows are.
    let zeros = |count| -> Vec<f16> { bytemuck::zeroed_vec::<u16>(count).reinterpret_into() };
    let mut tensor = zeros(far.span());
    let small: Vec<_> = values(near.span(), 5).into_iter().map(f16::from_f32).collect();
    for row in 0..rows {
        tensor[far.row(0, row, 0)..][..head_dim].copy_from_slice(&small[near.row(0, row, 0)..][..head_dim]);
    }
    for kernel in KERNELS {
        let run = |layout: TensorLayout, values: &[f16]| {
            let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
            let problem = Problem::new(tensors, DType::F16, Options::default()).unwrap();
            let backend = Backend::open(Some(BackendKind::Sim)).unwrap();
            let plan =
                backend.plan(&problem, &Request { kernel: Some(kernel), ..Request::default() }).unwrap();
            let mut o = zeros(layout.span());
            backend.run(&plan, (values, values, values), Outputs { o: &mut o, lse: None }).unwrap();
            (0..rows).flat_map(|row| o[layout.row(0, row, 0)..][..head_dim].to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(run(far, &tensor), run(near, &small), "{kernel}");
    }
}

/// Scores that grow by more from block to block than the maximum may lag behind: all that was summed has to
/// be rescaled.
#[test]
fn what_was_summed_is_rescaled_where_the_maximum_grows() {
    let (keys, head_dim) = (300, 64);
    let (q, kv) = (TensorLayout::bshd(1, 70, 1, head_dim), TensorLayout::bshd(1, keys, 1, head_dim));
    let tensors = Tensors { q, k: kv, v: kv, o: q };
    let options = Options { softmax_scale: Some(1.0), ..Options::default() };
    let problem = Problem::new(tensors, DType::F16, options).unwrap();
    let queries = vec![f16::from_f32(0.5); q.span()];
    // The score of key j is j / 8: from one block of 64 keys to the next the weights grow by e^8.
    let ramp: Vec<_> = (0..kv.span()).map(|at| f16::from_f32((at / head_dim) as f32 / 256.0)).collect();
    let v = halves(kv.span(), 3);
    let expected = Expected::new(&problem, (&queries, &ramp, &v), reference::all(&problem));
    for kernel in KERNELS {
        let backend = Backend::simulator(5);
        let plan = backend.plan(&problem, &Request { kernel: Some(kernel), ..Request::default() }).unwrap();
        let (mut o, mut lse) = (vec![f16::ZERO; q.span()], vec![0.0; problem.lse_len()]);
        backend.run(&plan, (&queries, &ramp, &v), Outputs { o: &mut o, lse: Some(&mut lse) }).unwrap();
        let scores = plan.score_roundoff();
        let report = expected.judge(&problem, &o, Some(&lse), scores);
        assert!(report.passed(), "{kernel}: {report}");
    }
}

/// A rescaling factor that should be 1 and is off by a rounding shows only after many blocks.
#[test]
fn errors_do_not_grow_with_the_number_of_blocks() {
    let (q, kv) = (TensorLayout::bshd(1, 64, 1, 8), TensorLayout::bshd(1, 8192, 1, 8));
    let problem = problem(q, kv, false);
    let (qs, ks, vs) = (values(q.span(), 1), values(kv.span(), 2), values(kv.span(), 3));
    let backend = Backend::open(Some(BackendKind::Sim)).unwrap();
    let request = Request { block_n: Some(32), ..Request::default() };
    let plan = backend.plan(&problem, &request).unwrap();
    let (mut o, mut lse) = (vec![f32::NAN; q.span()], vec![f32::NAN; problem.lse_len()]);
    backend.run(&plan, (&qs, &ks, &vs), Outputs { o: &mut o, lse: Some(&mut lse) }).unwrap();
    let rows = reference::all(&problem);
    let report = accuracy::check(&problem, (&qs, &ks, &vs), &o, Some(&lse), DType::F32.roundoff(), &rows);
    assert!(report.passed(), "{report}");
}

#[test]
fn grouped_query_heads_read_their_own_key_head() {
    let (q, kv) = (TensorLayout::bshd(1, 20, 6, 24), TensorLayout::bshd(1, 33, 2, 24));
    let problem = problem(q, kv, false);
    let (qs, ks, vs) = (values(q.span(), 1), values(kv.span(), 2), values(kv.span(), 3));
    let exact = reference::forward(&problem, &qs, &ks, &vs);
    let backend = Backend::open(Some(BackendKind::Sim)).unwrap();
    let plan = backend.plan(&problem, &Request::default()).unwrap();
    let mut o = vec![f32::NAN; q.span()];
    backend.run(&plan, (&qs, &ks, &vs), Outputs { o: &mut o, lse: None }).unwrap();
    let error = o.iter().zip(&exact.o).map(|(&a, b)| (f64::from(a) - b).abs()).fold(0.0, f64::max);
    // 1e-6 is far below what reading another head would give, and far above fp32 rounding here.
    assert!(error < 1e-6, "{error}");
}
