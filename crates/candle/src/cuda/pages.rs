//! Pages of K and V on NVIDIA GPUs: read by decode, or copied for the forward pass.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use candle_core::{CudaStorage, DType, Device, Layout, Result, Tensor, bail};
use flash_attention::decode::{DecodeAddresses, DecodeProblem};

use super::{Borrows, DeviceScalar, Gpu, Lists, Operand, Plans, attention_problem, options, run};
use crate::FlashAttnVarLen;
use crate::gathered::Gathered;
use crate::paged::Pages;
use crate::problem::{Layouts, Settings, error};

static DECODE: Plans<DecodeProblem> = Plans::new();

/// O of queries against pages.
pub(super) fn forward<T: DeviceScalar>(
    gpu: &Gpu<'_>,
    settings: &Settings<'_>,
    pages: &Pages<'_>,
    storages: [&CudaStorage; 3],
    layouts: Layouts<'_>,
) -> Result<CudaSlice<T>> {
    // Decode has no F32 on GPUs.
    if storages[0].dtype() != DType::F32 && pages.suit_decode(layouts)? {
        decode(gpu, settings, pages, storages, layouts)
    } else {
        gathered(gpu, settings, pages, storages, layouts)
    }
}

/// O of queries against pages that are copied into the order of their sequences.
fn gathered<T: DeviceScalar>(
    gpu: &Gpu<'_>,
    settings: &Settings<'_>,
    pages: &Pages<'_>,
    [q, k, v]: [&CudaStorage; 3],
    layouts: Layouts<'_>,
) -> Result<CudaSlice<T>> {
    let (gathered, varlen) = (Gathered::new(pages, layouts)?, pages.varlen);
    let in_order = gathered.layouts(layouts.q);
    let problem = attention_problem::<T>(settings, in_order)?;
    let problem = problem.on_device((varlen.max_seqlen_q, gathered.room())).map_err(error)?;
    let problem = problem.with_seqused_k_on_device();
    check_count("k", layouts.k, in_order.k)?;
    check_count("v", layouts.v, in_order.v)?;

    let device = Device::Cuda(gpu.device.clone());
    let lists = Lists {
        seqlens: Some([varlen.seqlens_q.contiguous()?, Tensor::new(gathered.offsets(), &device)?]),
        seqused_k: Some(keys(varlen)?),
        ..Lists::of(settings, problem.heads())?
    };
    let indices = gathered.indices(&block_table(gpu, pages.block_table)?)?;
    let (storage, layout) = indices.storage_and_layout();
    let indices = (gpu.storage("block_table", &storage)?, layout);
    let k = gathered.copy((k, layouts.k), indices)?;
    let v = gathered.copy((v, layouts.v), indices)?;
    let inputs = [
        Operand::<T>::new(q, layouts.q)?,
        Operand::<T>::new(&k, in_order.k)?,
        Operand::<T>::new(&v, in_order.v)?,
    ];
    let (o, _) = run(gpu, problem, inputs, &lists, false)?;
    Ok(o)
}

/// Refuses tensors too large for candle's `index_select`: its kernel counts elements in 32 bits, and steps on
/// by as many as the grid has threads.
fn check_count(name: &'static str, pages: &Layout, copy: &Layout) -> Result<()> {
    const MAX_COPY: usize = 1 << 31;
    let (from, to) = (pages.shape().elem_count(), copy.shape().elem_count());
    if from > u32::MAX as usize || to > MAX_COPY {
        bail!(
            "flash-attn: pages of {name} have {from} elements, and their copy has {to}; on a GPU up to {} and \
             {MAX_COPY} are supported",
            u32::MAX
        );
    }
    Ok(())
}

/// A block table as u32, because candle selects by no i32 on GPUs. Negative entries exceed any page then.
fn block_table(gpu: &Gpu<'_>, table: &Tensor) -> Result<Tensor> {
    if table.dtype() == DType::U32 {
        return table.contiguous();
    }
    let held = table.storage_and_layout();
    let Operand { slice, .. } = gpu.operand::<i32>("block_table", &held)?;
    let Some((start, end)) = table.layout().contiguous_offsets() else {
        bail!(
            "flash-attn: block_table is I32 and not contiguous; on a GPU U32, or a contiguous one, is needed"
        );
    };
    let entries = slice.slice(start..end);
    // SAFETY: u32 has the size and alignment of i32, and all bit patterns of it are valid.
    let Some(entries) = (unsafe { entries.transmute::<u32>(end - start) }) else {
        bail!("flash-attn: block_table ends behind its memory");
    };
    let mut copy = gpu.memory::<u32>(end - start, false)?;
    gpu.device.memcpy_dtod(&entries, &mut copy)?;
    Ok(gpu.tensor_of(copy, table.shape().clone()))
}

/// How many keys each sequence has. Below 2^31 they are the same numbers with a sign.
fn keys(varlen: &FlashAttnVarLen) -> Result<Tensor> {
    let (seqlens, batch) = (&varlen.seqlens_k, varlen.batch()?);
    seqlens.narrow(0, 1, batch)? - seqlens.narrow(0, 0, batch)?
}

/// O of queries against pages, by decode.
fn decode<T: DeviceScalar>(
    gpu: &Gpu<'_>,
    settings: &Settings<'_>,
    pages: &Pages<'_>,
    [q, k, v]: [&CudaStorage; 3],
    layouts: Layouts<'_>,
) -> Result<CudaSlice<T>> {
    let inputs = [
        Operand::<T>::new(q, layouts.q)?,
        Operand::<T>::new(k, layouts.k)?,
        Operand::<T>::new(v, layouts.v)?,
    ];
    let problem = pages.problem::<T>(layouts, |tensors| options(settings, tensors))?;
    let lists = Lists { seqlens: None, ..Lists::of(settings, problem.dense().heads())? };
    let held_lists = lists.held();
    let plan = DECODE.plan(gpu, problem)?;
    let lengths = keys(pages.varlen)?;
    let table = pages.block_table.contiguous()?;
    let (held_lengths, held_table) = (lengths.storage_and_layout(), table.storage_and_layout());
    let mut o = gpu.memory::<T>(plan.problem().dense().tensors().o.span(), false)?;
    let mut workspace = gpu.workspace(plan.workspace_bytes())?;
    let mut borrows = Borrows::new(&gpu.stream);
    let [q, k, v] = inputs.map(|input| borrows.read(input));
    let page_table = match table.dtype() {
        DType::U32 => borrows.read(gpu.operand::<u32>("block_table", &held_table)?),
        _ => borrows.read(gpu.operand::<i32>("block_table", &held_table)?),
    };
    let addresses = DecodeAddresses {
        q,
        k,
        v,
        o: borrows.write(&mut o),
        lse: None,
        cu_seqlens_q: None,
        seqused_k: Some(borrows.read(gpu.operand::<u32>("seqlens_k", &held_lengths)?)),
        page_table: Some(page_table),
        tree_mask: None,
        k_descale: None,
        v_descale: None,
        workspace: workspace.as_mut().map_or(0, |workspace| borrows.write(workspace)),
        per_head: held_lists.per_head(gpu, &mut borrows)?,
    };
    // SAFETY: candle's layouts keep the views inside of the memory, which the borrows keep for this stream.
    // O and the workspace are memory of this call alone. That entries of the table name pages is the caller's
    // part, as with candle-flash-attn.
    unsafe { gpu.cuda.enqueue(&plan, &addresses, gpu.stream()) }.map_err(error)?;
    drop(borrows);
    Ok(o)
}
