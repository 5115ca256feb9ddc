//! Random attention problems and their tensors, for the property tests of every backend.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use flash_attention::forward::{Descale, Factor};
use flash_attention::{
    Backend, BackendKind, DType, Element, Kernel, Options, Problem, TensorLayout, Tensors,
};
use proptest::prelude::*;

/// How a tensor lies in memory.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    Bshd,
    Bhsd,
    /// [B, H, S, D] with so many unused elements after each row.
    Padded(usize),
    /// [B, S, H, D] with so many unused elements after each head, and rows at multiples of 16 bytes.
    Spread(usize),
    /// [B, H, S, D] with so many unused elements after each row, and heads that start at multiples of 16
    /// bytes.
    Rows(usize),
    /// One head's rows repeated for all heads and sequences: an input only.
    Repeated,
}

impl Order {
    pub fn layout(self, b: usize, s: usize, h: usize, d: usize) -> TensorLayout {
        match self {
            Self::Bshd => TensorLayout::bshd(b, s, h, d),
            Self::Bhsd => TensorLayout::bhsd(b, s, h, d),
            Self::Padded(gap) => {
                let row = d + gap;
                TensorLayout::strided([b, s, h, d], [h * (s + 1) * row, row, (s + 1) * row, 1])
            }
            Self::Spread(gap) => {
                let row = (h * (d + gap)).next_multiple_of(8);
                TensorLayout::strided([b, s, h, d], [s * row, row, d + gap, 1])
            }
            Self::Rows(gap) => {
                let head = (s * (d + gap)).next_multiple_of(8);
                TensorLayout::strided([b, s, h, d], [h * head, d + gap, head, 1])
            }
            Self::Repeated => TensorLayout::strided([b, s, h, d], [0, d, 0, 1]),
        }
    }
}

/// A problem, as data that prints when a test fails.
#[derive(Clone, Debug)]
pub struct Case {
    pub dtype: DType,
    /// B, Sq, Sk, Hkv, query heads per key/value head, D.
    pub shape: [usize; 6],
    /// Dv, if not D.
    pub head_dim_v: Option<usize>,
    /// Of Q, of K and V, of O.
    pub orders: [Order; 3],
    pub options: Options,
    pub seed: u64,
}

/// Factors of tensors in 8 bits, of their heads, and of each sequence's heads, as the case's seed has it.
pub fn descale(case: &Case, factors: [f32; 3]) -> Descale {
    let [batch, _, _, kv_heads, ..] = case.shape;
    let mut kinds = (0..3).map(|tensor| (case.seed as usize).wrapping_add(tensor) % 3);
    let [q, k, v] = factors.map(|factor| match kinds.next() {
        Some(kind @ 1..) => {
            let len = if kind == 1 { kv_heads } else { batch * kv_heads };
            Factor::Heads((0..len).map(|head| factor * [1.0, 0.5, 1.25][head % 3]).collect())
        }
        _ => Factor::Tensor(factor),
    });
    Descale { q, k, v }
}

impl Case {
    pub fn problem(&self) -> Problem {
        let [b, sq, sk, h, group, d] = self.shape;
        let dv = self.head_dim_v.unwrap_or(d);
        let tensors = Tensors {
            q: self.orders[0].layout(b, sq, h * group, d),
            k: self.orders[1].layout(b, sk, h, d),
            v: self.orders[1].layout(b, sk, h, dv),
            o: self.orders[2].layout(b, sq, h * group, dv),
        };
        Problem::new(tensors, self.dtype, self.options.clone()).expect("every case is a valid problem")
    }

    /// Q, K and V.
    pub fn inputs<T: Element>(&self) -> [Vec<T>; 3] {
        let problem = self.problem();
        let Tensors { q, k, v, .. } = problem.tensors();
        [(1, q), (2, k), (3, v)].map(|(salt, layout)| tensor(layout, self.seed.wrapping_mul(2 * salt + 1)))
    }
}

