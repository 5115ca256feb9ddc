//! The tile of a matrix multiplication, and the launch that it makes.

use fa_kernels::entries::GemmEntry;

use super::{GemmKernel, GemmRequest, Launch};
use crate::gemm::{GemmProblem, Order};
use crate::plan::cost::h200::LOAD_COST;
use crate::plan::{checked_grid, join};
use crate::{DType, Device, Error, Result};

/// What a tile is chosen for.
#[derive(Clone, Copy)]
pub(super) struct Candidates<'a> {
    pub(super) problem: &'a GemmProblem,
    pub(super) device: &'a Device,
    pub(super) kernel: GemmKernel,
    pub(super) request: &'a GemmRequest,
}

impl Candidates<'_> {
    /// The tile with the least modelled time, and why; with `exact`, only tiles that were asked for.
    pub(super) fn choose(&self, aligned: bool, exact: bool) -> Result<(Launch, String)> {
        let (matrices, _) = self.problem.row_major();
        let orders = (matrices.a.order == Order::RowMajor, matrices.b.order == Order::ColumnMajor);
        let built: Vec<_> = self
            .kernel
            .entries(self.problem.dtype())
            .filter(|entry| entry.tile.along_k.is_none_or(|along_k| along_k == orders))
            .filter(|entry| entry.tile.aligned == aligned)
            .collect();
        let Some(first) = built.first() else {
            let has = |dtype: &DType| self.kernel.entries(*dtype).next().is_some();
            return Err(Error::UnsupportedDType {
                kernel: self.kernel.name(),
                dtype: self.problem.dtype(),
                available: join(DType::ALL.into_iter().filter(has).map(DType::name)),
            });
        };
        if !first.target.runs_on(self.device.compute_capability) {
            return Err(Error::KernelNeedsDevice {
                kernel: self.kernel.name(),
                needed: first.target,
                device: self.device.name.clone(),
                found: self.device.compute_capability,
            });
        }
        let GemmRequest { block_m, block_n, .. } = *self.request;
        let fitting = built.iter().copied().filter(|entry| {
            (self.request.allows(&entry.tile) || !exact)
                && entry.shared_bytes as usize <= self.device.shared_per_block
        });
        let rounds =
            |entry: &GemmEntry| self.tiles(entry).div_ceil(self.device.multiprocessors.max(1).into());
        let best = fitting.min_by(|a, b| time(a, rounds(a)).total_cmp(&time(b, rounds(b))));
        let Some(entry) = best else {
            return Err(Error::NoSuchGemmTile {
                kernel: self.kernel.name(),
                tile: self.request.tile(),
                available: join(
                    built.iter().map(|entry| format!("{}x{}", entry.tile.block_m, entry.tile.block_n)),
                ),
                device: self.device.name.clone(),
                shared: self.device.shared_per_block,
            });
        };
        let tiles = self.tiles(entry);
        let because = match (block_m.is_some() || block_n.is_some(), built.len()) {
            (true, _) => ", as asked for",
            (false, 1) => "",
            (false, _) => ", the least time with their loads of the tiles built",
        };
        let why = format!(
            "BLOCK_M {} x BLOCK_N {} x BLOCK_K {}: {tiles} tiles give each of {} multiprocessors at most {}{because}",
            entry.tile.block_m,
            entry.tile.block_n,
            entry.tile.block_k,
            self.device.multiprocessors,
            rounds(entry),
        );
        Ok((Launch::new(entry, self.grid(entry, checked_grid(tiles)?)), why))
    }

    /// Blocks for `tiles` tiles: on tensor cores no more than run at a time, because a block that goes on to
    /// its next tile has begun to load it while it stores the last one.
    fn grid(&self, entry: &GemmEntry, tiles: u32) -> u32 {
        match self.kernel {
            GemmKernel::GemmSm90 | GemmKernel::GemmSm80 => {
                // A multiprocessor keeps 1 KiB of its shared memory for each block.
                let fitting = self.device.shared_per_multiprocessor as u32 / (entry.shared_bytes + 1024);
                tiles.min(entry.min_blocks.min(fitting).max(1) * self.device.multiprocessors.max(1))
            }
            GemmKernel::GemmSimt | GemmKernel::GemmCpu => tiles,
        }
    }

    /// Tiles of C.
    fn tiles(&self, entry: &GemmEntry) -> u128 {
        let (matrices, _) = self.problem.row_major();
        matrices.c.rows.div_ceil(entry.tile.block_m as usize) as u128
            * matrices.c.columns.div_ceil(entry.tile.block_n as usize) as u128
    }
}

/// Modelled time of the busiest multiprocessor, per element of K: the products of its `rounds` tiles, and
/// their loads, which grow with the sides alone.
fn time(entry: &GemmEntry, rounds: u128) -> f64 {
    let (m, n) = (f64::from(entry.tile.block_m), f64::from(entry.tile.block_n));
    rounds as f64 * (m * n + LOAD_COST * (m + n))
}
