//! Gradients of sequences that use fewer keys than they have.

use flash_attention::backward::{BackwardKernel, BackwardProblem, BackwardRequest};
use flash_attention::forward::Dropout;
use flash_attention::{Backend, BackendKind, Element, Options, Problem, TensorLayout, Tensors};
use half::f16;
use proptest::prelude::*;

use crate::common::options;
use crate::made::{Made, Ran, packed, with};

/// The same problem with fewer keys, and NaN behind them in K and V.
fn cut<T: Element<Output = T>>(whole: &Made<T>, used: &[i32]) -> Made<T> {
    let forward = whole.problem.forward().with_seqused_k(used).unwrap();
    let mut made = Made::new(forward, *whole.problem.layouts(), 9);
    let forward = made.problem.forward();
    let Tensors { k, v, .. } = *forward.tensors();
    for (values, layout) in made.inputs[1..].iter_mut().zip([k, v]) {
        for at in unused(forward, &layout) {
            values[at] = T::from_f32(f32::NAN);
        }
    }
    made
}

/// The elements of K's or V's rows that no sequence uses.
fn unused(problem: &Problem, layout: &TensorLayout) -> Vec<usize> {
    let mut is_used = vec![false; layout.span()];
    for batch in 0..problem.batch() {
        for (key, head) in
            (0..problem.key_rows(batch).len()).flat_map(|key| (0..layout.heads).map(move |head| (key, head)))
        {
            is_used[problem.key_index(layout, batch, key, head)..][..layout.head_dim].fill(true);
        }
    }
    (0..layout.span()).filter(|&at| !is_used[at]).collect()
}

/// Checks the gradients, and that rows behind the used keys were left alone.
fn check<T: Element<Output = T>>(made: &Made<T>, ran: &Ran<T>) -> Result<(), TestCaseError> {
    let report = ran.report(made);
    prop_assert!(report.passed(), "{report}; {:?}", ran.plan.reasons());
    let layouts = made.problem.layouts();
    for (layout, gradient) in [(layouts.dk, &ran.gradients[1]), (layouts.dv, &ran.gradients[2])] {
        let untouched =
            unused(made.problem.forward(), &layout).iter().all(|&at| gradient[at].to_f32() == -77.0);
        prop_assert!(untouched, "wrote behind the used keys; {:?}", ran.plan.reasons());
    }
    Ok(())
}

fn dense<T: Element<Output = T>>(
    options: Options,
    [batch, sq, sk]: [usize; 3],
    [d, dv]: [usize; 2],
) -> Made<T> {
    let (q, k) = (TensorLayout::bshd(batch, sq, 4, d), TensorLayout::bhsd(batch, sk, 2, d));
    let (v, o) = (TensorLayout::bshd(batch, sk, 2, dv), TensorLayout::bshd(batch, sq, 4, dv));
    let problem = Problem::new(Tensors { q, k, v, o }, T::DTYPE, options).unwrap();
    let layouts = *BackwardProblem::like(problem.clone()).unwrap().layouts();
    Made::new(problem, layouts, 9)
}

/// Each way in which each kernel computes: dS stored for all or some heads, and not at all.
fn ways() -> Vec<BackwardRequest> {
    let of_kernel = |kernel| {
        [None, Some(200_000), Some(0)]
            .map(|workspace_limit| BackwardRequest { workspace_limit, ..with(Some(kernel)) })
    };
    [BackwardKernel::BackwardSm90, BackwardKernel::BackwardSm80]
        .into_iter()
        .flat_map(of_kernel)
        .chain([
            BackwardRequest { unit_rows: Some(256), ..with(Some(BackwardKernel::BackwardSm90)) },
            with(Some(BackwardKernel::BackwardSimt)),
        ])
        .collect()
}

/// What a run wrote; nothing where no memory is granted, and wide heads or changed scores need it.
fn ran<T: Element<Output = T>>(
    made: &Made<T>,
    backend: &Backend,
    request: &BackwardRequest,
) -> Option<Ran<T>> {
    let ran = made.run_with(backend, request);
    assert!(ran.is_ok() || request.workspace_limit == Some(0), "{request:?}");
    ran.ok()
}

