//! The GPU kernels in the simulator against the f64 reference, under FlashAttention's accuracy rule.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Case, case, untouched_outside};
use flash_attention::forward::Outputs;
use flash_attention::{Backend, DType, Element, Kernel, Request, accuracy, reference};
use half::{bf16, f16};
use proptest::prelude::*;

fn run<T: Element>(case: &Case, kernel: Kernel, schedule: u64) -> Result<(), TestCaseError> {
    let problem = case.problem();
    let [q, k, v] = &case.inputs::<T>();
    let mut o = vec![T::Output::from_f32(-77.0); problem.tensors().o.span() + 3];
    let mut lse = vec![-77.0; problem.lse_len() + 3];
    let backend = Backend::simulator(schedule);
    let plan = backend.plan(&problem, &Request { kernel: Some(kernel), ..Request::default() }).unwrap();
    let ran = backend.run(&plan, (q, k, v), Outputs { o: &mut o, lse: Some(&mut lse) });
    prop_assert!(ran.is_ok(), "{kernel}, schedule {schedule}: {}", ran.unwrap_err());
    let report = accuracy::check(
        &problem,
        (q, k, v),
        &o,
        Some(&lse),
        plan.score_roundoff(),
        &reference::all(&problem),
    );
    prop_assert!(report.passed(), "{kernel}: {report}");
    prop_assert!(untouched_outside(&problem.tensors().o, &o, -77.0), "{kernel}: wrote outside the view");
    prop_assert!(lse[problem.lse_len()..].iter().all(|&value| value == -77.0));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random shapes, strides, types, masks and thread schedules.
    #[test]
    fn matches_the_reference(
        case in case(&[(1, 1), (70, 1), (1, 70), (65, 3), (33, 64)], 80),
        kernel in prop::sample::select(vec![Kernel::ForwardSm80, Kernel::ForwardSimt, Kernel::Standard]),
        schedule in any::<u64>(),
    ) {
        match case.dtype {
            // Tensor cores take no fp32, so the other fused kernel stands in.
            DType::F32 if kernel == Kernel::ForwardSm80 => run::<f32>(&case, Kernel::ForwardSimt, schedule)?,
            DType::F32 => run::<f32>(&case, kernel, schedule)?,
            DType::F16 => run::<f16>(&case, kernel, schedule)?,
            DType::Bf16 => run::<bf16>(&case, kernel, schedule)?,
            DType::E4m3 => unreachable!("these kernels take no e4m3"),
        }
    }

    /// Few queries of the forward pass by decode, with whatever else it takes.
    #[test]
    fn few_queries_are_decoded(
        case in case(&[(1, 300), (16, 213), (7, 600), (3, 64), (9, 2)], 17),
        schedule in any::<u64>(),
    ) {
        match case.dtype {
            DType::F16 => run::<f16>(&case, Kernel::Decode, schedule)?,
            _ => run::<bf16>(&Case { dtype: DType::Bf16, ..case }, Kernel::Decode, schedule)?,
        }
    }
}
