//! Pages copied into the order of their sequences, for what the library's decode does not take.

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{CpuStorage, DType, Layout, Result, Tensor, bail};

use crate::cpu::{self, Offsets};
use crate::op::Scalar;
use crate::paged::Pages;
use crate::problem::{Layouts, Settings, dense, error};

/// Where K and V lie once they are copied: each sequence has room for the same number of keys.
pub(crate) struct Gathered {
    batch: usize,
    /// Keys of a page.
    page_size: usize,
    /// The last page that there is.
    last_page: u32,
    /// Pages that each sequence has in the copies.
    pages: usize,
    k: Layout,
    v: Layout,
}

impl Gathered {
    /// The copies of as many pages as `max_seqlen_k` keys of a sequence take.
    pub(crate) fn new(pages: &Pages<'_>, layouts: Layouts<'_>) -> Result<Self> {
        let batch = pages.varlen.batch()?;
        let (k, v) = (dense("k", layouts.k)?, dense("v", layouts.v)?);
        let max_pages = pages.max_pages(batch, k.seqlen)?;
        for (axis, value, expected) in [("num_pages", v.batch, k.batch), ("page_size", v.seqlen, k.seqlen)] {
            if value != expected {
                bail!("flash-attn: v: {axis} is {value}, but k has {expected}");
            }
        }
        if k.batch == 0 || k.seqlen == 0 {
            bail!("flash-attn: k has shape {:?}; at least one page of one key is needed", layouts.k.dims());
        }
        let pages = pages.varlen.max_seqlen_k.div_ceil(k.seqlen).clamp(1, max_pages);
        let rows = batch.saturating_mul(pages).saturating_mul(k.seqlen);
        let (Ok(last_page), Ok(_)) = (u32::try_from(k.batch - 1), u32::try_from(rows)) else {
            bail!(
                "flash-attn: k has {} pages, and {batch} sequences have room for {rows} keys; up to {} are \
                 supported",
                k.batch,
                u32::MAX
            );
        };
        let in_order = |of: &[usize]| Layout::contiguous((rows, of[2], of[3]));
        let [k_in_order, v_in_order] = [layouts.k, layouts.v].map(|layout| in_order(layout.dims()));
        Ok(Self { batch, page_size: k.seqlen, last_page, pages, k: k_in_order, v: v_in_order })
    }

    /// Layouts of the copies, beside that of Q.
    pub(crate) fn layouts<'a>(&'a self, q: &'a Layout) -> Layouts<'a> {
        Layouts { q, k: &self.k, v: &self.v }
    }

    /// Keys that a sequence has room for.
    pub(crate) fn room(&self) -> usize {
        self.pages * self.page_size
    }

    /// The first key of each sequence in the copies, and the end of the last.
    pub(crate) fn offsets(&self) -> Vec<u32> {
        // `new` has the last of them within 32 bits.
        (0..=self.batch).map(|sequence| (sequence * self.room()) as u32).collect()
    }

    /// The pages of the copies in their order, of a u32 block table. Entries that hold no keys may name none.
    pub(crate) fn indices(&self, block_table: &Tensor) -> Result<Tensor> {
        block_table.narrow(1, 0, self.pages)?.flatten_all()?.minimum(self.last_page)
    }

    /// Copies `indices` of the pages.
    pub(crate) fn copy<S: BackendStorage<Device: BackendDevice<Storage = S>>>(
        &self,
        (pages, layout): (&S, &Layout),
        (indices, of_indices): (&S, &Layout),
    ) -> Result<S> {
        if layout.is_contiguous() {
            return pages.index_select(indices, layout, of_indices, 0);
        }
        // index_select takes contiguous tensors alone.
        let mut contiguous = pages.device().zeros_impl(layout.shape(), pages.dtype())?;
        pages.copy_strided_src(&mut contiguous, 0, layout)?;
        contiguous.index_select(indices, &Layout::contiguous(layout.shape()), of_indices, 0)
    }

    /// Refuses entries that hold keys and name no page.
    fn check_pages(&self, block_table: &Tensor, used: &[i32]) -> Result<()> {
        let entries = cpu::integers("block_table", block_table)?;
        for (sequence, (entries, &used)) in entries.chunks_exact(block_table.dim(1)?).zip(used).enumerate() {
            let holding = entries.iter().take((used as usize).div_ceil(self.page_size));
            for (index, &page) in holding.enumerate() {
                if !u32::try_from(page).is_ok_and(|page| page <= self.last_page) {
                    let count = u64::from(self.last_page) + 1;
                    bail!("flash-attn: block_table[{sequence}][{index}] is {page}; there are {count} pages");
                }
            }
        }
        Ok(())
    }
}

/// O of tensors in host memory.
pub(crate) fn on_cpu<T: Scalar>(
    settings: &Settings<'_>,
    pages: &Pages<'_>,
    [q, k, v]: [&CpuStorage; 3],
    layouts: Layouts<'_>,
) -> Result<Vec<T>> {
    let gathered = Gathered::new(pages, layouts)?;
    let offsets = Offsets::of(pages.varlen)?;
    let used = offsets.keys()?;
    let offsets = Offsets { k: gathered.offsets(), ..offsets };
    let problem = cpu::packed_problem::<T>(settings, gathered.layouts(layouts.q), &offsets)?;
    let problem = problem.with_seqused_k(&used).map_err(error)?;
    gathered.check_pages(pages.block_table, &used)?;

    let indices = gathered.indices(&pages.block_table.to_dtype(DType::U32)?)?;
    let (storage, layout) = indices.storage_and_layout();
    let indices = (cpu::storage(&storage)?, layout);
    let k = gathered.copy((k, layouts.k), indices)?;
    let v = gathered.copy((v, layouts.v), indices)?;
    let inputs = [cpu::slice(q, layouts.q)?, k.as_slice::<T>()?, v.as_slice::<T>()?];
    let (o, _) = cpu::run(&problem, inputs, false)?;
    Ok(o)
}
