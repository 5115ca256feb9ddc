//! Functions of scores that a program brings along: simulator and CPU against the reference.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;
// What the demonstration compiles into its kernels.
#[path = "../../../demos/score-functions/src/functions.rs"]
mod functions;

use std::sync::LazyLock;

use common::{Case, Order, sinks_of, untouched_outside};
use fa_kernels::attention::alignment::ByHeads;
use fa_kernels::attention::{forward_sm80, forward_sm90};
use fa_kernels::element::{Bf16, F16};
use fa_kernels::entries::{Entry, Run, variants};
use fa_kernels::functions::{MaskMod, Unchanged, Visible};
use flash_attention::backward::BackwardProblem;
use flash_attention::forward::{Addresses, Dropout, Outputs};
use flash_attention::functions::{BlockMap, Built, FunctionTensor, Functions, Native};
use flash_attention::operation::Operation as _;
use flash_attention::sim::Sim;
use flash_attention::{
    Backend, BackendKind, DType, Device, Element, Kernel, Options, Plan, Problem, Request, TensorLayout,
    Tensors, accuracy, reference,
};
use functions::{Documents, RelativeBias, Shift, Strided};
use half::{bf16, f16};
use proptest::prelude::*;

/// An entry of a listed tile with functions, whose native code is `run`.
fn entry(name: &str, has_mask_mod: bool, run: Run) -> Entry {
    let mut variants = variants().filter_map(|listed| listed.modified());
    let variant = variants.find(|variant| variant.name() == name).unwrap();
    let (barriers, shared_bytes) =
        (variant.barriers_with(has_mask_mod), variant.shared_bytes_with(has_mask_mod));
    Entry { run: Some(run), barriers, shared_bytes, ..variant.entry(name.to_owned().leak()).unwrap() }
}

/// Some tiles with functions, as a `build.rs` has them written.
macro_rules! built {
    ($name:ident, $score:ty, $mask:ty) => {
        static $name: LazyLock<Built> = LazyLock::new(|| {
            use forward_sm80::{Modified as Modified80, Sm80Tile, forward_sm80 as sm80};
            use forward_sm90::{Modified as Modified90, Sm90Tile, forward_sm90 as sm90};
            type Tile80<E, const N: u32, const D: u32> =
                Modified80<Sm80Tile<E, 4, 4, N, D, true, false>, $score, $mask>;
            type Tile90<E, const M: u32, const N: u32, const D: u32> =
                Modified90<Sm90Tile<E, ByHeads, M, N, D, D, true, false>, $score, $mask>;
            let of = |name, run| entry(name, <$mask>::MASKS, run);
            let entries = vec![
                of("forward_sm90_f16_m192_n64_d64", Run::Persistent(sm90::<Tile90<F16, 192, 64, 64>>)),
                of("forward_sm90_bf16_m128_n128_d128", Run::Persistent(sm90::<Tile90<Bf16, 128, 128, 128>>)),
                of("forward_sm80_f16_m128_n64_d64_w4", Run::Attention(sm80::<Tile80<F16, 64, 64>>)),
                of("forward_sm80_bf16_m128_n32_d128_w4", Run::Attention(sm80::<Tile80<Bf16, 32, 128>>)),
            ];
            let functions = Native::of::<$score, $mask>();
            Built { name: stringify!($name), functions, entries: entries.leak() }
        });
    };
}

built!(BOTH, RelativeBias, Documents);
built!(MASKED, Unchanged, Documents);
built!(SHIFTED, Shift, Unchanged);
built!(STRIDED, Shift, Strided);

const ROWS: usize = 300;

/// Documents of 2 sequences of [`ROWS`] rows: some of a few rows, and in the second one longer than a tile.
fn documents() -> Vec<i32> {
    let of_first = (0..ROWS).map(|row| (row / 37) as i32);
    let of_second = (0..ROWS).map(|row| if row < 250 { 1 } else { 2 });
    of_first.chain(of_second).collect()
}

/// What [`Documents`] and [`RelativeBias`] read: documents in rising order, of sequences of so many rows, and
/// biases of so many heads.
fn tensors(documents: &[i32], rows: usize, heads: usize) -> Vec<FunctionTensor> {
    let (mut firsts, mut ends) = (Vec::new(), Vec::new());
    for sequence in documents.chunks(rows) {
        for document in sequence {
            firsts.push(sequence.partition_point(|other| other < document) as u32);
            ends.push(sequence.partition_point(|other| other <= document) as u32);
        }
    }
    vec![documents.into(), biases(heads), firsts[..].into(), ends[..].into()]
}

