//! Several ranks, as threads over host memory, against one: O and lse have the same bits.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use flash_attention::backward::{
    BackwardInputs, BackwardKernel, BackwardOutputs, BackwardPart, BackwardProblem, BackwardRequest,
};
use flash_attention::distributed::{Partition, Schedule, Shard, StageHeads, request_of_one, threads};
use flash_attention::forward::{Dropout, Outputs};
use flash_attention::{
    Backend, BackendKind, DType, Element, Kernel, Options, Problem, Request, TensorLayout, Tensors,
};
use half::f16;
use proptest::prelude::*;

/// The rank's rows of a tensor of the whole problem; `poison` where it has none.
fn own_rows<T: Copy>(shard: &Shard, of_keys: bool, whole: (&TensorLayout, &[T]), poison: T) -> Vec<T> {
    let runs: Vec<_> = if of_keys { shard.key_runs().collect() } else { shard.query_runs().collect() };
    let (layout, elements) = whole;
    let len = runs.iter().map(|run| run.whole.len()).sum::<usize>();
    let own = TensorLayout::bshd(layout.batch, len.max(1), layout.heads, layout.head_dim);
    let mut rows = vec![poison; own.span()];
    for batch in 0..layout.batch {
        for run in &runs {
            for (row, whole_row) in (run.first..).zip(run.whole.clone()) {
                for head in 0..layout.heads {
                    let from = layout.row(batch, whole_row, head);
                    rows[own.row(batch, row, head)..][..layout.head_dim]
                        .copy_from_slice(&elements[from..from + layout.head_dim]);
                }
            }
        }
    }
    rows
}

fn values<T: Element>(layout: &TensorLayout, step: usize) -> Vec<T> {
    (0..layout.span()).map(|i| T::from_f32(((i * step + i / 7) % 53) as f32 / 20.0 - 1.2)).collect()
}

/// Whether ranks give the bits of one.
fn check<T: Element<Output = T>>(
    problem: &Problem,
    backend: &Backend,
    request: &Request,
    (world, partition, heads): (usize, Partition, usize),
) -> Result<(), TestCaseError> {
    let Tensors { q, k, v, o } = problem.tensors();
    let lse_layout = TensorLayout::bhsd(q.batch, q.seqlen, q.heads, 1);
    let plan = backend.plan(problem, &request_of_one(problem, request)).unwrap();
    let inputs: [Vec<T>; 3] = [values(q, 7), values(k, 11), values(v, 13)];
    let [data_q, data_k, data_v] = &inputs;
    let poison = T::from_f32(f32::NAN);
    let (mut whole, mut whole_lse) = (vec![poison; o.span()], vec![f32::NAN; problem.lse_len()]);
    let outputs = Outputs { o: &mut whole, lse: Some(&mut whole_lse) };
    backend.run(&plan, (data_q, data_k, data_v), outputs).unwrap();
    let found = threads::in_threads(world, |mut peers| {
        let shard = Shard::new(problem, peers.rank(), world, partition).unwrap();
        let schedule = Schedule::forward(&shard, StageHeads { first: 1, growth: heads }).unwrap();
        let own = [(false, (q, data_q)), (true, (k, data_k)), (true, (v, data_v))];
        let [q, k, v] =
            own.map(|(of_keys, (layout, data))| own_rows(&shard, of_keys, (layout, data), poison));
        let mut o = vec![poison; shard.tensors().o.span()];
        let mut lse = vec![f32::NAN; shard.lse_len()];
        let outputs = Outputs { o: &mut o, lse: Some(&mut lse) };
        threads::forward(&schedule, (backend, &plan), &mut peers, (&q, &k, &v), outputs).unwrap();
        (shard, o, lse)
    });
    // Each row is one rank's.
    let mut rows: Vec<usize> =
        found.iter().flat_map(|(shard, ..)| shard.query_runs()).flat_map(|run| run.whole).collect();
    rows.sort_unstable();
    let of_sequences = (0..problem.batch()).map(|sequence| problem.query_rows(sequence).end).max();
    prop_assert!(rows.into_iter().eq(0..of_sequences.unwrap()));
    for (shard, found, lse) in found {
        let rank = shard.rank();
        let expected = own_rows(&shard, false, (o, &whole), poison);
        let alike = |(a, b): (&T, &T)| a.to_f32().to_bits() == b.to_f32().to_bits();
        prop_assert!(found.iter().zip(&expected).all(alike), "O of rank {rank}");
        // Of lse heads come before rows.
        let rows = shard.tensors().q.seqlen;
        let of_whole: Vec<usize> = shard.query_runs().flat_map(|run| run.whole).collect();
        prop_assert_eq!(shard.query_positions().count(), of_whole.len());
        for (at, value) in lse.iter().enumerate() {
            let (head, row) = (at / rows % lse_layout.heads, at % rows);
            let Some(&position) = of_whole.get(row) else { continue };
            let expected = whole_lse[lse_layout.row(at / rows / lse_layout.heads, position, head)];
            prop_assert_eq!(value.to_bits(), expected.to_bits(), "lse of rank {}, {}", rank, at);
        }
    }
    Ok(())
}

