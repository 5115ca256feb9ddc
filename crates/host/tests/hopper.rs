//! `forward_sm90` in the simulator, where a block goes through several tiles: what problems with a block for
//! each tile, as those of `verify`, do not reach.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Case, Order, case, sinks_of, untouched_outside};
use fa_kernels::entries::{Algorithm, Entry, entries};
use flash_attention::forward::{Dropout, Outputs, PerHead};
use flash_attention::sim::Sim;
use flash_attention::{DType, Device, Element, Kernel, Options, Plan, Request, accuracy, reference};
use half::{bf16, f16};
use proptest::prelude::*;

const PLAIN: Options = Options {
    causal: false,
    softmax_scale: None,
    window: (None, None),
    softcap: 0.0,
    alibi_slopes: None,
    sinks: None,
    on_device: PerHead { alibi_slopes: None, sinks: None },
    descale: None,
    dropout: None,
    functions: None,
};
const CAUSAL: Options = Options { causal: true, ..PLAIN };

/// B, Sq, Sk, Hkv and the group of problems with several tiles for each of a few blocks, of which some are
/// not full.
const SHAPES: [([usize; 5], Options); 7] = [
    ([1, 200, 300, 3, 1], PLAIN),
    // Two blocks that take the tiles of three heads in turn get uneven shares.
    ([1, 450, 450, 3, 1], CAUSAL),
    ([2, 400, 400, 1, 2], CAUSAL),
    // Rows that see no key, and tiles.
    ([1, 500, 250, 2, 1], CAUSAL),
    ([1, 250, 500, 3, 1], CAUSAL),
    ([1, 600, 600, 1, 1], Options { window: (Some(100), Some(0)), ..PLAIN }),
    ([1, 450, 450, 1, 2], Options { window: (Some(30), Some(250)), ..PLAIN }),
];

/// Runs a case on a device of so many multiprocessors, which is how many blocks there are. O starts so many
/// elements behind where the allocator puts it.
fn run<T: Element>(
    case: &Case,
    o_offset: usize,
    multiprocessors: u32,
    request: &Request,
    schedule: u64,
) -> Result<(), TestCaseError> {
    run_plan::<T>(case, o_offset, &plan_for(case, multiprocessors, request), schedule)
}

fn plan_for(case: &Case, multiprocessors: u32, request: &Request) -> Plan {
    let device = Device { multiprocessors, ..Sim::new(0).device().clone() };
    Plan::new(&case.problem(), &device, request).unwrap()
}

/// Runs a case as planned.
fn run_plan<T: Element>(
    case: &Case,
    o_offset: usize,
    plan: &Plan,
    schedule: u64,
) -> Result<(), TestCaseError> {
    let problem = case.problem();
    let [q, k, v] = &case.inputs::<T>();
    let mut o = vec![T::Output::from_f32(-77.0); o_offset + problem.tensors().o.span() + 3];
    let (before, o) = o.split_at_mut(o_offset);
    let mut lse = vec![-77.0; problem.lse_len() + 3];
    let ran = Sim::of_device(plan.device().clone(), schedule).run(
        plan,
        (q, k, v),
        Outputs { o, lse: Some(&mut lse) },
    );
    prop_assert!(ran.is_ok(), "schedule {schedule}: {}", ran.unwrap_err());
    let rows = reference::all(&problem);
    let report = accuracy::check(&problem, (q, k, v), o, Some(&lse), plan.score_roundoff(), &rows);
    prop_assert!(report.passed(), "{report}");
    prop_assert!(untouched_outside(&problem.tensors().o, o, -77.0), "wrote outside the view");
    prop_assert!(before.iter().all(|value| value.to_f32() == -77.0), "wrote before O");
    prop_assert!(lse[problem.lse_len()..].iter().all(|&value| value == -77.0));
    Ok(())
}

