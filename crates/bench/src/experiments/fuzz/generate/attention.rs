//! Random forward and backward problems.

use fa_kernels::entries::{Algorithm, Entry, entries};
use flash_attention::backward::BackwardKernel;
use flash_attention::decode::MAX_DECODE_SEQLEN_Q;
use flash_attention::{BackendKind, DType, Kernel};

use super::super::case::{Attention, Backward, Brought, Data, HeadList};
use super::super::draw::Draw;
use super::super::place::Place;
use super::parts::{
    self, Size, data, head_dim, head_list, length, place, result_dtype, scale, seed, shrink_to, softcap,
    window,
};

/// Elements of 16 bytes, at multiples of which `forward_sm90` reads rows of e4m3 where they are.
const CHUNK: usize = 16;

/// Elements of 16 bytes, at multiples of which `backward_sm90` takes rows.
const HALF_CHUNK: usize = 8;

pub(super) fn forward(draw: &mut Draw, backend: BackendKind, size: Size) -> Attention {
    let is_e4m3 = draw.once_in(7);
    let dtype = if is_e4m3 { DType::E4m3 } else { result_dtype(draw) };
    let mut case = drawn(draw, dtype, size);
    case.descale = (is_e4m3 && draw.once_in(2))
        .then(|| [0.5, 1.5, 3.0].map(|factor| factor * draw.pick(&[0.25, 1.0, 2.0])));
    case.descale_of = if is_e4m3 { head_list(draw, 2) } else { HeadList::Off };
    case.no_lse = draw.once_in(6);
    case.batch_invariant = draw.once_in(8);
    if is_e4m3 && backend != BackendKind::Cpu && !draw.once_in(12) {
        suit_hopper(draw, &mut case);
    }
    case.run = run(draw, backend, &case);
    if backend != BackendKind::Cuda && !is_e4m3 && draw.once_in(8) {
        bring_functions(draw, backend, &mut case);
    }
    if backend == BackendKind::Cpu && case.run == Kernel::ForwardCpu.name() {
        case.block = [0; 2].map(|_| if draw.once_in(2) { 0 } else { draw.logarithmic(1, 300) });
    }
    case
}

pub(super) fn backward(draw: &mut Draw, backend: BackendKind, size: Size) -> Backward {
    let dtype = result_dtype(draw);
    let mut forward = drawn(draw, dtype, size.of_whole_heads());
    let suits_hopper = dtype != DType::F32 && backend != BackendKind::Cpu && draw.once_in(2);
    if suits_hopper {
        align_columns(&mut forward, HALF_CHUNK);
    }
    let (q, v) = (forward.head_dim, forward.head_dim_v.unwrap_or(forward.head_dim));
    let mut dout = place(draw, dtype, v, false);
    if suits_hopper {
        align(&mut dout, HALF_CHUNK);
    }
    let (dq, dk, dv) =
        (place(draw, dtype, q, true), place(draw, dtype, q, true), place(draw, dtype, v, true));
    // Hopper's kernel is the planner's choice where it takes the problem.
    let mut kernels = BackwardKernel::of_backend(backend).to_vec();
    kernels.retain(|&kernel| kernel != BackwardKernel::BackwardSm90);
    let run = if draw.once_in(3) { draw.pick(&kernels).name() } else { "" };
    let unfit = run == BackwardKernel::BackwardSm80.name() && dtype == DType::F32;
    let mut run = if unfit { String::new() } else { run.to_owned() };
    if run.is_empty() && backend != BackendKind::Cpu && draw.once_in(6) {
        run = backward_entry(draw, &forward).unwrap_or_default();
    }
    let (dlse, no_dsinks) = (draw.once_in(3), draw.once_in(6));
    let sums_dq = entries().any(|entry| entry.name == run && entry.algorithm.sums_dq());
    // Sums of dQ are not stored in parts.
    let limited = draw.once_in(3) && !sums_dq;
    let limit = if limited { draw.logarithmic(16 << 10, 16 << 20) as u64 } else { 0 };
    let sm_margin = if draw.once_in(6) { draw.pick(&[16, 66, 130]) } else { 0 };
    let unit_rows = if draw.once_in(3) { draw.logarithmic(1, 2048) } else { 0 };
    Backward { forward, dout, dq, dk, dv, dlse, no_dsinks, run, limit, unit_rows, sm_margin }
}

