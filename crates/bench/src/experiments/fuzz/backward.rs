//! Backward problems, after a forward pass on the CPU.

use fa_kernels::entries::entries;
use flash_attention::backward::{
    BackwardPlan, BackwardProblem, BackwardRequest, GradientInputs, GradientLayouts,
};
use flash_attention::{DType, Device, Element, Plan, Tensors};

use super::attention::{by_cpu, check_range, key_rows, lse_rows, named, place_inputs, query_rows};
use super::bench::{Bench, judged, unsupported};
use super::case::{Backward, Data, Operation};
use super::data::{Source, huge};
use super::draw::Draw;
use super::image::{Slot, Written};
use super::machine::{BackwardCall, Machine};
use super::outcome::{Failure, Stop};
use super::place::{Place, spoiled};

/// Key/value heads whose gradients are compared with the reference.
const CHECKED_HEADS: usize = 2;

impl Backward {
    pub(super) fn problem(&self) -> flash_attention::Result<BackwardProblem> {
        let forward = self.forward.problem()?;
        let Tensors { q, k, v, o } = *forward.tensors();
        let layout = |name, place: &Place, like: flash_attention::TensorLayout| {
            let shape = [like.batch, like.seqlen, like.heads, like.head_dim];
            spoiled(&self.forward.spoil, name, place.layout(shape))
        };
        let layouts = GradientLayouts {
            dout: layout("dout", &self.dout, o),
            dq: layout("dq", &self.dq, q),
            dk: layout("dk", &self.dk, k),
            dv: layout("dv", &self.dv, v),
        };
        BackwardProblem::new(forward, layouts)
    }

    /// The plan that is asked for, with the lengths that it may not have known.
    fn planned(&self, problem: &BackwardProblem, device: &Device) -> Result<BackwardPlan, Stop> {
        let Some(bounded) = self.forward.bounded(problem.forward())? else {
            return self.chosen(problem, device);
        };
        let mut plan = self.chosen(&BackwardProblem::new(bounded, *problem.layouts())?, device)?;
        if let Some((q, k)) = problem.forward().cu_seqlens() {
            plan = plan.with_cu_seqlens(q, k)?;
        }
        if let Some(used) = problem.forward().seqused_k() {
            plan = plan.with_seqused_k(used)?;
        }
        Ok(plan)
    }

    fn chosen(&self, problem: &BackwardProblem, device: &Device) -> Result<BackwardPlan, Stop> {
        use flash_attention::backward::BackwardKernel as Kernel;
        let is_entry = entries().any(|entry| entry.name == self.run);
        let kernel = if is_entry { None } else { named(&self.run, &Kernel::ALL, Kernel::name)? };
        let request = BackwardRequest {
            kernel,
            entry: is_entry.then(|| self.run.clone()),
            workspace_limit: (self.limit > 0).then_some(self.limit),
            unit_rows: (self.unit_rows > 0).then_some(self.unit_rows),
            sm_margin: self.sm_margin,
        };
        Ok(Plan::new(problem, device, &request)?)
    }
}

pub(super) fn run(bench: &mut Bench<impl Machine>, case: &Backward) -> Result<(), Stop> {
    match case.forward.dtype {
        DType::F32 => typed::<f32>(bench, case),
        DType::F16 => typed::<half::f16>(bench, case),
        DType::Bf16 => typed::<half::bf16>(bench, case),
        DType::E4m3 => {
            // The forward problem may be refused first, and says more.
            case.problem()?;
            Err(unsupported(Operation::Backward, DType::E4m3))
        }
    }
}

fn typed<T: Element<Output = T>>(bench: &mut Bench<impl Machine>, case: &Backward) -> Result<(), Stop> {
    let problem = case.problem()?;
    let plan = case.planned(&problem, bench.machine.device())?;
    let forward = problem.forward();
    let Tensors { q, k, v, o } = forward.tensors();
    let GradientLayouts { dout, dq, dk, dv } = problem.layouts();
    let spans = [q, k, v, o, dout, dq, dk, dv].map(|layout| layout.span());
    let limits = bench.limits();
    limits.check_memory(&spans, plan.workspace_bytes().saturating_mul(2))?;
    limits.check_flops(problem.flops())?;
    // The reference goes through whole heads, for sinks in every sequence.
    let sinks = forward.per_head().sinks.map(<[f32]>::len);
    let passes = sinks.map_or(1, |_| 1 + forward.batch());
    limits.check_flops((32 * passes) as f64 * problem.flops() / problem.heads().len().max(1) as f64)?;
    check_range(forward, case.forward.scores)?;

    let memory = &mut bench.memory;
    let size = size_of::<T>();
    let o_slot = memory.inputs.reserve((o.span(), size), case.forward.o.offset);
    let dout_slot = memory.inputs.reserve((dout.span(), size), case.dout.offset);
    let lse_slot = memory.inputs.reserve((forward.lse_len(), 4), case.dout.offset);
    let dlse = case.dlse.then(|| memory.inputs.reserve((forward.lse_len(), 4), case.dout.offset));
    let ([q_slot, k_slot, v_slot], extras) = place_inputs::<T>(memory, &case.forward, forward);
    let upstream = [o_slot, dout_slot, lse_slot];
    fill_upstream::<T>(bench, case, &problem, ([q_slot, k_slot, v_slot], upstream, dlse))?;
    let outputs = &mut bench.memory.outputs;
    let gradients = [(dq, case.dq.offset), (dk, case.dk.offset), (dv, case.dv.offset)]
        .map(|(layout, offset)| outputs.reserve((layout.span(), size), offset));
    let sinks = sinks.filter(|_| !case.no_dsinks);
    let dsinks = sinks.map(|sinks| outputs.reserve((sinks, 4), case.dq.offset));
    outputs.fill();
    let call = BackwardCall {
        plan: &plan,
        inputs: [q_slot, k_slot, v_slot, o_slot, dout_slot, lse_slot],
        dlse,
        extras,
        gradients,
        dsinks,
        schedule: case.forward.schedule,
    };
    bench.machine.backward::<T>(&call, &mut bench.memory)?;
    Ok(judge::<T>(bench, &problem, &call, sinks.unwrap_or(0))?)
}