const REACH: u32 = 20;

/// A bias of each of so many heads.
fn biases(heads: usize) -> FunctionTensor {
    let of_each =
        (0..heads * (2 * REACH as usize + 1)).map(|index| ((index * 7919 % 64) as f32 - 32.0) / 16.0);
    FunctionTensor::from(&of_each.collect::<Vec<f32>>()[..])
}

fn functions(built: &'static Built, documents: &[i32], rows: usize, heads: usize) -> Functions {
    let values = vec![rows as u32, REACH, 1.75_f32.to_bits()];
    Functions { built, tensors: tensors(documents, rows, heads), values }
}

fn with(built: &'static Built, options: Options, dtype: DType, head_dim: usize, seed: u64) -> Case {
    let options = Options { functions: Some(functions(built, &documents(), ROWS, 4)), ..options };
    let orders = [Order::Bshd, Order::Bhsd, Order::Padded(8)];
    Case { dtype, shape: [2, ROWS, ROWS, 2, 2, head_dim], head_dim_v: None, orders, options, seed }
}

/// Judges what a backend makes of a case.
fn check<T: Element>(case: &Case, backend: &Backend, device: &Device, request: &Request) {
    let problem = case.problem();
    let plan = Plan::new(&problem, device, request).unwrap();
    judge(&problem, &plan, backend, &case.inputs::<T>());
}

/// Judges what a backend makes of a plan.
fn judge<T: Element>(problem: &Problem, plan: &Plan, backend: &Backend, [q, k, v]: &[Vec<T>; 3]) {
    let mut o = vec![T::Output::from_f32(-77.0); problem.tensors().o.span() + 3];
    let mut lse = vec![-77.0; problem.lse_len() + 3];
    backend.run(plan, (q, k, v), Outputs { o: &mut o, lse: Some(&mut lse) }).unwrap();
    let rows = reference::all(problem);
    let report = accuracy::check(problem, (q, k, v), &o, Some(&lse), plan.score_roundoff(), &rows);
    assert!(report.passed(), "{problem:?}: {:?}: {report}", plan.reasons());
    assert!(untouched_outside(&problem.tensors().o, &o, -77.0), "wrote outside the view");
    assert!(lse[problem.lse_len()..].iter().all(|&value| value == -77.0));
}

/// On the simulator with so many blocks.
fn check_simulated<T: Element>(case: &Case, kernel: Kernel, schedule: u64) {
    let device = Device { multiprocessors: 3, ..Sim::new(0).device().clone() };
    let backend = Backend::from(Sim::of_device(device.clone(), schedule));
    check::<T>(case, &backend, &device, &Request { kernel: Some(kernel), ..Request::default() });
}

/// A case of `rows` queries and keys where each `every`th stretch is seen, and so many that are near, with a
/// map of blocks.
fn strided(case: Case, [every, near]: [u32; 2], block: [usize; 2]) -> Case {
    let [batch, sq, sk, kv_heads, group, _] = case.shape;
    let functions =
        Functions { built: &STRIDED, tensors: Vec::new(), values: vec![every, near, 1.75_f32.to_bits()] };
    // One map for all, or one for each.
    let of = if block[0] == 64 { [batch, kv_heads * group] } else { [1, 1] };
    let map = BlockMap::of_mask(&functions, of, [sq, sk], block).unwrap();
    let functions = Functions { tensors: vec![map.into()], ..functions };
    Case { options: Options { functions: Some(functions), ..case.options }, ..case }
}

/// Without functions, of 2 sequences of 300 rows.
fn plain(options: Options, dtype: DType, head_dim: usize, seed: u64) -> Case {
    let case = with(&MASKED, Options::default(), dtype, head_dim, seed);
    Case { options, ..case }
}

fn masks() -> [Options; 3] {
    let window = |left, right| Options { window: (left, right), ..Options::default() };
    [
        Options { causal: true, sinks: Some(vec![0.5, -4.0, 5.0, 0.0]), ..Options::default() },
        Options::default(),
        Options { softmax_scale: Some(0.3), ..window(Some(90), Some(17)) },
    ]
}