fn run_in_its_type(
    case: &Case,
    o_offset: usize,
    multiprocessors: u32,
    request: &Request,
    schedule: u64,
) -> Result<(), TestCaseError> {
    match case.dtype {
        DType::Bf16 => run::<bf16>(case, o_offset, multiprocessors, request, schedule),
        _ => run::<f16>(case, o_offset, multiprocessors, request, schedule),
    }
}

/// A window begins between two draws; scores are changed or not.
#[test]
fn weights_are_dropped_on_tensor_cores_as_in_the_reference() {
    let dropout = Some(Dropout { probability: 0.3, seed: 11 << 33, offset: 5 });
    let window = (Some(101), Some(37));
    let cases = [
        (Kernel::ForwardSm90, 64, Options { dropout, ..PLAIN }),
        (Kernel::ForwardSm90, 120, Options { dropout, window, softcap: 2.0, ..PLAIN }),
        (Kernel::ForwardSm90, 200, Options { dropout, ..CAUSAL }),
        (Kernel::ForwardSm80, 40, Options { dropout, window, ..PLAIN }),
        (Kernel::ForwardSm80, 128, Options { dropout, ..CAUSAL }),
        (Kernel::ForwardSm80, 256, Options { dropout, softmax_scale: Some(-0.1), ..PLAIN }),
    ];
    for (index, (kernel, head_dim, options)) in cases.into_iter().enumerate() {
        let case = Case {
            dtype: if index % 2 == 0 { DType::F16 } else { DType::Bf16 },
            shape: [1, 170, 230, 1, 2, head_dim],
            head_dim_v: None,
            orders: [Order::Bshd, Order::Bhsd, Order::Bshd],
            options,
            seed: index as u64,
        };
        let request = Request { kernel: Some(kernel), ..Request::default() };
        assert_eq!(plan_for(&case, 2, &request).kernel(), kernel);
        for schedule in [index as u64, 7 - index as u64] {
            if let Err(error) = run_in_its_type(&case, 0, 2, &request, schedule) {
                panic!("{case:?}: {error}");
            }
        }
    }
}

#[test]
fn blocks_go_through_several_tiles() {
    let mut grids = Vec::new();
    // One of each kind: three warpgroups, two that take turns, two that do not and whose O leaves through Q's
    // memory.
    for (tile, (block_m, block_n, head_dim)) in
        [(192, 80, 128), (128, 128, 128), (128, 64, 256)].into_iter().enumerate()
    {
        for (index, ([b, sq, sk, h, group], options)) in SHAPES.into_iter().enumerate() {
            let case = Case {
                dtype: if index % 2 == 0 { DType::F16 } else { DType::Bf16 },
                shape: [b, sq, sk, h, group, head_dim - 8],
                head_dim_v: Some(head_dim),
                orders: [Order::Bshd, Order::Bhsd, Order::Bshd],
                options,
                seed: index as u64,
            };
            let request = Request {
                kernel: Some(Kernel::ForwardSm90),
                block_m: Some(block_m),
                block_n: Some(block_n),
                ..Request::default()
            };
            let schedule = (tile + index) as u64 % 8;
            grids.push(plan_for(&case, 2, &request).launches().last().unwrap().grid);
            if let Err(error) = run_in_its_type(&case, 0, 2, &request, schedule) {
                panic!("{case:?}: {error}");
            }
        }
    }
    // Two blocks that take all tiles in turn, and some with last tiles that are a block each.
    assert!(grids.contains(&2) && grids.iter().any(|&grid| grid > 2), "{grids:?}");
}

