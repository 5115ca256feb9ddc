//! Attention of tensors on NVIDIA GPUs: launches on candle's stream, without copies to the host or waits.

mod graph;
mod moved;
mod pages;
mod ranks;

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop, ValidAsZeroBits,
};
use candle_core::op::BackpropOp;
use candle_core::{
    CudaDevice, CudaStorage, Device, Layout, Result, Shape, Storage, StorageRef, Tensor, bail,
};
use flash_attention::backward::{BackwardAddresses, BackwardProblem};
use flash_attention::cuda::{Cuda, Stream};
use flash_attention::forward::{Addresses, PerHead};
use flash_attention::{Element, Operation, Options, Plan, Problem, Tensors};

use crate::op::{Attention, Saved, Scalar};
use crate::paged::Pages;
use crate::problem::{self, Layouts, Settings, error};
pub(crate) use moved::moved;
pub(crate) use ranks::Ranks;

/// A type of tensors on GPUs.
pub(crate) trait DeviceScalar: Scalar + CudaDType + DeviceRepr + ValidAsZeroBits {}

impl<T: Scalar + CudaDType + DeviceRepr + ValidAsZeroBits> DeviceScalar for T {}

static FORWARD: Plans<Problem> = Plans::new();
static BACKWARD: Plans<BackwardProblem> = Plans::new();

/// O, and log-sum-exp for the backward pass where it is kept.
pub(crate) fn forward<T: DeviceScalar, A: Attention>(
    attention: &A,
    storages: [&CudaStorage; 3],
    layouts: Layouts<'_>,
) -> Result<(CudaStorage, Shape)> {
    let settings = attention.settings();
    let [q, k, v] = storages;
    let gpu = Gpu::of(q.device())?;
    let shape = problem::output_shape(layouts);
    if let Some(pages) = Pages::of(&settings)? {
        let o = pages::forward::<T>(&gpu, &settings, &pages, storages, layouts)?;
        return Ok((CudaStorage::wrap_cuda_slice(o, gpu.device.clone()), shape));
    }
    let inputs = [
        Operand::<T>::new(q, layouts.q)?,
        Operand::<T>::new(k, layouts.k)?,
        Operand::<T>::new(v, layouts.v)?,
    ];
    let problem = attention_problem::<T>(&settings, layouts)?;
    let lists = Lists::of(&settings, problem.heads())?;
    let (o, lse) = run(&gpu, problem, inputs, &lists, A::KEEPS)?;
    if let Some(lse) = lse {
        attention.keep(gpu.tensor(lse));
    }
    Ok((CudaStorage::wrap_cuda_slice(o, gpu.device.clone()), shape))
}

/// dQ, dK and dV.
pub(crate) fn backward<T: DeviceScalar, A: Attention>(
    attention: &A,
    saved: Saved<'_>,
    dout: &Tensor,
) -> Result<[Tensor; 3]> {
    let Device::Cuda(device) = saved.q.device() else { bail!("flash-attn: q is not on a GPU") };
    let (settings, gpu) = (attention.settings(), Gpu::of(device)?);
    let forward = attention_problem::<T>(&settings, saved.layouts())?;
    let lists = Lists::of(&settings, forward.heads())?;
    let held = [saved.q, saved.k, saved.v, saved.o, dout].map(Tensor::storage_and_layout);
    let [q, k, v, o, dout_memory] = held.each_ref();
    let inputs = [gpu.operand::<T>("q", q)?, gpu.operand::<T>("k", k)?, gpu.operand::<T>("v", v)?];
    let (o, dout_memory) = (gpu.operand::<T>("o", o)?, gpu.operand::<T>("dO", dout_memory)?);
    let lse = match attention.lse() {
        Some(lse) => lse.clone(),
        None => match run(&gpu, forward.clone(), inputs, &lists, true)? {
            (_, Some(lse)) => gpu.tensor(lse),
            (_, None) => bail!("flash-attn: the forward pass left no lse"),
        },
    };
    let lse = lse.storage_and_layout();
    let lse = gpu.operand::<f32>("lse", &lse)?;

    let plan = BACKWARD.plan(&gpu, problem::backward(forward, dout.layout())?)?;
    // Rows of no sequence are not written.
    let is_packed = plan.problem().forward().is_packed();
    let mut dq = gpu.memory::<T>(saved.q.elem_count(), is_packed)?;
    let mut dk = gpu.memory::<T>(saved.k.elem_count(), is_packed)?;
    let mut dv = gpu.memory::<T>(saved.v.elem_count(), is_packed)?;
    let mut workspace = gpu.workspace(plan.workspace_bytes())?;
    let lists = lists.held();
    let mut borrows = Borrows::new(&gpu.stream);
    let [q, k, v] = inputs.map(|input| borrows.read(input));
    let addresses = BackwardAddresses {
        forward: Addresses {
            q,
            k,
            v,
            o: borrows.read(o),
            lse: Some(borrows.read(lse)),
            workspace: workspace.as_mut().map_or(0, |workspace| borrows.write(workspace)),
            per_head: lists.per_head(&gpu, &mut borrows)?,
            cu_seqlens: lists.cu_seqlens(&gpu, &mut borrows)?,
            seqused_k: None,
            ..Addresses::default()
        },
        dout: borrows.read(dout_memory),
        dq: borrows.write(&mut dq),
        dk: borrows.write(&mut dk),
        dv: borrows.write(&mut dv),
        dlse: None,
        dsinks: None,
        delta: None,
    };
    // SAFETY: candle's layouts keep the views inside of the memory, which the borrows keep for this stream.
    // The gradients and the workspace are memory of this call alone.
    unsafe { gpu.cuda.enqueue(&plan, &addresses, gpu.stream()) }.map_err(error)?;
    drop(borrows);
    let tensor = |gradient, of: &Tensor| gpu.tensor_of(gradient, of.shape().clone());
    Ok([tensor(dq, saved.q), tensor(dk, saved.k), tensor(dv, saved.v)])
}

