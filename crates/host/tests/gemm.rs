//! Matrix multiplication on the simulator and the CPU against the f64 reference: shapes that fill no tile,
//! all orders, padded rows, and operands that start anywhere.
#![allow(clippy::unwrap_used)]

use fa_kernels::entries::Target;
use flash_attention::gemm::reference::Expected;
use flash_attention::gemm::{GemmKernel, GemmProblem, GemmRequest, Matrices, MatrixLayout, Order};
use flash_attention::sim::Sim;
use flash_attention::{Backend, BackendKind, DType, Device, Element, Plan};
use half::{bf16, f16};
use proptest::prelude::*;

/// A problem, as data that prints when a test fails.
#[derive(Clone, Copy, Debug)]
struct Case {
    shape: [usize; 3],
    orders: [Order; 3],
    /// Elements between the rows, or columns, of A, B and C.
    gaps: [usize; 3],
}

impl Case {
    fn problem(&self, dtype: DType) -> GemmProblem {
        let [m, n, k] = self.shape;
        let layout = |index: usize, rows, columns| {
            let layout = self.orders[index].matrix(rows, columns);
            layout.with_leading_dimension(layout.leading_dimension + self.gaps[index])
        };
        GemmProblem::new(Matrices { a: layout(0, m, k), b: layout(1, k, n), c: layout(2, m, n) }, dtype)
            .unwrap()
    }
}

/// NaN in the gaps, which no kernel may read into a result; values near 1 elsewhere. `lead` elements come
/// first.
fn matrix<T: Element>(layout: &MatrixLayout, seed: usize, lead: usize) -> Vec<T> {
    let mut values = vec![T::from_f32(f32::NAN); lead + layout.span()];
    for row in 0..layout.rows {
        for column in 0..layout.columns {
            let mixed = (row * 7919 + column * 104_729 + seed * 31) % 1009;
            values[lead + layout.at(row, column)] = T::from_f32(mixed as f32 / 504.0 - 1.0);
        }
    }
    values
}

/// Runs a case, judges it, and checks that nothing outside of C was written.
fn check<T: Element>(backend: &Backend, case: &Case, request: GemmRequest, lead: usize) {
    let problem = case.problem(T::DTYPE);
    let Matrices { a: la, b: lb, c: lc } = problem.matrices();
    let (a, b) = (matrix::<T>(la, 1, lead), matrix::<T>(lb, 2, lead));
    let (a, b) = (&a[lead..], &b[lead..]);
    let mark = T::from_f32(-77.0);
    let mut c = vec![mark; lc.span()];
    let plan = backend.plan(&problem, &request).unwrap();
    backend.run(&plan, (a, b), &mut c).unwrap_or_else(|error| panic!("{case:?}: {error}"));
    let expected = Expected::new(&problem, (a, b), (0..problem.m()).collect());
    let accuracy = expected.judge(&problem, &c);
    assert!(accuracy.passed(), "{case:?} {request:?}: {accuracy}");
    for row in 0..lc.rows {
        for column in 0..lc.columns {
            c[lc.at(row, column)] = mark;
        }
    }
    assert!(c.iter().all(|value| value.to_f32() == -77.0), "{case:?}: written outside of C");
}

fn orders() -> impl Iterator<Item = [Order; 3]> {
    let each = || Order::ALL.into_iter();
    each().flat_map(move |a| each().flat_map(move |b| each().map(move |c| [a, b, c])))
}

#[test]
fn every_order_alignment_and_schedule_gives_the_product() {
    let shapes = [[1, 1, 1], [17, 64, 129], [129, 200, 64], [64, 129, 200], [200, 17, 17]];
    for (index, orders) in orders().enumerate() {
        for (seed, &shape) in shapes.iter().enumerate() {
            let round = |extent: usize| extent.next_multiple_of(8) - extent;
            // Gaps that align the rows, that leave them as they are, and that spoil them.
            let aligning = [0, 1, 2].map(|matrix| {
                let [m, n, k] = shape;
                let (rows, columns) = [(m, k), (k, n), (m, n)][matrix];
                round(if orders[matrix] == Order::RowMajor { columns } else { rows })
            });
            let gaps = [aligning, [0; 3], [3, 1, 5]][(index + seed) % 3];
            let backend = Backend::simulator((index + seed) as u64 % 8);
            let case = Case { shape, orders, gaps };
            check::<f16>(&backend, &case, GemmRequest::default(), 0);
            check::<bf16>(&backend, &case, GemmRequest::default(), 0);
            let simt = GemmRequest { kernel: Some(GemmKernel::GemmSimt), ..GemmRequest::default() };
            check::<f32>(&backend, &case, simt, 0);
        }
    }
}

