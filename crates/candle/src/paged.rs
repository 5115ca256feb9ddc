//! Packed queries against pages of K and V: the library's decode, within its limits.

use candle_core::{DType, Result, Tensor, bail};
use flash_attention::decode::{
    DecodeInputs, DecodeOptions, DecodeProblem, DecodeRequest, MAX_DECODE_SEQLEN_Q,
};
use flash_attention::forward::Outputs;
use flash_attention::{Element, TensorLayout, Tensors};

use crate::FlashAttnVarLen;
use crate::cpu::{self, Offsets};
use crate::op::Scalar;
use crate::problem::{Layouts, Settings, check_head_dim, dense, error, packed};

/// The pages of a call.
pub(crate) struct Pages<'a> {
    pub(crate) varlen: &'a FlashAttnVarLen,
    pub(crate) block_table: &'a Tensor,
}

impl<'a> Pages<'a> {
    /// The pages, where K and V are some.
    pub(crate) fn of(settings: &Settings<'a>) -> Result<Option<Self>> {
        let Some(varlen) = settings.varlen else { return Ok(None) };
        if varlen.mm_prefix_ranges.is_some() {
            bail!("flash-attn: mm_prefix_ranges is given; only None is supported");
        }
        Ok(varlen.block_table.as_ref().map(|block_table| Self { varlen, block_table }))
    }

    /// The problem, which has the same number of query rows in each sequence.
    pub(crate) fn problem<T: Scalar>(
        &self,
        settings: &Settings<'_>,
        layouts: Layouts<'_>,
    ) -> Result<DecodeProblem> {
        let (varlen, batch) = (self.varlen, self.varlen.batch()?);
        let (q, k, v) = (packed("q", layouts.q)?, dense("k", layouts.k)?, dense("v", layouts.v)?);
        check_head_dim("q", q.head_dim)?;
        if varlen.page_block_size != Some(k.seqlen) {
            bail!(
                "flash-attn: page_block_size is {:?}, but pages of k have {}",
                varlen.page_block_size,
                k.seqlen
            );
        }
        let max_pages = self.max_pages(batch)?;
        let rows = varlen.max_seqlen_q;
        if batch.checked_mul(rows) != Some(q.seqlen) || rows > MAX_DECODE_SEQLEN_Q {
            bail!(
                "flash-attn: block_table takes the same number of query rows of each sequence, up to \
                 {MAX_DECODE_SEQLEN_Q}; max_seqlen_q is {rows}, and {batch} sequences have {} rows",
                q.seqlen
            );
        }
        let options = settings.options(&Tensors { q, k, v, o: q });
        let causal = match options.window {
            (None, None) => false,
            (None, Some(0)) => true,
            (left, right) => bail!(
                "flash-attn: window is ({left:?}, {right:?}); with block_table (None, None) and \
                 (None, Some(0)) are supported"
            ),
        };
        if settings.softcap != 0.0 {
            bail!("flash-attn: softcap is {}; with block_table only none is supported", settings.softcap);
        }
        if settings.alibi_slopes.is_some() {
            bail!("flash-attn: alibi_slopes is given; with block_table only None is supported");
        }
        let of_sequence = |rows_apart: usize| rows.saturating_mul(rows_apart);
        let split = TensorLayout { batch, seqlen: rows, stride_batch: of_sequence(q.stride_seq), ..q };
        let o = TensorLayout::bshd(batch, rows, q.heads, v.head_dim);
        let options = DecodeOptions {
            causal,
            softmax_scale: Some(settings.softmax_scale),
            max_pages: Some(max_pages),
            ..DecodeOptions::default()
        };
        DecodeProblem::new(Tensors { q: split, k, v, o }, <T as Element>::DTYPE, options).map_err(error)
    }

    /// Entries of a sequence in the page table.
    fn max_pages(&self, batch: usize) -> Result<usize> {
        let table = self.block_table;
        if !matches!(table.dtype(), DType::U32 | DType::I32) {
            bail!("flash-attn: block_table is {:?}; U32 or I32 is needed", table.dtype());
        }
        match *table.dims() {
            [sequences, max_pages] if sequences == batch => Ok(max_pages),
            _ => bail!("flash-attn: block_table has shape {:?}; [{batch}, pages] is needed", table.dims()),
        }
    }
}

/// O of tensors in host memory.
pub(crate) fn on_cpu<T: Scalar>(
    settings: &Settings<'_>,
    pages: &Pages<'_>,
    [q, k, v]: [&[T]; 3],
    layouts: Layouts<'_>,
) -> Result<Vec<T>> {
    let problem = pages.problem::<T>(settings, layouts)?;
    let offsets = Offsets::of(pages.varlen)?;
    let rows = problem.dense().seqlen_q();
    if let Some(index) = (0..offsets.q.len()).find(|&index| offsets.q[index] as usize != index * rows) {
        let value = offsets.q[index];
        bail!("flash-attn: seqlens_q[{index}] is {value}; with block_table {} is needed", index * rows);
    }
    let mut lengths = Vec::with_capacity(offsets.k.len());
    for (index, pair) in offsets.k.windows(2).enumerate() {
        match pair[1].checked_sub(pair[0]).and_then(|keys| i32::try_from(keys).ok()) {
            Some(keys) => lengths.push(keys),
            None => bail!("flash-attn: seqlens_k[{}] is {}, below {} before it", index + 1, pair[1], pair[0]),
        }
    }
    let table = cpu::integers("block_table", pages.block_table)?;
    let plan = cpu::plan(&problem, &DecodeRequest::default())?;
    let mut o = vec![T::from_f64(0.0); problem.dense().tensors().o.span()];
    let inputs = DecodeInputs { q, k, v, seqused_k: Some(&lengths), page_table: Some(&table) };
    cpu::backend()?.run(&plan, inputs, Outputs { o: &mut o, lse: None }).map_err(error)?;
    Ok(o)
}