/// The problem, with offsets and slopes that the device alone has.
fn attention_problem<T: DeviceScalar>(settings: &Settings<'_>, layouts: Layouts<'_>) -> Result<Problem> {
    let tensors = settings.tensors(layouts)?;
    let options = options(settings, &tensors)?;
    let dtype = <T as Element>::DTYPE;
    let Some(varlen) = settings.varlen else {
        return Problem::new(tensors, dtype, options).map_err(error);
    };
    let longest = (varlen.max_seqlen_q, varlen.max_seqlen_k);
    Problem::varlen_on_device(tensors, dtype, options, varlen.batch()?, longest).map_err(error)
}

/// What is asked beside the shapes of Q, K and V, with slopes that the device alone has.
fn options(settings: &Settings<'_>, Tensors { q, k, .. }: &Tensors) -> Result<Options> {
    let alibi_slopes = settings.alibi_slopes(q.heads)?.map(Tensor::elem_count);
    let on_device = PerHead { alibi_slopes, ..PerHead::default() };
    Ok(Options { on_device, ..settings.options(k.seqlen) })
}

/// O and, where it is wanted, log-sum-exp.
fn run<T: DeviceScalar>(
    gpu: &Gpu<'_>,
    problem: Problem,
    inputs: [Operand<'_, T>; 3],
    lists: &Lists,
    wants_lse: bool,
) -> Result<(CudaSlice<T>, Option<CudaSlice<f32>>)> {
    let plan = FORWARD.plan(gpu, problem)?;
    let problem = plan.problem();
    // Rows of no sequence are not written.
    let mut o = gpu.memory::<T>(problem.tensors().o.span(), problem.is_packed())?;
    let mut lse = match wants_lse {
        true => Some(gpu.memory::<f32>(problem.lse_len(), problem.is_packed())?),
        false => None,
    };
    let mut workspace = gpu.workspace(plan.workspace_bytes())?;
    let lists = lists.held();
    let mut borrows = Borrows::new(&gpu.stream);
    let [q, k, v] = inputs.map(|input| borrows.read(input));
    let addresses = Addresses {
        q,
        k,
        v,
        o: borrows.write(&mut o),
        lse: lse.as_mut().map(|lse| borrows.write(lse)),
        workspace: workspace.as_mut().map_or(0, |workspace| borrows.write(workspace)),
        per_head: lists.per_head(gpu, &mut borrows)?,
        cu_seqlens: lists.cu_seqlens(gpu, &mut borrows)?,
        seqused_k: lists.seqused_k(gpu, &mut borrows)?,
        ..Addresses::default()
    };
    // SAFETY: candle's layouts keep the views inside of the memory, which the borrows keep for this stream.
    // O, lse and the workspace are memory of this call alone.
    unsafe { gpu.cuda.enqueue(&plan, &addresses, gpu.stream()) }.map_err(error)?;
    drop(borrows);
    Ok((o, lse))
}

/// A GPU as candle and the library have it.
struct Gpu<'a> {
    cuda: &'static Cuda,
    device: &'a CudaDevice,
    stream: Arc<CudaStream>,
}

