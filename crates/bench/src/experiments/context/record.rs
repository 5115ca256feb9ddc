//! What was measured, as rows of the experiment's document.

use flash_attention::Problem;

use super::decode::Errors;
use super::launch::TorchTime;
use super::{Args, Transport};
use crate::lab::{CheckRecord, Row, RunRecord, Unit};
use crate::problem::Layout;
use crate::record::{ProblemRecord, TimesRecord};
use crate::timer::Times;

/// How the ranks of all problems work together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) ranks: usize,
    /// All ranks are on one GPU.
    pub(super) on_one: bool,
    pub(super) contiguous: bool,
    /// Ranks have keys in their order, and no queries of their own.
    pub(super) decode: bool,
    pub(super) transport: Transport,
}

/// A problem's results.
pub(super) struct Measured {
    /// That of the forward pass.
    pub(super) problem: Problem,
    pub(super) pass: &'static str,
    /// Of a run: operations of products, or bytes where these bind; in units for each second.
    pub(super) work: (Unit, f64),
    /// Of one GPU, of each by itself, and of all together: a turn's seconds for one run. Where ranks share
    /// one GPU, there is no second.
    pub(super) times: [Times; 3],
    /// Beside the tensors, of the rank that takes the most.
    pub(super) extra_bytes: usize,
    pub(super) reasons: Vec<String>,
    pub(super) checked_runs: usize,
    pub(super) verdict: Verdict,
    /// Of the slowest rank without the others, where ranks share one GPU.
    pub(super) slowest_rank: Option<Times>,
}

/// Whether ranks compute what is right.
pub(super) enum Verdict {
    /// They have one GPU's bits, but for the first difference, in a run.
    Bits(Option<(String, usize)>),
    /// They are as near to what is exact as the rule says.
    Errors(Errors),
}

impl Verdict {
    /// What is wrong, if anything is.
    fn failure(&self) -> Option<String> {
        match self {
            Self::Bits(difference) => {
                difference.as_ref().map(|(what, run)| format!("{what} is not one GPU's, run {run}"))
            }
            Self::Errors(errors) => errors.failure.clone(),
        }
    }
}

impl Setting {
    pub(super) const fn new(args: &Args, transport: Transport) -> Self {
        let Args { gpus: ranks, on_one, contiguous, decode, .. } = *args;
        Self { ranks, on_one, contiguous, decode, transport }
    }

    const fn gpus(&self) -> usize {
        if self.on_one { 1 } else { self.ranks }
    }

    /// The side of all ranks.
    fn together(&self) -> String {
        let cut = if self.contiguous { ", contiguous" } else { "" };
        let place = if self.on_one { ", on one GPU" } else { "" };
        format!("together, {}{cut}{place}", self.transport.name())
    }

    /// All of it in a line.
    pub(super) fn note(&self) -> String {
        let partition = if self.contiguous || self.decode { "contiguous" } else { "zigzag" };
        let (ranks, gpus, transport) = (self.ranks, self.gpus(), self.transport.name());
        format!("ranks: {ranks}, GPUs: {gpus}, partition: {partition}, transport: {transport}")
    }
}

impl Measured {
    /// Whether all that was checked is right.
    pub(super) fn passed(&self) -> bool {
        self.verdict.failure().is_none()
    }

    /// What is the same for all sides.
    fn case(&self) -> String {
        let problem = &self.problem;
        let pass = if self.pass == "forward" { String::new() } else { format!("{} ", self.pass) };
        format!("{pass}H={} Hkv={} S={}", problem.heads(), problem.kv_heads(), problem.seqlen_k())
    }

    fn row(&self, series: &str, gpus: usize) -> Row {
        let mut row = Row {
            case: self.case(),
            series: series.to_owned(),
            x: Some(self.problem.seqlen_k() as f64),
            problem: Some(ProblemRecord::new(&self.problem, Layout::Bshd)),
            ..Row::default()
        };
        row.put("GPUs", Unit::Count, gpus as f64);
        row
    }

