//! dQ summed where dS is made: the bits of the other ways, in any schedule, on any number of blocks.

use flash_attention::backward::{BackwardKernel, BackwardRequest};
use flash_attention::forward::Dropout;
use flash_attention::{Backend, DType, Element, Options};
use half::{bf16, f16};

use crate::common::{Case, Order};
use crate::made::{Made, packed, with};

/// The entry that sums dQ of a case.
fn entry(case: &Case) -> String {
    let Options { softcap, dropout, .. } = &case.options;
    let score_mod = if *softcap > 0.0 || dropout.is_some() { "_score_mod" } else { "" };
    format!("backward_keys_dq_sm90_{}_m64_n128_d64{score_mod}", case.dtype)
}

/// Runs a case by the entry that sums dQ, in several schedules and on few blocks, and as plans with other
/// requests do.
fn check<T: Element<Output = T>>(case: &Case, others: &[BackwardRequest]) {
    let made = Made::<T>::of_case(case);
    let run = |seed, request: &BackwardRequest| {
        let ran = made.run_with(&Backend::simulator(seed), request).unwrap();
        assert!(ran.report(&made).passed(), "{case:?} {request:?}: {}", ran.report(&made));
        let bits =
            ran.gradients.each_ref().map(|of| of.iter().map(|value| value.to_f32().to_bits()).collect());
        let bits: [Vec<u32>; 3] = bits;
        (bits, ran.plan.launches().iter().map(|launch| launch.entry.name).collect::<Vec<_>>())
    };
    let entry = entry(case);
    let summed = BackwardRequest { entry: Some(entry.clone()), ..BackwardRequest::default() };
    let (bits, names) = run(case.seed, &summed);
    assert!(names.contains(&&*entry), "{names:?}");
    for seed in 1..3 {
        let few = BackwardRequest { sm_margin: [0, 130][seed as usize % 2], ..summed.clone() };
        assert!(run(case.seed + seed, &few).0 == bits, "{case:?}, schedule {seed}");
    }
    for request in others {
        let (of_other, names) = run(case.seed, request);
        assert!(of_other == bits, "{case:?} {request:?}");
        assert!(!names.contains(&&*entry), "{names:?}");
    }
}

#[test]
fn sums_of_dq_give_the_bits_of_the_other_ways() {
    let causal = Options { causal: true, ..Options::default() };
    let window = Options { window: (Some(75), Some(9)), ..Options::default() };
    let twice = BackwardRequest { workspace_limit: Some(0), ..BackwardRequest::default() };
    for (seed, (shape, options)) in [
        // Several heads of queries for a head of keys, and rows that see nothing.
        ([1, 205, 338, 2, 2, 64], causal.clone()),
        ([2, 150, 70, 3, 1, 40], causal),
        ([1, 205, 338, 2, 1, 64], window.clone()),
        // Copies of all tensors, and rows that start anywhere.
        ([1, 300, 140, 1, 2, 33], window),
        ([1, 64, 1, 2, 1, 8], Options::default()),
    ]
    .into_iter()
    .enumerate()
    {
        let case = Case {
            dtype: DType::F16,
            shape,
            head_dim_v: None,
            orders: [Order::Bshd; 3],
            options,
            seed: seed as u64,
        };
        check::<f16>(&case, &[with(Some(BackwardKernel::BackwardSm90)), twice.clone()]);
    }
}

#[test]
fn sums_of_changed_scores_give_the_bits_of_stored_ones() {
    let dropout = Some(Dropout { probability: 0.4, seed: 5, offset: 6 });
    for (seed, options) in [
        Options { causal: true, softcap: 2.0, dropout, ..Options::default() },
        Options { softcap: 3.0, window: (Some(40), None), ..Options::default() },
    ]
    .into_iter()
    .enumerate()
    {
        let case = Case {
            dtype: DType::Bf16,
            shape: [1, 170, 300, 2, 2, 56],
            head_dim_v: Some(64),
            orders: [Order::Bhsd; 3],
            options,
            seed: seed as u64,
        };
        check::<bf16>(&case, &[with(Some(BackwardKernel::BackwardSm90))]);
    }
}

#[test]
fn what_is_not_summed_is_refused() {
    let entry = "backward_keys_dq_sm90_bf16_m64_n128_d64";
    let request = |workspace_limit| BackwardRequest {
        entry: Some(entry.to_owned()),
        workspace_limit,
        ..BackwardRequest::default()
    };
    let error = |made: &Made<bf16>, limit| {
        Backend::simulator(0).plan(&made.problem, &request(limit)).unwrap_err().to_string()
    };
    let packed = packed::<bf16>(Options::default(), (40, 24));
    assert_eq!(error(&packed, None), format!("entry {entry} cannot be run: sequences are packed"));
    let case = Case {
        dtype: DType::Bf16,
        shape: [2, 100, 100, 3, 1, 64],
        head_dim_v: None,
        orders: [Order::Bshd; 3],
        options: Options::default(),
        seed: 1,
    };
    let bytes = 2 * 3 * 128 * 64 * 4;
    let reason = format!("dQ in fp32 takes {bytes} bytes, and workspace_limit is {}", bytes - 1);
    let made = Made::<bf16>::of_case(&case);
    assert_eq!(error(&made, Some(bytes - 1)), format!("entry {entry} cannot be run: {reason}"));
    assert!(Backend::simulator(0).plan(&made.problem, &request(Some(bytes))).is_ok());
}
