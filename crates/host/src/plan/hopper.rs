//! What `forward_sm90` takes.

use crate::{Problem, TensorLayout, Tensors};

/// Elements of 16 bytes, which tensor maps count strides in.
const CHUNK: usize = 8;

/// Why `forward_sm90` cannot run a problem, if it cannot.
pub(super) fn refusal(problem: &Problem) -> Option<String> {
    if problem.cu_seqlens().is_some() {
        return Some("a tensor map ends with its tensor, and not with a packed sequence".to_owned());
    }
    if problem.changes_scores() {
        return Some("it has no entries that change scores".to_owned());
    }
    if problem.softmax_scale() <= 0.0 {
        return Some(format!("softmax_scale is {}, and it takes positive ones", problem.softmax_scale()));
    }
    let Tensors { q, k, v, o } = problem.tensors();
    [("q", q), ("k", k), ("v", v), ("o", o)].into_iter().find_map(|(name, layout)| unmapped(name, layout))
}

/// The stride of a tensor that a tensor map cannot have, if there is one.
fn unmapped(name: &str, layout: &TensorLayout) -> Option<String> {
    let axes = [
        ("batch", layout.batch, layout.stride_batch),
        ("seqlen", layout.seqlen, layout.stride_seq),
        ("heads", layout.heads, layout.stride_head),
    ];
    // The axis of a single index takes no steps.
    axes.into_iter().filter(|&(_, length, _)| length > 1).find_map(|(axis, _, stride)| {
        (stride == 0 || !stride.is_multiple_of(CHUNK) || stride >= 1 << 39).then(|| {
            format!("{name}'s {axis} stride is {stride} elements, and tensor maps take positive multiples of {CHUNK} below 2^39")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Options};

    fn reason(layout: TensorLayout, options: Options) -> Option<String> {
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        refusal(&Problem::new(tensors, DType::F16, options).unwrap())
    }

    #[test]
    fn each_refusal_names_what_is_in_the_way() {
        let plain = TensorLayout::bshd(2, 30, 3, 40);
        assert_eq!(reason(plain, Options::default()), None);
        let refused = |layout, options| reason(layout, options).unwrap();
        assert_eq!(
            refused(TensorLayout::bshd(2, 30, 3, 41), Options::default()),
            "q's batch stride is 3690 elements, and tensor maps take positive multiples of 8 below 2^39"
        );
        assert_eq!(reason(TensorLayout::bshd(1, 30, 1, 48), Options::default()), None);
        assert_eq!(
            refused(plain, Options { softcap: 5.0, ..Options::default() }),
            "it has no entries that change scores"
        );
        assert_eq!(
            refused(plain, Options { softmax_scale: Some(-1.0), ..Options::default() }),
            "softmax_scale is -1, and it takes positive ones"
        );
    }
}