    /// A row of each side that was timed.
    pub(super) fn rows(&self, setting: &Setting) -> Vec<Row> {
        let problem = &self.problem;
        let gpus = setting.gpus();
        let linear = gpus as f64;
        let [one, independent, together] = &self.times;
        let (one_s, together_s) = (one.median(), together.median());
        let (unit, amount) = self.work;
        let side = |series: &str, gpus: usize, times: &Times, speed: f64| {
            let mut row = self.row(series, gpus);
            row.measurement = Some(RunRecord::of_times(TimesRecord::new(times)));
            row.put("a GPU", unit, speed);
            row
        };
        let one = side("one GPU", 1, one, amount / one_s);
        let mut rows = vec![one];
        let mut together = side(&setting.together(), gpus, together, amount / together_s / linear);
        together.put("of linear", Unit::Percent, 100.0 * one_s / (linear * together_s));
        if !setting.on_one {
            let independent_s = independent.median();
            let mut independent = side("each by itself", gpus, independent, amount / independent_s);
            independent.put("of linear", Unit::Percent, 100.0 * one_s / independent_s);
            rows.push(independent);
            together.put("of each by itself", Unit::Percent, 100.0 * independent_s / (linear * together_s));
        }
        if let Some(slowest_s) = self.slowest_rank.as_ref().map(Times::median) {
            together.put("slowest rank alone", Unit::Seconds, slowest_s);
            let predicted = one_s / (setting.ranks as f64 * slowest_s);
            together.put("predicted of linear", Unit::Percent, 100.0 * predicted);
        }
        together.put("extra memory", Unit::Bytes, self.extra_bytes as f64);
        together.put("checked runs", Unit::Count, self.checked_runs as f64);
        together.measurement.iter_mut().for_each(|run| run.extra_bytes = Some(self.extra_bytes as u64));
        let checked = problem.batch() * problem.heads() * problem.seqlen_q();
        let check = match &self.verdict {
            Verdict::Bits(difference) => CheckRecord::of_bits(checked, difference.is_none()),
            Verdict::Errors(errors) => {
                together.put("error of what it may be", Unit::Times, errors.of_bound);
                together.put("difference from one GPU of the same", Unit::Times, errors.difference_of_bound);
                CheckRecord::of_bits(checked, errors.failure.is_none())
            }
        };
        together.check = (self.checked_runs > 0).then_some(check);
        rows.push(together);
        rows
    }

    /// How the ranks compute it, and in what they differ from one GPU.
    pub(super) fn notes(&self) -> Vec<String> {
        let case = self.case();
        let how = format!("{case}: {}", self.reasons.join("; "));
        let failure = self.verdict.failure().map(|what| format!("{case}: {what}"));
        [how].into_iter().chain(failure).collect()
    }