impl<'a> Gpu<'a> {
    /// The GPU of a device, which is opened once and stays open until the process ends.
    fn of(device: &'a CudaDevice) -> Result<Self> {
        static OPEN: Mutex<Vec<(usize, &Cuda)>> = Mutex::new(Vec::new());
        let stream = device.cuda_stream();
        let ordinal = stream.context().ordinal();
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&(_, cuda)) = open.iter().find(|(opened, _)| *opened == ordinal) {
            return Ok(Self { cuda, device, stream });
        }
        let cuda = Box::leak(Box::new(Cuda::new(ordinal).map_err(error)?));
        open.push((ordinal, cuda));
        Ok(Self { cuda, device, stream })
    }

    fn ordinal(&self) -> usize {
        self.stream.context().ordinal()
    }

    /// The stream, for launches while this is there.
    fn stream(&self) -> Stream {
        // SAFETY: candle keeps the stream as long as the device, of which this has a share.
        unsafe { Stream::from_raw(self.stream.cu_stream().cast()) }
    }

    /// Memory of `len` elements, zeros where that is asked for.
    fn memory<T: DeviceRepr + ValidAsZeroBits>(&self, len: usize, zeros: bool) -> Result<CudaSlice<T>> {
        if zeros {
            return self.device.alloc_zeros::<T>(len);
        }
        // SAFETY: the launches write all of it before anything reads it.
        unsafe { self.device.alloc::<T>(len) }
    }

    /// Memory that a plan's launches write before they read it, if they need some.
    fn workspace(&self, bytes: u64) -> Result<Option<CudaSlice<u8>>> {
        match usize::try_from(bytes) {
            Ok(0) => Ok(None),
            Ok(bytes) => self.memory::<u8>(bytes, false).map(Some),
            Err(_) => bail!("flash-attn: the workspace has {bytes} bytes, more than the address space"),
        }
    }

    /// A list as a tensor without gradient.
    fn tensor(&self, values: CudaSlice<f32>) -> Tensor {
        let len = values.len();
        self.tensor_of(values, Shape::from(len))
    }

    /// A tensor without gradient.
    fn tensor_of<T: CudaDType>(&self, values: CudaSlice<T>, shape: Shape) -> Tensor {
        let storage = CudaStorage::wrap_cuda_slice(values, self.device.clone());
        Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false)
    }

    /// A tensor that has to be on this GPU.
    fn operand<'s, T: CudaDType>(
        &self,
        name: &'static str,
        (storage, layout): &'s (StorageRef<'_>, &Layout),
    ) -> Result<Operand<'s, T>> {
        Operand::new(self.storage(name, storage)?, layout)
    }

    /// The memory of a tensor that has to be on this GPU.
    fn storage<'s>(&self, name: &'static str, storage: &'s Storage) -> Result<&'s CudaStorage> {
        match storage {
            Storage::Cuda(storage)
                if storage.device().cuda_stream().context().ordinal() == self.ordinal() =>
            {
                Ok(storage)
            }
            _ => bail!("flash-attn: {name} is not on GPU {}, where q is", self.ordinal()),
        }
    }
}

/// The memory of a tensor, and the element at which it starts.
struct Operand<'a, T> {
    slice: &'a CudaSlice<T>,
    offset: usize,
}

impl<T> Clone for Operand<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Operand<'_, T> {}

impl<'a, T: CudaDType> Operand<'a, T> {
    fn new(storage: &'a CudaStorage, layout: &Layout) -> Result<Self> {
        Ok(Self { slice: storage.as_cuda_slice::<T>()?, offset: layout.start_offset() })
    }
}

/// What cudarc keeps of the addresses of a launch: once it is dropped, other streams may use the memory.
struct Borrows<'a> {
    stream: &'a CudaStream,
    guards: Vec<SyncOnDrop<'a>>,
}

impl<'a> Borrows<'a> {
    /// Tensors of a backward pass with slopes and offsets.
    const MOST: usize = 13;

    fn new(stream: &'a CudaStream) -> Self {
        Self { stream, guards: Vec::with_capacity(Self::MOST) }
    }