/// Whether entries of tensor cores must be those that change scores and drop weights.
fn needs_score_mod(case: &Attention) -> bool {
    let changes_scores = case.softcap > 0.0 || case.alibi != HeadList::Off;
    changes_scores || case.scale.is_some_and(|scale| scale <= 0.0) || case.dropout > 0.0
}

/// An entry of `backward_sm80`, one that sums dQ, or of `backward_simt` in fp32, and by chance where scores
/// are changed.
fn backward_entry(draw: &mut Draw, case: &Attention) -> Option<String> {
    use Algorithm::{
        BackwardDqSm80, BackwardKeys, BackwardKeysDqSm90, BackwardKeysDqSm90ScoreMod, BackwardKeysDropout,
        BackwardKeysDsSm80, BackwardKeysSm80, BackwardKeysSm80ScoreMod, BackwardQueries,
        BackwardQueriesDropout, BackwardQueriesSm80, BackwardQueriesSm80ScoreMod,
    };
    let needs_score_mod = needs_score_mod(case);
    let on_fma = case.dtype == DType::F32 || needs_score_mod && draw.once_in(2);
    let algorithms = match (on_fma, case.dropout > 0.0) {
        (true, true) => &[BackwardKeysDropout, BackwardQueriesDropout][..],
        (true, false) => &[BackwardKeys, BackwardQueries],
        _ if needs_score_mod => {
            &[BackwardKeysSm80ScoreMod, BackwardQueriesSm80ScoreMod, BackwardKeysDqSm90ScoreMod]
        }
        _ => &[BackwardKeysSm80, BackwardQueriesSm80, BackwardKeysDsSm80, BackwardDqSm80, BackwardKeysDqSm90],
    };
    let fits = |entry: &&Entry| {
        let takes = case.sequences.is_empty() && case.used.is_empty() || !entry.algorithm.sums_dq();
        takes && algorithms.contains(&entry.algorithm) && holds(entry, case)
    };
    let all: Vec<_> = entries().filter(fits).collect();
    (!all.is_empty()).then(|| draw.pick(&all).name.to_owned())
}

fn holds(entry: &Entry, case: &Attention) -> bool {
    let (columns, columns_v) = (entry.tile.head_dim as usize, entry.tile.head_dim_v as usize);
    let (head_dim, head_dim_v) = (case.head_dim, case.head_dim_v.unwrap_or(case.head_dim));
    let widest = head_dim.max(head_dim_v);
    // Tiles of twice the columns needed and more show nothing that others do not.
    let is_near = columns <= (2 * widest).max(64);
    entry.dtype == case.dtype.name() && columns >= head_dim && columns_v >= head_dim_v && is_near
}

/// What forward and backward problems have alike.
fn drawn(draw: &mut Draw, dtype: DType, size: Size) -> Attention {
    let head_dim = head_dim(draw);
    let head_dim_v = draw.once_in(6).then(|| parts::head_dim(draw));
    let mut case = Attention { dtype, head_dim, head_dim_v, ..Attention::default() };
    shape(draw, &mut case, size);
    case.causal = draw.once_in(3);
    if draw.once_in(5) {
        case.window = window(draw, case.kv_seq);
    }
    case.scale = scale(draw);
    case.softcap = softcap(draw);
    case.alibi = head_list(draw, 9);
    case.sinks = head_list(draw, 6);
    case.dropout = if draw.once_in(12) { draw.pick(&[0.1, 0.5, 0.9]) } else { 0.0 };
    case.scores = data(draw);
    case.values = data(draw);
    case.seed = seed(draw);
    case.schedule = draw.below(64) as u64;
    if draw.once_in(6) {
        use_keys(draw, &mut case);
    }
    place_tensors(draw, &mut case, size);
    case
}