#[test]
fn each_function_in_the_simulator() {
    let all: [&'static Built; 3] = [&BOTH, &MASKED, &SHIFTED];
    for (built, which) in all.into_iter().zip(0..) {
        for (options, at) in masks().into_iter().zip(0..) {
            let schedule = (3 * which + at) % 8;
            let case = with(built, options.clone(), DType::F16, 57, schedule);
            check_simulated::<f16>(&case, Kernel::ForwardSm90, schedule);
            check_simulated::<f16>(&case, Kernel::ForwardSm80, schedule);
            let case = with(built, options, DType::Bf16, 128, schedule);
            check_simulated::<bf16>(&case, Kernel::ForwardSm90, schedule);
        }
    }
}

/// Sinks among the scores, a scale of either sign, and rows that see nothing.
#[test]
fn each_function_on_the_cpu() {
    let cpu = Backend::open(Some(BackendKind::Cpu)).unwrap();
    let all: [&'static Built; 3] = [&BOTH, &MASKED, &SHIFTED];
    for (built, which) in all.into_iter().zip(0..) {
        for options in masks() {
            for kernel in [Kernel::ForwardCpu, Kernel::Standard] {
                let request = Request { kernel: Some(kernel), ..Request::default() };
                let case = with(built, options.clone(), DType::F32, 33, which);
                check::<f32>(&case, &cpu, cpu.device(), &request);
                let case = with(built, options.clone(), DType::Bf16, 64, which);
                check::<bf16>(&case, &cpu, cpu.device(), &request);
            }
        }
    }
    let negative = Options { softmax_scale: Some(-0.2), ..Options::default() };
    let case = with(&BOTH, negative, DType::F16, 64, 1);
    check::<f16>(&case, &cpu, cpu.device(), &Request::default());
    check_simulated::<f16>(&case, Kernel::ForwardSm90, 5);
}

/// With 100 queries before the first key, rows of short documents see none under a causal mask: all of the
/// first sequence, and some of the second.
#[test]
fn rows_that_see_nothing_are_zero() {
    let mut case = with(&MASKED, Options { causal: true, ..Options::default() }, DType::F16, 64, 3);
    case.shape[2] = ROWS - 100;
    check_simulated::<f16>(&case, Kernel::ForwardSm90, 2);
    check_simulated::<f16>(&case, Kernel::ForwardSm80, 2);
    let cpu = Backend::open(Some(BackendKind::Cpu)).unwrap();
    check::<f16>(&case, &cpu, cpu.device(), &Request::default());
}

/// Blocks as large as those of the kernels' steps, smaller, and larger.
#[test]
fn maps_of_blocks_tell_what_is_seen() {
    let cpu = Backend::open(Some(BackendKind::Cpu)).unwrap();
    for (options, seed) in masks().into_iter().zip(0..) {
        for (of, block) in [([3, 1], [64, 64]), ([4, 2], [32, 128]), ([9, 0], [128, 32])] {
            let case = strided(plain(options.clone(), DType::F16, 57, seed), of, block);
            check_simulated::<f16>(&case, Kernel::ForwardSm90, seed);
            check_simulated::<f16>(&case, Kernel::ForwardSm80, seed);
            check::<f16>(&case, &cpu, cpu.device(), &Request::default());
            let case = strided(plain(options.clone(), DType::Bf16, 128, seed), of, block);
            check_simulated::<bf16>(&case, Kernel::ForwardSm90, seed);
        }
    }
}

/// A map of packed sequences without keys has one block for these, of which nothing is seen.
#[test]
fn without_keys_a_map_has_a_block() {
    let case = plain(Options::default(), DType::F16, 64, 2);
    let case = strided(Case { shape: [1, 130, 0, 4, 1, 64], ..case }, [3, 1], [64, 64]);
    let layout = TensorLayout::bshd(1, 130, 4, 64);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let problem = Problem::varlen(tensors, DType::F16, case.options.clone(), &[0, 130], &[0, 0]).unwrap();
    let inputs = Case { shape: [1, 130, 130, 4, 1, 64], options: Options::default(), ..case }.inputs();
    let [sim, cpu] = [Backend::from(Sim::new(2)), Backend::open(Some(BackendKind::Cpu)).unwrap()];
    for (backend, kernel) in
        [(&sim, Kernel::ForwardSm90), (&sim, Kernel::ForwardSm80), (&cpu, Kernel::ForwardCpu)]
    {
        let plan = backend.plan(&problem, &Request { kernel: Some(kernel), ..Request::default() }).unwrap();
        judge::<f16>(&problem, &plan, backend, &inputs);
    }
}

/// More blocks of 128 keys than a tile has bits, so that one stands for several. Each 32nd stretch is seen,
/// so that the bits of the last blocks would show in those of the first, if there were too many.
#[test]
fn a_bit_stands_for_several_blocks_of_long_sequences() {
    let mut case = plain(Options::default(), DType::F16, 16, 6);
    case.shape = [1, 70, 140_000, 1, 1, 16];
    let case = strided(case, [32, 0], [64, 64]);
    check_simulated::<f16>(&case, Kernel::ForwardSm90, 6);
}

/// Each third stretch is seen: K and V of the others are NaN, and whoever multiplied them would tell.
#[test]
fn blocks_that_are_not_seen_are_not_read() {
    let case = strided(plain(Options::default(), DType::F16, 64, 4), [3, 0], [128, 64]);
    let problem = case.problem();
    let [q, mut k, mut v] = case.inputs::<f16>();
    let clean = [&k, &v].map(Clone::clone);
    for (values, layout) in [(&mut k, problem.tensors().k), (&mut v, problem.tensors().v)] {
        for (batch, key, head) in (0..2).flat_map(|b| (0..ROWS).flat_map(move |s| [(b, s, 0), (b, s, 1)])) {
            if key / 64 % 3 != 0 {
                let first = batch * layout.stride_batch + key * layout.stride_seq + head * layout.stride_head;
                values[first..][..64].fill(f16::NAN);
            }
        }
    }
    for kernel in [Kernel::ForwardSm90, Kernel::ForwardSm80] {
        let backend = Backend::from(Sim::new(3));
        let plan = backend.plan(&problem, &Request { kernel: Some(kernel), ..Request::default() }).unwrap();
        let of = |k: &[f16], v: &[f16]| {
            let mut o = vec![f16::NAN; problem.tensors().o.span()];
            backend.run(&plan, (&q, k, v), Outputs { o: &mut o, lse: None }).unwrap();
            o.into_iter().map(f16::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(of(&k, &v), of(&clean[0], &clean[1]), "{kernel:?}");
    }
}

#[test]
fn each_refusal_of_a_map_is_one_line() {
    let all = |_: [usize; 4]| Visible::All;
    let refused = |shape, block| BlockMap::new(shape, block, all).unwrap_err().to_string();
    assert_eq!(
        refused([1, 1, 3, 3], [100, 64]),
        "block map: blocks of 100 queries; a power of two from 32 to 65536 is needed"
    );
    assert_eq!(
        refused([1, 1, 3, 3], [64, 16]),
        "block map: blocks of 16 keys; a power of two from 32 to 65536 is needed"
    );
    assert_eq!(
        refused([1, 0, 3, 3], [64, 64]),
        "block map: of [1, 0, 3, 3] blocks; each axis has some, and all at most 2^36 together"
    );
    let mut case = strided(plain(Options::default(), DType::F16, 64, 4), [3, 0], [128, 64]);
    if let Some(functions) = &mut case.options.functions {
        functions.tensors = vec![BlockMap::new([1, 4, 3, 4], [128, 64], all).unwrap().into()];
    }
    let plain = plain(Options::default(), DType::F16, 64, 4).problem();
    assert_eq!(
        Problem::new(*plain.tensors(), DType::F16, case.options).unwrap_err().to_string(),
        "functions STRIDED: function tensor 0 is a map of [1, 4, 3, 4] blocks of 128 queries and 64 keys; 2 sequences of \
         4 heads, 300 queries and 300 keys have [2, 4, 3, 5], or 1 for the first two"
    );
}

#[test]
fn each_refusal_is_one_line() {
    let case = with(&MASKED, Options::default(), DType::F16, 64, 1);
    let refused = |change: &dyn Fn(&mut Case)| {
        let mut case = case.clone();
        change(&mut case);
        let plain = Case { options: Options::default(), ..case.clone() };
        Problem::new(*plain.problem().tensors(), case.dtype, case.options).unwrap_err().to_string()
    };
    let of = |change: &dyn Fn(&mut Options)| refused(&|case| change(&mut case.options));
    let functions = |options: &mut Options, change: &dyn Fn(&mut Functions)| {
        if let Some(functions) = &mut options.functions {
            change(functions);
        }
    };
    assert_eq!(
        of(&|options| options.softcap = 3.0),
        "functions MASKED: they take the place of softcap, which is given too"
    );
    assert_eq!(
        of(&|options| options.alibi_slopes = Some(vec![0.5; 4])),
        "functions MASKED: they take the place of alibi_slopes, which is given too"
    );
    let dropout = Dropout { probability: 0.5, seed: 1, offset: 0 };
    assert_eq!(
        of(&|options| options.dropout = Some(dropout)),
        "functions MASKED: they take the place of dropout, which is given too"
    );
    assert_eq!(
        of(&|options| options.softmax_scale = Some(-1.0)),
        "functions MASKED: softmax_scale is -1; with a mask function alone it is positive"
    );
    assert_eq!(
        of(&|options| functions(options, &|functions| functions.tensors = vec![biases(1); 5])),
        "functions MASKED: 5 tensors are given; at most 4 are read"
    );
    assert_eq!(
        of(&|options| functions(options, &|functions| functions.values = vec![0; 6])),
        "functions MASKED: 6 values are given; at most 4 are read"
    );
    assert_eq!(
        refused(&|case| case.dtype = DType::E4m3),
        "functions MASKED: they are built for types of 16 bits and more, not for e4m3"
    );
}

#[test]
fn what_is_not_built_is_refused_by_the_plan() {
    let sim = Sim::new(0);
    let plan = |case: &Case, request: &Request| Plan::new(&case.problem(), sim.device(), request);
    let error = |case: &Case, request: &Request| plan(case, request).unwrap_err().to_string();
    let default = Request::default();
    let wide = with(&MASKED, Options::default(), DType::F16, 96, 1);
    assert_eq!(
        error(&wide, &default),
        "functions MASKED: built for no f16 with head_dim 96 on sm_90; there: bf16 to 128, f16 to 64"
    );
    let case = with(&MASKED, Options::default(), DType::F16, 64, 1);
    assert_eq!(
        error(&case, &Request { block_m: Some(64), ..default }),
        "functions MASKED: no such kernel or tile is built; there are forward_sm90 192x64, forward_sm80 128x64"
    );
    assert_eq!(
        error(&case, &Request { batch_invariant: true, ..default }),
        "functions MASKED: no kernel with functions gives the same bits in any batch"
    );
    let backward = BackwardProblem::like(with(&MASKED, Options::default(), DType::F16, 64, 1).problem());
    assert_eq!(
        backward.unwrap_err().to_string(),
        "functions MASKED: the backward pass has no derivative of them"
    );
    // Entries are of their functions alone.
    let other = with(&SHIFTED, Options::default(), DType::F16, 64, 1).problem();
    let refused = Plan::of_entry(&other, sim.device(), &MASKED.entries[0]).unwrap_err().to_string();
    assert!(refused.ends_with("it is built with functions that are not the problem's"), "{refused}");
    // Hopper's come first.
    assert_eq!(plan(&case, &default).unwrap().kernel(), Kernel::ForwardSm90);
}

/// A tensor that the device alone has: planned, refused on the host, and its address asked for.
#[test]
fn tensors_on_the_device_are_for_the_device() {
    let mut case = with(&MASKED, Options::default(), DType::F16, 64, 1);
    if let Some(functions) = &mut case.options.functions {
        functions.tensors[0] = FunctionTensor::OnDevice(2 * ROWS);
    }
    let cpu = Backend::open(Some(BackendKind::Cpu)).unwrap();
    let problem = case.problem();
    let plan = cpu.plan(&problem, &Request::default()).unwrap();
    let [q, k, v] = &case.inputs::<f16>();
    let mut o = vec![f16::ZERO; problem.tensors().o.span()];
    let outputs = Outputs { o: &mut o, lse: None };
    assert_eq!(
        cpu.run(&plan, (q, k, v), outputs).unwrap_err().to_string(),
        "function tensor 0: the device alone has the values of this plan, and a run on host tensors needs them"
    );
    assert_eq!(Addresses::default().functions, [None; 4]);
    let request = Request { kernel: Some(Kernel::ForwardSm80), ..Request::default() };
    let plan = Plan::new(&problem, Sim::new(0).device(), &request).unwrap();
    let addresses = |functions| Addresses { functions, ..Addresses::default() };
    let params = |functions| {
        Problem::params(&plan, &plan.launches()[0], &addresses(functions), |_| {
            unreachable!("it takes no maps")
        })
    };
    let all = [Some(64); 4];
    assert!(params(all).is_ok());
    let missing = params([None, all[1], all[2], all[3]]).unwrap_err().to_string();
    assert!(missing.contains("function tensor 0"), "{missing}");
}

/// Problems of up to `longest` rows, with documents of 1 to 60.
fn random(longest: usize) -> impl Strategy<Value = Case> {
    let all: [&'static Built; 3] = [&BOTH, &MASKED, &SHIFTED];
    let order = || prop_oneof![Just(Order::Bshd), Just(Order::Bhsd), (1..9_usize).prop_map(Order::Padded)];
    let window = || prop_oneof![2 => Just(None), 1 => (0..longest).prop_map(Some)];
    let shape = (1..3_usize, 1..longest, 1..longest, 1..3_usize, 1..4_usize, 1..=64_usize);
    let options = (any::<bool>(), window(), window(), any::<bool>());
    let lengths = prop::collection::vec(1..60_usize, 2 * longest);
    (0..all.len(), shape, [order(), order(), order()], options, lengths, any::<u64>()).prop_map(
        move |(which, (b, sq, sk, h, group, d), orders, (causal, left, right, sinks), lengths, seed)| {
            let numbered = lengths.iter().enumerate();
            let of_all = numbered.flat_map(|(document, &len)| std::iter::repeat_n(document as i32, len));
            let rows = sq.max(sk);
            let documents: Vec<i32> = of_all.take(2 * longest).collect();
            let of_each: Vec<i32> =
                (0..b).flat_map(|batch| documents[7 * batch..][..rows].to_vec()).collect();
            let options = Options {
                causal,
                window: (left, right),
                sinks: sinks.then(|| sinks_of(h * group)),
                functions: Some(functions(all[which], &of_each, rows, h * group)),
                ..Options::default()
            };
            let shape = [b, sq, sk, h, group, d];
            Case { dtype: DType::F16, shape, head_dim_v: None, orders, options, seed }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_problems_on_the_cpu(case in random(300)) {
        let cpu = Backend::open(Some(BackendKind::Cpu)).unwrap();
        check::<f16>(&case, &cpu, cpu.device(), &Request::default());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn random_problems_in_the_simulator(case in random(200), hopper in any::<bool>()) {
        let kernel = if hopper { Kernel::ForwardSm90 } else { Kernel::ForwardSm80 };
        check_simulated::<f16>(&case, kernel, case.seed % 8);
    }
}

/// Packed sequences count their rows from 0 each, and the last uses a part of its keys.
#[test]
fn packed_sequences_count_their_own_rows() {
    let offsets = [0, 130, 131, 131, 250];
    let rows = 130;
    let documents: Vec<i32> = (0..4 * rows).map(|row| (row % rows / 23) as i32).collect();
    let layout = TensorLayout::bshd(1, 250, 4, 64);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let options = Options {
        causal: true,
        functions: Some(functions(&BOTH, &documents, rows, 4)),
        ..Options::default()
    };
    let case = Case {
        dtype: DType::F16,
        shape: [1, 250, 250, 4, 1, 64],
        head_dim_v: None,
        orders: [Order::Bshd; 3],
        options: Options::default(),
        seed: 9,
    };
    let problem = Problem::varlen(tensors, DType::F16, options, &offsets, &offsets).unwrap();
    let problem = problem.with_seqused_k(&[130, 1, 0, 60]).unwrap();
    let device = Device { multiprocessors: 3, ..Sim::new(0).device().clone() };
    let [sim, cpu] = [Sim::of_device(device, 4).into(), Backend::open(Some(BackendKind::Cpu)).unwrap()];
    for (backend, kernel) in
        [(&sim, Kernel::ForwardSm90), (&sim, Kernel::ForwardSm80), (&cpu, Kernel::ForwardCpu)]
    {
        let plan = backend.plan(&problem, &Request { kernel: Some(kernel), ..Request::default() }).unwrap();
        judge::<f16>(&problem, &plan, backend, &case.inputs());
    }
}
