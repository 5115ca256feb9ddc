//! Rows of Q, K and V that lie no multiple of 16 bytes apart, read class by class where they are: which
//! problems `forward_sm90` takes so, and when that is quicker than copying them.

use fa_kernels::attention::alignment::row_classes::RowClasses;
use fa_kernels::entries::{Algorithm, Tile};

use super::hopper::{self, CHUNK, Schedule};
use super::tile::built_for_head_dim;
use super::{Request, built_for, pack};
use crate::{Device, Problem, TensorLayout, Tensors};

/// Cycles for each of a tile's columns in which Q and O move by one column, or the rows of Q are aligned
/// (fitted to an H200).
const MOVE_CYCLES: f64 = 11.0;

/// What a step takes longer, as a part of it: rows start in the middle of sectors, and foreign columns are
/// cleared (H200).
const SLOWER: f64 = 0.07;

/// The classes of the problem's rows.
pub(crate) fn of(problem: &Problem) -> RowClasses {
    RowClasses::of(problem.tensors().k.stride_seq as u64)
}

/// Why the rows of a problem are not read class by class, if they are not.
pub(super) fn refusal(problem: &Problem) -> Option<String> {
    let Tensors { q, k, v, .. } = problem.tensors();
    let classes = of(problem);
    let count = classes.count() as usize;
    let tensors = [("q", q), ("k", k), ("v", v)];
    let alike = |stride: usize| stride % CHUNK == k.stride_seq % CHUNK;
    let needed = columns(problem);
    if problem.window() != (None, None) || problem.cu_seqlens().is_some() || problem.softmax_scale() <= 0.0 {
        return Some("its mask, sequences or scale take keys in order".to_owned());
    }
    if count == 1 {
        return Some(format!("k's rows lie multiples of {CHUNK} elements apart"));
    }
    if let Some((name, tensor)) = tensors.into_iter().find(|(_, tensor)| !alike(tensor.stride_seq)) {
        let (stride, of_k) = (tensor.stride_seq, k.stride_seq);
        return Some(format!("{name}'s rows lie {stride} elements apart, those of k {of_k}"));
    }
    if let Some((name, tensor)) = tensors.into_iter().find(|(_, tensor)| tensor.seqlen % count != 0) {
        return Some(format!("{name}'s {} rows are no multiple of their {count} classes", tensor.seqlen));
    }
    let widest = built_for(Algorithm::ForwardSm90RowClasses, problem.dtype());
    let widest = widest.map(|entry| entry.tile.head_dim as usize).max().unwrap_or(0);
    if needed > widest {
        return Some(format!("its rows reach to column {needed}, those of the widest tile to {widest}"));
    }
    tensors.into_iter().find_map(|(name, tensor)| hopper::unmapped(name, &class_layout(tensor, classes)))
}

/// A class's rows.
pub(crate) fn class_layout(tensor: &TensorLayout, classes: RowClasses) -> TensorLayout {
    let TensorLayout { seqlen, stride_seq, .. } = *tensor;
    let count = classes.count() as usize;
    TensorLayout { seqlen: seqlen / count, stride_seq: stride_seq.saturating_mul(count), ..*tensor }
}

/// Columns that a tile must hold.
pub(super) fn columns(problem: &Problem) -> usize {
    problem.widest_head_dim() + of(problem).last_shift() as usize
}

/// How the tiles of an entry are taken.
pub(super) fn schedule(problem: &Problem, tile: &Tile, multiprocessors: u32) -> Schedule {
    let plain = hopper::schedule(problem, tile, multiprocessors);
    let (count, block_n) = (of(problem).count() as usize, tile.block_n as usize);
    let keys = problem.seqlen_k();
    let steps = count * (keys / count).div_ceil(block_n);
    let more = steps as f64 * (1.0 + SLOWER) - keys.div_ceil(block_n) as f64;
    let moves = f64::from((of(problem).last_shift() + 1) * tile.head_dim);
    let more = more * hopper::step_cycles(tile) + moves * MOVE_CYCLES;
    let rounds = plain.tiles.div_ceil(plain.blocks.max(1));
    Schedule { cycles: plain.cycles + f64::from(rounds) * more, ..plain }
}