/// Entries whose V and O have a width of their own, each with grouped heads, and under every kind of mask:
/// filled to the last column and not, with copies of V, with shifted heads, and O anywhere.
#[test]
fn values_may_be_narrower_than_keys() {
    let window = Options { window: (Some(100), Some(0)), ..PLAIN };
    for (index, ([b, sq, sk, h, group], [head_dim, head_dim_v], orders, options)) in [
        ([1, 450, 450, 2, 2], [192, 128], [Order::Bshd; 3], CAUSAL),
        ([2, 200, 300, 1, 1], [160, 96], [Order::Bshd, Order::Bhsd, Order::Bhsd], PLAIN),
        ([1, 250, 500, 3, 1], [152, 8], [Order::Bshd, Order::Bhsd, Order::Padded(3)], window.clone()),
        ([1, 450, 450, 1, 2], [192, 128], [Order::Bhsd, Order::Bshd, Order::Bshd], CAUSAL),
        ([1, 200, 300, 8, 1], [184, 121], [Order::Bshd; 3], PLAIN),
        ([1, 500, 250, 2, 1], [192, 128], [Order::Bshd, Order::Bshd, Order::Padded(5)], CAUSAL),
        ([1, 300, 300, 1, 3], [176, 77], [Order::Bshd, Order::Bhsd, Order::Bshd], window),
    ]
    .into_iter()
    .enumerate()
    {
        let case = Case {
            dtype: [DType::Bf16, DType::F16][index % 2],
            shape: [b, sq, sk, h, group, head_dim],
            head_dim_v: Some(head_dim_v),
            orders,
            options,
            seed: index as u64,
        };
        let request = Request {
            kernel: Some(Kernel::ForwardSm90),
            block_m: Some(192),
            block_n: Some(80),
            ..Request::default()
        };
        let planned = plan_for(&case, 2, &request);
        assert_eq!(planned.launches().last().unwrap().entry.tile.head_dim_v, 128, "{case:?}");
        let o_offset = if index % 2 == 0 { 0 } else { index };
        if let Err(error) = run_in_its_type(&case, o_offset, 2, &request, index as u64) {
            panic!("{case:?}: {error}");
        }
    }
}

/// O at every distance from a multiple of 16 bytes, with rows that are at the same and at others, in 8
/// schedules.
#[test]
fn o_may_lie_anywhere() {
    // Rows leave in two halves, all together, and in two halves through Q's memory.
    for (block_m, block_n, head_dim) in [(192, 80, 128), (192, 64, 144), (128, 64, 256)] {
        for index in 0..8 {
            let gaps = [0, 8, 1, 2, 3, 4, 5, 6];
            let case = Case {
                dtype: DType::F16,
                shape: [2, 150, 90, 1, 2, head_dim],
                head_dim_v: Some(head_dim - 8 * (index % 3)),
                orders: [Order::Bshd, Order::Bhsd, Order::Padded(gaps[index])],
                options: if index % 2 == 0 { CAUSAL } else { PLAIN },
                seed: index as u64,
            };
            let request = Request {
                kernel: Some(Kernel::ForwardSm90),
                block_m: Some(block_m),
                block_n: Some(block_n),
                ..Request::default()
            };
            if let Err(error) = run_in_its_type(&case, index, 1, &request, index as u64) {
                panic!("{case:?}, O at {index}: {error}");
            }
        }
    }
}