fn shape(draw: &mut Draw, case: &mut Attention, size: Size) {
    let columns = case.head_dim + case.head_dim_v.unwrap_or(case.head_dim);
    let (mut batch, mut kv_heads) =
        (draw.weighted(&[(4, 1), (3, 2), (1, 3)]), draw.weighted(&[(4, 1), (3, 2), (1, 5)]));
    let mut group = draw.weighted(&[(5, 1), (2, 2), (1, 3), (1, 8)]);
    let (mut seq, mut kv_seq) = (length(draw, size.rows), length(draw, size.rows));
    if draw.once_in(4) {
        kv_seq = seq;
    }
    let cost = |of: &[usize]| of[0] * of[1] * of[2] * size.tiles(of[3]) * size.tiles(of[4]) * columns;
    shrink_to(&mut [&mut batch, &mut kv_heads, &mut group, &mut seq, &mut kv_seq], size.products, cost);
    let elements = |of: &[usize]| of[0] * of[1] * (of[2] * of[3]).max(of[4]) * columns;
    shrink_to(&mut [&mut batch, &mut kv_heads, &mut group, &mut seq, &mut kv_seq], size.elements, elements);
    (case.kv_heads, case.group) = (kv_heads, group);
    if draw.once_in(4) {
        // One of the sequences has all the rows that there may be, others fewer or none.
        let count = draw.between(1, 5);
        let first = draw.below(count);
        case.sequences = (0..count)
            .map(|index| {
                if index == first {
                    return [seq, kv_seq];
                }
                [seq, kv_seq]
                    .map(|most| if draw.once_in(4) { 0 } else { draw.logarithmic(1, most.div_ceil(2)) })
            })
            .collect();
        case.tail = [0; 2].map(|_| if draw.once_in(2) { 0 } else { draw.between(1, 9) });
        case.slack = draw.once_in(3).then(|| if draw.once_in(3) { 0 } else { draw.logarithmic(1, 1000) });
        // Where it does not count.
        (case.seq, case.kv_seq) = (1, 1);
        return;
    }
    (case.batch, case.seq, case.kv_seq) = (batch, seq, kv_seq);
}

/// Lets sequences use some of their keys, all, or none.
fn use_keys(draw: &mut Draw, case: &mut Attention) {
    let is_dense = case.sequences.is_empty();
    let keys = if is_dense {
        vec![case.kv_seq; case.batch]
    } else {
        case.sequences.iter().map(|lengths| lengths[1]).collect()
    };
    let used = |most: usize| match draw.below(6) {
        0 => 0,
        1 => most,
        _ => draw.below(most + 1),
    };
    case.used = keys.into_iter().map(used).collect();
    if is_dense {
        case.slack = draw.once_in(3).then_some(0);
    }
}

fn place_tensors(draw: &mut Draw, case: &mut Attention, size: Size) {
    let (head_dim, head_dim_v) = (case.head_dim, case.head_dim_v.unwrap_or(case.head_dim));
    if draw.once_in(5) {
        // All alike, as most callers have them.
        let order = draw.below(2);
        (case.q.order, case.k.order, case.v.order, case.o.order) = (order, order, order, order);
    } else {
        case.q = place(draw, case.dtype, head_dim, false);
        case.k = place(draw, case.dtype, head_dim, false);
        case.v = place(draw, case.dtype, head_dim_v, false);
        case.o = place(draw, case.dtype.output(), head_dim_v, true);
    }
    // Gaps that make a tensor much longer than its elements would be most of the time that a problem takes.
    let too_long = |layout: flash_attention::TensorLayout| layout.span() > 8 * size.elements;
    let tensors = case.tensors();
    for (layout, place) in [
        (tensors.q, &mut case.q),
        (tensors.k, &mut case.k),
        (tensors.v, &mut case.v),
        (tensors.o, &mut case.o),
    ] {
        if too_long(layout) {
            place.gaps = [0; 3];
        }
    }
}

/// Makes a problem in e4m3 one that `forward_sm90` takes, mostly with rows that it reads where they are.
fn suit_hopper(draw: &mut Draw, case: &mut Attention) {
    if !draw.once_in(3) {
        align_columns(case, CHUNK);
    }
    case.dropout = 0.0;
    if draw.once_in(2) {
        case.values = Data::MeanOne;
    }
}

