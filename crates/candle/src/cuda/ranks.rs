//! Attention of tensors on several GPUs, a rank on each: launches on candle's streams, without waits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use candle_core::{CudaDevice, CudaStorage, Device, Result, Tensor, bail};
use flash_attention::backward::BackwardProblem;
use flash_attention::distributed::{LocalRanks, Partition, Shard, ShardAddresses, Sharded};
use flash_attention::{Operation, Problem};

use super::graph;
use super::{Borrows, DeviceScalar, Gpu};
use crate::op::by_dtype;
use crate::problem::error;

/// The GPUs of a [`ContextParallel`](crate::ContextParallel), and what is planned for them.
pub(crate) struct Ranks {
    devices: Vec<CudaDevice>,
    forward: Kept<Problem>,
    backward: Kept<BackwardProblem>,
}

/// O and, where it is wanted, log-sum-exp of one rank.
pub(super) type Output<T> = (CudaSlice<T>, Option<CudaSlice<f32>>);

impl Ranks {
    /// Ranks on these devices, unless they are CPUs.
    pub(crate) fn new(devices: &[Device]) -> Result<Option<Self>> {
        let mut gpus = Vec::with_capacity(devices.len());
        for (rank, device) in devices.iter().enumerate() {
            let Device::Cuda(device) = device else { return Ok(None) };
            // The handles of the default streams mean those of the GPU that is current.
            if device.cuda_stream().cu_stream() as usize <= 2 {
                bail!(
                    "flash-attn: devices[{rank}] has the thread's default stream, as of Device::new_cuda; \
                     one of its own is needed, as of Device::new_cuda_with_stream"
                );
            }
            gpus.push(device.clone());
        }
        Ok(Some(Self { devices: gpus, forward: Kept::new(), backward: Kept::new() }))
    }

    pub(super) fn devices(&self) -> &[CudaDevice] {
        &self.devices
    }

    /// Each rank's O, from each rank's Q, K and V.
    pub(crate) fn attention(
        self: &Arc<Self>,
        problem: Problem,
        [q, k, v]: [&[Tensor]; 3],
    ) -> Result<Vec<Tensor>> {
        let inputs: Vec<_> = q.iter().zip(k).zip(v).map(|((q, k), v)| [q, k, v]).collect();
        by_dtype!(q[0].dtype(), T => graph::attention::<T>(self, problem, &inputs))
    }

    /// Each rank's output, from each rank's contiguous Q, K and V.
    pub(super) fn forward<T: DeviceScalar>(
        &self,
        problem: &Problem,
        inputs: &[[Tensor; 3]],
        wants_lse: bool,
    ) -> Result<Vec<Output<T>>> {
        let gpus = self.gpus()?;
        let mut kept = self.forward.of(&gpus, problem)?;
        let ranks = kept.ranks()?;
        let mut outputs = Vec::with_capacity(gpus.len());
        for (rank, gpu) in gpus.iter().enumerate() {
            let shard = shard(ranks, rank)?;
            let o = gpu.memory::<T>(shard.tensors().o.span(), false)?;
            let lse = match wants_lse {
                true => Some(gpu.memory::<f32>(shard.lse_len(), false)?),
                false => None,
            };
            outputs.push((o, lse));
        }
        let held: Vec<_> =
            inputs.iter().map(|tensors| tensors.each_ref().map(Tensor::storage_and_layout)).collect();
        let mut borrows: Vec<_> = gpus.iter().map(|gpu| Borrows::new(&gpu.stream)).collect();
        let mut addresses = Vec::with_capacity(gpus.len());
        for (rank, (gpu, (o, lse))) in gpus.iter().zip(&mut outputs).enumerate() {
            let ([q, k, v], borrows) = (&held[rank], &mut borrows[rank]);
            addresses.push(ShardAddresses {
                q: borrows.read(gpu.operand::<T>("q", q)?),
                k: borrows.read(gpu.operand::<T>("k", k)?),
                v: borrows.read(gpu.operand::<T>("v", v)?),
                o: borrows.write(o),
                lse: lse.as_mut().map(|lse| borrows.write(lse)),
                ..ShardAddresses::default()
            });
        }
        // SAFETY: each rank's tensors are contiguous, of the shard's shapes, and on its GPU. The borrows keep
        // them for its stream, which waits for the rank's work. O and lse are memory of this call alone.
        // Calls follow one another, since `kept` is locked and a rank's stream is always the same one.
        let enqueued = unsafe { ranks.forward(&addresses, &streams(&gpus)) };
        settle(&gpus, enqueued)?;
        drop(borrows);
        Ok(outputs)
    }

