//! Ranks' rows of tensors: cut, put together, copied and added up.

use std::ops::Range;

use candle_core::{Device, Result, Tensor, bail};

use super::ContextParallel;

impl ContextParallel {
    /// Positions of each rank's queries, u32 `[rows]` on its device, as a rotary embedding needs them. Query
    /// i stands at i + seqlen_k - seqlen_q.
    ///
    /// # Errors
    /// When a device fails.
    pub fn query_positions(&self) -> Result<Vec<Tensor>> {
        let [sq, sk] = self.lens;
        self.positions(&self.queries, sk - sq)
    }

    /// Positions of each rank's keys, u32 `[rows]` on its device.
    ///
    /// # Errors
    /// When a device fails.
    pub fn key_positions(&self) -> Result<Vec<Tensor>> {
        self.positions(&self.keys, 0)
    }

    fn positions(&self, rows: &[Vec<Range<usize>>], offset: usize) -> Result<Vec<Tensor>> {
        let of_rank = |(rows, device): (&Vec<Range<usize>>, &Device)| {
            let positions: Vec<u32> =
                rows.iter().cloned().flatten().map(|row| (row + offset) as u32).collect();
            Tensor::new(positions, device)
        };
        rows.iter().zip(&self.devices).map(of_rank).collect()
    }

    /// Each rank's rows of a tensor that has those of all queries, on its device, with gradients.
    ///
    /// * `tensor` - `[batch, seqlen_q, ..]`, of any further axes: queries, tokens or what they are to become.
    ///
    /// # Errors
    /// When `tensor` has other than `seqlen_q` rows, and when a device fails.
    pub fn shard_queries(&self, tensor: &Tensor) -> Result<Vec<Tensor>> {
        self.shard(tensor, &self.queries, ("seqlen_q", self.lens[0]))
    }

    /// Each rank's rows of a tensor that has those of all keys, on its device, with gradients.
    ///
    /// * `tensor` - `[batch, seqlen_k, ..]`, of any further axes.
    ///
    /// # Errors
    /// When `tensor` has other than `seqlen_k` rows, and when a device fails.
    pub fn shard_keys(&self, tensor: &Tensor) -> Result<Vec<Tensor>> {
        self.shard(tensor, &self.keys, ("seqlen_k", self.lens[1]))
    }

    fn shard(
        &self,
        tensor: &Tensor,
        rows: &[Vec<Range<usize>>],
        (name, len): (&str, usize),
    ) -> Result<Vec<Tensor>> {
        if tensor.dims().get(1) != Some(&len) {
            let shape = tensor.dims();
            bail!("flash-attn: a tensor to shard has shape {shape:?}; [batch, {name} = {len}, ..] is needed");
        }
        let of_rank = |(rows, device): (&Vec<Range<usize>>, &Device)| {
            let runs = rows.iter().map(|run| tensor.narrow(1, run.start, run.len()));
            let own = Tensor::cat(&runs.collect::<Result<Vec<_>>>()?, 1)?;
            moved(&own.contiguous()?, device)
        };
        rows.iter().zip(&self.devices).map(of_rank).collect()
    }

    /// The whole tensor of ranks' rows of Q or O, on `device`, with gradients.
    ///
    /// * `tensors` - each rank's `[batch, rows, ..]`, of any further axes.
    ///
    /// Returns `[batch, seqlen_q, ..]`, contiguous.
    ///
    /// # Errors
    /// When there is not one tensor of each rank with its rows, and when a device fails.
    pub fn gather_queries(&self, tensors: &[Tensor], device: &Device) -> Result<Tensor> {
        self.gather(("queries", tensors), &self.queries, device)
    }

    pub(super) fn gather(
        &self,
        (name, tensors): (&str, &[Tensor]),
        rows: &[Vec<Range<usize>>],
        device: &Device,
    ) -> Result<Tensor> {
        self.check_count(name, tensors)?;
        let mut runs = Vec::new();
        for (rank, (tensor, rows)) in tensors.iter().zip(rows).enumerate() {
            let len = rows.iter().map(Range::len).sum::<usize>();
            if tensor.dims().get(1) != Some(&len) {
                let shape = tensor.dims();
                bail!("flash-attn: {name}[{rank}] has shape {shape:?}; [batch, {len}, ..] is needed");
            }
            let tensor = moved(tensor, device)?;
            let mut first = 0;
            for run in rows {
                runs.push((run.start, tensor.narrow(1, first, run.len())?));
                first += run.len();
            }
        }
        runs.sort_by_key(|&(start, _)| start);
        Tensor::cat(&runs.into_iter().map(|(_, run)| run).collect::<Vec<_>>(), 1)?.contiguous()
    }

    /// A copy of a tensor on each rank's device, as of weights that all ranks multiply with. Its gradient is
    /// the sum of theirs.
    ///
    /// # Errors
    /// When a device fails.
    pub fn replicate(&self, tensor: &Tensor) -> Result<Vec<Tensor>> {
        self.devices.iter().map(|device| moved(tensor, device)).collect()
    }

    /// The sum of one tensor of each rank, on the first device, in the order of ranks and with gradients. Of
    /// ranks' losses it is the one to go back from.
    ///
    /// # Errors
    /// When there is not one tensor of each rank, their shapes or types differ, and when a device fails.
    pub fn sum(&self, tensors: &[Tensor]) -> Result<Tensor> {
        self.check_count("summands", tensors)?;
        let mut sum = moved(&tensors[0], &self.devices[0])?;
        for tensor in &tensors[1..] {
            sum = (sum + moved(tensor, &self.devices[0])?)?;
        }
        Ok(sum)
    }
}

/// A tensor on a device, with gradients.
fn moved(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if let (Device::Cuda(_), Device::Cuda(to)) = (tensor.device(), device)
        && !tensor.device().same_device(device)
    {
        return crate::cuda::moved(tensor, to);
    }
    tensor.to_device(device)
}