/// Q, K and V where no tensor map describes them, alone and together: at odd strides, wider and narrower than
/// whole sectors, at any distance from a multiple of 16 bytes, and with rows that heads share.
#[test]
fn q_k_and_v_may_lie_anywhere() {
    let odd = [
        // (D, Dv, Q, K and V); which are copied.
        (([129, 129], Order::Bhsd, Order::Bhsd), [true; 3]),
        (([128, 77], Order::Bshd, Order::Bhsd), [false, false, true]),
        (([72, 72], Order::Padded(3), Order::Bshd), [true, false, false]),
        (([17, 240], Order::Bshd, Order::Padded(1)), [true; 3]),
        (([64, 64], Order::Bshd, Order::Repeated), [false, true, true]),
        (([1, 5], Order::Bshd, Order::Bhsd), [true; 3]),
        (([137, 64], Order::Bhsd, Order::Bhsd), [true, true, false]),
        (([250, 256], Order::Bhsd, Order::Padded(6)), [true, false, true]),
    ];
    for (index, (([head_dim, head_dim_v], q, kv), copied)) in odd.into_iter().enumerate() {
        let case = Case {
            dtype: if index % 2 == 0 { DType::F16 } else { DType::Bf16 },
            shape: [2, 150, 90, 1 + index % 2, 2, head_dim],
            head_dim_v: Some(head_dim_v),
            orders: [q, kv, Order::Bshd],
            options: if index % 2 == 0 { CAUSAL } else { PLAIN },
            seed: index as u64,
        };
        let request = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
        let planned = Plan::new(&case.problem(), Sim::new(0).device(), &request).unwrap();
        let columns = [head_dim, head_dim, head_dim_v].map(|columns| columns.next_multiple_of(16));
        let [_, sq, sk, h, _, _] = case.shape;
        let rows = [2 * sq * 2 * h, 2 * sk * h, 2 * sk * h];
        let bytes = |tensor: usize| (2 * rows[tensor] * columns[tensor]).next_multiple_of(256);
        let expected: usize = (0..3).filter(|&tensor| copied[tensor]).map(bytes).sum();
        assert_eq!((planned.launches().len(), planned.workspace_bytes()), (2, expected as u64), "{case:?}");
        if let Err(error) = run_in_its_type(&case, index, 2, &request, index as u64) {
            panic!("{case:?}: {error}");
        }
    }
}

/// Heads behind one another in a row, of which each starts at another distance from a multiple of 16 bytes,
/// in 8 schedules.
#[test]
fn copies_are_made_beside_the_attention_that_waits_for_them() {
    let cases = [
        ([1, 300, 300, 16, 1], (33, 33), PLAIN),
        ([1, 400, 400, 12, 1], (57, 57), CAUSAL),
        ([1, 300, 200, 8, 2], (65, 65), PLAIN),
        // V alone is odd there.
        ([1, 300, 300, 32, 1], (64, 61), CAUSAL),
    ];
    for (index, (shape, (d, dv), options)) in cases.into_iter().enumerate() {
        let [b, sq, sk, h, group] = shape;
        let case = Case {
            dtype: DType::F16,
            shape: [b, sq, sk, h, group, d],
            head_dim_v: Some(dv),
            orders: [Order::Bhsd; 3],
            options,
            seed: 7,
        };
        let request = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
        let plan = plan_for(&case, 2, &request);
        let copies: Vec<_> = plan.launches().iter().map(|launch| launch.entry.algorithm).collect();
        assert_eq!(copies, [Algorithm::Pack, Algorithm::Pack, Algorithm::ForwardSm90], "{shape:?}");
        assert!(plan.launches()[2].beside, "{shape:?}");
        for schedule in [index, index + 4] {
            run_plan::<f16>(&case, 0, &plan, schedule as u64).unwrap();
        }
    }
}

#[test]
fn heads_may_start_anywhere() {
    for (index, (head_dim, head_dim_v)) in
        [(129, 129), (33, 33), (63, 57), (128, 129), (129, 64), (121, 40), (90, 3), (249, 247)]
            .into_iter()
            .enumerate()
    {
        let (seqlen_q, seqlen_k) = [(150, 90), (70, 200)][index % 2];
        let case = Case {
            dtype: [DType::F16, DType::Bf16][index % 2],
            shape: [1, seqlen_q, seqlen_k, 8, 1, head_dim],
            head_dim_v: Some(head_dim_v),
            orders: [Order::Bshd; 3],
            options: if index % 4 < 2 { CAUSAL } else { PLAIN },
            seed: index as u64,
        };
        let request = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
        if let Err(error) = run_in_its_type(&case, index % 3, 2, &request, index as u64) {
            panic!("{case:?}: {error}");
        }
    }
}

