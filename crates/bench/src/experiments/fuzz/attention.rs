//! Forward problems, dense and packed.

use fa_kernels::entries::entries;
use flash_attention::accuracy::Accuracy;
use flash_attention::forward::{Descale, Dropout, Factor};
use flash_attention::reference::{self, Row};
use flash_attention::{
    DType, Device, Element, Kernel, Options, Plan, Problem, Request, TensorLayout, Tensors,
};

use super::bench::{Bench, judged, rows_to_check};
use super::case::{Attention, Data, HeadList};
use super::data::{Source, huge};
use super::draw::Draw;
use super::image::{Image, Slot, Written};
use super::machine::{Extras, FactorLists, ForwardCall, HeadLists, Machine, Memory};
use super::outcome::{Failure, Kind, Stop};
use super::place::{Place, spoiled};
use crate::check::sample;
use crate::measure::with_element;
use crate::problem::{alibi_slopes, sinks};

impl Attention {
    pub(super) fn heads(&self) -> usize {
        self.kv_heads.saturating_mul(self.group)
    }

    /// First rows of the sequences and what follows the last, of queries or keys.
    fn offsets(&self, side: usize) -> Vec<u32> {
        let mut offsets = vec![0_u32];
        for lengths in &self.sequences {
            let next = u64::from(offsets[offsets.len() - 1]).saturating_add(lengths[side] as u64);
            offsets.push(u32::try_from(next).unwrap_or(u32::MAX));
        }
        offsets
    }

    pub(super) fn tensors(&self) -> Tensors {
        let (mut batch, mut seq, mut kv_seq) = (self.batch, self.seq, self.kv_seq);
        if !self.sequences.is_empty() {
            let total = |side: usize| {
                let lengths = self.sequences.iter().map(|lengths| lengths[side]);
                lengths.fold(self.tail[side], usize::saturating_add)
            };
            (batch, seq, kv_seq) = (1, total(0), total(1));
        }
        let (head_dim, head_dim_v) = (self.head_dim, self.head_dim_v.unwrap_or(self.head_dim));
        let layout = |name, place: &Place, shape| spoiled(&self.spoil, name, place.layout(shape));
        Tensors {
            q: layout("q", &self.q, [batch, seq, self.heads(), head_dim]),
            k: layout("k", &self.k, [batch, kv_seq, self.kv_heads, head_dim]),
            v: layout("v", &self.v, [batch, kv_seq, self.kv_heads, head_dim_v]),
            o: layout("o", &self.o, [batch, seq, self.heads(), head_dim_v]),
        }
    }

    /// The same problem where a plan is not to know the offsets of its packed batch, or the used keys.
    pub(super) fn bounded(&self, problem: &Problem) -> flash_attention::Result<Option<Problem>> {
        let has_lengths = problem.is_packed() || problem.has_seqused_k();
        let Some(slack) = self.slack.filter(|_| has_lengths) else { return Ok(None) };
        let bounds = (problem.seqlen_q() + slack, problem.seqlen_k() + slack);
        problem.on_device(bounds).map(Some)
    }

    fn sequences(&self) -> usize {
        if self.sequences.is_empty() { self.batch } else { self.sequences.len() }
    }

    /// Factors of Q, K and V.
    fn factors(&self) -> Option<[Factor; 3]> {
        let of = |factor: f32| match self.descale_of.len(self.kv_heads, self.sequences()) {
            Some(len) => Factor::Heads((0..len).map(|index| factor * [1.0, 0.5, 1.3][index % 3]).collect()),
            None => Factor::Tensor(factor),
        };
        self.descale.map(|factors| factors.map(of))
    }

    fn options(&self) -> Options {
        let sequences = self.sequences();
        let values = |list: HeadList| list.len(self.heads(), sequences);
        let seed = self.seed.0;
        Options {
            causal: self.causal,
            softmax_scale: softmax_scale(self.scale, self.scores, self.dtype, self.head_dim),
            window: (self.window[0], self.window[1]),
            softcap: self.softcap,
            alibi_slopes: values(self.alibi).map(alibi_slopes),
            sinks: values(self.sinks).map(sinks),
            descale: self.factors().map(|[q, k, v]| Descale { q, k, v }),
            dropout: (self.dropout != 0.0).then_some(Dropout {
                probability: self.dropout,
                seed,
                offset: (seed >> 40) as u32,
            }),
            functions: self.functions(sequences),
            ..Options::default()
        }
    }