    /// Each rank's dQ, dK and dV, from its contiguous Q, K, V, O, dO and lse.
    pub(super) fn backward<T: DeviceScalar>(
        &self,
        problem: &Problem,
        inputs: &[[&Tensor; 6]],
    ) -> Result<Vec<[Tensor; 3]>> {
        let gpus = self.gpus()?;
        let problem = BackwardProblem::like(problem.clone()).map_err(error)?;
        let mut kept = self.backward.of(&gpus, &problem)?;
        let ranks = kept.ranks()?;
        let mut outputs = Vec::with_capacity(gpus.len());
        for (rank, gpu) in gpus.iter().enumerate() {
            let tensors = shard(ranks, rank)?.tensors();
            let of = |len: usize| gpu.memory::<T>(len, false);
            outputs.push([of(tensors.q.span())?, of(tensors.k.span())?, of(tensors.v.span())?]);
        }
        let held: Vec<_> = inputs.iter().map(|tensors| tensors.map(Tensor::storage_and_layout)).collect();
        let mut borrows: Vec<_> = gpus.iter().map(|gpu| Borrows::new(&gpu.stream)).collect();
        let mut addresses = Vec::with_capacity(gpus.len());
        for (rank, (gpu, [dq, dk, dv])) in gpus.iter().zip(&mut outputs).enumerate() {
            let ([q, k, v, o, dout, lse], borrows) = (&held[rank], &mut borrows[rank]);
            addresses.push(ShardAddresses {
                q: borrows.read(gpu.operand::<T>("q", q)?),
                k: borrows.read(gpu.operand::<T>("k", k)?),
                v: borrows.read(gpu.operand::<T>("v", v)?),
                o: borrows.read(gpu.operand::<T>("o", o)?),
                dout: borrows.read(gpu.operand::<T>("dO", dout)?),
                lse: Some(borrows.read(gpu.operand::<f32>("lse", lse)?)),
                dq: borrows.write(dq),
                dk: borrows.write(dk),
                dv: borrows.write(dv),
            });
        }
        // SAFETY: as in the forward pass; the gradients are memory of this call alone.
        let enqueued = unsafe { ranks.backward(&addresses, &streams(&gpus)) };
        settle(&gpus, enqueued)?;
        drop(borrows);
        let tensors = |(gpu, (of, [dq, dk, dv])): (&Gpu<'_>, (&[&Tensor; 6], [CudaSlice<T>; 3]))| {
            let [q, k, v, ..] = of.map(|tensor| tensor.shape().clone());
            [gpu.tensor_of(dq, q), gpu.tensor_of(dk, k), gpu.tensor_of(dv, v)]
        };
        Ok(gpus.iter().zip(inputs.iter().zip(outputs)).map(tensors).collect())
    }

    fn gpus(&self) -> Result<Vec<Gpu<'_>>> {
        self.devices.iter().map(Gpu::of).collect()
    }

    /// O of a rank as the result of an operation.
    pub(super) fn storage<T: DeviceScalar>(&self, rank: usize, o: CudaSlice<T>) -> CudaStorage {
        CudaStorage::wrap_cuda_slice(o, self.devices[rank].clone())
    }

    /// A tensor of a rank without gradient.
    pub(super) fn tensor<T: DeviceScalar>(&self, rank: usize, values: CudaSlice<T>) -> Result<Tensor> {
        let len = values.len();
        Ok(Gpu::of(&self.devices[rank])?.tensor_of(values, len.into()))
    }
}

fn streams(gpus: &[Gpu<'_>]) -> Vec<flash_attention::cuda::Stream> {
    gpus.iter().map(Gpu::stream).collect()
}

fn shard<O: Sharded>(ranks: &LocalRanks<O>, rank: usize) -> Result<&Shard> {
    match ranks.shard(rank) {
        Some(shard) => Ok(shard),
        None => bail!("flash-attn: there is no rank {rank} of {}", ranks.world()),
    }
}

/// Passes an error on once the GPUs are idle: after one, streams do not wait for all that was enqueued.
fn settle(gpus: &[Gpu<'_>], enqueued: flash_attention::Result<()>) -> Result<()> {
    let Err(failure) = enqueued else { return Ok(()) };
    for gpu in gpus {
        // The first error is the one that is passed on.
        let _ = gpu.stream.context().synchronize();
    }
    Err(error(failure))
}

/// The plans of the last problem, with memory for what its ranks gather.
struct Kept<O: Sharded>(Mutex<Option<(O, LocalRanks<O>)>>);

/// [`Kept`] for one call.
struct Locked<'a, O: Sharded>(MutexGuard<'a, Option<(O, LocalRanks<O>)>>);

impl<O: Sharded + Operation + Clone + PartialEq> Kept<O>
where
    O::Request: Default,
{
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The plans of a problem; those of another go first, with their memory.
    fn of(&self, gpus: &[Gpu<'_>], problem: &O) -> Result<Locked<'_, O>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_none_or(|(of, _)| of != problem) {
            *kept = None;
            let cudas: Vec<_> = gpus.iter().map(|gpu| gpu.cuda.clone()).collect();
            let ranks = LocalRanks::new(&cudas, problem, Partition::ZigZag, &O::Request::default());
            *kept = Some((problem.clone(), ranks.map_err(error)?));
        }
        Ok(Locked(kept))
    }
}

impl<O: Sharded> Locked<'_, O> {
    fn ranks(&mut self) -> Result<&LocalRanks<O>> {
        match &*self.0 {
            Some((_, ranks)) => Ok(ranks),
            None => bail!("flash-attn: ranks are not planned"),
        }
    }
}