/// Problems with sequences of the awkward pairs or below `longest`, in any type of more than 8 bits, order
/// and mask.
pub fn case(awkward: &[(usize, usize)], longest: usize) -> impl Strategy<Value = Case> + use<> {
    let order = || prop_oneof![Just(Order::Bshd), Just(Order::Bhsd), (1..9_usize).prop_map(Order::Padded)];
    let seqlens = prop_oneof![prop::sample::select(awkward.to_vec()), (1..longest, 1..longest)];
    let head_dim = prop_oneof![prop::sample::select(vec![64, 128]), 1..=256_usize];
    (
        prop::sample::select(DType::RESULTS.to_vec()),
        (1..3_usize, seqlens, 1..3_usize, 1..4_usize, (head_dim, prop::option::of(1..=256_usize))),
        (order(), prop_oneof![order(), Just(Order::Repeated)], order()),
        (options(longest), prop::option::of(any::<bool>()), prop::option::of(any::<bool>())),
        any::<u64>(),
    )
        .prop_map(
            |(dtype, (b, (sq, sk), h, group, (d, head_dim_v)), (q, kv, o), (options, alibi, sinks), seed)| {
                let count = |by_sequence| h * group * if by_sequence { b } else { 1 };
                let alibi_slopes = alibi.map(|by_sequence| slopes_of(count(by_sequence)));
                let sinks = sinks.map(|by_sequence| sinks_of(count(by_sequence)));
                Case {
                    dtype,
                    shape: [b, sq, sk, h, group, d],
                    head_dim_v,
                    orders: [q, kv, o],
                    options: Options { alibi_slopes, sinks, ..options },
                    seed,
                }
            },
        )
}

/// ALiBi slopes, of which some are negative.
pub fn slopes_of(count: usize) -> Vec<f32> {
    (0..count).map(|i| 0.4 - 0.7_f32.powi(i as i32)).collect()
}

/// Sinks below, among and above the scores of the elements that [`tensor`] makes.
pub fn sinks_of(count: usize) -> Vec<f32> {
    (0..count).map(|head| [0.5, -4.0, 5.0][head % 3]).collect()
}

/// Masks, scales and what else can be asked for, each alone and together.
pub fn options(longest: usize) -> impl Strategy<Value = Options> {
    let scale = prop::option::of(prop_oneof![Just(0.0_f32), -0.5..1.0_f32]);
    let softcap = prop_oneof![2 => Just(0.0_f32), 1 => 0.1..60.0_f32];
    (any::<bool>(), window(longest), scale, softcap).prop_map(|(causal, window, softmax_scale, softcap)| {
        Options { causal, softmax_scale, window, softcap, ..Options::default() }
    })
}

/// Every second time no window; else sides that are absent, narrow, or wider than some sequences.
fn window(longest: usize) -> impl Strategy<Value = (Option<usize>, Option<usize>)> {
    let side = || prop::option::of(prop_oneof![0..4_usize, 0..2 * longest]);
    prop_oneof![Just((None, None)), (side(), side())]
}

/// A buffer of NaN with normal-like values where the view reaches, and one more element than it needs.
pub fn tensor<T: Element>(layout: &TensorLayout, seed: u64) -> Vec<T> {
    let mut state = seed | 1;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let mut data = vec![T::from_f32(f32::NAN); layout.span() + 1];
    for_each_element(layout, |at| data[at] = T::from_f32(2.0 * (uniform() + uniform() + uniform())));
    data
}

/// Calls `visit` with the index of each element that the view reaches.
pub fn for_each_element(layout: &TensorLayout, mut visit: impl FnMut(usize)) {
    for b in 0..layout.batch {
        for s in 0..layout.seqlen {
            for h in 0..layout.heads {
                (0..layout.head_dim).for_each(|d| visit(layout.row(b, s, h) + d));
            }
        }
    }
}

/// Whether every element that the view does not reach still is `value`.
pub fn untouched_outside<T: Element>(layout: &TensorLayout, values: &[T], value: f32) -> bool {
    let mut outside = vec![true; values.len()];
    for_each_element(layout, |at| outside[at] = false);
    values.iter().zip(&outside).all(|(x, outside)| !outside || x.to_f32() == value)
}

/// Every kernel of the forward pass, on the backend where it runs here.
pub fn kernels(dtype: DType, schedule: u64) -> Vec<(Backend, Kernel)> {
    let sim = |kernel| (Backend::simulator(schedule), kernel);
    let cpu = |kernel| (Backend::open(Some(BackendKind::Cpu)).unwrap(), kernel);
    if dtype == DType::E4m3 {
        return vec![sim(Kernel::ForwardSm90), cpu(Kernel::ForwardCpu)];
    }
    let mut all =
        vec![sim(Kernel::ForwardSimt), sim(Kernel::Standard), cpu(Kernel::ForwardCpu), cpu(Kernel::Standard)];
    if dtype != DType::F32 {
        all.push(sim(Kernel::ForwardSm80));
        all.push(sim(Kernel::ForwardSm90));
    }
    all
}

/// First row of each sequence of a packed batch, and the end of the last.
pub fn offsets(lengths: impl IntoIterator<Item = usize>) -> Vec<u32> {
    let ends = lengths.into_iter().scan(0, |end, length| {
        *end += length as u32;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}
