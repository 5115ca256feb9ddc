//! Attention of tensors in host memory, by the library's CPU backend.

use std::sync::OnceLock;

use candle_core::{CpuStorage, DType, Device, Layout, Result, Shape, Storage, Tensor, bail};
use flash_attention::backward::{BackwardInputs, BackwardOutputs, BackwardRequest};
use flash_attention::forward::Outputs;
use flash_attention::{Backend, BackendKind, Element, Operation, Options, Plan, Problem, Request, Tensors};

use crate::FlashAttnVarLen;
use crate::gathered;
use crate::op::{Attention, Saved, Scalar};
use crate::paged::{self, Pages};
use crate::problem::{self, Layouts, Settings, error};

/// O, and log-sum-exp for the backward pass where it is kept.
pub(crate) fn forward<T: Scalar, A: Attention>(
    attention: &A,
    storages: [&CpuStorage; 3],
    layouts: Layouts<'_>,
) -> Result<(CpuStorage, Shape)> {
    let settings = attention.settings();
    let [q, k, v] = storages;
    let shape = problem::output_shape(layouts);
    let pages = Pages::of(&settings)?;
    if let Some(pages) = &pages
        && !pages.suit_decode(layouts)?
    {
        let o = gathered::on_cpu::<T>(&settings, pages, storages, layouts)?;
        return Ok((T::to_cpu_storage_owned(o), shape));
    }
    let inputs = [slice::<T>(q, layouts.q)?, slice::<T>(k, layouts.k)?, slice::<T>(v, layouts.v)?];
    if let Some(pages) = &pages {
        let o = paged::on_cpu(&settings, pages, inputs, layouts)?;
        return Ok((T::to_cpu_storage_owned(o), shape));
    }
    let problem = attention_problem::<T>(&settings, layouts)?;
    let (o, lse) = run(&problem, inputs, A::KEEPS)?;
    if let Some(lse) = lse {
        attention.keep(host_tensor(lse)?);
    }
    Ok((T::to_cpu_storage_owned(o), shape))
}

/// dQ, dK and dV.
pub(crate) fn backward<T: Scalar, A: Attention>(
    attention: &A,
    saved: Saved<'_>,
    dout: &Tensor,
) -> Result<[Tensor; 3]> {
    let forward = attention_problem::<T>(&attention.settings(), saved.layouts())?;
    let tensors = [saved.q, saved.k, saved.v, saved.o, dout];
    let held = tensors.map(Tensor::storage_and_layout);
    let [q, k, v, o, dout_values] = held.each_ref().map(|(storage, layout)| of_storage::<T>(storage, layout));
    let (q, k, v, o) = (q?, k?, v?, o?);
    let lse = match attention.lse() {
        Some(lse) => lse.clone(),
        None => {
            let (_, lse) = run(&forward, [q, k, v], true)?;
            host_tensor(lse.unwrap_or_default())?
        }
    };
    let (lse_storage, lse_layout) = lse.storage_and_layout();
    let lse = of_storage::<f32>(&lse_storage, lse_layout)?;

    let problem = problem::backward(forward, dout.layout())?;
    let plan = plan(&problem, &BackwardRequest::default())?;
    let [mut dq, mut dk, mut dv] =
        [saved.q, saved.k, saved.v].map(|tensor| vec![T::from_f64(0.0); tensor.elem_count()]);
    let inputs = BackwardInputs { q, k, v, o, lse, dout: dout_values?, dlse: None, delta: None };
    let outputs = BackwardOutputs { dq: &mut dq, dk: &mut dk, dv: &mut dv, dsinks: None, delta: None };
    backend()?.run(&plan, inputs, outputs).map_err(error)?;
    Ok([
        Tensor::from_vec(dq, saved.q.shape(), &Device::Cpu)?,
        Tensor::from_vec(dk, saved.k.shape(), &Device::Cpu)?,
        Tensor::from_vec(dv, saved.v.shape(), &Device::Cpu)?,
    ])
}

/// The problem, with offsets and slopes as their tensors have them.
fn attention_problem<T: Scalar>(settings: &Settings<'_>, layouts: Layouts<'_>) -> Result<Problem> {
    if let Some(varlen) = settings.varlen {
        return packed_problem::<T>(settings, layouts, &Offsets::of(varlen)?);
    }
    let (tensors, options) = tensors_and_options(settings, layouts)?;
    Problem::new(tensors, <T as Element>::DTYPE, options).map_err(error)
}

/// The problem of packed sequences, with slopes as their tensor has them.
pub(crate) fn packed_problem<T: Scalar>(
    settings: &Settings<'_>,
    layouts: Layouts<'_>,
    Offsets { q, k }: &Offsets,
) -> Result<Problem> {
    let (tensors, options) = tensors_and_options(settings, layouts)?;
    Problem::varlen(tensors, <T as Element>::DTYPE, options, q, k).map_err(error)
}

