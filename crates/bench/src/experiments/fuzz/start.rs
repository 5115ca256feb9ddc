//! Where inputs may start: what only the addresses at a launch show, so that no plan refuses it.

use flash_attention::{BackendKind, DType};

use super::case::{Attention, Backward, Case, Decode, Gemm};

/// Bytes that Q and K in e4m3 start at multiples of, for the tensor maps of `forward_sm90`.
const MAPPED: usize = 16;

/// Bytes of a word. Kernels read whole ones, so also what lies before a tensor in its first, which the
/// simulator takes for a read out of bounds.
const WORD: usize = 4;

/// The problem with inputs that start where the backend takes them, up to 15 bytes earlier.
pub(super) fn suited(mut case: Case, backend: BackendKind) -> Case {
    match &mut case {
        Case::Forward(Attention { dtype: dtype @ DType::E4m3, q, k, .. }) => {
            lower(backend, *dtype, [q, k].map(|place| &mut place.offset));
        }
        Case::Forward(Attention { dtype, q, k, v, .. }) | Case::Decode(Decode { dtype, q, k, v, .. }) => {
            lower(backend, *dtype, [q, k, v].map(|place| &mut place.offset));
        }
        Case::Backward(Backward { forward: Attention { dtype, q, k, v, o, .. }, dout, .. }) => {
            lower(backend, *dtype, [q, k, v, o, dout].map(|place| &mut place.offset));
        }
        Case::Gemm(Gemm { dtype, a, b, .. }) => {
            lower(backend, *dtype, [a, b].map(|place| &mut place.offset));
        }
    }
    case
}

fn lower<const N: usize>(backend: BackendKind, dtype: DType, offsets: [&mut usize; N]) {
    let bytes = match (backend, dtype) {
        (BackendKind::Cuda | BackendKind::Sim, DType::E4m3) => MAPPED,
        (BackendKind::Sim, _) => WORD,
        (BackendKind::Cuda | BackendKind::Cpu, _) => return,
    };
    let elements = bytes / dtype.bytes();
    offsets.into_iter().for_each(|offset| *offset -= *offset % elements);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_lowered_where_they_must_be() {
        let start = |dtype, offset, backend| {
            let mut case = Attention { dtype, ..Attention::default() };
            (case.k.offset, case.v.offset, case.o.offset) = (offset, 5, offset);
            let Case::Forward(case) = suited(Case::Forward(case), backend) else { unreachable!("it stays") };
            assert_eq!((case.q.offset, case.o.offset), (0, offset));
            // V in e4m3 is copied from wherever it starts.
            let is_lowered = backend == BackendKind::Sim && dtype == DType::F16;
            assert_eq!(case.v.offset, if is_lowered { 4 } else { 5 });
            case.k.offset
        };
        assert_eq!(start(DType::F16, 7, BackendKind::Sim), 6);
        assert_eq!(start(DType::F16, 7, BackendKind::Cuda), 7);
        assert_eq!(start(DType::F32, 7, BackendKind::Sim), 7);
        assert_eq!(start(DType::E4m3, usize::MAX, BackendKind::Cuda) % 16, 0);
        assert_eq!(start(DType::E4m3, 7, BackendKind::Cpu), 7);
    }
}