    /// The address of what is read.
    fn read<T>(&mut self, Operand { slice, offset }: Operand<'a, T>) -> u64 {
        let (address, guard) = slice.device_ptr(self.stream);
        self.guards.push(guard);
        address + (offset * size_of::<T>()) as u64
    }

    /// The address of what is written.
    fn write<T>(&mut self, slice: &'a mut CudaSlice<T>) -> u64 {
        let (address, guard) = slice.device_ptr_mut(self.stream);
        self.guards.push(guard);
        address
    }
}

/// Slopes, offsets and numbers of used keys, contiguous on the device.
struct Lists {
    alibi_slopes: Option<Tensor>,
    seqlens: Option<[Tensor; 2]>,
    seqused_k: Option<Tensor>,
}

/// [`Lists`] with their memory.
struct HeldLists<'a> {
    alibi_slopes: Option<(StorageRef<'a>, &'a Layout)>,
    seqlens: Option<[(StorageRef<'a>, &'a Layout); 2]>,
    seqused_k: Option<(StorageRef<'a>, &'a Layout)>,
}

impl Lists {
    fn of(settings: &Settings<'_>, heads: usize) -> Result<Self> {
        let alibi_slopes = settings.alibi_slopes(heads)?.map(Tensor::contiguous).transpose()?;
        let seqlens = match settings.varlen {
            Some(varlen) => Some([varlen.seqlens_q.contiguous()?, varlen.seqlens_k.contiguous()?]),
            None => None,
        };
        Ok(Self { alibi_slopes, seqlens, seqused_k: None })
    }

    fn held(&self) -> HeldLists<'_> {
        HeldLists {
            alibi_slopes: self.alibi_slopes.as_ref().map(Tensor::storage_and_layout),
            seqlens: self.seqlens.as_ref().map(|seqlens| seqlens.each_ref().map(Tensor::storage_and_layout)),
            seqused_k: self.seqused_k.as_ref().map(Tensor::storage_and_layout),
        }
    }
}

impl HeldLists<'_> {
    fn per_head<'s>(&'s self, gpu: &Gpu<'_>, borrows: &mut Borrows<'s>) -> Result<PerHead<u64>> {
        let alibi_slopes = match &self.alibi_slopes {
            Some(held) => Some(borrows.read(gpu.operand::<f32>("alibi_slopes", held)?)),
            None => None,
        };
        Ok(PerHead { alibi_slopes, sinks: None })
    }

    fn cu_seqlens<'s>(&'s self, gpu: &Gpu<'_>, borrows: &mut Borrows<'s>) -> Result<Option<(u64, u64)>> {
        let Some([q, k]) = &self.seqlens else { return Ok(None) };
        let q = borrows.read(gpu.operand::<u32>("seqlens_q", q)?);
        Ok(Some((q, borrows.read(gpu.operand::<u32>("seqlens_k", k)?))))
    }

    fn seqused_k<'s>(&'s self, gpu: &Gpu<'_>, borrows: &mut Borrows<'s>) -> Result<Option<u64>> {
        let Some(used) = &self.seqused_k else { return Ok(None) };
        Ok(Some(borrows.read(gpu.operand::<u32>("seqlens_k", used)?)))
    }
}

/// The plans of the last problems, the last used first.
struct Plans<O: Operation>(Mutex<Vec<(usize, Arc<Plan<O>>)>>);

impl<O: Operation + PartialEq> Plans<O>
where
    O::Request: Default,
{
    /// How many plans are kept: those of a model's few shapes, of the forward pass or the backward pass.
    const KEPT: usize = 64;

    const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// The plan of a problem: of its shapes, strides, type and options.
    fn plan(&self, gpu: &Gpu<'_>, problem: O) -> Result<Arc<Plan<O>>> {
        let mut plans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            |(ordinal, plan): &(usize, Arc<Plan<O>>)| *ordinal == gpu.ordinal() && *plan.problem() == problem;
        if let Some(index) = plans.iter().position(same) {
            plans[..=index].rotate_right(1);
            return Ok(plans[0].1.clone());
        }
        let plan = Plan::new(&problem, gpu.cuda.device(), &O::Request::default()).map_err(error)?;
        let plan = Arc::new(plan);
        plans.insert(0, (gpu.ordinal(), plan.clone()));
        plans.truncate(Self::KEPT);
        Ok(plan)
    }
}
