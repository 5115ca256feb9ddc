//! A service's requests played against the attention kernels alone: continuous batching, chunked prefill and
//! pages, with all else of a step modelled.

mod gpu;
mod kernels;
mod model;
mod peer;
mod plot;
mod report;
mod scheduler;
mod service;
mod trace;

use std::fs;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context as _, Result};
use flash_attention::{BackendKind, DType, Element};

use self::gpu::OnGpu;
use self::kernels::{Engine, Kernels, OnHost};
use self::model::{LayerTensors, Model, Room};
use self::plot::Plot;
use self::scheduler::{Limits, Scheduler};
use self::service::{Player, Rest, Service};
use self::trace::{Request, Source};
use crate::args::{BackendArgs, Choice, LabArgs, MeasureArgs, ReportArgs, at_least_one, named};
use crate::failure::usage;
use crate::interrupt;
use crate::json::check_writable;
use crate::lab::{self, CheckRecord, Lab, Recipe, Row, Shared, Unit};
use crate::measure::with_element;
use crate::output::Progress;
use crate::peer::{Implementation, ServeCall};

const RECIPE: Recipe = Recipe {
    name: "serve",
    what: "a trace of requests against the attention kernels: tokens a second, and what share of a step attention is",
    reported_elsewhere: None,
    axis: None,
    iterations: 1,
    scaled: true,
};

/// The series of the library's kernels.
const OURS: &str = "flash-attention";

/// Steps of one series before the next one's turn.
const TURN: usize = 32;

/// Arguments of `serve`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Whose lengths: of the Azure LLM inference trace of 2023
    #[arg(long, default_value = "conversation", value_parser = named(&Source::ALL, Source::name))]
    trace: Source,
    /// Requests [default: 256; cpu: 8; sim: 3]
    #[arg(long, value_parser = count(1, 1 << 20))]
    requests: Option<usize>,
    /// Requests a second, at random times (Poisson) [default: all are there at the beginning]
    #[arg(long, value_name = "RATE", allow_negative_numbers = true, value_parser = positive)]
    rate: Option<f64>,
    /// Divide all lengths by this [default: 1; cpu: 16; sim: 64]
    #[arg(long, value_name = "FACTOR", value_parser = at_least_one)]
    shrink: Option<usize>,
    /// Tokens of a request and its answer at most
    #[arg(long, value_name = "TOKENS", default_value_t = 8192, value_parser = count(2, 1 << 24))]
    context: usize,
    /// Tokens that a step computes at most; prompts are cut to it
    #[arg(long, value_name = "TOKENS", default_value_t = 2048, value_parser = count(1, 1 << 20))]
    step_tokens: usize,
    /// Sequences that run at a time at most [default: 256, or --step-tokens if that is less]
    #[arg(long, value_name = "SEQUENCES", value_parser = count(1, 1 << 20))]
    max_batch: Option<usize>,
    /// Keys of a page
    #[arg(long, value_name = "ROWS", default_value_t = 16, value_parser = count(1, 1 << 24))]
    page_size: usize,
    /// Pages of the pool [default: those of 131072 keys; cpu: 4096; sim: 1024]
    #[arg(long, value_parser = count(1, 1 << 28))]
    pages: Option<usize>,
    /// Layers of the model [default: 32; cpu: 2; sim: 1]
    #[arg(long, value_parser = count(1, 1024))]
    layers: Option<usize>,
    /// Query heads [default: 32; cpu: 8; sim: 4]
    #[arg(long)]
    heads: Option<usize>,
    /// Key/value heads; they divide the query heads [default: 8; cpu: 2; sim: 1]
    #[arg(long)]
    kv_heads: Option<usize>,
    /// Elements of a row of Q, K, V and O: head_dim, 1 to 256 [default: 128; cpu, sim: 64]
    #[arg(long, alias = "head-dim")]
    dim: Option<usize>,
    /// Storage type of Q, K, V and O
    #[arg(long, default_value = "bf16", value_parser = named(&DType::RESULTS, DType::name))]
    dtype: DType,
    /// Parameters of the model, in 2 bytes each, by which the rest of a step is modelled
    #[arg(long, value_name = "COUNT", default_value_t = 8.03e9)]
    #[arg(allow_negative_numbers = true, value_parser = positive)]
    parameters: f64,
    /// TB/s at which a step reads the weights [default: the GPU's by its clock; elsewhere 4.8, an H200's]
    #[arg(long, value_name = "TB/S", allow_negative_numbers = true, value_parser = positive)]
    bandwidth: Option<f64>,
    /// TFLOP/s at which a step multiplies by the weights
    #[arg(long, value_name = "TFLOP/S", default_value_t = 989.0)]
    #[arg(allow_negative_numbers = true, value_parser = positive)]
    peak: f64,
    /// Draw the played trace as SVG
    #[arg(long, value_name = "PATH")]
    svg: Option<PathBuf>,
    /// Also play the trace with PyTorch's kernels, in turns with these, in the Python named [default:
    /// python3]
    #[arg(long, value_name = "torch[=PYTHON]", value_parser = Choice::parse)]
    peer: Option<Choice>,
    /// Run on the simulator however long it may take
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// A trace with what it is played on.
struct Setting {
    case: String,
    requests: Vec<Request>,
    limits: Limits,
    model: Model,
    rest: Rest,
}