prop_compose! {
    /// Problems whose rows are as many as their ranks need, of head_dims that are multiples of `columns`.
    fn problem(shortest: usize, longest: usize, left: Option<usize>, columns: usize)(
        [batch, kv_heads, group] in [1..3_usize, 1..4, 1..3],
        [head_dim, head_dim_v] in [1..40_usize, 1..40].prop_map(move |[d, dv]| [d, dv].map(|of| of.next_multiple_of(columns))),
        (sq, more) in (shortest..longest, 0..longest / 2),
        causal in any::<bool>(),
        right in proptest::option::of(0..longest),
        softcap in prop_oneof![Just(0.0_f32), Just(5.0)],
        [alibi, sinks] in any::<[bool; 2]>(),
        dtype in prop_oneof![Just(DType::F32), Just(DType::F16)],
    ) -> Problem {
        let heads = kv_heads * group;
        let of = |rows, heads, columns| TensorLayout::bshd(batch, rows, heads, columns);
        let tensors = Tensors {
            q: of(sq, heads, head_dim),
            k: of(sq + more, kv_heads, head_dim),
            v: of(sq + more, kv_heads, head_dim_v),
            o: of(sq, heads, head_dim_v),
        };
        let list = |len: usize| (0..len).map(|i| 0.1 + 0.05 * i as f32).collect();
        let options = Options {
            causal,
            window: (left, right.filter(|_| !causal)),
            softcap,
            alibi_slopes: (alibi && causal).then(|| list(heads)),
            sinks: sinks.then(|| list(batch * heads)),
            ..Options::default()
        };
        Problem::new(tensors, dtype, options).unwrap()
    }
}

prop_compose! {
    /// Packed sequences: of those with 256 rows and more for each rank some are long enough to be cut.
    fn packed(longest: usize)(
        lengths in prop::collection::vec((0..longest, 0..60_usize), 1..7),
        [kv_heads, group, head_dim] in [1..4_usize, 1..3, 1..3],
        (causal, behind) in (any::<bool>(), 0..3_usize),
        [alibi, sinks, fewer_keys] in any::<[bool; 3]>(),
    ) -> Problem {
        let offsets = |lengths: &mut dyn Iterator<Item = usize>| {
            let ends = lengths.scan(0, |end, len| { *end += len; Some(*end as u32) });
            std::iter::once(0).chain(ends).collect::<Vec<_>>()
        };
        // Every third sequence may have fewer keys than queries.
        let keys = |(index, &(sq, more)): (usize, &(usize, usize))| {
            if fewer_keys && index % 3 == 2 { sq.saturating_sub(more) } else { sq + more }
        };
        let q = offsets(&mut lengths.iter().map(|&(sq, _)| sq));
        let k = offsets(&mut lengths.iter().enumerate().map(keys));
        let (heads, last) = (kv_heads * group, lengths.len());
        // Rows behind the last sequence are nobody's.
        let of = |offsets: &[u32], heads| {
            let rows = offsets[last] as usize + behind;
            TensorLayout::bshd(1, rows.max(1), heads, 8 * head_dim)
        };
        let tensors = Tensors { q: of(&q, heads), k: of(&k, kv_heads), v: of(&k, kv_heads), o: of(&q, heads) };
        let list = |len: usize| (0..len).map(|i| 0.1 + 0.05 * i as f32).collect();
        let options = Options {
            causal,
            alibi_slopes: (alibi && causal).then(|| list(last * heads)),
            sinks: sinks.then(|| list(last * heads)),
            ..Options::default()
        };
        Problem::varlen(tensors, DType::F16, options, &q, &k).unwrap()
    }
}