/// Heads that are of one to eight classes by where they start, more and fewer of them than classes, and NaN
/// between them.
#[test]
fn heads_of_every_class_keep_out_what_is_between_them() {
    for (index, ([heads, group], [head_dim, head_dim_v], gap)) in [
        // From one head to the next: odd,
        ([9, 1], [33, 33], 8),
        ([3, 1], [57, 49], 8),
        ([1, 1], [33, 33], 8),
        // 2 mod 4,
        ([7, 1], [50, 54], 8),
        ([2, 1], [118, 114], 8),
        // 4 mod 8,
        ([3, 1], [60, 28], 8),
        // and no multiple of 8 in V alone, whose heads are grouped ones'.
        ([5, 2], [57, 40], 7),
    ]
    .into_iter()
    .enumerate()
    {
        let case = Case {
            dtype: [DType::F16, DType::Bf16][index % 2],
            shape: [2, 150, 90, heads, group, head_dim],
            head_dim_v: Some(head_dim_v),
            orders: [Order::Spread(gap), Order::Spread(gap), Order::Bshd],
            options: if index % 2 == 0 { CAUSAL } else { PLAIN },
            seed: index as u64,
        };
        let request = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
        let planned = Plan::new(&case.problem(), Sim::new(0).device(), &request).unwrap();
        assert_eq!((planned.launches().len(), planned.workspace_bytes()), (1, 0), "{case:?}");
        if let Err(error) = run_in_its_type(&case, 0, 3, &request, index as u64) {
            panic!("{case:?}: {error}");
        }
    }
}

/// Runs a case with the entry of row classes for so many columns, on a device of so many multiprocessors.
fn run_classes(case: &Case, o_offset: usize, multiprocessors: u32, columns: u32, schedule: u64) {
    let problem = case.problem();
    let mut built = entries().filter(|entry| {
        let of_type = entry.algorithm == Algorithm::ForwardSm90Residues && entry.dtype == case.dtype.name();
        of_type && entry.tile.head_dim >= columns
    });
    let entry = built.next().unwrap();
    let device = Device { multiprocessors, ..Sim::new(schedule).device().clone() };
    let planned = Plan::of_entry(&problem, &device, entry).unwrap();
    assert_eq!((planned.launches().len(), planned.workspace_bytes()), (1, 0), "{case:?}");
    let ran = match case.dtype {
        DType::Bf16 => run_plan::<bf16>(case, o_offset, &planned, schedule),
        _ => run_plan::<f16>(case, o_offset, &planned, schedule),
    };
    if let Err(error) = ran {
        panic!("{case:?}, {}: {error}", entry.name);
    }
}

/// Rows of which each starts at another distance from a multiple of 16 bytes than the one before, read class
/// by class where they are, in 8 schedules: two, four and eight classes, of which the last block is full or
/// not, and NaN between the rows.
#[test]
fn rows_of_every_class_are_read_where_they_are() {
    for (index, ([seqlen_q, seqlen_k], [heads, group], [head_dim, head_dim_v], order)) in [
        // Eight classes: fewer keys than a block has of each,
        ([64, 72], [2, 1], [9, 9], Order::Bhsd),
        ([200, 192], [1, 2], [65, 65], Order::Bhsd),
        // as many, more, and V narrower or wider by whole chunks,
        ([136, 512], [2, 1], [129, 129], Order::Bhsd),
        ([72, 1112], [1, 1], [121, 57], Order::Bhsd),
        ([80, 640], [1, 2], [9, 25], Order::Rows(2)),
        ([64, 64], [2, 1], [131, 131], Order::Rows(4)),
        // four,
        ([68, 132], [2, 1], [10, 10], Order::Bhsd),
        ([196, 260], [1, 2], [122, 122], Order::Rows(12)),
        // and two.
        ([70, 130], [1, 1], [12, 12], Order::Rows(8)),
        ([66, 258], [2, 2], [132, 132], Order::Bhsd),
    ]
    .into_iter()
    .enumerate()
    {
        let case = Case {
            dtype: [DType::F16, DType::Bf16][index % 2],
            shape: [1 + index % 2, seqlen_q, seqlen_k, heads, group, head_dim],
            head_dim_v: Some(head_dim_v),
            orders: [order, order, [Order::Bshd, Order::Bhsd, Order::Padded(3)][index % 3]],
            options: PLAIN,
            seed: index as u64,
        };
        let columns = head_dim.max(head_dim_v) as u32 + 7;
        run_classes(&case, index % 4, 2, columns, index as u64 % 8);
        run_classes(&case, 0, 1, columns, (index as u64 + 3) % 8);
    }
}