/// A series on its way.
struct Contender<'a> {
    series: String,
    service: Service,
    player: &'a mut dyn Player,
    /// Why it stopped before the end.
    refused: Option<String>,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    args.svg.as_deref().map_or(Ok(()), check_writable)?;
    lab::run(&RECIPE, &args.lab(), shared, |lab| {
        lab.compare_with(&peer::RIVALS);
        let setting = args.setting(lab)?;
        setting.check(lab, args)?;
        setting.say(lab)?;
        with_element!(args.dtype, play(lab, args, &setting))
    })
}

/// Plays the trace with the library's kernels, and in turns with the peer's.
fn play<T: Element>(lab: &mut Lab, args: &Args, setting: &Setting) -> Result<()> {
    let session = Rc::clone(&lab.session);
    let tensors = LayerTensors::<T>::random(&setting.model, setting.limits.step_tokens, lab.seed);
    let (model, tensors) = (setting.model, &tensors);
    let Some(cuda) = session.backend.as_cuda() else {
        lab.note("each layer reads the same cache");
        let engine = OnHost { backend: &session.backend, model, tensors };
        return play_with(
            lab,
            args,
            setting,
            Kernels::new(&session.backend, model, tensors, engine, lab.seed),
        );
    };
    let engine = OnGpu::new(cuda, model, &setting.room(), tensors)?;
    let (caches, layers) = (engine.caches, model.layers);
    if caches < layers {
        lab.note(format!(
            "memory holds the caches of {caches} of {layers} layers, and the others take turns with them"
        ));
    }
    play_with(lab, args, setting, Kernels::new(&session.backend, model, tensors, engine, lab.seed))
}

fn play_with<T: Element, E: Engine<T>>(
    lab: &mut Lab,
    args: &Args,
    setting: &Setting,
    mut kernels: Kernels<'_, T, E>,
) -> Result<()> {
    let mut rows = Vec::new();
    let mut ready = Vec::new();
    for (series, prepared) in peer::prepare(lab, setting.of_peer())? {
        match prepared {
            Ok(player) => ready.push((series, player)),
            Err(reason) => rows.push(Row::refused(&setting.case, &series, reason)),
        }
    }
    let mut contenders = vec![setting.contender(OURS.to_owned(), &mut kernels)];
    contenders.extend(ready.iter_mut().map(|(series, player)| setting.contender(series.clone(), player)));
    let progress = lab.progress(contenders.len() * setting.requests.len(), &setting.case);
    in_turns(&mut contenders, &progress)?;
    drop(progress);
    if let Some(path) = &args.svg {
        let title = format!("{} on {}: {OURS}", setting.case, lab.session.device().name);
        draw(path, title, setting, &contenders)?;
        lab.note(format!("{} is the plot", path.display()));
    }
    let mut played = rows_of(setting, contenders);
    played[0].check = kernels.verdict.as_ref().map(CheckRecord::new);
    played.into_iter().chain(rows).try_for_each(|row| lab.push(row).map(drop))?;
    lab.forget_peer_inputs()?;
    setting.explain(lab);
    Ok(())
}

