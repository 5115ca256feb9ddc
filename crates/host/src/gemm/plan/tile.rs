//! The tile of a matrix multiplication, and the launch that it makes.

use fa_kernels::entries::GemmEntry;
use fa_kernels::variant::Kernel;

use super::{GemmKernel, GemmRequest, Launch};
use crate::gemm::{GemmProblem, Order};
use crate::plan::cost::h200::LOAD_COST;
use crate::plan::{Key, Tuned, as_measured, check_target, checked_grid, join};
use crate::{DType, Device, Error, Result};

/// What a tile is chosen for.
#[derive(Clone, Copy)]
pub(super) struct Candidates<'a> {
    pub(super) problem: &'a GemmProblem,
    pub(super) device: &'a Device,
    pub(super) kernel: GemmKernel,
    pub(super) request: &'a GemmRequest,
    /// The order of tiles as they were measured.
    pub(super) table: &'a [Tuned],
}

/// Up to so many times the least modelled time what was measured decides: where both fill the device, the
/// model sees a tenth between 128 x 128 and 128 x 256.
const AS_QUICK: f64 = 1.125;

impl Candidates<'_> {
    /// The tile with the least modelled time, or of those that are as quick by the model the fastest that was
    /// measured, and why; with `exact`, only tiles that were asked for.
    pub(super) fn choose(&self, aligned: bool, exact: bool) -> Result<(Launch, String)> {
        let dtype = self.problem.dtype();
        let built: Vec<_> = self
            .kernel
            .entries(dtype)
            .filter(|entry| self.takes_orders(entry) && entry.tile.aligned == aligned)
            .collect();
        let Some(first) = built.first() else {
            let has = |dtype: &DType| self.kernel.entries(*dtype).next().is_some();
            return Err(Error::UnsupportedDType {
                kernel: self.kernel.name(),
                dtype,
                available: join(DType::ALL.into_iter().filter(has).map(DType::name)),
            });
        };
        check_target(first, self.device, self.kernel.name())?;
        let GemmRequest { block_m, block_n, .. } = *self.request;
        let fitting = built.iter().copied().filter(|entry| {
            (self.request.allows(&entry.tile) || !exact)
                && entry.shared_bytes as usize <= self.device.shared_per_block
        });
        let mut fitting: Vec<_> = fitting.map(|entry| (self.time(entry), entry)).collect();
        fitting.sort_by(|a, b| a.0.total_cmp(&b.0));
        let Some(&(least, _)) = fitting.first() else {
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
        let as_quick = fitting.iter().take_while(|(time, _)| *time <= AS_QUICK * least);
        let mut as_quick: Vec<_> = as_quick.map(|(_, entry)| *entry).collect();
        let (kernel, device) = (Kernel::Gemm(first.algorithm), &*self.device.name);
        let key = Key { device, kernel, dtype: dtype.name(), head_dim: 0, causal: false };
        let measured = as_measured(&mut as_quick, &key, self.table);
        let because = match (block_m.is_some() || block_n.is_some(), built.len(), measured) {
            (true, ..) => ", as asked for".to_owned(),
            (false, 1, _) => String::new(),
            (false, _, true) => {
                format!(", the fastest measured on {device} of the tiles that are as quick by their loads")
            }
            (false, _, false) => ", the least time with their loads of the tiles built".to_owned(),
        };
        self.launch(as_quick[0], &because)
    }

    /// Whether an entry is for operands in the problem's orders.
    pub(super) fn takes_orders(&self, entry: &GemmEntry) -> bool {
        let (matrices, _) = self.problem.row_major();
        let orders = (matrices.a.order == Order::RowMajor, matrices.b.order == Order::ColumnMajor);
        entry.tile.along_k.is_none_or(|along_k| along_k == orders)
    }

    /// The launch of an entry, and what its tile gives.
    pub(super) fn launch(&self, entry: &'static GemmEntry, because: &str) -> Result<(Launch, String)> {
        let tiles = self.tiles(entry);
        let why = format!(
            "BLOCK_M {} x BLOCK_N {} x BLOCK_K {}: {tiles} tiles give each of {} multiprocessors at most {}{because}",
            entry.tile.block_m,
            entry.tile.block_n,
            entry.tile.block_k,
            self.device.multiprocessors,
            self.rounds(entry),
        );
        Ok((Launch::new(entry, self.grid(entry, checked_grid(tiles)?)), why))
    }

    /// Tiles of the busiest multiprocessor.
    fn rounds(&self, entry: &GemmEntry) -> u128 {
        self.tiles(entry).div_ceil(self.device.multiprocessors.max(1).into())
    }

    /// Modelled time of the busiest multiprocessor, per element of K: the products of its tiles, and their
    /// loads, which grow with the sides alone.
    fn time(&self, entry: &GemmEntry) -> f64 {
        let (m, n) = (f64::from(entry.tile.block_m), f64::from(entry.tile.block_n));
        self.rounds(entry) as f64 * (m * n + LOAD_COST * (m + n))
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
