//! Decode of latents, keys whose first columns are their values, in the simulator and on the CPU against the
//! f64 reference.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{tensor, untouched_outside};
use flash_attention::accuracy::Accuracy;
use flash_attention::decode::{DecodeInputs, DecodeOptions, DecodeProblem, DecodeRequest};
use flash_attention::forward::Outputs;
use flash_attention::{Backend, BackendKind, DType, Element, Options, TensorLayout, Tensors, reference};
use half::{bf16, f16};

/// Rows of a page.
const PAGE: usize = 16;

/// A problem with its lengths, as data that prints when a test fails.
#[derive(Clone, Debug)]
struct Case {
    /// Sq, H, D, Dv; one head of keys.
    shape: [usize; 4],
    /// Keys of each sequence.
    used: Vec<usize>,
    pages: bool,
    options: Options,
    request: DecodeRequest,
    seed: u64,
}

/// What a run gave, as bits: O of each sequence, and its lse.
type Bits = Vec<(Vec<u32>, Vec<u32>)>;

impl Case {
    fn new(shape: [usize; 4], used: &[usize]) -> Self {
        let (options, request) = (Options::default(), DecodeRequest::default());
        Self { shape, used: used.to_vec(), pages: false, options, request, seed: 1 }
    }

    /// Keys that a sequence has room for: whole pages.
    fn room(&self) -> usize {
        self.used.iter().copied().max().unwrap().next_multiple_of(PAGE) + PAGE
    }

    fn problem(&self, dtype: DType) -> DecodeProblem {
        let ([rows, heads, d, dv], batch) = (self.shape, self.used.len());
        let (outer, inner) = match self.pages {
            true => (batch * self.room() / PAGE, PAGE),
            false => (batch, self.room()),
        };
        let of_queries = |columns| TensorLayout::bshd(batch, rows, heads, columns);
        let k = TensorLayout { head_dim: d, ..TensorLayout::bshd(outer, inner, 1, d.next_multiple_of(8)) };
        let v = TensorLayout { head_dim: dv, ..k };
        let max_pages = self.pages.then(|| self.room() / PAGE);
        let attention = self.options.clone();
        let options = DecodeOptions { attention, max_pages, latent: true, ..DecodeOptions::default() };
        DecodeProblem::new(Tensors { q: of_queries(d), k, v, o: of_queries(dv) }, dtype, options).unwrap()
    }

    /// Runs it on both backends, holds both against the reference, and gives what the simulator gave.
    fn run<T: Element>(&self) -> Bits {
        let problem = self.problem(T::DTYPE);
        let (dense, batch, room) = (problem.dense(), self.used.len(), self.room());
        let used: Vec<i32> = self.used.iter().map(|&keys| keys as i32).collect();
        // A sequence's pages in reverse, and numbers that name none behind its last.
        let page = |index: usize| {
            let (sequence, page) = (index / (room / PAGE), index % (room / PAGE));
            let in_use = self.used[sequence].div_ceil(PAGE);
            if page < in_use { (sequence * (room / PAGE) + in_use - 1 - page) as i32 } else { -1 }
        };
        let table: Option<Vec<i32>> = self.pages.then(|| (0..batch * room / PAGE).map(page).collect());
        let q = tensor::<T>(&dense.tensors().q, self.seed);
        let mut k = tensor::<T>(problem.k(), self.seed + 1);
        let lists = DecodeInputs {
            seqused_k: Some(&used),
            page_table: table.as_deref(),
            ..DecodeInputs::<T>::new(&[], &[], &[])
        };
        let mut in_use = vec![false; k.len()];
        for sequence in 0..batch {
            for key in 0..self.used[sequence] {
                in_use[problem.row(problem.k(), &lists, sequence, key, 0)..][..self.shape[2]].fill(true);
            }
        }
        k.iter_mut().zip(&in_use).filter(|(_, used)| !**used).for_each(|(k, _)| *k = T::from_f32(f32::NAN));
        // V is not read.
        let inputs = DecodeInputs { q: &q, k: (&k).into(), ..lists };
        let sim = Backend::simulator(self.seed);
        let cpu = Backend::open(Some(BackendKind::Cpu)).unwrap();
        let rows = reference::all(dense);
        let (exact, standard) = problem.reference(&inputs, &rows);
        let mut bits = Vec::new();
        for (backend, request) in [(&cpu, &DecodeRequest::default()), (&sim, &self.request)] {
            let plan = backend.plan(&problem, request).unwrap();
            let mut o = vec![T::Output::from_f32(-77.0); dense.tensors().o.span() + 3];
            let mut lse = vec![-77.0; dense.lse_len()];
            let outputs = Outputs { o: &mut o, lse: Some(&mut lse) };
            backend.run(&plan, inputs, outputs).unwrap_or_else(|error| panic!("{self:?}: {error}"));
            assert!(untouched_outside(&dense.tensors().o, &o, -77.0), "{self:?}");
            let of_rows: Vec<_> =
                rows.iter().map(|at| lse[dense.lse_index(at.batch, at.head, at.row)]).collect();
            let of_output = Accuracy::of_output(&reference::gather(dense, &o, &rows), &exact, &standard);
            let of_lse = Accuracy::of_lse(&of_rows, &exact, DType::F32.roundoff());
            assert!(of_output.passed() && of_lse.passed(), "{self:?}: o {of_output}; lse {of_lse}");
            let o: Vec<u32> = o.iter().map(|value| value.to_f32().to_bits()).collect();
            let lse: Vec<u32> = lse.iter().map(|value| value.to_bits()).collect();
            let of_sequence = |sequence: usize| {
                let (o_len, lse_len) = (dense.tensors().o.stride_batch, dense.lse_len() / batch);
                let o = o[sequence * o_len..][..o_len].to_vec();
                (o, lse[sequence * lse_len..][..lse_len].to_vec())
            };
            bits = (0..batch).map(of_sequence).collect();
        }
        bits
    }

