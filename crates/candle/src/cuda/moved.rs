//! Tensors that go from one GPU to another, with gradients.

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{
    CpuStorage, CudaDevice, CudaStorage, CustomOp1, Device, Layout, Result, Shape, Tensor, bail,
};

/// A contiguous copy of a tensor of a GPU on another one.
///
/// [`Tensor::to_device`] copies on the other GPU's stream, and what it reads is freed on its own one, which
/// does not wait for the copy.
pub(crate) fn moved(tensor: &Tensor, to: &CudaDevice) -> Result<Tensor> {
    tensor.apply_op1(Move { to: to.clone() })
}

struct Move {
    to: CudaDevice,
}

impl CustomOp1 for Move {
    fn name(&self) -> &'static str {
        "to-rank"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("flash-attn: a tensor is on the CPU, and is to be moved from GPU to GPU")
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (from, shape) = (storage.device(), layout.shape());
        // SAFETY: all of it is written next, as the layout has as many elements.
        let mut packed = unsafe { from.alloc_uninit(shape, storage.dtype()) }?;
        storage.copy_strided_src(&mut packed, 0, layout)?;
        let moved = packed.transfer_to_device(&self.to)?;
        // Memory that this stream frees and takes again is read no longer.
        from.cuda_stream().join(&self.to.cuda_stream()).map_err(candle_core::Error::wrap)?;
        Ok((moved, shape.clone()))
    }

    fn bwd(&self, tensor: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        match tensor.device() {
            Device::Cuda(from) => moved(gradient, from).map(Some),
            device => bail!("flash-attn: a tensor is on {:?}, and was moved from a GPU", device.location()),
        }
    }
}
