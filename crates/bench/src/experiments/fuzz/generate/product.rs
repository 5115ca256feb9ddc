//! Random matrix multiplications.

use fa_kernels::entries::{GemmAlgorithm, GemmEntry, gemm_entries};
use flash_attention::gemm::GemmKernel;
use flash_attention::{BackendKind, DType};

use super::super::case::Gemm;
use super::super::draw::Draw;
use super::super::place::MatrixPlace;
use super::parts::{Size, data, length, result_dtype, seed, shrink_to};

pub(super) fn draw(draw: &mut Draw, backend: BackendKind, size: Size) -> Gemm {
    let dtype = result_dtype(draw);
    let [mut m, mut n, mut k] = [0; 3].map(|_| length(draw, size.rows));
    let lengths = &mut [&mut m, &mut n, &mut k];
    shrink_to(lengths, size.products, |of| size.tiles(of[0]) * size.tiles(of[1]) * of[2]);
    shrink_to(lengths, size.elements, |of| (of[0] * of[1]).max(of[0] * of[2]).max(of[1] * of[2]));
    let mut case = Gemm {
        dtype,
        m,
        n,
        k,
        a: place(draw, dtype, [m, k]),
        b: place(draw, dtype, [k, n]),
        c: place(draw, dtype, [m, n]),
        data: data(draw),
        realign: draw.once_in(10),
        seed: seed(draw),
        schedule: draw.below(64) as u64,
        ..Gemm::default()
    };
    if draw.once_in(3) {
        let takes = |kernel: &GemmKernel| match kernel {
            GemmKernel::GemmSm90 => dtype != DType::F32 && !case.realign && are_mapped(&case),
            GemmKernel::GemmSm80 => dtype != DType::F32,
            GemmKernel::GemmSimt | GemmKernel::GemmCpu => true,
        };
        let kernels: Vec<_> = GemmKernel::of_backend(backend).iter().copied().filter(takes).collect();
        let kernel = draw.pick(&kernels);
        case.run = kernel.name().to_owned();
        if backend != BackendKind::Cpu && draw.once_in(2) {
            case.block = tile(draw, kernel, dtype);
        }
    }
    case
}

/// Whether rows of A and B lie multiples of 16 bytes apart.
fn are_mapped(case: &Gemm) -> bool {
    let a = case.a.layout(case.m, case.k);
    let b = case.b.layout(case.k, case.n);
    [a, b].iter().all(|layout| layout.leading_dimension.is_multiple_of(8))
}

/// A tile that is built for some problem.
fn tile(draw: &mut Draw, kernel: GemmKernel, dtype: DType) -> [usize; 2] {
    let algorithm = match kernel {
        GemmKernel::GemmSm90 => GemmAlgorithm::GemmSm90,
        GemmKernel::GemmSm80 => GemmAlgorithm::GemmSm80,
        GemmKernel::GemmSimt | GemmKernel::GemmCpu => GemmAlgorithm::GemmSimt,
    };
    let of = |entry: &&GemmEntry| entry.algorithm == algorithm && entry.dtype == dtype.name();
    let built: Vec<_> = gemm_entries().filter(of).collect();
    if built.is_empty() {
        return [0; 2];
    }
    let tile = draw.pick(&built).tile;
    [tile.block_m as usize, tile.block_n as usize]
}

fn place(draw: &mut Draw, dtype: DType, [rows, columns]: [usize; 2]) -> MatrixPlace {
    let column_major = draw.once_in(2);
    let chunk = 16 / dtype.bytes();
    let run = if column_major { rows } else { columns };
    let padding = run.next_multiple_of(chunk) - run;
    let gap = match draw.below(8) {
        0..3 => 0,
        3..6 => padding + chunk * draw.pick(&[0, 0, 1, 2]),
        _ => draw.logarithmic(1, 70),
    };
    let offset = match draw.below(8) {
        0..5 => 0,
        5 => chunk * draw.below(16),
        _ => draw.below(64),
    };
    MatrixPlace { column_major, gap, offset }
}
