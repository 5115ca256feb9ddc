//! Matrix multiplications.

use flash_attention::gemm::reference::{Expected, sample};
use flash_attention::gemm::{GemmKernel, GemmProblem, GemmRequest, Matrices, MatrixLayout, Order};
use flash_attention::{DType, Element, Plan};

use super::attention::named;
use super::bench::{Bench, judged, rows_to_check, unsupported};
use super::case::{Data, Gemm, Operation};
use super::data::{Source, huge};
use super::draw::Draw;
use super::image::Written;
use super::machine::{GemmCall, Machine};
use super::outcome::Stop;
use super::place::spoiled_matrix;

impl Gemm {
    fn problem(&self) -> flash_attention::Result<GemmProblem> {
        let matrices = Matrices {
            a: spoiled_matrix(&self.spoil, "a", self.a.layout(self.m, self.k)),
            b: spoiled_matrix(&self.spoil, "b", self.b.layout(self.k, self.n)),
            c: spoiled_matrix(&self.spoil, "c", self.c.layout(self.m, self.n)),
        };
        GemmProblem::new(matrices, self.dtype)
    }
}

/// Elements of mean 1 whose sum fp16 holds, with room.
const LONGEST_F16: f32 = 32_768.0;

pub(super) fn run(bench: &mut Bench<impl Machine>, case: &Gemm) -> Result<(), Stop> {
    match case.dtype {
        DType::F32 => typed::<f32>(bench, case),
        DType::F16 => typed::<half::f16>(bench, case),
        DType::Bf16 => typed::<half::bf16>(bench, case),
        DType::E4m3 => {
            case.problem()?;
            Err(unsupported(Operation::Gemm, DType::E4m3))
        }
    }
}

fn typed<T: Element>(bench: &mut Bench<impl Machine>, case: &Gemm) -> Result<(), Stop> {
    let problem = case.problem()?;
    let [block_m, block_n] = case.block.map(|block| Some(block).filter(|&block| block > 0));
    let kernel = named(&case.run, &GemmKernel::ALL, GemmKernel::name)?;
    let request = GemmRequest { kernel, block_m, block_n, realign: case.realign };
    let plan = Plan::new(&problem, bench.machine.device(), &request)?;
    let Matrices { a, b, c } = problem.matrices();
    bench.limits().check_memory(&[a.span(), b.span(), c.span()], 0)?;
    bench.limits().check_flops(problem.flops())?;

    let memory = &mut bench.memory;
    let size = size_of::<T>();
    let inputs = [(a, case.a.offset), (b, case.b.offset)]
        .map(|(layout, offset)| memory.inputs.reserve((layout.span(), size), offset));
    memory.inputs.fill();
    let mut draw = Draw::new(case.seed.0);
    // The product of a huge A stays in the range, and so do sums of many elements of one sign.
    let factor = match (case.data, T::DTYPE) {
        (Data::Huge, dtype) => 1.0 / huge(dtype),
        (_, DType::F16) => (LONGEST_F16 / problem.k() as f32).min(1.0),
        _ => 1.0,
    };
    let of_b = if case.data == Data::Huge { Data::Normal } else { case.data };
    let sources = [(a, Source::new(case.data)), (b, Source { data: of_b, factor })];
    for ((layout, source), slot) in sources.into_iter().zip(inputs) {
        let (firsts, len) = runs(layout);
        source.fill::<T>(&mut memory.inputs, slot, firsts, len, &mut draw);
    }
    let c_slot = memory.outputs.reserve((c.span(), size), case.c.offset);
    memory.outputs.fill();
    let call = GemmCall { plan: &plan, inputs, c: c_slot, schedule: case.schedule };
    bench.machine.gemm::<T>(&call, memory)?;
    let (firsts, len) = runs(c);
    let rows = firsts.map(|first| (first, len)).collect();
    let written = [Written { name: "c", slot: c_slot, size, rows }];
    memory.outputs.check(&written)?;
    written[0].check::<T>(&memory.outputs, false)?;
    let [a, b] = inputs.map(|slot| memory.inputs.values::<T>(slot));
    let rows = sample(&problem, rows_to_check(problem.n() * problem.k()));
    let accuracy = Expected::new(&problem, (a, b), rows).judge(&problem, memory.outputs.values::<T>(c_slot));
    Ok(judged("c", &accuracy, String::new)?)
}

/// First elements and length of what lies together: rows, or columns.
fn runs(layout: &MatrixLayout) -> (impl Iterator<Item = usize>, usize) {
    let (count, len) = match layout.order {
        Order::RowMajor => (layout.rows, layout.columns),
        Order::ColumnMajor => (layout.columns, layout.rows),
    };
    let step = layout.leading_dimension;
    ((0..count).map(move |index| index * step), len)
}