    /// The problem, if it is one.
    pub(super) fn problem(&self) -> flash_attention::Result<Problem> {
        let (tensors, options) = (self.tensors(), self.options());
        let problem = if self.sequences.is_empty() {
            Problem::new(tensors, self.dtype, options)?
        } else {
            Problem::varlen(tensors, self.dtype, options, &self.offsets(0), &self.offsets(1))?
        };
        if self.used.is_empty() {
            return Ok(problem);
        }
        let used: Vec<i32> = self.used.iter().map(|&used| i32::try_from(used).unwrap_or(i32::MAX)).collect();
        problem.with_seqused_k(&used)
    }
}

/// softmax_scale, so that scores of `Huge` elements are of the size of others.
pub(super) fn softmax_scale(scale: Option<f32>, data: Data, dtype: DType, head_dim: usize) -> Option<f32> {
    if data != Data::Huge {
        return scale;
    }
    let magnitude = huge(dtype);
    Some(scale.unwrap_or(1.0 / (head_dim as f32).sqrt()) / (magnitude * magnitude))
}

/// Whether scores and outputs stay small enough to be judged: whoever asks for more gets infinity by right.
pub(super) fn check_range(problem: &Problem, data: Data) -> Result<(), Stop> {
    const LARGEST: f32 = 1e6;
    let magnitude = if data == Data::Huge { huge(problem.dtype()) } else { 1.0 };
    let score = problem.softmax_scale().abs() * problem.head_dim() as f32 * magnitude * magnitude;
    if score > LARGEST || problem.v_descale() > LARGEST { Err(Stop::Large) } else { Ok(()) }
}

/// The plan that a kernel or entry and a tile ask for, with the lengths that it may not have known.
fn planned(problem: &Problem, device: &Device, case: &Attention) -> Result<Plan, Stop> {
    let Some(bounded) = case.bounded(problem)? else { return chosen(problem, device, case) };
    let mut plan = chosen(&bounded, device, case)?;
    if let Some((q, k)) = problem.cu_seqlens() {
        plan = plan.with_cu_seqlens(q, k)?;
    }
    if let Some(used) = problem.seqused_k() {
        plan = plan.with_seqused_k(used)?;
    }
    Ok(plan)
}

fn chosen(problem: &Problem, device: &Device, case: &Attention) -> Result<Plan, Stop> {
    if let Some(entry) = entries().find(|entry| entry.name == case.run) {
        return Ok(Plan::of_entry(problem, device, entry)?);
    }
    let [block_m, block_n] = case.block.map(|block| Some(block).filter(|&block| block > 0));
    let request = Request {
        kernel: named(&case.run, &Kernel::ALL, Kernel::name)?,
        block_m,
        block_n,
        batch_invariant: case.batch_invariant,
    };
    Ok(Plan::new(problem, device, &request)?)
}

/// The kernel of a name, or none for an empty one.
pub(super) fn named<T: Copy>(name: &str, all: &[T], of: fn(T) -> &'static str) -> Result<Option<T>, Stop> {
    if name.is_empty() {
        return Ok(None);
    }
    let found = all.iter().copied().find(|&kernel| of(kernel) == name);
    found.map(Some).ok_or_else(|| Stop::Refused(format!("{name} is no kernel or entry of this operation")))
}

pub(super) fn run<M: Machine>(bench: &mut Bench<M>, case: &Attention) -> Result<(), Stop> {
    with_element!(case.dtype, typed(bench, case))
}

