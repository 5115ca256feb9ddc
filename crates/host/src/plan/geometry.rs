//! Where rows of Q, K, V and O start, and what tensor maps can describe of them: the rules of `forward_sm90`.

use fa_kernels::attention::alignment::head_offset::HeadOffset;
use fa_kernels::attention::alignment::residues::Residues;
use fa_kernels::entries::Tile;

use crate::forward::MAX_HEAD_DIM;
use crate::{DType, Problem, TensorLayout, Tensors};

/// Elements of 16 bytes, which tensor maps count strides in.
pub(super) const CHUNK: usize = 8;

/// Elements of 32 bytes, a sector, which L2 moves whole.
pub(super) const SECTOR: usize = 16;

/// Columns that a tile must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    /// Of Q and K.
    pub(super) qk: usize,
    /// Of V and O.
    pub(super) v: usize,
}

impl Columns {
    /// The head_dims of a problem.
    pub(super) fn of(problem: &Problem) -> Self {
        Self { qk: problem.head_dim(), v: problem.head_dim_v() }
    }

    /// So many more of each.
    const fn plus(self, shift: usize) -> Self {
        Self { qk: self.qk + shift, v: self.v + shift }
    }

    pub(super) fn widest(self) -> usize {
        self.qk.max(self.v)
    }

    pub(super) const fn fit(self, tile: &Tile) -> bool {
        self.qk <= tile.head_dim as usize && self.v <= tile.head_dim_v as usize
    }
}

/// Whether heads start at other places than multiples of 16 bytes.
pub(crate) const fn is_shifted(layout: &TensorLayout) -> bool {
    layout.heads > 1 && !layout.stride_head.is_multiple_of(CHUNK)
}

/// How many elements behind a multiple of 16 bytes a head's rows start.
fn shift(layout: &TensorLayout, head: usize) -> usize {
    HeadOffset::of(layout.stride_head as u64, head as u32, 0).shift as usize
}

/// The most columns that boxes of a tensor at `address` may start before their head, of `columns` in a tile:
/// to begin with sectors of 32 bytes where that would make a difference, and the same one in all rows.
pub(crate) fn margin(address: u64, layout: &TensorLayout, columns: u32) -> u32 {
    let in_sectors = |length: usize, stride: usize| length == 1 || stride.is_multiple_of(SECTOR);
    let alike = address.is_multiple_of(2 * SECTOR as u64)
        && in_sectors(layout.batch, layout.stride_batch)
        && in_sectors(layout.seqlen, layout.stride_seq);
    if alike && !in_sectors(layout.heads, layout.stride_head) { columns - layout.head_dim as u32 } else { 0 }
}

/// Columns of a tile that the heads of a tensor reach to, each from the last multiple of 16 bytes on.
pub(super) fn columns(layout: &TensorLayout) -> usize {
    // Eight heads show all there is.
    (0..layout.heads.min(CHUNK)).map(|head| shift(layout, head) + layout.head_dim).max().unwrap_or(0)
}

/// A head of Q that starts otherwise than its head of K, if there is one: their columns do not meet.
pub(super) fn apart(q: &TensorLayout, k: &TensorLayout) -> Option<String> {
    let group = q.heads / k.heads;
    // Starts repeat after eight heads, so eight groups, and eight heads of each, show all there is.
    let mut pairs = (0..k.heads.min(CHUNK))
        .flat_map(|kv_head| (0..group.min(CHUNK)).map(move |of_group| (kv_head * group + of_group, kv_head)));
    pairs.find_map(|(head, kv_head)| {
        let (of_q, of_k) = (shift(q, head), shift(k, kv_head));
        (of_q != of_k).then(|| {
            format!("q's head {head} starts {of_q} elements behind a multiple of {CHUNK}, its head {kv_head} of k {of_k}")
        })
    })
}

/// Why a tensor's rows cannot be read where they are, wherever its heads start.
pub(super) fn unreadable(name: &str, layout: &TensorLayout) -> Option<String> {
    let classes = HeadOffset::classes(layout.stride_head as u64);
    let heads_of_class =
        ("heads", layout.heads.div_ceil(classes), classes.saturating_mul(layout.stride_head));
    unmapped_axes(name, layout).or_else(|| unmapped_axis(name, heads_of_class)).or_else(|| {
        let needed = columns(layout);
        (needed > MAX_HEAD_DIM).then(|| {
            format!(
                "{name}'s heads start up to {} elements behind a multiple of {CHUNK}, and reach to column {needed} of \
                 tiles of {}",
                needed - layout.head_dim,
                MAX_HEAD_DIM
            )
        })
    })
}

/// The stride of a tensor that one tensor map of all its heads cannot have, if there is one.
pub(crate) fn unmapped(name: &str, layout: &TensorLayout) -> Option<String> {
    unmapped_axes(name, layout).or_else(|| unmapped_axis(name, ("heads", layout.heads, layout.stride_head)))
}

/// As [`unmapped`], of the axes of sequences and rows.
fn unmapped_axes(name: &str, layout: &TensorLayout) -> Option<String> {
    let axes = [("batch", layout.batch, layout.stride_batch), ("seqlen", layout.seqlen, layout.stride_seq)];
    axes.into_iter().find_map(|axis| unmapped_axis(name, axis))
}

fn unmapped_axis(name: &str, (axis, length, stride): (&str, usize, usize)) -> Option<String> {
    (!is_mappable((length, stride), 2)).then(|| {
        format!(
            "{name}'s {axis} stride is {stride} elements, and tensor maps take positive multiples of {CHUNK} below 2^39"
        )
    })
}

