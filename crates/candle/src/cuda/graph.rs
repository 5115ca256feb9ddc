//! Attention of several GPUs in candle's graph, whose operations have one result and at most three arguments,
//! all on one device.
//!
//! Each rank's Q, K and V become a token, and the sum of all tokens becomes each rank's O. On the way back an
//! operation comes after all that need its result. So every dO that the loss has is here before the first
//! token's gradient is asked for, which computes those of all ranks.
//!
//! ```text
//! q[0], k[0], v[0] -> Enter -> token --+           +-> Leave -> o[0]
//!                                      +-> token --+
//! q[1], k[1], v[1] -> Enter -> token --+           +-> Leave -> o[1]
//! ```

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use candle_core::{CpuStorage, CudaStorage, CustomOp1, CustomOp3, Layout, Result, Shape, Tensor, bail};
use flash_attention::Problem;

use super::DeviceScalar;
use super::ranks::Ranks;
use crate::op::by_dtype;

/// Each rank's O, from each rank's Q, K and V.
pub(super) fn attention<T: DeviceScalar>(
    ranks: &Arc<Ranks>,
    problem: Problem,
    tensors: &[[&Tensor; 3]],
) -> Result<Vec<Tensor>> {
    // Without their history, so that a call is no part of what leads to it.
    let contiguous = |tensor: &Tensor| -> Result<Tensor> { Ok(tensor.contiguous()?.detach()) };
    let of_rank = |[q, k, v]: &[&Tensor; 3]| Ok([contiguous(q)?, contiguous(k)?, contiguous(v)?]);
    let inputs = tensors.iter().map(of_rank).collect::<Result<Vec<_>>>()?;
    let is_tracked: Vec<bool> =
        tensors.iter().map(|tensors| tensors.iter().any(|tensor| tensor.track_op())).collect();
    let has_gradients = is_tracked.contains(&true);
    let (mut outputs, mut lse) = (Vec::new(), Vec::new());
    for (rank, (o, kept)) in ranks.forward::<T>(&problem, &inputs, has_gradients)?.into_iter().enumerate() {
        let tensors = problem.tensors();
        let [q, ..] = &inputs[rank];
        let (batch, rows, heads, _) = q.dims4()?;
        let shape = Shape::from((batch, rows, heads, tensors.o.head_dim));
        outputs.push((o, shape));
        lse.extend(kept.map(|lse| ranks.tensor(rank, lse)).transpose()?);
    }
    if !has_gradients {
        let tensor = |(rank, (o, shape)): (usize, (_, Shape))| ranks.tensor::<T>(rank, o)?.reshape(shape);
        return outputs.into_iter().enumerate().map(tensor).collect();
    }
    let call = Arc::new(Call {
        ranks: ranks.clone(),
        problem,
        inputs,
        lse,
        o: OnceLock::new(),
        run: Mutex::new(Run::new(tensors.len())),
        is_tracked: is_tracked.clone(),
    });
    let mut token: Option<Tensor> = None;
    for (rank, [q, k, v]) in tensors.iter().enumerate().filter(|&(rank, _)| is_tracked[rank]) {
        let own = q.apply_op3(k, v, Enter { call: call.clone(), rank })?;
        token = Some(match token {
            Some(others) => (others + own)?,
            None => own,
        });
    }
    let Some(token) = token else { bail!("flash-attn: no rank has a gradient") };
    let leave = |(rank, (o, shape))| {
        let o = Mutex::new(Some((ranks.storage::<T>(rank, o), shape)));
        token.apply_op1(Leave { call: call.clone(), rank, o })
    };
    let o = outputs.into_iter().enumerate().map(leave).collect::<Result<Vec<_>>>()?;
    // Without its history: the operations in it have the call.
    let _ = call.o.set(o.iter().map(Tensor::detach).collect());
    Ok(o)
}

/// One call, from its forward pass on.
struct Call {
    ranks: Arc<Ranks>,
    problem: Problem,
    /// Q, K and V of each rank.
    inputs: Vec<[Tensor; 3]>,
    lse: Vec<Tensor>,
    /// Whether a gradient of the rank's Q, K or V can be asked for.
    is_tracked: Vec<bool>,
    /// O of each rank, once all are made.
    o: OnceLock<Vec<Tensor>>,
    run: Mutex<Run>,
}

/// A run back through the graph.
struct Run {
    /// dO of each rank whose O the loss depends on.
    douts: Vec<Option<Tensor>>,
    /// dQ, dK and dV of each rank that is yet to take its own.
    gradients: Vec<Option<[Tensor; 3]>>,
}

impl Run {
    fn new(world: usize) -> Self {
        Self { douts: vec![None; world], gradients: vec![None; world] }
    }
}

impl Call {
    fn run(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// dQ, dK and dV of each rank.
    fn gradients(&self, douts: Vec<Option<Tensor>>) -> Result<Vec<[Tensor; 3]>> {
        let Some(o) = self.o.get() else { bail!("flash-attn: the forward pass is not over") };
        let dout = |(dout, o): (Option<Tensor>, &Tensor)| match dout {
            Some(dout) => dout.contiguous(),
            None => o.zeros_like(),
        };
        let douts = douts.into_iter().zip(o).map(dout).collect::<Result<Vec<_>>>()?;
        let of_rank = |rank: usize| {
            let [q, k, v] = &self.inputs[rank];
            [q, k, v, &o[rank], &douts[rank], &self.lse[rank]]
        };
        let tensors: Vec<_> = (0..douts.len()).map(of_rank).collect();
        by_dtype!(o[0].dtype(), T => self.ranks.backward::<T>(&self.problem, &tensors))
    }
}

/// The way of a rank's Q, K and V into attention.
struct Enter {
    call: Arc<Call>,
    rank: usize,
}

impl CustomOp3 for Enter {
    fn name(&self) -> &'static str {
        "flash-attn"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        on_cpu()
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        // All tokens are on the first rank's GPU, where they are added.
        let device = &self.call.ranks.devices()[0];
        let token = device.alloc_zeros::<f32>(1)?;
        Ok((CudaStorage::wrap_cuda_slice(token, device.clone()), Shape::from(1)))
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let mut run = self.call.run();
        let world = run.douts.len();
        if run.douts.iter().any(Option::is_some) {
            let Run { douts, .. } = mem::replace(&mut *run, Run::new(world));
            let all = self.call.gradients(douts)?.into_iter().zip(&self.call.is_tracked);
            run.gradients = all.map(|(gradients, is_tracked)| is_tracked.then_some(gradients)).collect();
        }
        match run.gradients[self.rank].take() {
            Some([dq, dk, dv]) => Ok((Some(dq), Some(dk), Some(dv))),
            None => {
                bail!("flash-attn: rank {} has no gradients after an error: call attention again", self.rank)
            }
        }
    }
}

/// The way of a rank's O out of attention.
struct Leave {
    call: Arc<Call>,
    rank: usize,
    o: Mutex<Option<(CudaStorage, Shape)>>,
}

impl CustomOp1 for Leave {
    fn name(&self) -> &'static str {
        "flash-attn"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        on_cpu()
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        match self.o.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(o) => Ok(o),
            None => bail!("flash-attn: O of rank {} is taken", self.rank),
        }
    }

    fn bwd(&self, token: &Tensor, _: &Tensor, dout: &Tensor) -> Result<Option<Tensor>> {
        self.call.run().douts[self.rank] = Some(dout.detach());
        token.zeros_like().map(Some)
    }
}

fn on_cpu() -> Result<(CpuStorage, Shape)> {
    bail!("flash-attn: ranks are on the CPU; GPUs are needed")
}