#[test]
fn nothing_behind_the_used_keys_comes_through() {
    for (causal, softcap, head_dims) in
        [(false, 0.0, (40, 24)), (true, 0.0, (40, 24)), (true, 2.0, (40, 24)), (false, 0.0, (129, 33))]
    {
        let options = Options { causal, softcap, ..Options::default() };
        // The packed batch has 40, 80, 30 and no keys.
        let dense = cut(&dense::<f16>(options.clone(), [3, 140, 200], head_dims.into()), &[130, 0, 64]);
        let packed = cut(&packed::<f16>(options, head_dims), &[33, 80, 0, 0]);
        for made in [dense.with_dlse(4), packed.with_dlse(4)] {
            for request in ways() {
                if let Some(ran) = ran(&made, &Backend::simulator(3), &request) {
                    check(&made, &ran).unwrap();
                }
            }
            let cpu = Backend::open(Some(BackendKind::Cpu)).unwrap();
            check(&made, &made.run(&cpu).unwrap()).unwrap();
        }
    }
}

/// Sums of dQ would take in what lies behind, so that dS is stored in their place.
#[test]
fn dq_is_not_summed_over_keys_that_may_be_unused() {
    let summed = |used: bool| {
        let layout = TensorLayout::bshd(4, 2048, 16, 64);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let forward = Problem::new(tensors, f16::DTYPE, Options::default()).unwrap();
        let forward = if used { forward.with_seqused_k_on_device() } else { forward };
        let problem = BackwardProblem::like(forward).unwrap();
        let plan = Backend::simulator(0).plan(&problem, &BackwardRequest::default()).unwrap();
        plan.launches().iter().any(|launch| launch.entry.algorithm.sums_dq())
    };
    assert!(summed(false) && !summed(true));
}

/// Numbers that the device alone has change neither what is computed nor a bit of it.
#[test]
fn numbers_on_the_device_give_the_bits_of_known_ones() {
    let options = Options { causal: true, ..Options::default() };
    let made = cut(&dense::<f16>(options, [3, 140, 200], [40, 24]), &[130, 1, 64]);
    let planned = made.problem.forward().with_seqused_k_on_device();
    let planned = BackwardProblem::new(planned, *made.problem.layouts()).unwrap();
    for request in ways() {
        let backend = Backend::simulator(3);
        let plan = backend.plan(&planned, &request).unwrap().with_seqused_k(&[130, 1, 64]).unwrap();
        let bits =
            |ran: Ran<f16>| ran.gradients.map(|of| of.into_iter().map(f16::to_bits).collect::<Vec<_>>());
        let known = made.run_with(&backend, &request).unwrap();
        assert!(bits(made.run_plan(&backend, plan).unwrap()) == bits(known), "{request:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random lengths, masks, changes of scores and dropout, in any of the ways.
    #[test]
    fn every_kernel_matches_the_reference(
        lengths in [1..4_usize, 1..150_usize, 1..260_usize],
        head_dims in [1..80_usize, 1..80_usize],
        eighths in prop::array::uniform3(0..8_usize),
        options in options(150),
        drops in any::<bool>(),
        way in 0..8_usize,
        schedule in any::<u64>(),
    ) {
        let dropout = drops.then_some(Dropout { probability: 0.3, seed: schedule, offset: 2 });
        let whole = dense::<f16>(Options { dropout, ..options }, lengths, head_dims);
        let used: Vec<i32> = eighths[..lengths[0]].iter().map(|of| (lengths[2] * of / 7) as i32).collect();
        let made = cut(&whole, &used).with_dlse(schedule);
        if let Some(ran) = ran(&made, &Backend::simulator(schedule), &ways()[way]) {
            check(&made, &ran)?;
        }
        check(&made, &made.run(&Backend::open(Some(BackendKind::Cpu)).unwrap()).unwrap())?;
    }
}
