//! What a played trace comes to.

use super::model::Model;
use super::service::{Service, StepRecord};
use crate::lab::{Row, Unit};

/// The figure that series are compared by.
pub(super) const ATTENTION: &str = "attention";

/// Adds the figures of a trace to its row.
pub(super) fn put(row: &mut Row, service: &Service, model: &Model) {
    let steps = &service.steps;
    let sum = |part: fn(&StepRecord) -> f64| steps.iter().map(part).sum::<f64>();
    let most = |part: fn(&StepRecord) -> usize| steps.iter().map(part).max().unwrap_or(0);
    let (attention, rest) = (sum(|step| step.attention), sum(|step| step.rest));
    let end = steps.last().map_or(0.0, |step| step.end);
    row.put("tokens a second", Unit::Count, sum(|step| step.emitted as f64) / end);
    let per_token = times_per_token(service);
    let mut first: Vec<_> = service.answers.iter().map(|answer| answer.first).collect();
    first.sort_by(f64::total_cmp);
    for (name, sorted) in [("TPOT", &per_token), ("TTFT", &first)] {
        for percent in [50, 99] {
            if let Some(value) = percentile(sorted, percent) {
                row.put(format!("{name} p{percent}"), Unit::Seconds, value);
            }
        }
    }
    row.put("attention's share", Unit::Percent, 100.0 * attention / (attention + rest));
    row.put(ATTENTION, Unit::Seconds, attention);
    row.put("rest, modelled", Unit::Seconds, rest);
    let pages = most(|step| step.pages);
    let bytes = (pages * model.page_bytes() * model.layers) as f64;
    row.put("peak cache", Unit::Bytes, bytes);
    row.put("peak pages", Unit::Count, pages as f64);
    row.put("peak batch", Unit::Count, most(|step| step.decoding) as f64);
    row.put("steps", Unit::Count, steps.len() as f64);
    row.put("preempted", Unit::Count, sum(|step| step.preempted as f64));
}

/// Of each request with more than one token, the mean time from one to the next; sorted.
pub(super) fn times_per_token(service: &Service) -> Vec<f64> {
    let answers = service.answers.iter().filter(|answer| answer.tokens > 1);
    let mut times: Vec<_> = answers.map(|answer| answer.rest / (answer.tokens - 1) as f64).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// The least value that so many percent are at most; `None` of no values.
fn percentile(sorted: &[f64], percent: usize) -> Option<f64> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use flash_attention::DType;

    use super::super::service::tests::{Counting, LIMITS, REST, request};
    use super::*;

    const MODEL: Model =
        Model { layers: 3, heads: 2, kv_heads: 1, head_dim: 8, dtype: DType::Bf16, page_size: 4, pages: 16 };

    #[test]
    fn percentiles_are_values_of_the_list() {
        let values = [1.0, 2.0, 3.0, 4.0];
        let of = |percent| percentile(&values, percent);
        assert_eq!([of(50), of(51), of(99), of(100)], [2.0, 3.0, 4.0, 4.0].map(Some));
        assert_eq!((percentile(&values[..1], 1), percentile(&[], 50)), (Some(1.0), None));
    }

    #[test]
    fn figures_follow_from_steps() {
        // A step for the prompt of 20 in 21 s; then tokens over 21 and 22 keys, in 32 and 33 s.
        let mut service = Service::new(vec![request(0.0, 20, 3)], LIMITS, REST);
        let mut player = Counting::default();
        while service.step(&mut player).unwrap() {}
        let mut row = Row::default();
        put(&mut row, &service, &MODEL);
        let figure = |name| row.figure(name).unwrap();
        assert_eq!((figure("tokens a second"), figure("steps")), (3.0 / 86.0, 3.0));
        assert_eq!((figure("TPOT p50"), figure("TTFT p99")), (32.5, 21.0));
        assert_eq!((figure(ATTENTION), figure("rest, modelled")), (46.0, 40.0));
        assert_eq!(figure("attention's share"), 100.0 * 46.0 / 86.0);
        // 22 keys of K and V in 6 pages of 4, 16 bytes a row, 3 layers.
        assert_eq!((figure("peak pages"), figure("peak cache")), (6.0, 6.0 * 4.0 * 32.0 * 3.0));
        assert_eq!((figure("preempted"), figure("peak batch")), (0.0, 1.0));
    }
}
