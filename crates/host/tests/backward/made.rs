//! Problems with all that their backward pass reads.

use flash_attention::backward::{
    BackwardInputs, BackwardKernel, BackwardOutputs, BackwardPlan, BackwardProblem, BackwardRequest,
    GradientInputs, GradientLayouts, GradientReport,
};
use flash_attention::{Backend, DType, Element, Options, Problem, TensorLayout, Tensors, cpu};
use half::{bf16, f16};
use proptest::prelude::*;

use crate::common::{Case, Order, tensor, untouched_outside};

/// A problem with all tensors that its backward pass reads: O and lse are those of the CPU's forward pass.
pub(crate) struct Made<T> {
    pub(crate) problem: BackwardProblem,
    pub(crate) inputs: [Vec<T>; 3],
    pub(crate) o: Vec<T>,
    pub(crate) lse: Vec<f32>,
    pub(crate) dout: Vec<T>,
    pub(crate) dlse: Option<Vec<f32>>,
}

/// What a run wrote.
pub(crate) struct Ran<T> {
    /// dQ, dK and dV.
    pub(crate) gradients: [Vec<T>; 3],
    pub(crate) dsinks: Option<Vec<f32>>,
    pub(crate) plan: BackwardPlan,
}

impl<T: Element<Output = T>> Ran<T> {
    pub(crate) fn report(&self, made: &Made<T>) -> GradientReport {
        let expected = made.problem.expected(made.gradient_inputs(), &made.problem.heads());
        let gradients = self.gradients.each_ref().map(Vec::as_slice);
        expected.judge(&made.problem, gradients, self.dsinks.as_deref())
    }
}

impl<T: Element<Output = T>> Made<T> {
    pub(crate) fn new(forward: Problem, layouts: GradientLayouts, seed: u64) -> Self {
        let Tensors { q, k, v, o: o_layout } = *forward.tensors();
        let inputs =
            [(q, 1), (k, 2), (v, 3)].map(|(layout, salt)| tensor(&layout, seed.wrapping_mul(2 * salt + 1)));
        let (mut o, mut lse) =
            (vec![T::from_f32(f32::NAN); o_layout.span()], vec![f32::NAN; forward.lse_len()]);
        cpu::forward(&forward, &inputs[0], &inputs[1], &inputs[2], &mut o, Some(&mut lse)).unwrap();
        let dout = tensor(&layouts.dout, seed.wrapping_mul(9));
        Self { problem: BackwardProblem::new(forward, layouts).unwrap(), inputs, o, lse, dout, dlse: None }
    }

    /// With a gradient of lse, which is NaN where a row sees neither a key nor a sink.
    pub(crate) fn with_dlse(self, seed: u64) -> Self {
        let values = tensor::<f32>(&TensorLayout::bshd(1, 1, 1, self.lse.len()), seed);
        let of_lse = |(&lse, value)| if lse == f32::NEG_INFINITY { f32::NAN } else { value };
        Self { dlse: Some(self.lse.iter().zip(values).map(of_lse).collect()), ..self }
    }

    /// Of a random case; gradients lie in another order than their tensors.
    pub(crate) fn of_case(case: &Case) -> Self {
        let [b, sq, sk, h, group, d] = case.shape;
        let (dv, order) = (case.head_dim_v.unwrap_or(d), case.orders[2]);
        let layouts = GradientLayouts {
            dout: case.orders[0].layout(b, sq, h * group, dv),
            dq: order.layout(b, sq, h * group, d),
            dk: order.layout(b, sk, h, d),
            dv: Order::Bhsd.layout(b, sk, h, dv),
        };
        let made = Self::new(case.problem(), layouts, case.seed);
        if case.seed.is_multiple_of(2) { made.with_dlse(case.seed / 2) } else { made }
    }