/// Plays all to their end, some steps of each at a time.
fn in_turns(contenders: &mut [Contender<'_>], progress: &Progress) -> Result<()> {
    let mut left = true;
    while left {
        left = false;
        for (index, contender) in contenders.iter_mut().enumerate() {
            interrupt::check()?;
            let before = contender.service.ended();
            match contender.turn() {
                Ok(more) => left |= more,
                // A peer may refuse late; our own kernels may not.
                Err(error) if index > 0 => contender.refused = Some(format!("{error:#}")),
                Err(error) => return Err(error),
            }
            progress.advance(contender.service.ended() - before);
        }
    }
    Ok(())
}

impl Contender<'_> {
    /// Plays some steps; false where none is left.
    fn turn(&mut self) -> Result<bool> {
        for _ in 0..TURN {
            if self.refused.is_some() || !self.service.step(self.player)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A row for each, the library's first.
fn rows_of(setting: &Setting, contenders: Vec<Contender<'_>>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for Contender { series, service, refused, .. } in contenders {
        if let Some(reason) = refused {
            rows.push(Row::refused(&setting.case, &series, reason));
            continue;
        }
        let mut row = Row { case: setting.case.clone(), series, ..Row::default() };
        report::put(&mut row, &service, &setting.model);
        let attention = |row: &Row| row.figure(report::ATTENTION);
        if let (Some(ours), Some(theirs)) = (rows.first().and_then(attention), attention(&row)) {
            row.put(format!("its attention over {OURS}'s"), Unit::Times, theirs / ours);
        }
        rows.push(row);
    }
    rows
}

fn draw(path: &PathBuf, title: String, setting: &Setting, contenders: &[Contender<'_>]) -> Result<()> {
    let played = contenders.iter().filter(|contender| contender.refused.is_none());
    let times = played.map(|one| (one.series.clone(), report::times_per_token(&one.service))).collect();
    let plot = Plot { title, service: &contenders[0].service, pages: setting.limits.pages, times };
    fs::write(path, plot.svg()?).with_context(|| format!("{}: cannot be written", path.display()))
}

impl Setting {
    fn contender<'a>(&self, series: String, player: &'a mut dyn Player) -> Contender<'a> {
        let service = Service::new(self.requests.clone(), self.limits, self.rest);
        Contender { series, service, player, refused: None }
    }

    /// What a step has at most.
    fn room(&self) -> Room {
        let keys = self.requests.iter().map(|request| request.prompt + request.output);
        Room {
            rows: self.limits.step_tokens,
            sequences: self.limits.max_batch.min(self.requests.len()),
            keys: keys.max().unwrap_or(1),
        }
    }

    /// What the peer is asked for, but for whose attention it is.
    fn of_peer(&self) -> ServeCall {
        let Model { layers, heads, kv_heads, head_dim, dtype, .. } = self.model;
        let Room { rows, sequences, keys } = self.room();
        ServeCall {
            layers,
            sequences,
            rows,
            keys,
            heads,
            kv_heads,
            head_dim,
            dtype,
            softmax_scale: 1.0 / (head_dim as f32).sqrt(),
            implementation: Implementation::Default,
        }
    }

    /// Refuses what no kernel takes, no memory holds, or the simulator needs too long for.
    fn check(&self, lab: &Lab, args: &Args) -> Result<()> {
        let Self { limits, model, requests, .. } = self;
        if limits.step_tokens < limits.max_batch {
            return Err(usage(format!(
                "--step-tokens {} is less than --max-batch {}: each sequence needs a token of a step",
                limits.step_tokens, limits.max_batch
            )));
        }
        model.check(&lab.session.backend)?;
        if let Some(request) = requests.iter().find(|request| !Scheduler::holds(limits, request)) {
            return Err(usage(format!(
                "--pages {}: with {} keys each they hold {} keys, and a request needs {}",
                limits.pages,
                limits.page_size,
                limits.pages * limits.page_size,
                request.prompt + request.output - 1
            )));
        }
        let flops = requests.iter().map(|request| model.flops(request.prompt + request.output)).sum();
        lab.session.check_flops(flops, 1, &lab.effort, &args.lab().measure)?;
        Ok(lab.session.check_bytes("one layer", model.layer_bytes(limits.step_tokens))?)
    }

    fn say(&self, lab: &Lab) -> Result<()> {
        let Self { requests, limits, model, rest, .. } = self;
        let sum = |part: fn(&Request) -> usize| requests.iter().map(part).sum::<usize>();
        lab.line(format!(
            "trace: {} requests, {} tokens of prompts and {} of answers",
            requests.len(),
            sum(|request| request.prompt),
            sum(|request| request.output)
        ))?;
        lab.line(format!(
            "model: {} layers, H={} Hkv={} D={} {}; a pool of {} pages with {} keys each",
            model.layers,
            model.heads,
            model.kv_heads,
            model.head_dim,
            model.dtype,
            limits.pages,
            limits.page_size
        ))?;
        lab.line(format!(
            "the rest of a step, modelled: {:.2e} parameters in 2 bytes at {:.2} TB/s, or their products at {:.0} \
             TFLOP/s, whichever takes longer",
            rest.parameters,
            rest.bandwidth / 1e12,
            rest.flops / 1e12
        ))
    }

    /// What a reader of the figures must know.
    fn explain(&self, lab: &mut Lab) {
        lab.note("attention is measured; the rest of each step is modelled, and nothing else takes time");
        if lab.kind() != BackendKind::Cuda {
            lab.note("attention ran on no GPU: beside a GPU's model of the rest its share means nothing");
        }
        if lab.peer().is_some() {
            lab.note(
                "the peer reads K and V padded to the longest sequence of a step, one layer's for all, under a mask",
            );
        }
    }
}

impl Args {
    /// As the lab takes them: it repeats nothing here.
    fn lab(&self) -> LabArgs {
        LabArgs {
            peer: self.peer.clone(),
            backend: self.backend.clone(),
            measure: MeasureArgs { warmup: Some(0), iterations: Some(1), budget: 0.0, force: self.force },
            report: self.report.clone(),
        }
    }

    fn setting(&self, lab: &Lab) -> Result<Setting> {
        let recipe = trace::Recipe {
            source: self.trace,
            requests: self.requests.unwrap_or(lab.pick(256, 8, 3)),
            rate: self.rate,
            context: self.context,
            shrink: self.shrink.unwrap_or(lab.pick(1, 16, 64)),
        };
        let arrivals = self.rate.map_or_else(|| "offline".to_owned(), |rate| format!("at {rate}/s"));
        let shrunk = if recipe.shrink > 1 { format!(" / {}", recipe.shrink) } else { String::new() };
        let pages = self.pages.unwrap_or(lab.pick(131_072, 4096, 1024_usize).div_ceil(self.page_size));
        let device = lab.session.device().memory_bandwidth as f64;
        let bandwidth = self.bandwidth.map(|terabytes| 1e12 * terabytes);
        Ok(Setting {
            case: format!("{}{shrunk} {arrivals}", self.trace.name()),
            requests: recipe.draw(lab.seed),
            limits: Limits {
                step_tokens: self.step_tokens,
                max_batch: self.max_batch.unwrap_or(self.step_tokens.min(256)),
                page_size: self.page_size,
                pages,
            },
            model: Model {
                layers: self.layers.unwrap_or(lab.pick(32, 2, 1)),
                heads: self.heads.unwrap_or(lab.pick(32, 8, 4)),
                kv_heads: self.kv_heads.unwrap_or(lab.pick(8, 2, 1)),
                head_dim: self.dim.unwrap_or(lab.pick(128, 64, 64)),
                dtype: self.dtype,
                page_size: self.page_size,
                pages,
            },
            rest: Rest {
                parameters: self.parameters,
                bandwidth: bandwidth.unwrap_or(if device > 0.0 { device } else { 4.8e12 }),
                flops: 1e12 * self.peak,
            },
        })
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        Ok(_) => Err("a number above 0 is needed".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a count between two limits.
fn count(least: usize, most: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse() {
        Ok(count) if (least..=most).contains(&count) => Ok(count),
        Ok(_) => Err(format!("{least} to {most} is possible")),
        Err(error) => Err(error.to_string()),
    }
}