/// Gives a problem functions of scores, in place of what they take the place of; and for the simulator, the
/// type and head_dims that it has kernels with functions of.
fn bring_functions(draw: &mut Draw, backend: BackendKind, case: &mut Attention) {
    case.functions = draw.pick(&Brought::ALL);
    (case.softcap, case.alibi, case.dropout, case.batch_invariant) = (0.0, HeadList::Off, 0.0, false);
    if matches!(case.functions, Brought::Documents | Brought::Strided) {
        case.scale = case.scale.filter(|&scale| scale > 0.0);
    }
    if case.functions == Brought::Strided {
        case.slack = None; // A map of blocks is of the rows that are planned for.
    }
    if backend == BackendKind::Sim {
        case.dtype = DType::F16;
        case.head_dim = case.head_dim.min(64);
        case.head_dim_v = case.head_dim_v.map(|head_dim| head_dim.min(64));
        let kernels = ["", Kernel::ForwardSm90.name(), Kernel::ForwardSm80.name()];
        case.run = draw.pick(&kernels).to_owned();
    }
}

/// Makes Q, K and V of a problem start rows and heads at multiples of so many elements.
fn align_columns(case: &mut Attention, chunk: usize) {
    case.head_dim = case.head_dim.next_multiple_of(chunk);
    case.head_dim_v = case.head_dim_v.map(|head_dim| head_dim.next_multiple_of(chunk));
    for place in [&mut case.q, &mut case.k, &mut case.v] {
        align(place, chunk);
    }
}

fn align(place: &mut Place, chunk: usize) {
    let Place { gaps, repeat, offset, .. } = place;
    *gaps = gaps.map(|gap| gap.next_multiple_of(chunk));
    *repeat = [false; 3];
    *offset = offset.next_multiple_of(chunk);
}

/// A kernel or an entry that takes the problem; mostly the planner's choice.
fn run(draw: &mut Draw, backend: BackendKind, case: &Attention) -> String {
    let planner = draw.below(10) < 6;
    let kernels: Vec<_> =
        Kernel::of_backend(backend).iter().copied().filter(|&kernel| takes(kernel, case)).collect();
    if planner || kernels.is_empty() {
        return String::new();
    }
    if backend == BackendKind::Cpu || draw.once_in(2) {
        return draw.pick(&kernels).name().to_owned();
    }
    let modified = case.softcap > 0.0 || case.alibi != HeadList::Off;
    let (negative, drops) = (case.scale.is_some_and(|scale| scale <= 0.0), case.dropout > 0.0);
    let fits = |entry: &&Entry| {
        let of_scores = match entry.algorithm {
            Algorithm::ForwardSm80Dropout | Algorithm::ForwardSm90Dropout | Algorithm::ForwardSimtDropout => {
                drops
            }
            Algorithm::ForwardSm90 => !drops && !modified && !negative,
            Algorithm::ForwardSm90ScoreMod => !drops && (modified || negative),
            Algorithm::ForwardSm80 => !drops && !modified,
            Algorithm::ForwardSm80ScoreMod => !drops && modified,
            Algorithm::ForwardSimt => !drops,
            Algorithm::ForwardSm90Residues => {
                let is_whole = case.sequences.is_empty() && case.used.is_empty();
                is_whole && !drops && !modified && !negative
            }
            _ => false,
        };
        of_scores && holds(entry, case)
    };
    let all: Vec<_> = entries().filter(fits).collect();
    if all.is_empty() { String::new() } else { draw.pick(&all).name.to_owned() }
}

/// Whether a kernel takes what a problem asks for beside its shape.
fn takes(kernel: Kernel, case: &Attention) -> bool {
    let of_type = match kernel {
        Kernel::ForwardSm90 => case.dtype != DType::F32,
        Kernel::ForwardSm80 => matches!(case.dtype, DType::F16 | DType::Bf16),
        Kernel::Decode => {
            let is_few = case.seq <= MAX_DECODE_SEQLEN_Q && case.sequences.is_empty();
            is_few && matches!(case.dtype, DType::F16 | DType::Bf16)
        }
        Kernel::ForwardSimt => case.dtype != DType::E4m3,
        Kernel::Standard => {
            case.dtype != DType::E4m3 && case.sequences.iter().all(|lengths| lengths[1] < 4096)
        }
        Kernel::ForwardCpu => true,
    };
    let drops = kernel.drops_weights() && (case.dtype != DType::E4m3 || kernel == Kernel::ForwardCpu);
    of_type && (case.dropout == 0.0 || drops)
}