    pub(crate) fn inputs(&self) -> BackwardInputs<'_, T> {
        let [q, k, v] = &self.inputs;
        BackwardInputs {
            q,
            k,
            v,
            o: &self.o,
            lse: &self.lse,
            dout: &self.dout,
            dlse: self.dlse.as_deref(),
            delta: None,
        }
    }

    pub(crate) fn gradient_inputs(&self) -> GradientInputs<'_, T> {
        let [q, k, v] = &self.inputs;
        GradientInputs { q, k, v, dout: &self.dout, dlse: self.dlse.as_deref() }
    }

    /// The gradients, in buffers of a value that nothing computes.
    pub(crate) fn run(&self, backend: &Backend) -> flash_attention::Result<Ran<T>> {
        self.run_with(backend, &BackwardRequest::default())
    }

    pub(crate) fn run_with(
        &self,
        backend: &Backend,
        request: &BackwardRequest,
    ) -> flash_attention::Result<Ran<T>> {
        self.run_plan(backend, backend.plan(&self.problem, request)?)
    }

    /// As [`Self::run_with`], by a plan of the same tensors.
    pub(crate) fn run_plan(&self, backend: &Backend, plan: BackwardPlan) -> flash_attention::Result<Ran<T>> {
        let GradientLayouts { dq, dk, dv, .. } = self.problem.layouts();
        let [mut dq, mut dk, mut dv] = [dq, dk, dv].map(|layout| vec![T::from_f32(-77.0); layout.span() + 3]);
        let sinks = self.problem.forward().per_head().sinks;
        let mut dsinks = sinks.map(|sinks| vec![-77.0; sinks.len() + 1]);
        let outputs = BackwardOutputs {
            dq: &mut dq,
            dk: &mut dk,
            dv: &mut dv,
            dsinks: dsinks.as_deref_mut(),
            delta: None,
        };
        backend.run(&plan, self.inputs(), outputs)?;
        Ok(Ran { gradients: [dq, dk, dv], dsinks, plan })
    }

    pub(crate) fn check(&self, backend: &Backend, request: &BackwardRequest) -> Result<(), TestCaseError> {
        let ran = self.run_with(backend, request).map_err(|error| TestCaseError::fail(error.to_string()));
        let ran = ran?;
        let [dq, dk, dv] = &ran.gradients;
        let layouts = self.problem.layouts();
        for (layout, gradient, name) in
            [(layouts.dq, dq, "dq"), (layouts.dk, dk, "dk"), (layouts.dv, dv, "dv")]
        {
            prop_assert!(untouched_outside(&layout, gradient, -77.0), "{name}: wrote outside the view");
        }
        let past = ran.dsinks.as_ref().and_then(|dsinks| dsinks.last());
        prop_assert!(past.is_none_or(|&past| past == -77.0), "dsinks: wrote outside the view");
        let report = ran.report(self);
        prop_assert!(report.passed(), "{report}; {:?}", ran.plan.reasons());
        Ok(())
    }
}

/// With this kernel, if any.
pub(crate) fn with(kernel: Option<BackwardKernel>) -> BackwardRequest {
    BackwardRequest { kernel, ..BackwardRequest::default() }
}

pub(crate) fn check_any(
    case: &Case,
    backend: &Backend,
    kernel: Option<BackwardKernel>,
) -> Result<(), TestCaseError> {
    check_request(case, backend, &with(kernel))
}

pub(crate) fn check_request(
    case: &Case,
    backend: &Backend,
    request: &BackwardRequest,
) -> Result<(), TestCaseError> {
    match case.dtype {
        DType::F32 => Made::<f32>::of_case(case).check(backend, request),
        DType::F16 => Made::<f16>::of_case(case).check(backend, request),
        DType::Bf16 => Made::<bf16>::of_case(case).check(backend, request),
        DType::E4m3 => unreachable!("e4m3 has no backward pass"),
    }
}

/// Four sequences of the head_dims of Q and of V: one without queries, one without keys; the last rows are
/// nobody's, and NaN.
pub(crate) fn packed<T: Element<Output = T>>(
    options: Options,
    (head_dim, head_dim_v): (usize, usize),
) -> Made<T> {
    let (q, k) = (TensorLayout::bshd(1, 150, 4, head_dim), TensorLayout::bhsd(1, 160, 2, head_dim));
    let v = TensorLayout::bshd(1, 160, 2, head_dim_v);
    let tensors = Tensors { q, k, v, o: TensorLayout::bshd(1, 150, 4, head_dim_v) };
    let (of_q, of_k) = ([0, 70, 75, 75, 140], [0, 40, 120, 150, 150]);
    let problem = Problem::varlen(tensors, T::DTYPE, options, &of_q, &of_k).unwrap();
    let like = *BackwardProblem::like(problem.clone()).unwrap().layouts();
    let mut made = Made::new(problem, like, 9);
    let [q, k, v] = &mut made.inputs;
    for (values, layout, rows) in [
        (q, tensors.q, 140..150),
        (k, tensors.k, 150..160),
        (v, tensors.v, 150..160),
        (&mut made.dout, like.dout, 140..150),
    ] {
        for (row, head) in rows.flat_map(|row| (0..layout.heads).map(move |head| (row, head))) {
            values[layout.row(0, row, head)..][..layout.head_dim].fill(T::from_f32(f32::NAN));
        }
    }
    made
}