/// The entries with row classes, where they take the problem with a tile that is as asked, and are estimated
/// to be done sooner than those of `algorithm`, which copy its rows.
pub(super) fn instead_of(
    problem: &Problem,
    device: &Device,
    request: &Request,
    algorithm: Algorithm,
) -> Algorithm {
    if algorithm != Algorithm::ForwardSm90 || refusal(problem).is_some() {
        return algorithm;
    }
    let copied = pack::cycles(problem, device, algorithm);
    let is_quicker = self::cycles(problem, device, request).is_some_and(|cycles| cycles < copied);
    if is_quicker { Algorithm::ForwardSm90RowClasses } else { algorithm }
}

/// About how many cycles the quickest tile takes that is as asked.
fn cycles(problem: &Problem, device: &Device, request: &Request) -> Option<f64> {
    let built = built_for_head_dim(problem, Algorithm::ForwardSm90RowClasses).into_iter();
    let as_asked = built.filter(|entry| request.takes(&entry.tile));
    as_asked.map(|entry| schedule(problem, &entry.tile, device.multiprocessors).cycles).min_by(f64::total_cmp)
}

/// Why `forward_sm90` over classes of rows would be no faster than `forward_sm80`, if so: as where rows are
/// copied, that is counted on to take twice as long as `forward_sm90` over aligned rows.
pub(super) fn dissuasion(problem: &Problem, device: &Device) -> Option<String> {
    let aligned = pack::attention_cycles(problem, device, Algorithm::ForwardSm90);
    let times = cycles(problem, device, &Request::default())? / aligned.max(1.0);
    (times > 2.0).then(|| {
        format!(
            "taking keys by where their rows start would take about {times:.1} times as long as aligned rows"
        )
    })
}

/// Why rows are read class by class.
pub(super) fn reason(problem: &Problem, device: &Device, cycles: f64) -> String {
    let Tensors { k, .. } = problem.tensors();
    let copied = pack::cycles(problem, device, Algorithm::ForwardSm90);
    format!(
        "keys are taken in {} classes by where their rows start, {} elements apart and so no multiple of 16 bytes: \
         estimated at {:.2} of the time with rows copied before",
        of(problem).count(),
        k.stride_seq,
        cycles / copied.max(1.0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Options};

    fn problem(layout: TensorLayout, options: Options) -> Problem {
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        Problem::new(tensors, DType::F16, options).unwrap()
    }

    #[test]
    fn rows_are_read_by_classes_where_all_are_shifted_alike() {
        let refused = |layout| refusal(&problem(layout, Options::default()));
        for head_dim in [1, 9, 10, 12, 65, 129, 130, 132, 137] {
            assert_eq!(refused(TensorLayout::bhsd(2, 64, 3, head_dim)), None, "{head_dim}");
        }
        let message = |layout| refused(layout).unwrap();
        assert_eq!(message(TensorLayout::bhsd(2, 64, 3, 128)), "k's rows lie multiples of 8 elements apart");
        assert_eq!(
            message(TensorLayout::bhsd(2, 60, 3, 129)),
            "q's 60 rows are no multiple of their 8 classes"
        );
        assert_eq!(
            message(TensorLayout::bhsd(2, 64, 3, 139)),
            "its rows reach to column 146, those of the widest tile to 144"
        );
        assert_eq!(
            message(TensorLayout::strided([2, 64, 3, 129], [65 * 129 * 3, 129, 65 * 129, 1])),
            "q's batch stride is 25155 elements, and tensor maps take positive multiples of 8 below 2^39"
        );
        let (q, k) = (TensorLayout::bhsd(2, 64, 3, 9), TensorLayout::bhsd(2, 64, 3, 17));
        let v = TensorLayout::bhsd(2, 64, 3, 11);
        let apart = Tensors { q, k: q, v, o: v };
        let apart = Problem::new(apart, DType::F16, Options::default()).unwrap();
        assert_eq!(refusal(&apart).unwrap(), "v's rows lie 11 elements apart, those of k 9");
        let alike = Problem::new(Tensors { q, k: q, v: k, o: k }, DType::F16, Options::default()).unwrap();
        assert_eq!((refusal(&alike), columns(&alike)), (None, 24));
        let causal = Options { causal: true, ..Options::default() };
        let masked = problem(TensorLayout::bhsd(2, 64, 3, 129), causal);
        assert_eq!(refusal(&masked).unwrap(), "its mask, sequences or scale take keys in order");
    }
}