fn tensors_and_options(settings: &Settings<'_>, layouts: Layouts<'_>) -> Result<(Tensors, Options)> {
    let tensors = settings.tensors(layouts)?;
    Ok((tensors, options(settings, &tensors)?))
}

/// What is asked beside the shapes of Q, K and V, with slopes as their tensor has them.
pub(crate) fn options(settings: &Settings<'_>, Tensors { q, k, .. }: &Tensors) -> Result<Options> {
    let alibi_slopes = settings.alibi_slopes(q.heads)?.map(Tensor::to_vec1::<f32>).transpose()?;
    Ok(Options { alibi_slopes, ..settings.options(k.seqlen) })
}

/// First rows of the sequences, and the end of the last.
pub(crate) struct Offsets {
    pub(crate) q: Vec<u32>,
    pub(crate) k: Vec<u32>,
}

impl Offsets {
    /// Reads them, and checks that no sequence is longer than the call says.
    pub(crate) fn of(varlen: &FlashAttnVarLen) -> Result<Self> {
        varlen.batch()?;
        let (q, k) = (varlen.seqlens_q.to_vec1::<u32>()?, varlen.seqlens_k.to_vec1::<u32>()?);
        let limits = [("max_seqlen_q", &q, varlen.max_seqlen_q), ("max_seqlen_k", &k, varlen.max_seqlen_k)];
        for (name, offsets, limit) in limits {
            let mut lengths = offsets.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as usize);
            if let Some(sequence) = lengths.clone().position(|rows| rows > limit) {
                let rows = lengths.nth(sequence).unwrap_or_default();
                bail!("flash-attn: {name} is {limit}, but sequence {sequence} has {rows} rows");
            }
        }
        Ok(Self { q, k })
    }

    /// How many keys each sequence has.
    pub(crate) fn keys(&self) -> Result<Vec<i32>> {
        let mut keys = Vec::with_capacity(self.k.len());
        for (index, pair) in self.k.windows(2).enumerate() {
            match pair[1].checked_sub(pair[0]).and_then(|keys| i32::try_from(keys).ok()) {
                Some(count) => keys.push(count),
                None => {
                    bail!("flash-attn: seqlens_k[{}] is {}, below {} before it", index + 1, pair[1], pair[0])
                }
            }
        }
        Ok(keys)
    }
}

/// O and, where it is wanted, log-sum-exp.
pub(crate) fn run<T: Scalar>(
    problem: &Problem,
    [q, k, v]: [&[T]; 3],
    wants_lse: bool,
) -> Result<(Vec<T>, Option<Vec<f32>>)> {
    let plan = plan(problem, &Request::default())?;
    let mut o = vec![T::from_f64(0.0); problem.tensors().o.span()];
    let mut lse = wants_lse.then(|| vec![f32::NEG_INFINITY; problem.lse_len()]);
    let outputs = Outputs { o: &mut o, lse: lse.as_deref_mut() };
    backend()?.run(&plan, (q, k, v), outputs).map_err(error)?;
    Ok((o, lse))
}

pub(crate) fn plan<O: Operation>(problem: &O, request: &O::Request) -> Result<Plan<O>> {
    backend()?.plan(problem, request).map_err(error)
}

pub(crate) fn backend() -> Result<&'static Backend> {
    static BACKEND: OnceLock<Backend> = OnceLock::new();
    if let Some(backend) = BACKEND.get() {
        return Ok(backend);
    }
    let backend = Backend::open(Some(BackendKind::Cpu)).map_err(error)?;
    Ok(BACKEND.get_or_init(|| backend))
}

fn host_tensor(values: Vec<f32>) -> Result<Tensor> {
    let len = values.len();
    Tensor::from_vec(values, len, &Device::Cpu)
}

/// A tensor's elements, from the first of its view on.
pub(crate) fn slice<'a, T: Scalar>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let values = storage.as_slice::<T>()?;
    match values.get(layout.start_offset()..) {
        Some(values) => Ok(values),
        None => bail!("flash-attn: a view starts at {}, behind {}", layout.start_offset(), values.len()),
    }
}

fn of_storage<'a, T: Scalar>(storage: &'a Storage, layout: &Layout) -> Result<&'a [T]> {
    slice(self::storage(storage)?, layout)
}

pub(crate) fn storage(storage: &Storage) -> Result<&CpuStorage> {
    match storage {
        Storage::Cpu(storage) => Ok(storage),
        _ => bail!("flash-attn: a tensor is elsewhere than q, which is on the CPU"),
    }
}

/// The integers of a tensor, of either sign.
pub(crate) fn integers(name: &'static str, tensor: &Tensor) -> Result<Vec<i32>> {
    let flat = tensor.flatten_all()?;
    match tensor.dtype() {
        DType::I32 => flat.to_vec1::<i32>(),
        // What is no i32 is no page either, and the library says so.
        DType::U32 => Ok(flat.to_vec1::<u32>()?.into_iter().map(|value| value as i32).collect()),
        dtype => bail!("flash-attn: {name} is {dtype:?}; U32 or I32 is needed"),
    }
}
