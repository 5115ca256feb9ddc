//! Packed queries against pages of K and V, and the library's decode within its limits.

use candle_core::{DType, Result, Tensor, bail};
use flash_attention::decode::{
    DecodeInputs, DecodeOptions, DecodeProblem, DecodeRequest, MAX_DECODE_SEQLEN_Q,
};
use flash_attention::forward::Outputs;
use flash_attention::{Element, Options, TensorLayout, Tensors};

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

    /// Whether the library's decode takes the problem, which shapes tell: the same few query rows in each
    /// sequence.
    pub(crate) fn suit_decode(&self, layouts: Layouts<'_>) -> Result<bool> {
        let rows = self.varlen.max_seqlen_q;
        let total = packed("q", layouts.q)?.seqlen;
        Ok(rows <= MAX_DECODE_SEQLEN_Q && self.varlen.batch()?.checked_mul(rows) == Some(total))
    }

    /// The problem of decode, where that takes it, with what `options` makes of the shapes.
    pub(crate) fn problem<T: Scalar>(
        &self,
        layouts: Layouts<'_>,
        options: impl FnOnce(&Tensors) -> Result<Options>,
    ) -> Result<DecodeProblem> {
        let (batch, rows) = (self.varlen.batch()?, self.varlen.max_seqlen_q);
        let (q, k, v) = (packed("q", layouts.q)?, dense("k", layouts.k)?, dense("v", layouts.v)?);
        check_head_dim("q", q.head_dim)?;
        check_head_dim("v", v.head_dim)?;
        let max_pages = self.max_pages(batch, k.seqlen)?;
        let of_sequence = |rows_apart: usize| rows.saturating_mul(rows_apart);
        let split = TensorLayout { batch, seqlen: rows, stride_batch: of_sequence(q.stride_seq), ..q };
        let o = TensorLayout::bshd(batch, rows, q.heads, v.head_dim);
        let tensors = Tensors { q: split, k, v, o };
        let options = DecodeOptions {
            attention: options(&tensors)?,
            max_pages: Some(max_pages),
            ..DecodeOptions::default()
        };
        DecodeProblem::new(tensors, <T as Element>::DTYPE, options).map_err(error)
    }

    /// Entries of a sequence in the block table, which is checked with the size of pages.
    pub(crate) fn max_pages(&self, batch: usize, page_size: usize) -> Result<usize> {
        let (table, given) = (self.block_table, self.varlen.page_block_size);
        if given != Some(page_size) {
            bail!("flash-attn: page_block_size is {given:?}, but pages of k have {page_size}");
        }
        if !matches!(table.dtype(), DType::U32 | DType::I32) {
            bail!("flash-attn: block_table is {:?}; U32 or I32 is needed", table.dtype());
        }
        match *table.dims() {
            [sequences, max_pages] if sequences == batch && max_pages > 0 => Ok(max_pages),
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
    let problem = pages.problem::<T>(layouts, |tensors| cpu::options(settings, tensors))?;
    let offsets = Offsets::of(pages.varlen)?;
    let rows = problem.dense().seqlen_q();
    if let Some(index) = (0..offsets.q.len()).find(|&index| offsets.q[index] as usize != index * rows) {
        let (value, needed, sequences) = (offsets.q[index], index * rows, offsets.q.len() - 1);
        bail!(
            "flash-attn: seqlens_q[{index}] is {value}; with block_table and max_seqlen_q = {rows} of \
             {sequences} sequences in {} rows, {needed} is needed",
            sequences * rows
        );
    }
    let lengths = offsets.keys()?;
    let table = cpu::integers("block_table", pages.block_table)?;
    let plan = cpu::plan(&problem, &DecodeRequest::default())?;
    let mut o = vec![T::from_f64(0.0); problem.dense().tensors().o.span()];
    let of = DecodeInputs::new(q, k, v);
    let inputs = DecodeInputs { seqused_k: Some(&lengths), page_table: Some(&table), ..of };
    cpu::backend()?.run(&plan, inputs, Outputs { o: &mut o, lse: None }).map_err(error)?;
    Ok(o)
}