fn typed<T: Element>(bench: &mut Bench<impl Machine>, case: &Attention) -> Result<(), Stop> {
    let problem = case.problem()?;
    let plan = planned(&problem, bench.machine.device(), case)?;
    let Tensors { q, k, v, o } = problem.tensors();
    let spans = [q.span(), k.span(), v.span(), o.span(), problem.lse_len()];
    bench.limits().check_memory(&spans, plan.workspace_bytes())?;
    bench.limits().check_flops(problem.flops())?;
    check_range(&problem, case.scores)?;
    let (inputs, extras) = place_inputs::<T>(&mut bench.memory, case, &problem);
    let outputs = &mut bench.memory.outputs;
    let o_slot = outputs.reserve((o.span(), size_of::<T::Output>()), case.o.offset);
    let lse_slot = (!case.no_lse).then(|| outputs.reserve((problem.lse_len(), 4), case.o.offset / 2));
    outputs.fill();
    let (o, lse, schedule) = (o_slot, lse_slot, case.schedule);
    let call = ForwardCall { plan: &plan, inputs, extras, o, lse, schedule };
    bench.machine.forward::<T>(&call, &mut bench.memory)?;
    check_outputs::<T::Output>(&bench.memory.outputs, &problem, o_slot, lse_slot)?;
    Ok(judge::<T>(&bench.memory, &problem, &plan, (inputs, o_slot, lse_slot), case.seed.0)?)
}

/// Q, K and V with their elements, and what the problem has beside them, in places of their own.
pub(super) fn place_inputs<T: Element>(
    memory: &mut Memory,
    case: &Attention,
    problem: &Problem,
) -> ([Slot; 3], Extras) {
    let Tensors { q, k, v, .. } = problem.tensors();
    let image = &mut memory.inputs;
    let mut place = |layout: &TensorLayout, offset| image.reserve((layout.span(), size_of::<T>()), offset);
    let slots = [place(q, case.q.offset), place(k, case.k.offset), place(v, case.v.offset)];
    let words = |image: &mut Image, len| image.reserve((len, 4), case.v.offset);
    let per_head = HeadLists::reserve(problem.per_head(), image, case.v.offset);
    let factors = case.factors().unwrap_or_default();
    let factors = FactorLists::reserve(&factors, image, case.v.offset);
    let cu_seqlens = problem.cu_seqlens().map(|(q, k)| [words(image, q.len()), words(image, k.len())]);
    let seqused_k = problem.seqused_k().map(|used| words(image, used.len()));
    fill_inputs::<T>(image, case, problem, slots);
    per_head.put(image);
    factors.put(image);
    if let (Some(slots), Some((q, k))) = (cu_seqlens, problem.cu_seqlens()) {
        image.put(slots[0], q.iter().map(|offset| offset.to_ne_bytes()));
        image.put(slots[1], k.iter().map(|offset| offset.to_ne_bytes()));
    }
    if let (Some(slot), Some(used)) = (seqused_k, problem.seqused_k()) {
        image.put(slot, used.iter().map(|used| used.to_ne_bytes()));
    }
    (slots, Extras { per_head: per_head.slots, descale: factors.slots, cu_seqlens, seqused_k })
}

fn fill_inputs<T: Element>(image: &mut Image, case: &Attention, problem: &Problem, slots: [Slot; 3]) {
    let Tensors { q, k, v, .. } = problem.tensors();
    image.fill();
    let mut draw = Draw::new(case.seed.0);
    // What dropout keeps grows, and stays in the range.
    let factor = if case.values == Data::Huge { 1.0 - case.dropout } else { 1.0 };
    let (scores, values) = (Source::new(case.scores), Source { data: case.values, factor });
    let queries = query_rows(problem, q).into_iter();
    scores.fill::<T>(image, slots[0], queries, q.head_dim, &mut draw);
    scores.fill::<T>(image, slots[1], key_rows(problem, k).into_iter(), k.head_dim, &mut draw);
    values.fill::<T>(image, slots[2], key_rows(problem, v).into_iter(), v.head_dim, &mut draw);
}

/// First elements of the rows of Q or O that are a sequence's.
pub(super) fn query_rows(problem: &Problem, layout: &TensorLayout) -> Vec<usize> {
    let of =
        |batch: usize, row| (0..layout.heads).map(move |head| problem.query_index(layout, batch, row, head));
    let rows = |batch| (0..problem.query_rows(batch).len()).flat_map(move |row| of(batch, row));
    (0..problem.batch()).flat_map(rows).collect()
}

/// The same of K or V, of keys that are used.
pub(super) fn key_rows(problem: &Problem, layout: &TensorLayout) -> Vec<usize> {
    let of =
        |batch: usize, key| (0..layout.heads).map(move |head| problem.key_index(layout, batch, key, head));
    let rows = |batch| (0..problem.key_rows(batch).len()).flat_map(move |key| of(batch, key));
    (0..problem.batch()).flat_map(rows).collect()
}