    /// PyTorch's row of the same problem.
    pub(super) fn torch_row(&self, ranks: usize, time: &TorchTime) -> Row {
        let series = format!("PyTorch context_parallel, {}", time.backend);
        let mut row = self.row(&series, ranks);
        let Some(seconds) = time.seconds else {
            row.not_run = Some(time.error.clone().unwrap_or_else(|| "it said no time".to_owned()));
            return row;
        };
        let times = Times { warmup_runs: 1, seconds: vec![seconds] };
        row.measurement = Some(RunRecord::of_times(TimesRecord::new(&times)));
        row.put("a GPU", Unit::Flops, self.work.1 / seconds / ranks as f64);
        row.put("of together's time", Unit::Times, seconds / self.times[2].median());
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash_attention::{DType, Options, Tensors};

    const SETTING: Setting =
        Setting { ranks: 4, on_one: false, contiguous: false, decode: false, transport: Transport::Peer };

    fn times(seconds: [f64; 3]) -> Times {
        Times { warmup_runs: 5, seconds: seconds.to_vec() }
    }

    fn measured() -> Measured {
        let of = |heads| Layout::Bshd.tensor(2, 100, heads, 128);
        let options = Options { causal: true, ..Options::default() };
        let tensors = Tensors { q: of(6), k: of(2), v: of(2), o: of(6) };
        let problem = Problem::new(tensors, DType::Bf16, options).unwrap();
        Measured {
            work: (Unit::Flops, problem.flops()),
            problem,
            pass: "forward",
            times: [times([8.0, 9.0, 7.0]), times([10.0; 3]), times([2.0, 2.5, 1.0])],
            extra_bytes: 4096,
            reasons: vec!["a".to_owned(), "b".to_owned()],
            checked_runs: 3,
            verdict: Verdict::Bits(None),
            slowest_rank: None,
        }
    }

    #[test]
    fn rows_have_all_that_was_measured() {
        let measured = measured();
        let [one, independent, together]: [Row; 3] = measured.rows(&SETTING).try_into().unwrap();
        for row in [&one, &independent, &together] {
            let problem = row.problem.as_ref().unwrap();
            assert_eq!((&*row.case, row.x), ("H=6 Hkv=2 S=100", Some(100.0)));
            assert_eq!((problem.sizes(), problem.seq), ([2, 6, 2], 100));
            assert_eq!(row.measurement.as_ref().unwrap().times.times_s.len(), 3);
        }
        assert_eq!([&one, &independent, &together].map(|row| row.figure("GPUs").unwrap()), [1.0, 4.0, 4.0]);
        assert_eq!([&one, &independent].map(|row| &*row.series), ["one GPU", "each by itself"]);
        assert_eq!(together.series, "together, peer");
        let flops = measured.problem.flops();
        let speeds = [&one, &independent, &together].map(|row| row.figure("a GPU").unwrap());
        assert_eq!(speeds, [flops / 8.0, flops / 10.0, flops / 2.0 / 4.0]);
        assert_eq!(together.figure("of linear"), Some(100.0));
        assert_eq!(together.figure("of each by itself"), Some(125.0));
        assert_eq!((independent.figure("of linear"), one.figure("of linear")), (Some(80.0), None));
        assert_eq!(together.figure("checked runs"), Some(3.0));
        assert_eq!(together.measurement.as_ref().unwrap().extra_bytes, Some(4096));
        assert!(together.check.unwrap().passed && one.check.is_none());
        assert_eq!(measured.notes(), ["H=6 Hkv=2 S=100: a; b"]);
        // A kernel's speed is of one GPU: nothing else here may pass for it.
        assert!([one, independent, together].iter().all(|row| row.flops().is_none()));
    }

    #[test]
    fn bits_that_differ_fail_and_are_named() {
        let difference = Some(("O of rank 1, element 5".to_owned(), 3));
        let measured = Measured { verdict: Verdict::Bits(difference), ..measured() };
        assert!(!measured.rows(&SETTING)[2].check.as_ref().unwrap().passed);
        assert_eq!(measured.notes()[1], "H=6 Hkv=2 S=100: O of rank 1, element 5 is not one GPU's, run 3");
        let unchecked = Measured { checked_runs: 0, verdict: Verdict::Bits(None), ..measured };
        assert!(unchecked.rows(&SETTING)[2].check.is_none());
    }

    #[test]
    fn ranks_on_one_gpu_predict_what_several_do() {
        let measured = Measured { slowest_rank: Some(times([3.0, 2.5, 2.0])), ..measured() };
        let rows = measured.rows(&Setting { on_one: true, contiguous: true, ..SETTING });
        let [_, together]: [Row; 2] = rows.try_into().unwrap();
        assert_eq!(together.series, "together, peer, contiguous, on one GPU");
        assert_eq!((together.figure("GPUs"), together.figure("of linear")), (Some(1.0), Some(400.0)));
        assert_eq!(together.figure("predicted of linear"), Some(80.0));
        assert_eq!(together.figure("slowest rank alone"), Some(2.5));
    }

    #[test]
    fn pytorch_has_a_row_with_a_time_or_a_reason() {
        let measured = measured();
        let time = |seconds, error: Option<&str>| TorchTime {
            problem: 0,
            backend: "cudnn".to_owned(),
            version: "2.11.0".to_owned(),
            seconds,
            error: error.map(str::to_owned),
        };
        let row = measured.torch_row(4, &time(Some(3.0), None));
        assert_eq!((&*row.series, row.median()), ("PyTorch context_parallel, cudnn", Some(3.0)));
        assert_eq!(row.figure("a GPU"), Some(measured.problem.flops() / 12.0));
        assert_eq!((row.figure("of together's time"), row.figure("GPUs")), (Some(1.5), Some(4.0)));
        let row = measured.torch_row(4, &time(None, Some("no room")));
        assert_eq!((row.not_run.as_deref(), row.measurement.is_none()), (Some("no room"), true));
    }
}