/// Whether a tensor map of elements of so many bytes can have an axis of this length and stride.
pub(super) fn is_mappable((length, stride): (usize, usize), element_bytes: usize) -> bool {
    let chunk = 16 / element_bytes;
    // The axis of a single index takes no steps.
    length <= 1 || (stride > 0 && stride.is_multiple_of(chunk) && stride < (1 << 40) / element_bytes)
}

/// The classes of the problem's rows.
pub(crate) fn residues(problem: &Problem) -> Residues {
    Residues::of(problem.tensors().k.stride_seq as u64)
}

/// Why the rows of a problem are not read class by class, if they are not; the widest tile has so many
/// columns.
pub(super) fn class_refusal(problem: &Problem, widest: usize) -> Option<String> {
    let Tensors { q, k, v, .. } = problem.tensors();
    let classes = residues(problem);
    let count = classes.count() as usize;
    let tensors = [("q", q), ("k", k), ("v", v)];
    let alike = |stride: usize| stride % CHUNK == k.stride_seq % CHUNK;
    let needed = class_columns(problem).widest();
    if problem.window() != (None, None) || problem.has_rows_behind_keys() || problem.softmax_scale() <= 0.0 {
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
    if needed > widest {
        return Some(format!("its rows reach to column {needed}, those of the widest tile to {widest}"));
    }
    tensors.into_iter().find_map(|(name, tensor)| unmapped(name, &class_layout(tensor, classes)))
}

/// A class's rows.
pub(crate) fn class_layout(tensor: &TensorLayout, classes: Residues) -> TensorLayout {
    let TensorLayout { seqlen, stride_seq, .. } = *tensor;
    let count = classes.count() as usize;
    TensorLayout { seqlen: seqlen / count, stride_seq: stride_seq.saturating_mul(count), ..*tensor }
}

/// Columns that a tile must hold where rows are read class by class.
pub(super) fn class_columns(problem: &Problem) -> Columns {
    Columns::of(problem).plus(residues(problem).last_shift() as usize)
}

/// Elements of 16 bytes in e4m3, which tensor maps count strides in.
const CHUNK_E4M3: usize = 16;

/// Why a problem in e4m3 cannot be computed, if so.
pub(super) fn unfit_in_e4m3(problem: &Problem) -> Option<String> {
    let is_unfit = problem.dtype() == DType::E4m3 && problem.dropout().is_some();
    is_unfit.then(|| "in e4m3 it drops no weights".to_owned())
}

/// The stride of a tensor in e4m3 that one tensor map of all its heads cannot have, if there is one.
pub(crate) fn unmapped_in_e4m3(name: &str, layout: &TensorLayout) -> Option<String> {
    let TensorLayout { batch, seqlen, heads, stride_batch, stride_seq, stride_head, .. } = *layout;
    let axes =
        [("batch", batch, stride_batch), ("seqlen", seqlen, stride_seq), ("heads", heads, stride_head)];
    axes.into_iter().find_map(|(axis, length, stride)| {
        (!is_mappable((length, stride), 1)).then(|| {
            format!(
                "{name}'s {axis} stride is {stride} elements, and in e4m3 it takes positive multiples of {CHUNK_E4M3} \
                 below 2^40"
            )
        })
    })
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
        let refused = |layout| class_refusal(&problem(layout, Options::default()), 144);
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
        assert_eq!(class_refusal(&apart, 144).unwrap(), "v's rows lie 11 elements apart, those of k 9");
        let alike = Problem::new(Tensors { q, k: q, v: k, o: k }, DType::F16, Options::default()).unwrap();
        assert_eq!((class_refusal(&alike, 144), class_columns(&alike).widest()), (None, 24));
        let causal = Options { causal: true, ..Options::default() };
        let masked = problem(TensorLayout::bhsd(2, 64, 3, 129), causal);
        assert_eq!(class_refusal(&masked, 144).unwrap(), "its mask, sequences or scale take keys in order");
    }

    #[test]
    fn boxes_start_with_sectors_where_rows_do_alike() {
        let margin = |address, layout| margin(address, &layout, 160);
        assert_eq!(margin(64, TensorLayout::bshd(2, 30, 4, 152)), 8);
        assert_eq!(margin(64, TensorLayout::bshd(2, 30, 16, 145)), 15);
        // Heads that all start with sectors, and rows of which only some do.
        assert_eq!(margin(64, TensorLayout::bshd(2, 30, 3, 160)), 0);
        assert_eq!(margin(64, TensorLayout::bshd(2, 30, 3, 152)), 0);
        assert_eq!(margin(64, TensorLayout::bhsd(2, 30, 4, 152)), 0);
        assert_eq!(margin(80, TensorLayout::bshd(2, 30, 4, 152)), 0);
    }

    #[test]
    fn a_stride_that_no_map_has_is_named() {
        assert_eq!(
            unmapped("q", &TensorLayout::bshd(2, 30, 3, 41)).unwrap(),
            "q's batch stride is 3690 elements, and tensor maps take positive multiples of 8 below 2^39"
        );
        assert_eq!(unmapped("q", &TensorLayout::bshd(1, 30, 1, 48)), None);
        // A single index takes no steps.
        assert_eq!(unmapped("q", &TensorLayout::strided([1, 30, 1, 41], [7, 48, 3, 1])), None);
        // Of heads that start anywhere every eighth is in one map.
        let far = |heads, stride_head| {
            unreadable("k", &TensorLayout::strided([1, 30, heads, 41], [0, 48, stride_head, 1]))
        };
        assert_eq!((far(9, 57), far(9, (1 << 36) - 1), far(8, (1 << 36) + 1)), (None, None, None));
        assert_eq!(
            far(9, (1 << 36) + 1).unwrap(),
            "k's heads stride is 549755813896 elements, and tensor maps take positive multiples of 8 below 2^39"
        );
    }
}