    fn check(&self) {
        self.run::<f16>();
        self.run::<bf16>();
    }
}

#[test]
fn all_sizes_and_lengths_are_right() {
    // Blocks of keys: none, one, two, an odd and an even number, whole ones and not. Rows: fewer than a tile,
    // a tile, more.
    let cases = [
        ([1, 16, 576, 512], vec![0, 1, 64, 65, 128, 129, 200]),
        ([1, 64, 576, 512], vec![320]),
        ([2, 40, 320, 256], vec![70, 190]),
        ([1, 128, 100, 33], vec![256, 3]),
        ([3, 7, 8, 1], vec![150]),
    ];
    for (seed, (shape, used)) in cases.into_iter().enumerate() {
        for pages in [false, true] {
            Case { pages, seed: seed as u64, ..Case::new(shape, &used) }.check();
        }
    }
}

#[test]
fn masks_sinks_and_splits_are_those_of_decode() {
    let options = |causal, left| Options {
        causal,
        window: (left, None),
        sinks: Some(common::sinks_of(20)),
        ..Options::default()
    };
    for (seed, (options, num_splits)) in
        [(options(true, None), 1), (options(true, Some(90)), 3), (options(false, Some(70)), 2)]
            .into_iter()
            .enumerate()
    {
        let request = DecodeRequest { num_splits: Some(num_splits), ..DecodeRequest::default() };
        let case = Case::new([4, 20, 576, 512], &[310, 64, 2]);
        Case { options, request, pages: true, seed: seed as u64, ..case }.check();
    }
}

#[test]
fn the_largest_score_may_grow_over_all_blocks() {
    // Keys grow, and with them the scores: m follows from block to block, and so does O of both warpgroups.
    let mut case = Case::new([1, 64, 576, 512], &[700]);
    case.options.softmax_scale = Some(4.0);
    case.check();
}

#[test]
fn a_sequence_has_the_same_bits_in_any_batch() {
    let request = DecodeRequest { batch_invariant: Some(true), ..DecodeRequest::default() };
    let of = |used: &[usize]| Case { request: request.clone(), ..Case::new([1, 16, 64, 64], used) };
    // The first sequence's Q and keys are the same in both, for they are the first of their tensors.
    let room = 700;
    let alone = of(&[room]).run::<bf16>();
    let among = of(&[room, 3, 650, 0, 129]).run::<bf16>();
    assert_eq!(alone[0], among[0]);
}