/// What a forward pass writes to lse: a run of each head's for each sequence.
pub(super) fn lse_rows(problem: &Problem) -> Vec<(usize, usize)> {
    let of = |batch: usize| {
        let len = problem.query_rows(batch).len();
        let heads = if len > 0 { problem.heads() } else { 0 };
        (0..heads).map(move |head| (problem.lse_index(batch, head, 0), len))
    };
    (0..problem.batch()).flat_map(of).collect()
}

/// Checks that O and lse were written, and nothing else.
pub(super) fn check_outputs<T: Element>(
    outputs: &Image,
    problem: &Problem,
    o: Slot,
    lse: Option<Slot>,
) -> Result<(), Failure> {
    let layout = &problem.tensors().o;
    let rows = query_rows(problem, layout).into_iter().map(|first| (first, layout.head_dim)).collect();
    let mut all = vec![Written { name: "o", slot: o, size: size_of::<T>(), rows }];
    all.extend(lse.map(|slot| Written { name: "lse", slot, size: 4, rows: lse_rows(problem) }));
    outputs.check(&all)?;
    all[0].check::<T>(outputs, false)?;
    all.get(1).map_or(Ok(()), |lse| lse.check::<f32>(outputs, true))
}

fn judge<T: Element>(
    memory: &Memory,
    problem: &Problem,
    plan: &Plan,
    (inputs, o, lse): ([Slot; 3], Slot, Option<Slot>),
    seed: u64,
) -> Result<(), Failure> {
    let operations = problem.seqlen_k() * (problem.head_dim() + problem.head_dim_v());
    let rows = sample(problem, rows_to_check(operations), seed);
    let [q, k, v] = inputs.map(|slot| memory.inputs.values::<T>(slot));
    let exact = reference::rows(problem, q, k, v, &rows);
    let standard = reference::standard_rows(problem, q, k, v, &rows);
    let found = reference::gather(problem, memory.outputs.values::<T::Output>(o), &rows);
    let accuracy = Accuracy::of_output(&found, &exact, &standard);
    let columns = problem.head_dim_v();
    judged("o", &accuracy, || worst(&found, &exact.o, |index| (rows[index / columns], index % columns)))?;
    let Some(lse) = lse else { return Ok(()) };
    let lse = memory.outputs.values::<f32>(lse);
    let found: Vec<_> = rows.iter().map(|at| lse[problem.lse_index(at.batch, at.head, at.row)]).collect();
    let accuracy = Accuracy::of_lse(&found, &exact, plan.score_roundoff());
    judged("lse", &accuracy, || worst(&found, &exact.lse, |index| (rows[index], 0)))
}

/// Where the element lies that is furthest from what it should be.
pub(super) fn worst<T: Element>(found: &[T], exact: &[f64], at: impl Fn(usize) -> (Row, usize)) -> String {
    let distance = |index: &usize| {
        let error = (f64::from(found[*index].to_f32()) - exact[*index]).abs();
        if error.is_nan() { f64::INFINITY } else { error }
    };
    let worst = (0..found.len()).max_by(|a, b| distance(a).total_cmp(&distance(b)));
    worst.map_or(String::new(), |index| {
        let (Row { batch, head, row }, column) = at(index);
        let (found, exact) = (found[index].to_f32(), exact[index]);
        format!(", worst {found} in place of {exact:.6} at sequence {batch}, head {head}, row {row}, column {column}")
    })
}

/// O and lse of a problem by the CPU, for a backward pass.
pub(super) fn by_cpu<T: Element<Output = T>>(
    problem: &Problem,
    (q, k, v): (&[T], &[T], &[T]),
) -> Result<(Vec<T>, Vec<f32>), Failure> {
    let mut o = vec![T::default(); problem.tensors().o.span()];
    let mut lse = vec![0.0; problem.lse_len()];
    flash_attention::cpu::forward(problem, q, k, v, &mut o, Some(&mut lse))
        .map_err(|error| Failure::new(Kind::Fault, format!("the forward pass on the CPU: {error}")))?;
    Ok((o, lse))
}
