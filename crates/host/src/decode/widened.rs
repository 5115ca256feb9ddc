//! Where a cache in e4m3 goes that is widened to Q's type before the attention.

use fa_kernels::attention::widen::{CHUNK, block_rows};
use fa_kernels::params::{AttentionParams, WidenParams, WidenTensor};

use super::DecodeProblem;
use crate::launch::{pages, strides};
use crate::{Device, Problem, TensorLayout};

/// Where in the workspace each copy begins: at a multiple of so many bytes.
const ALIGNMENT: u64 = 256;

/// Blocks of a launch for each multiprocessor, of which it holds four: the last ones end at about one time.
const BLOCKS_PER_MULTIPROCESSOR: usize = 64;

/// K and V in 16 bits, in the workspace: [B, Hkv, Sk, D], rows at multiples of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Widened {
    /// Layouts of K and of V.
    layouts: [TensorLayout; 2],
    /// Bytes of the workspace in front of each.
    offsets: [u64; 2],
    /// Keys of a step of the attention.
    block_n: u32,
    /// Blocks of a sequence's head of K, and as many of V.
    head_blocks: u32,
}

impl Widened {
    /// Behind so many bytes of the workspace, for an attention in steps of `block_n` keys.
    pub(super) fn new(problem: &Problem, device: &Device, block_n: u32, behind: u64) -> Self {
        let (batch, rows, heads) = (problem.batch(), problem.seqlen_k(), problem.kv_heads());
        let layouts = [problem.head_dim(), problem.head_dim_v()].map(|head_dim| {
            let row = head_dim.next_multiple_of(CHUNK as usize);
            TensorLayout { head_dim, ..TensorLayout::bhsd(batch, rows, heads, row) }
        });
        let first = behind.next_multiple_of(ALIGNMENT);
        let second = first.saturating_add(bytes(&layouts[0])).next_multiple_of(ALIGNMENT);
        let all = BLOCKS_PER_MULTIPROCESSOR * (device.multiprocessors as usize).max(1);
        // Problems bound rows, so this cast keeps its value.
        let blocks = layouts.map(|layout| (rows as u32).div_ceil(block_rows(chunks(&layout))));
        let most = (all / (2 * batch * heads)).max(1) as u32;
        Self { layouts, offsets: [first, second], block_n, head_blocks: blocks[0].max(blocks[1]).min(most) }
    }

    /// Bytes of the workspace with both.
    pub(super) fn end(&self) -> u64 {
        self.offsets[1].saturating_add(bytes(&self.layouts[1]))
    }

    /// Blocks of the launch that writes them.
    pub(super) fn blocks(&self) -> u128 {
        let [TensorLayout { batch, heads, .. }, _] = self.layouts;
        2 * u128::from(self.head_blocks) * (batch * heads) as u128
    }

    /// Layouts of K and of V.
    pub(super) const fn layouts(&self) -> [&TensorLayout; 2] {
        [&self.layouts[0], &self.layouts[1]]
    }

    /// Addresses of K and of V in a workspace.
    pub(super) fn addresses(&self, workspace: u64) -> [u64; 2] {
        self.offsets.map(|offset| workspace + offset)
    }

    /// The parameters of the launch that writes them, of K and V at these addresses.
    pub(super) fn params(
        &self,
        problem: &DecodeProblem,
        attention: AttentionParams,
        sources: [u64; 2],
        (page_table, workspace): (u64, u64),
    ) -> WidenParams {
        let targets = self.addresses(workspace);
        let tensor = |index: usize, from: &TensorLayout| WidenTensor {
            source: sources[index],
            end: sources[index] + from.span() as u64,
            target: targets[index],
            strides: strides(from),
            chunks: chunks(&self.layouts[index]),
        };
        // Problems bound heads, and a page table has 32-bit numbers, so these casts keep what counts.
        WidenParams {
            attention,
            k: tensor(0, problem.k()),
            v: tensor(1, problem.v()),
            pages: pages(problem.k(), problem.max_pages(), page_table),
            num_pages: u32::try_from(problem.k().batch).unwrap_or(u32::MAX).min(i32::MAX as u32),
            heads: problem.dense().kv_heads() as u32,
            block_n: self.block_n,
            head_blocks: self.head_blocks,
        }
    }
}

/// Pieces of 16 bytes of a row.
fn chunks(layout: &TensorLayout) -> u32 {
    (layout.stride_seq / CHUNK as usize) as u32
}

/// Bytes of 16-bit elements in this layout, with what lies behind the last row's columns.
fn bytes(layout: &TensorLayout) -> u64 {
    (layout.batch as u64).saturating_mul(layout.stride_batch as u64).saturating_mul(2)
}