/// O and lse of the forward pass, and random dO and dlse.
fn fill_upstream<T: Element<Output = T>>(
    bench: &mut Bench<impl Machine>,
    case: &Backward,
    problem: &BackwardProblem,
    (inputs, [o, dout, lse], dlse): ([Slot; 3], [Slot; 3], Option<Slot>),
) -> Result<(), Failure> {
    let forward = problem.forward();
    let image = &mut bench.memory.inputs;
    let [q, k, v] = inputs.map(|slot| image.values::<T>(slot));
    let (o_values, lse_values) = by_cpu(forward, (q, k, v))?;
    let layout = &forward.tensors().o;
    let to = image.values_mut::<T>(o);
    for first in query_rows(forward, layout) {
        to[first..][..layout.head_dim].copy_from_slice(&o_values[first..][..layout.head_dim]);
    }
    let to = image.values_mut::<f32>(lse);
    for (first, len) in lse_rows(forward) {
        to[first..][..len].copy_from_slice(&lse_values[first..][..len]);
    }
    // Products of dO and V stay as large as others.
    let factor = if case.forward.values == Data::Huge { 1.0 / huge(case.forward.dtype) } else { 1.0 };
    let data = if case.forward.values == Data::MeanOne { Data::MeanOne } else { Data::Normal };
    let layout = &problem.layouts().dout;
    let rows = query_rows(forward, layout).into_iter();
    let mut draw = Draw::new(!case.forward.seed.0);
    Source { data, factor }.fill::<T>(image, dout, rows, layout.head_dim, &mut draw);
    if let Some(dlse) = dlse {
        // That of a row that sees neither a key nor a sink stays the canary, which is NaN.
        let rows = lse_rows(forward).into_iter().flat_map(|(first, len)| first..first + len);
        let rows = rows.filter(|&row| lse_values[row] != f32::NEG_INFINITY);
        Source::new(data).fill::<f32>(image, dlse, rows, 1, &mut draw);
    }
    Ok(())
}

fn judge<T: Element>(
    bench: &Bench<impl Machine>,
    problem: &BackwardProblem,
    call: &BackwardCall<'_>,
    sinks: usize,
) -> Result<(), Failure> {
    let forward = problem.forward();
    let GradientLayouts { dq, dk, dv, .. } = problem.layouts();
    let outputs = &bench.memory.outputs;
    let rows = |firsts: Vec<usize>, len| firsts.into_iter().map(|first| (first, len)).collect();
    let gradients = call.gradients;
    let mut all = [
        ("dq", gradients[0], rows(query_rows(forward, dq), dq.head_dim)),
        ("dk", gradients[1], rows(key_rows(forward, dk), dk.head_dim)),
        ("dv", gradients[2], rows(key_rows(forward, dv), dv.head_dim)),
    ]
    .map(|(name, slot, rows)| Written { name, slot, size: size_of::<T>(), rows })
    .into_iter()
    .collect::<Vec<_>>();
    all.extend(call.dsinks.map(|slot| Written { name: "dsinks", slot, size: 4, rows: vec![(0, sinks)] }));
    outputs.check(&all)?;
    all[..3].iter().try_for_each(|gradient| gradient.check::<T>(outputs, false))?;
    all[3..].iter().try_for_each(|dsinks| dsinks.check::<f32>(outputs, false))?;
    let image = &bench.memory.inputs;
    let [q, k, v, _, dout, _] = call.inputs.map(|slot| image.values::<T>(slot));
    let dlse = call.dlse.map(|dlse| image.values::<f32>(dlse));
    let inputs = GradientInputs { q, k, v, dout, dlse };
    let expected = problem.expected(inputs, &problem.sample(CHECKED_HEADS));
    let dsinks = call.dsinks.map(|dsinks| outputs.values::<f32>(dsinks));
    let report = expected.judge(problem, gradients.map(|slot| outputs.values::<T>(slot)), dsinks);
    report.all().try_for_each(|(name, accuracy)| judged(name, &accuracy, String::new))
}