/// Every HEAD_DIM with classes of rows, filled up to its last column.
#[test]
fn residues_of_every_width() {
    let of_type = |entry: &&Entry| {
        entry.algorithm == Algorithm::ForwardSm90Residues && entry.dtype == DType::F16.name()
    };
    for (index, entry) in entries().filter(of_type).enumerate() {
        let columns = entry.tile.head_dim;
        let case = Case {
            dtype: [DType::F16, DType::Bf16][index % 2],
            shape: [1, 136, 64 + 8 * entry.tile.block_n as usize, 2, 1, columns as usize - 7],
            head_dim_v: None,
            orders: [Order::Bhsd; 3],
            options: PLAIN,
            seed: index as u64,
        };
        run_classes(&case, 0, 1, columns, index as u64 % 8);
    }
}

/// The case nearest to this one with eight heads behind one another in a row.
fn shifted(case: Case) -> Case {
    let [b, sq, sk, _, _, d] = case.shape;
    Case {
        dtype: if case.dtype == DType::F32 { DType::F16 } else { case.dtype },
        shape: [b, sq, sk, 8, 1, d.min(249)],
        head_dim_v: case.head_dim_v.map(|columns| columns.min(249)),
        orders: [Order::Bshd, Order::Bshd, case.orders[2]],
        options: Options {
            alibi_slopes: None,
            sinks: case.options.sinks.as_ref().map(|_| sinks_of(8)),
            ..case.options
        },
        ..case
    }
}

/// The case nearest to this one that tensor maps can describe.
fn mapped(case: Case) -> Case {
    let up = |columns: usize| columns.next_multiple_of(8);
    let [b, sq, sk, h, group, d] = case.shape;
    let [q, kv, o] = case.orders;
    let aligned = |order| match order {
        Order::Padded(gap) => Order::Padded(8 * gap),
        Order::Repeated => Order::Bshd,
        order => order,
    };
    // O may lie anywhere.
    let orders = [aligned(q), aligned(kv), o];
    Case { shape: [b, sq, sk, h, group, up(d)], head_dim_v: case.head_dim_v.map(up), orders, ..case }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random shapes, strides, masks, thread schedules, and numbers of blocks.
    #[test]
    fn matches_the_reference(
        case in case(&[(1, 1), (70, 1), (1, 70), (260, 3), (33, 64)], 300),
        o_offset in prop_oneof![Just(0), 1..8_usize],
        multiprocessors in 1..4_u32,
        as_it_is in any::<bool>(),
        schedule in any::<u64>(),
    ) {
        let request = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
        let dtype = if case.dtype == DType::F32 { DType::F16 } else { case.dtype };
        let case = Case { dtype, ..case };
        let case = if as_it_is { case } else { mapped(case) };
        run_in_its_type(&case, o_offset, multiprocessors, &request, schedule)?;
    }

    /// As above, of heads that start anywhere.
    #[test]
    fn heads_that_start_anywhere_match_the_reference(
        case in case(&[(1, 1), (70, 1), (33, 64)], 100),
        o_offset in prop_oneof![Just(0), 1..8_usize],
        schedule in any::<u64>(),
    ) {
        let request = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
        run_in_its_type(&shifted(case), o_offset, 3, &request, schedule)?;
    }
}
