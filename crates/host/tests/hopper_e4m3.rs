//! `forward_sm90` in e4m3, in the simulator: the launch that transposes V, and attention over it.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Case, Order, case, descale, untouched_outside};
use fa_kernels::entries::{Algorithm, Entry};
use flash_attention::forward::{Descale, Dropout, Factor, Outputs, PerHead};
use flash_attention::sim::Sim;
use flash_attention::{DType, Device, Error, Kernel, Options, Plan, Problem, Request, accuracy, reference};
use float8::F8E4M3;
use half::bf16;
use proptest::prelude::*;

/// Runs a case on a device of so many multiprocessors, which is how many blocks there are.
fn run(case: &Case, multiprocessors: u32, request: &Request, schedule: u64) -> Result<(), TestCaseError> {
    let problem = case.problem();
    let [q, k, v] = &case.inputs::<F8E4M3>();
    let mut o = vec![bf16::from_f32(-77.0); problem.tensors().o.span() + 3];
    let mut lse = vec![-77.0; problem.lse_len() + 3];
    let device = Device { multiprocessors, ..Sim::new(0).device().clone() };
    let sim = Sim::of_device(device.clone(), schedule);
    let plan = Plan::new(&problem, &device, request).unwrap();
    let names: Vec<_> = plan.launches().iter().map(|launch| launch.entry.name).collect();
    prop_assert!(names.len() == 2 && names[0] == "transpose_b8", "{names:?}");
    let ran = sim.run(&plan, (q, k, v), Outputs { o: &mut o, lse: Some(&mut lse) });
    prop_assert!(ran.is_ok(), "schedule {schedule}: {}", ran.unwrap_err());
    let rows = reference::all(&problem);
    let scores = plan.score_roundoff();
    let report = accuracy::check(&problem, (q, k, v), &o, Some(&lse), scores, &rows);
    prop_assert!(report.passed(), "{report}");
    prop_assert!(untouched_outside(&problem.tensors().o, &o, -77.0), "wrote outside the view");
    prop_assert!(lse[problem.lse_len()..].iter().all(|&value| value == -77.0));
    Ok(())
}

fn options(causal: bool, window: (Option<usize>, Option<usize>)) -> Options {
    let descale = Descale { q: 0.5.into(), k: 1.5.into(), v: 3.0.into() };
    Options { causal, window, descale: Some(descale), ..Options::default() }
}

/// Each tile, over masks and shapes with several tiles for each of a few blocks, in 8 schedules.
#[test]
fn every_tile_matches_the_reference() {
    let changes_scores = |entry: &Entry| entry.algorithm == Algorithm::ForwardSm90ScoreMod;
    let listed: Vec<_> = fa_kernels::entries::entries().filter(|entry| entry.dtype == "e4m3").collect();
    assert!(listed.len() >= 8 && listed.iter().any(|entry| changes_scores(entry)));
    let none = (None, None);
    let cases = [
        ([1, 200, 300, 3, 1], options(false, none)),
        ([2, 400, 400, 1, 2], options(true, none)),
        // Rows that see no key, and tiles.
        ([1, 500, 250, 2, 1], options(true, none)),
        ([1, 250, 500, 3, 1], options(true, none)),
        // Windows whose tiles begin with no multiple of 32 keys.
        ([1, 600, 600, 1, 1], options(false, (Some(101), Some(0)))),
        ([1, 450, 450, 1, 2], options(false, (Some(30), Some(250)))),
    ];
    for (entry, which) in listed.into_iter().zip(0..) {
        let tile = entry.tile;
        for (index, ([b, sq, sk, h, group], options)) in cases.iter().enumerate() {
            let head_dim = tile.head_dim as usize;
            let mut options = options.clone();
            if changes_scores(entry) {
                options.softcap = [0.0, 3.0][index % 2];
                options.alibi_slopes = (index % 3 < 2).then(|| vec![0.125; h * group]);
            }
            let case = Case {
                dtype: DType::E4m3,
                shape: [*b, *sq, *sk, *h, *group, head_dim - 16],
                head_dim_v: Some(head_dim),
                orders: [
                    [Order::Bshd, Order::Bhsd, Order::Bshd],
                    [Order::Bhsd, Order::Bshd, Order::Padded(3)],
                ][index % 2],
                options,
                seed: index as u64,
            };
            let (block_m, block_n) = (Some(tile.block_m as usize), Some(tile.block_n as usize));
            let request =
                Request { kernel: Some(Kernel::ForwardSm90), block_m, block_n, ..Request::default() };
            if let Err(error) = run(&case, 2, &request, (which + index as u64) % 8) {
                panic!("{tile:?}: {case:?}: {error}");
            }
        }
    }
}