fn partition() -> impl Strategy<Value = Partition> {
    prop_oneof![Just(Partition::ZigZag), Just(Partition::Contiguous)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ranks_have_the_bits_of_one_on_the_cpu(
        problem in problem(18, 200, None, 1),
        (world, partition, heads) in (1..10_usize, partition(), 1..4_usize),
        [block_m, block_n] in [1..40_usize, 1..40],
    ) {
        let backend = Backend::open(Some(BackendKind::Cpu)).unwrap();
        let request = Request { block_m: Some(block_m), block_n: Some(block_n), ..Request::default() };
        let ranks = (world, partition, heads);
        match problem.dtype() {
            DType::F32 => check::<f32>(&problem, &backend, &request, ranks)?,
            _ => check::<f16>(&problem, &backend, &request, ranks)?,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ranks_have_the_bits_of_one_of_packed_sequences_on_the_cpu(
        problem in packed(1300),
        (world, partition, heads) in (1..4_usize, partition(), 1..4_usize),
    ) {
        let backend = Backend::open(Some(BackendKind::Cpu)).unwrap();
        let request = Request { block_m: Some(64), block_n: Some(56), ..Request::default() };
        check::<f16>(&problem, &backend, &request, (world, partition, heads))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    /// Chunks begin with tiles.
    #[test]
    fn ranks_have_the_bits_of_one_in_left_windows(
        problem in (0..900_usize).prop_flat_map(|left| problem(1200, 1900, Some(left), 1)),
        (world, partition, heads) in (2..4_usize, partition(), 1..4_usize),
        block_m in prop_oneof![Just(48_usize), Just(64), Just(128), Just(192)],
    ) {
        let backend = Backend::open(Some(BackendKind::Cpu)).unwrap();
        let request = Request { block_m: Some(block_m), block_n: Some(56), ..Request::default() };
        let ranks = (world, partition, heads);
        match problem.dtype() {
            DType::F32 => check::<f32>(&problem, &backend, &request, ranks)?,
            _ => check::<f16>(&problem, &backend, &request, ranks)?,
        }
    }

    /// Of heads at multiples of 16 bytes: where a head starts otherwise, its columns lie elsewhere in the
    /// products of tensor cores, and so they may in the gathered keys.
    #[test]
    fn ranks_have_the_bits_of_one_in_the_simulator(
        problem in problem(12, 300, None, 8),
        (world, partition, seed) in (2..4_usize, partition(), any::<u64>()),
    ) {
        let backend = Backend::simulator(seed);
        match problem.dtype() {
            DType::F32 => {
                let request = Request { kernel: Some(Kernel::ForwardSimt), ..Request::default() };
                check::<f32>(&problem, &backend, &request, (world, partition, 1))?;
            }
            _ => {
                let request = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
                check::<f16>(&problem, &backend, &request, (world, partition, 1))?;
            }
        }
    }
}

/// Whether ranks give the bits of one in dQ, dK and dV.
fn check_gradients<T: Element<Output = T>>(
    problem: &Problem,
    backend: &Backend,
    kernel: BackwardKernel,
    (world, partition, heads): (usize, Partition, usize),
) -> Result<(), TestCaseError> {
    let Tensors { q, k, v, o } = problem.tensors();
    let forward = backend.plan(problem, &Request::default()).unwrap();
    let inputs: [Vec<T>; 4] = [values(q, 7), values(k, 11), values(v, 13), values(o, 17)];
    let [data_q, data_k, data_v, data_dout] = &inputs;
    let poison = T::from_f32(f32::NAN);
    let (mut data_o, mut data_lse) = (vec![poison; o.span()], vec![f32::NAN; problem.lse_len()]);
    let outputs = Outputs { o: &mut data_o, lse: Some(&mut data_lse) };
    backend.run(&forward, (data_q, data_k, data_v), outputs).unwrap();
    let whole = BackwardProblem::like(problem.clone()).unwrap();
    let request =
        BackwardRequest { kernel: Some(kernel), workspace_limit: Some(0), ..BackwardRequest::default() };
    let plan = backend.plan(&whole, &request).unwrap();
    let [mut dq, mut dk, mut dv] = [q, k, v].map(|layout| vec![poison; layout.span()]);
    let inputs = BackwardInputs {
        q: data_q,
        k: data_k,
        v: data_v,
        o: &data_o,
        lse: &data_lse,
        dout: data_dout,
        dlse: None,
        delta: None,
    };
    let outputs = BackwardOutputs { dq: &mut dq, dk: &mut dk, dv: &mut dv, dsinks: None, delta: None };
    backend.run(&plan, inputs, outputs).unwrap();
    let lse_layout = TensorLayout::bhsd(q.batch, q.seqlen, q.heads, 1);
    let found = threads::in_threads(world, |mut peers| {
        let shard = Shard::new(problem, peers.rank(), world, partition).unwrap();
        let schedule = Schedule::backward(&shard, StageHeads { first: 1, growth: heads }).unwrap();
        let own = |of_keys, layout, data: &[T]| own_rows(&shard, of_keys, (layout, data), poison);
        let (own_q, own_o) = (own(false, q, data_q), own(false, o, &data_o));
        let (own_k, own_v) = (own(true, k, data_k), own(true, v, data_v));
        let own_dout = own(false, o, data_dout);
        let rows = shard.tensors().q.seqlen;
        let mut own_lse = vec![f32::NAN; shard.lse_len()];
        for (row, position) in shard.query_positions().enumerate() {
            for head in 0..q.batch * q.heads {
                let from = lse_layout.row(head / q.heads, position, head % q.heads);
                own_lse[head * rows + row] = data_lse[from];
            }
        }
        let Tensors { q, k, v, .. } = shard.tensors();
        let [mut dq, mut dk, mut dv] = [q, k, v].map(|layout| vec![poison; layout.span()]);
        let inputs = BackwardInputs {
            q: &own_q,
            k: &own_k,
            v: &own_v,
            o: &own_o,
            lse: &own_lse,
            dout: &own_dout,
            dlse: None,
            delta: None,
        };
        let outputs = BackwardOutputs { dq: &mut dq, dk: &mut dk, dv: &mut dv, dsinks: None, delta: None };
        threads::backward(&schedule, (backend, &plan), &mut peers, inputs, outputs).unwrap();
        (shard, [dq, dk, dv])
    });
    for (shard, found) in found {
        let wholes = [("dQ", false, (q, &dq)), ("dK", true, (k, &dk)), ("dV", true, (v, &dv))];
        for ((name, of_keys, (layout, whole)), found) in wholes.into_iter().zip(found) {
            let expected = own_rows(&shard, of_keys, (layout, whole), poison);
            let alike = |(a, b): (&T, &T)| a.to_f32().to_bits() == b.to_f32().to_bits();
            let first = found.iter().zip(&expected).position(|pair| !alike(pair));
            prop_assert_eq!(first, None, "{} of rank {}", name, shard.rank());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ranks_have_the_gradients_of_one_in_the_simulator(
        problem in problem(12, 200, None, 8),
        (world, partition, seed) in (2..4_usize, partition(), any::<u64>()),
    ) {
        let backend = Backend::simulator(seed);
        let window = problem.window();
        let options = Options { window, softcap: problem.softcap(), ..Options::default() };
        let problem = Problem::new(*problem.tensors(), problem.dtype(), options).unwrap();
        let ranks = (world, partition, 1);
        match problem.dtype() {
            DType::F32 => check_gradients::<f32>(&problem, &backend, BackwardKernel::BackwardSimt, ranks)?,
            _ if problem.softcap() > 0.0 => {
                check_gradients::<f16>(&problem, &backend, BackwardKernel::BackwardSm80, ranks)?;
            }
            _ => check_gradients::<f16>(&problem, &backend, BackwardKernel::BackwardSm90, ranks)?,
        }
    }
}

/// More rows than a tile has, so that tiles begin where one device's do not.
#[test]
fn nine_ranks_have_the_gradients_of_one() {
    let (q, k) = (TensorLayout::bshd(1, 40, 2, 8), TensorLayout::bshd(1, 47, 1, 8));
    let options = Options { causal: true, ..Options::default() };
    let problem = Problem::new(Tensors { q, k, v: k, o: q }, DType::F32, options).unwrap();
    let ranks = (9, Partition::ZigZag, 1);
    check_gradients::<f32>(&problem, &Backend::simulator(3), BackwardKernel::BackwardSimt, ranks).unwrap();
}

#[test]
fn what_has_no_gradients_together_is_refused_by_name() {
    let layout = TensorLayout::bshd(1, 64, 2, 16);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let refused_of = |problem: &Problem| {
        let shard = Shard::new(problem, 0, 2, Partition::ZigZag).unwrap();
        Schedule::backward(&shard, StageHeads { first: 1, growth: 1 }).unwrap_err().to_string()
    };
    let refused = |options: Options| {
        refused_of(&Problem::new(tensors, DType::F16, Options { causal: true, ..options }).unwrap())
    };
    let named = |reason: &str| format!("context parallelism: {reason}");
    let window = Options { window: (Some(3), None), ..Options::default() };
    let counted = "gradients under a left window count keys from a tile's first row";
    assert_eq!(refused(window), named(counted));
    let alibi = Options { alibi_slopes: Some(vec![0.5; 2]), ..Options::default() };
    assert_eq!(refused(alibi), named("gradients with ALiBi count from the last key of a chunk"));
    let sinks = Options { sinks: Some(vec![0.5; 2]), ..Options::default() };
    assert_eq!(refused(sinks), named("the gradient of sinks is a sum over the rows of all ranks"));
    let packed = Problem::varlen(tensors, DType::F16, Options::default(), &[0, 64], &[0, 64]).unwrap();
    assert_eq!(refused_of(&packed), named("packed sequences have no gradients together so far"));
    // The CPU computes all gradients at once.
    let problem = Problem::new(tensors, DType::F16, Options::default()).unwrap();
    let layouts = *BackwardProblem::like(problem.clone()).unwrap().layouts();
    let part = BackwardProblem::part(problem, layouts, BackwardPart::Keys).unwrap();
    let cpu = Backend::open(Some(BackendKind::Cpu)).unwrap();
    let error = cpu.plan(&part, &BackwardRequest::default()).unwrap_err().to_string();
    assert!(error.contains("it computes all gradients at once"), "{error}");
}

/// ALiBi's bias is added up from where a tile begins, and under a left window so are the blocks of keys.
#[test]
fn ranks_have_the_bits_of_one_where_tiles_count_in_the_simulator() {
    let layout = TensorLayout::bshd(1, 1000, 1, 16);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let slopes = Options { alibi_slopes: Some(vec![0.3]), ..Options::default() };
    let window = Options { window: (Some(300), None), ..Options::default() };
    for options in [slopes, window] {
        let problem = Problem::new(tensors, DType::F16, Options { causal: true, ..options }).unwrap();
        let request = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
        let ranks = (2, Partition::Contiguous, 1);
        check::<f16>(&problem, &Backend::simulator(1), &request, ranks).unwrap();
    }
}

/// A sequence that is cut, between others that are not.
#[test]
fn ranks_have_the_bits_of_one_of_packed_sequences_in_the_simulator() {
    let (q, k) = ([0, 70, 620, 620, 750], [0, 90, 650, 660, 790]);
    let of = |rows| TensorLayout::bshd(1, rows, 2, 16);
    let tensors = Tensors { q: of(750), k: of(790), v: of(790), o: of(750) };
    let options = Options { causal: true, sinks: Some(vec![0.5; 2]), ..Options::default() };
    let problem = Problem::varlen(tensors, DType::F16, options, &q, &k).unwrap();
    let shard = Shard::new(&problem, 1, 2, Partition::ZigZag).unwrap();
    assert_eq!(shard.cut_sequences(), 1);
    let request = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
    check::<f16>(&problem, &Backend::simulator(1), &request, (2, Partition::ZigZag, 1)).unwrap();
}

#[test]
fn what_ranks_do_not_compute_together_is_refused_by_name() {
    let layout = TensorLayout::bshd(1, 64, 2, 16);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let refused = |options: Options, dtype, rank, world| {
        let problem = Problem::new(tensors, dtype, options).unwrap();
        Shard::new(&problem, rank, world, Partition::ZigZag).unwrap_err().to_string()
    };
    let plain = Options::default;
    let named = |reason: &str| format!("context parallelism: {reason}");
    assert_eq!(refused(plain(), DType::F16, 2, 2), named("rank 2 is none of 2"));
    assert_eq!(refused(plain(), DType::E4m3, 0, 2), named("e4m3 is not gathered"));
    let dropout = Some(Dropout { probability: 0.5, seed: 1, offset: 0 });
    let drops = Options { dropout, ..plain() };
    assert_eq!(refused(drops, DType::F16, 0, 2), named("dropout draws by rows of one device"));
    let alibi = Options { alibi_slopes: Some(vec![0.5; 2]), ..plain() };
    let needed = "ALiBi needs a causal mask: its distances are to the last key of a chunk";
    assert_eq!(refused(alibi, DType::F16, 0, 2), named(needed));
    let error = refused(plain(), DType::F16, 0, 33);
    assert_eq!(error, "a sequence of 64 rows cannot be cut for 33 ranks; at least 66 are needed");
}