#[test]
fn tensor_maps_take_any_shape_and_any_c() {
    // Nothing, a part, and more than one of each of BLOCK_M, BLOCK_N and BLOCK_K; more steps than stages.
    let shapes = [[1, 1, 1], [130, 70, 72], [64, 264, 448], [200, 129, 65], [7, 300, 500]];
    for (index, orders) in orders().enumerate() {
        for seed in 0..8 {
            let shape @ [m, n, k] = shapes[(index + seed) % 5];
            let padding = |order: Order, rows: usize, columns: usize| {
                let run = if order == Order::RowMajor { columns } else { rows };
                run.next_multiple_of(8) - run + 8 * (seed % 2)
            };
            let c_gap = [padding(orders[2], m, n), 1, 0][seed % 3];
            let gaps = [padding(orders[0], m, k), padding(orders[1], k, n), c_gap];
            let case = Case { shape, orders, gaps };
            let block_n = if seed % 4 < 2 { 128 } else { 256 };
            let request = GemmRequest {
                kernel: Some(GemmKernel::GemmSm90),
                block_n: Some(block_n),
                ..GemmRequest::default()
            };
            let backend = Backend::simulator(seed as u64);
            check::<f16>(&backend, &case, request, 0);
            check::<bf16>(&backend, &case, request, 8);
        }
    }
}

#[test]
fn operands_may_start_at_any_element() {
    for (index, orders) in orders().enumerate() {
        let case = Case { shape: [40, 72, 96], orders, gaps: [0; 3] };
        check::<f16>(&Backend::simulator(index as u64), &case, GemmRequest::default(), 1 + index % 7);
    }
}

#[test]
fn every_tile_reaches_each_of_its_barriers() {
    for entry in fa_kernels::entries::gemm_entries().filter(|entry| entry.tile.block_m > 0) {
        let orders = entry.tile.along_k.unwrap_or((true, true));
        let order = |row_major: bool| if row_major { Order::RowMajor } else { Order::ColumnMajor };
        let orders = [order(orders.0), order(!orders.1), Order::RowMajor];
        // More tiles than blocks, more steps than stages, and the last of them a part.
        let case = Case { shape: [136, 264, 5 * entry.tile.block_k as usize + 24], orders, gaps: [0; 3] };
        let request = GemmRequest {
            kernel: Some(match entry.target {
                Target::Sm75 => GemmKernel::GemmSimt,
                Target::Sm80 => GemmKernel::GemmSm80,
                Target::Sm90a => GemmKernel::GemmSm90,
            }),
            block_m: Some(entry.tile.block_m as usize),
            block_n: Some(entry.tile.block_n as usize),
            realign: !entry.tile.aligned,
        };
        match entry.dtype {
            "f32" => reaches::<f32>(&case, request, entry),
            "f16" => reaches::<f16>(&case, request, entry),
            _ => reaches::<bf16>(&case, request, entry),
        }
    }
}

fn reaches<T: Element>(case: &Case, request: GemmRequest, entry: &fa_kernels::entries::GemmEntry) {
    let problem = case.problem(T::DTYPE);
    let Matrices { a: la, b: lb, c: lc } = problem.matrices();
    let (a, b) = (matrix::<T>(la, 1, 0), matrix::<T>(lb, 2, 0));
    let mut c = vec![T::default(); lc.span()];
    let device = Device { multiprocessors: 1, ..Sim::new(0).device().clone() };
    let sim = Sim::of_device(device.clone(), 3);
    let plan = Plan::new(&problem, &device, &request).unwrap();
    assert_eq!(plan.launches()[0].entry.name, entry.name);
    let traffic = sim.run(&plan, (&a, &b), &mut c).unwrap();
    assert_eq!(traffic.barrier_sites, [entry.barriers as usize], "{}", entry.name);
    let expected = Expected::new(&problem, (&a, &b), (0..problem.m()).collect());
    let accuracy = expected.judge(&problem, &c);
    assert!(accuracy.passed(), "{}: {accuracy}", entry.name);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_cpu_multiplies_any_matrices(
        shape in prop::array::uniform3(1..300_usize),
        order in prop::array::uniform3(prop::sample::select(Order::ALL.to_vec())),
        gaps in prop::array::uniform3(0..9_usize),
    ) {
        let backend = Backend::open(Some(BackendKind::Cpu)).unwrap();
        let case = Case { shape, orders: order, gaps };
        check::<f32>(&backend, &case, GemmRequest::default(), 0);
        check::<f16>(&backend, &case, GemmRequest::default(), 1);
    }
}