/// Eight queries of one head of 64 columns over `keys` keys.
fn one_head(keys: usize, options: Options) -> Case {
    Case {
        dtype: DType::E4m3,
        shape: [1, 8, keys, 1, 1, 64],
        head_dim_v: None,
        orders: [Order::Bhsd; 3],
        options,
        seed: 1,
    }
}

/// With V = 1, O is 1 up to P's rounding, which many keys even out: nothing is lost where tensor cores cut
/// what they add.
#[test]
fn sums_over_many_keys_lose_nothing() {
    let case = one_head(4096, Options::default());
    let (problem, sim) = (case.problem(), Sim::new(1));
    let [q, k, v] = case.inputs::<F8E4M3>();
    let ones = vec![F8E4M3::from_f32(1.0); v.len()];
    let mut o = vec![bf16::ZERO; problem.tensors().o.span()];
    let plan = Plan::new(&problem, sim.device(), &Request::default()).unwrap();
    sim.run(&plan, (&q, &k, &ones), Outputs { o: &mut o, lse: None }).unwrap();
    let errors = o.iter().map(|value| (value.to_f64() - 1.0).abs());
    let worst = errors.fold(0.0, f64::max);
    assert!(worst <= 1.0 / 256.0, "{worst}");
}

/// Tensor cores cut a sum's products at 2⁻¹³ of the largest: where one key outweighs the others of its block,
/// they are lost, and the bound says so.
#[test]
fn one_key_that_outweighs_its_block_costs_the_others() {
    // The first key scores 9.05 and the others 0: their weights are e^−9.05 of its weight.
    let case = one_head(128, Options { softmax_scale: Some(9.05 / 64.0), ..Options::default() });
    let (problem, sim) = (case.problem(), Sim::new(1));
    let ones = |len: usize| vec![F8E4M3::from_f32(1.0); len];
    let [q, v] = [problem.tensors().q, problem.tensors().v].map(|layout| ones(layout.span()));
    let mut k = vec![F8E4M3::from_f32(0.0); problem.tensors().k.span()];
    k[..64].copy_from_slice(&ones(64));
    let mut o = vec![bf16::ZERO; problem.tensors().o.span()];
    let plan = Plan::new(&problem, sim.device(), &Request::default()).unwrap();
    sim.run(&plan, (&q, &k, &v), Outputs { o: &mut o, lse: None }).unwrap();
    // P is 256 and 127 times 15/512, which is below 2⁻¹³ of 256.
    let expected = 256.0 / (256.0 + 127.0 * 15.0 / 512.0);
    assert!((o[0].to_f64() - expected).abs() < 1.0 / 256.0, "{} {expected}", o[0]);
    let rows = reference::all(&problem);
    let report = accuracy::check(&problem, (&q, &k, &v), &o, None, plan.score_roundoff(), &rows);
    assert!(report.passed() && report.output.max_error > 0.01, "{report}");
}

