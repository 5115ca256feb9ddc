//! Random problems: what a seed stands for.

mod attention;
mod decode;
mod parts;
mod product;
mod spoil;

use flash_attention::BackendKind;

use self::parts::Size;
use super::case::{Case, Operation};
use super::draw::Draw;

/// What problems are drawn for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    pub(super) backend: BackendKind,
    /// Any where absent.
    pub(super) operation: Option<Operation>,
}

/// Of so many problems one is spoiled, and most of those must be refused.
const SPOILED: usize = 16;

/// The problem of a name.
pub(super) fn case(name: u64, scope: Scope) -> Case {
    let mut draw = Draw::new(name);
    let operations =
        [(5, Operation::Forward), (2, Operation::Backward), (2, Operation::Decode), (1, Operation::Gemm)];
    let operation = scope.operation.unwrap_or_else(|| draw.weighted(&operations));
    let size = Size::of(scope.backend, &mut draw);
    let case = match operation {
        Operation::Forward => Case::Forward(attention::forward(&mut draw, scope.backend, size)),
        Operation::Backward => Case::Backward(attention::backward(&mut draw, scope.backend, size)),
        Operation::Decode => Case::Decode(decode::draw(&mut draw, scope.backend, size)),
        Operation::Gemm => Case::Gemm(product::draw(&mut draw, scope.backend, size)),
    };
    if draw.once_in(SPOILED) { spoil::spoil(case, &mut draw) } else { case }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::fuzz::case::{Backward, Brought, Data, HeadList};
    use flash_attention::backward::{BackwardKernel, BackwardRequest};
    use flash_attention::{Backend, DType};

    fn cases(backend: BackendKind, operation: Option<Operation>) -> Vec<Case> {
        (0..400).map(|name| case(name, Scope { backend, operation })).collect()
    }

    #[test]
    fn a_name_stands_for_one_problem() {
        for backend in BackendKind::ALL {
            assert_eq!(cases(backend, None), cases(backend, None));
            for operation in Operation::ALL {
                assert!(cases(backend, Some(operation)).iter().all(|case| case.operation() == operation));
            }
        }
    }

    #[test]
    fn every_feature_is_drawn() {
        let mut forward = 0;
        let mut met = [false; 19];
        for case in cases(BackendKind::Cuda, Some(Operation::Forward)) {
            let Case::Forward(case) = case else { unreachable!("only these were asked for") };
            forward += 1;
            let of_case = [
                case.causal,
                case.window[0].is_some(),
                case.softcap > 0.0,
                case.alibi != HeadList::Off,
                case.sinks != HeadList::Off,
                case.dropout > 0.0,
                case.group > 1,
                case.head_dim_v.is_some(),
                case.sequences.iter().any(|lengths| lengths[1] == 0),
                case.q.repeat != [false; 3],
                case.o.gaps[0] > 0 && case.o.offset == 0 && case.o.gaps[0] < 8,
                case.o.offset % 2 == 1,
                !case.run.is_empty(),
                case.dtype == DType::E4m3,
                case.descale.is_some() && case.descale_of != HeadList::Off,
                case.scores == Data::Huge,
                case.slack.is_some(),
                case.sequences.is_empty() && !case.used.is_empty(),
                !case.sequences.is_empty() && !case.used.is_empty(),
            ];
            met.iter_mut().zip(of_case).for_each(|(met, has)| *met |= has);
        }
        assert_eq!((forward, met), (400, [true; 19]));
        for backend in [BackendKind::Cpu, BackendKind::Sim] {
            let all = cases(backend, Some(Operation::Forward));
            for functions in Brought::ALL {
                let has = |case: &Case| matches!(case, Case::Forward(case) if case.functions == functions);
                assert!(all.iter().any(has), "{backend:?} {functions:?}");
            }
        }
        let mut met = [false; 10];
        for case in cases(BackendKind::Cuda, Some(Operation::Backward)) {
            let Case::Backward(case) = case else { unreachable!("only these were asked for") };
            let (forward, sinks) = (&case.forward, case.forward.sinks);
            let on_hopper = is_planned_on_hopper(&case);
            let of_case = [
                case.dlse && sinks == HeadList::Off,
                case.dlse && sinks == HeadList::Heads,
                case.dlse && sinks == HeadList::All,
                case.no_dsinks && sinks != HeadList::Off,
                on_hopper && forward.softcap > 0.0,
                on_hopper && forward.alibi != HeadList::Off,
                on_hopper && forward.scale.is_some_and(|scale| scale <= 0.0),
                on_hopper && forward.dropout > 0.0,
                on_hopper && (1..=256).contains(&case.unit_rows) && forward.seq > 256,
                on_hopper && case.limit > 0 && forward.seq > 256,
            ];
            met.iter_mut().zip(of_case).for_each(|(met, has)| *met |= has);
        }
        assert_eq!(met, [true; 10]);
    }

    /// Whether the planner's choice for a problem is `backward_sm90`.
    fn is_planned_on_hopper(case: &Backward) -> bool {
        let problem = case.problem();
        let plan =
            problem.and_then(|problem| Backend::simulator(0).plan(&problem, &BackwardRequest::default()));
        case.run.is_empty() && plan.is_ok_and(|plan| plan.kernel() == BackwardKernel::BackwardSm90)
    }
}
