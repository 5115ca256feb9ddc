//! What the device reaches at best, measured in the same run: copies, and products on registers alone.

use std::ops::Range;
use std::time::Instant;

use anyhow::Result;
use flash_attention::gemm::{GemmProblem, GemmRequest, Matrices, Order};
use flash_attention::timing::MmaPeak;
use flash_attention::{BackendKind, DType};
use rayon::prelude::*;

use super::case::{Case, Contender};
use super::contest::is_refusal;
use super::document::{Row, RunRecord, Unit};
use super::run::Lab;
use super::timed::Each;

/// Bytes of a copy: far more than any cache holds.
const GPU_COPY: usize = 1 << 30;
const CPU_COPY: usize = 1 << 28;

/// Bytes that one thread of the CPU copies at a time.
const CHUNK: usize = 1 << 20;

/// M = N = K of a product that fills a GPU.
const PRODUCT: usize = 4096;

/// The case of these rows.
const CASE: &str = "ceiling";

impl Lab {
    /// Bytes a second, read and written, of a copy within the device's memory, and a row that says so.
    ///
    /// # Errors
    /// When the memory cannot be had or the device fails, or Ctrl-C is pressed.
    pub(crate) fn copy_bandwidth(&mut self) -> Result<f64> {
        let (bytes, times) = match self.session.backend.device_copy(GPU_COPY)? {
            Some(mut copy) => (copy.traffic(), self.time_alone("copy", &mut Each(|| Ok(copy.time()?)))?),
            None => {
                let (from, mut to) = (vec![1_u8; CPU_COPY], vec![0_u8; CPU_COPY]);
                let copy = || {
                    let start = Instant::now();
                    let chunks = to.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK));
                    chunks.for_each(|(to, from)| to.copy_from_slice(from));
                    Ok(start.elapsed())
                };
                (2 * CPU_COPY, self.time_alone("copy", &mut Each(copy))?)
            }
        };
        let bandwidth = bytes as f64 / times.median_s;
        let mut row = Row { case: CASE.to_owned(), series: "copy".to_owned(), ..Row::default() };
        row.measurement = Some(RunRecord::of_times(times));
        row.put("bandwidth", Unit::BytesPerSecond, bandwidth);
        self.push(row)?;
        Ok(bandwidth)
    }

    /// Bytes a second of a copy that reads and writes `bytes` bytes together, and of a read of as many, with
    /// rows of a `case` that say so; `None` where there is no GPU. As kernels are timed, caches are evicted
    /// before.
    ///
    /// # Errors
    /// As [`Self::copy_bandwidth`].
    pub(crate) fn bandwidths_of(&mut self, case: &str, bytes: usize) -> Result<Option<[f64; 2]>> {
        let backend = &self.session.backend;
        // More are no faster, and the problem has its memory beside.
        let bytes = bytes.min(4 << 30);
        let copy = backend.device_copy(bytes.div_ceil(2))?;
        let read = backend.device_read(bytes.next_multiple_of(16))?;
        let (Some(mut copy), Some(mut read)) = (copy, read) else { return Ok(None) };
        let traffic = [copy.traffic(), read.traffic()];
        let times = {
            let mut copy = Each(|| copy.flush_cache().and_then(|()| copy.time()).map_err(Into::into));
            let mut read = Each(|| read.flush_cache().and_then(|()| read.time()).map_err(Into::into));
            self.time_together("copy and read", vec![&mut copy, &mut read])?
        };
        let mut bandwidths = [0.0; 2];
        for (index, (series, times)) in ["copy", "read"].into_iter().zip(times).enumerate() {
            bandwidths[index] = traffic[index] as f64 / times.median_s;
            let mut row = Row { case: case.to_owned(), series: series.to_owned(), ..Row::default() };
            row.measurement = Some(RunRecord::of_times(times));
            row.put("bandwidth", Unit::BytesPerSecond, bandwidths[index]);
            self.push(row)?;
        }
        Ok(Some(bandwidths))
    }

    /// FLOP/s of `mma.sync` with no memory in the way, and a row that says so; `None` where the device or the
    /// storage type has no such instruction.
    ///
    /// # Errors
    /// When the device fails, or Ctrl-C is pressed.
    pub(crate) fn mma_peak(&mut self, dtype: DType) -> Result<Option<f64>> {
        let mut peak = match self.session.backend.as_cuda().map(|cuda| MmaPeak::new(cuda, dtype)) {
            None => return Ok(None),
            Some(Err(error)) if is_refusal(&error) => return Ok(None),
            Some(peak) => peak?,
        };
        let flops = peak.flops();
        let times = self.time_alone("mma_peak", &mut Each(|| Ok(peak.time()?)))?;
        let reached = flops / times.median_s;
        let tflops = Some(reached / 1e12);
        let row = Row {
            case: CASE.to_owned(),
            series: "mma.sync".to_owned(),
            measurement: Some(RunRecord { tflops, ..RunRecord::of_times(times) }),
            ..Row::default()
        };
        self.push(row)?;
        Ok(Some(reached))
    }

    /// FLOP/s of the fastest product of matrices of a storage type, and rows that say so: `mma.sync` with no
    /// memory in the way, and C = A·B by the planner's kernel. `None` but on a GPU: attention on the CPU is
    /// faster than `gemm_cpu`, which therefore bounds nothing. Nor is there a product of 8-bit matrices.
    ///
    /// # Errors
    /// When the device fails, or Ctrl-C is pressed.
    pub(crate) fn matrix_ceiling(&mut self, dtype: DType) -> Result<Option<f64>> {
        if self.kind() != BackendKind::Cuda || !DType::RESULTS.contains(&dtype) {
            return Ok(None);
        }
        let peak = self.mma_peak(dtype)?;
        // The peer's products are `matmul`'s.
        let peer = self.peer.take();
        let product = square(dtype, PRODUCT).and_then(|product| self.planned_product(CASE, product));
        self.peer = peer;
        let products = product?.filter_map(|row| self.rows()[row].flops());
        Ok(products.chain(peak).reduce(f64::max))
    }

    /// C = A·B by the planner's kernel, and by the peer's; their rows.
    ///
    /// # Errors
    /// When the device fails, or Ctrl-C is pressed.
    pub(crate) fn planned_product(&mut self, case: &str, product: GemmProblem) -> Result<Range<usize>> {
        let plan = self.session.backend.plan(&product, &GemmRequest::default())?;
        let contender = Contender { series: plan.kernel().name().to_owned(), plan: Ok(plan) };
        self.products(&Case::named(case, product), vec![contender])
    }
}

/// C = A·B of square matrices, row-major.
///
/// # Errors
/// When they are larger than a matrix may be.
pub(crate) fn square(dtype: DType, size: usize) -> Result<GemmProblem> {
    let matrix = Order::RowMajor.matrix(size, size);
    Ok(GemmProblem::new(Matrices { a: matrix, b: matrix, c: matrix }, dtype)?)
}