/// Rows without a score from 0 on: the bits of such numbers have the opposite order.
#[test]
fn rows_whose_scores_are_all_below_zero() {
    let case = one_head(256, Options::default());
    let (problem, sim) = (case.problem(), Sim::new(1));
    let [_, _, v] = case.inputs::<F8E4M3>();
    let q = vec![F8E4M3::from_f32(1.0); problem.tensors().q.span()];
    // Scores from -0.5 to -14.5.
    let k: Vec<_> =
        (0..256 * 64).map(|index| F8E4M3::from_f32(-((index / 64 % 29 + 1) as f32) / 16.0)).collect();
    let mut o = vec![bf16::ZERO; problem.tensors().o.span()];
    let plan = Plan::new(&problem, sim.device(), &Request::default()).unwrap();
    sim.run(&plan, (&q, &k, &v), Outputs { o: &mut o, lse: None }).unwrap();
    let rows = reference::all(&problem);
    let report = accuracy::check(&problem, (&q, &k, &v), &o, None, plan.score_roundoff(), &rows);
    assert!(report.passed(), "{report}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random shapes, strides, masks, thread schedules, and numbers of blocks.
    #[test]
    fn matches_the_reference(
        case in case(&[(1, 1), (70, 1), (1, 70), (260, 3), (33, 64)], 300),
        multiprocessors in 1..4_u32,
        schedule in any::<u64>(),
    ) {
        let case = Case {
            dtype: DType::E4m3,
            options: Options {
                descale: Some(descale(&case, [0.5, 1.5, 3.0])),
                dropout: None,
                ..case.options
            },
            ..case
        };
        run(&case, multiprocessors, &Request::default(), schedule)?;
    }
}

/// What a problem in e4m3 is refused with on a device of this compute capability.
fn refusal(case: &Case, compute_capability: u32, kernel: Option<Kernel>) -> String {
    let device = Device { compute_capability, name: "GPU".to_owned(), ..Sim::new(0).device().clone() };
    let error = Plan::new(&case.problem(), &device, &Request { kernel, ..Request::default() }).unwrap_err();
    assert!(!matches!(error, Error::NoSuchTile { .. }), "{error}");
    error.to_string()
}

#[test]
fn what_it_does_not_take_is_refused_in_one_line() {
    let plain = Case {
        dtype: DType::E4m3,
        shape: [1, 64, 64, 2, 1, 64],
        head_dim_v: None,
        orders: [Order::Bshd; 3],
        options: Options::default(),
        seed: 0,
    };
    let with = |options| Case { options, ..plain.clone() };
    let unfit = |reason: &str| format!("kernel forward_sm90 cannot be run: {reason}");
    let dropout = Some(Dropout { probability: 0.5, seed: 1, offset: 0 });
    let drops = with(Options { dropout, ..Options::default() });
    assert_eq!(refusal(&drops, 90, None), unfit("in e4m3 it drops no weights"));
    assert_eq!(refusal(&plain, 80, None), "kernel forward_sm90 needs sm_90a; GPU is sm_80");
    assert_eq!(
        refusal(&plain, 90, Some(Kernel::ForwardSm80)),
        "kernel forward_sm80 has no e4m3 entry; it has f16, bf16"
    );
}

#[test]
fn factors_are_positive_and_for_e4m3_alone() {
    let layout = flash_attention::TensorLayout::bshd(1, 8, 1, 16);
    let tensors = flash_attention::Tensors { q: layout, k: layout, v: layout, o: layout };
    let refused = |dtype, k: Factor| {
        let descale = Some(Descale { k, ..Descale::default() });
        Problem::new(tensors, dtype, Options { descale, ..Options::default() }).unwrap_err().to_string()
    };
    let needed = "1.1754944e-38 to 1.8446744e19 is needed";
    let of_tensor = |value: f32| refused(DType::E4m3, value.into());
    assert_eq!(of_tensor(0.0), format!("k_descale: element 0 is 0.0; {needed}"));
    assert_eq!(of_tensor(f32::NAN), format!("k_descale: element 0 is NaN; {needed}"));
    let of_heads = |values: &[f32]| refused(DType::E4m3, Factor::Heads(values.to_vec()));
    assert_eq!(of_heads(&[-1.0]), format!("k_descale: element 0 is -1.0; {needed}"));
    assert_eq!(
        of_heads(&[1.0; 2]),
        "k_descale has 2 elements; 1 (one per head) or 1 (one per sequence and head) are needed"
    );
    assert_eq!(refused(DType::F16, 1.0.into()), "descale is for e4m3, not f16");
    // The scale of each head counts, also where the device alone has other lists.
    let options = Options {
        descale: Some(Descale { k: Factor::Heads(vec![1e19]), ..Descale::default() }),
        on_device: PerHead { alibi_slopes: Some(1), ..PerHead::default() },
        softmax_scale: Some(10.0),
        ..Options::default()
    };
    let error = Problem::new(tensors, DType::E4m3, options).unwrap_err();
    assert!(matches!(error, Error::SoftmaxScale { value, .. } if value > 9e19), "{error}");
    // One list for all sequences is read once, however many there are.
    let many = flash_attention::TensorLayout::bshd(1 << 40, 8, 1, 16);
    let tensors = flash_attention::Tensors { q: many, k: many, v: many, o: many };
    let descale = Some(Descale { k: Factor::Heads(vec![2.0]), ..Descale::default() });
    assert!(Problem::new(tensors, DType::E4m3, Options { descale, ..Options::default() }).is_ok());
}

/// With a softcap it is that of the device's tanh, on Hopper alone.
#[test]
fn scores_are_as_accurate_as_the_plan_says() {
    let layout = flash_attention::TensorLayout::bshd(1, 200, 1, 64);
    let tensors = flash_attention::Tensors { q: layout, k: layout, v: layout, o: layout };
    let roundoff = |softcap, kernel| {
        let problem = Problem::new(tensors, DType::F16, Options { softcap, ..Options::default() }).unwrap();
        let request = Request { kernel: Some(kernel), ..Request::default() };
        Plan::new(&problem, Sim::new(0).device(), &request).unwrap().score_roundoff()
    };
    assert_eq!(roundoff(9.0, Kernel::ForwardSm90), 1.0 / 65_536.0);
    assert_eq!(roundoff(9.0, Kernel::ForwardSm80), DType::F32.roundoff());
    assert_eq!(roundoff(0.0, Kernel::ForwardSm90), DType::F32.roundoff());
    assert_eq!(roundoff(9.0, Kernel::Standard), DType::F16.roundoff());
}

#[test]
fn the_plan_says_what_the_copy_of_v_costs() {
    let case = Case {
        dtype: DType::E4m3,
        shape: [2, 100, 100, 3, 1, 64],
        head_dim_v: None,
        orders: [Order::Bshd; 3],
        options: Options::default(),
        seed: 0,
    };
    let plan = Plan::new(&case.problem(), Sim::new(0).device(), &Request::default()).unwrap();
    assert_eq!(plan.workspace_bytes(), 2 * 3 * 64 * 128);
    let reasons = plan.reasons().join("; ");
    assert!(reasons.contains("before it, v transposed") && reasons.contains("49152 bytes"), "{reasons}");
    assert_eq!(plan.score_roundoff(), DType::F32.roundoff());
    // Of 65 columns, Q and K are copied to rows of 80.
    let odd = Case { shape: [2, 100, 100, 3, 1, 65], ..case };
    let plan = Plan::new(&odd.problem(), Sim::new(0).device(), &Request::default()).unwrap();
    assert_eq!(
        plan.workspace_bytes(),
        2 * 3 * 65 * 128 + 2 * (2_usize * 3 * 100 * 80).next_multiple_of(256) as u64
    );
    let reasons = plan.reasons().join("; ");
    let why = "q, k copied to rows of whole 16 bytes, since q's batch stride is 19500 elements, and in e4m3 it takes";
    assert!(reasons.contains(why), "{reasons}");
}
