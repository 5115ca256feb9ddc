//! Decode problems, over contiguous and paged caches.

use flash_attention::accuracy::Accuracy;
use flash_attention::decode::{
    DecodeInputs, DecodeKernel, DecodeOptions, DecodeProblem, DecodeRequest, E4m3Cache,
};
use flash_attention::forward::Factor;
use flash_attention::reference;
use flash_attention::{DType, Element, Options, Plan, TensorLayout, Tensors};
use float8::F8E4M3;

use super::attention::{check_outputs, check_range, query_rows, softmax_scale, worst};
use super::bench::{Bench, judged, rows_to_check, unsupported};
use super::case::{Decode, HeadList, Operation};
use super::data::Source;
use super::draw::Draw;
use super::image::Slot;
use super::machine::{DecodeCall, FactorLists, HeadLists, Machine, Memory};
use super::outcome::{Failure, Stop};
use super::place::{Place, spoiled};
use crate::check::sample;
use crate::problem::{alibi_slopes, sinks};

impl Decode {
    /// Keys of the longest sequence.
    fn longest(&self) -> usize {
        self.used.iter().copied().max().unwrap_or(0)
    }

    fn is_paged(&self) -> bool {
        self.page_size > 0
    }

    /// Pages of a sequence.
    fn pages_of(&self, used: usize) -> usize {
        used.div_ceil(self.page_size.max(1))
    }

    /// Entries of each sequence in the page table.
    fn max_pages(&self) -> usize {
        self.pages_of(self.longest()).max(1).saturating_add(self.spare_entries)
    }

    /// Keys that each sequence has room for.
    fn room(&self) -> usize {
        if self.is_paged() {
            self.page_size.saturating_mul(self.max_pages())
        } else {
            self.longest().saturating_add(self.spare_keys)
        }
    }

    /// Keys of a sequence; without lengths each has all that there is room for.
    fn used(&self) -> Vec<usize> {
        if self.full { vec![self.room(); self.used.len()] } else { self.used.clone() }
    }

    /// First packed query of each sequence, and what follows the last.
    fn cu_seqlens_q(&self) -> Vec<u32> {
        let ends = self.queries.iter().scan(0_u32, |end, &len| {
            *end = end.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }

    fn problem(&self) -> flash_attention::Result<DecodeProblem> {
        let heads = self.kv_heads.saturating_mul(self.group);
        let batch = self.used.len();
        let layout = |name, place: &Place, shape| spoiled(&self.spoil, name, place.layout(shape));
        let queries = match self.queries[..] {
            [] => [batch, self.seq, heads, self.head_dim],
            _ => {
                let total = self.queries.iter().fold(0, |sum: usize, &len| sum.saturating_add(len));
                [1, total.max(1), heads, self.head_dim]
            }
        };
        let keys = if self.is_paged() {
            let pages = self.used().into_iter().map(|used| self.pages_of(used));
            let pages = pages.fold(self.spare_pages, usize::saturating_add).max(1);
            [pages, self.page_size, self.kv_heads, self.head_dim]
        } else {
            [batch, self.room(), self.kv_heads, self.head_dim]
        };
        let of_v = |[a, b, c, d]: [usize; 4]| [a, b, c, self.head_dim_v.unwrap_or(d)];
        let k = layout("k", &self.k, keys);
        let v = match self.latent {
            true => {
                let of_k = TensorLayout { head_dim: of_v(keys)[3], ..self.k.layout(keys) };
                spoiled(&self.spoil, "v", of_k)
            }
            false => layout("v", &self.v, of_v(keys)),
        };
        let tensors =
            Tensors { q: layout("q", &self.q, queries), k, v, o: layout("o", &self.o, of_v(queries)) };
        let values = |list: HeadList| list.len(heads, batch);
        let attention = Options {
            causal: self.causal,
            window: (self.window[0], self.window[1]),
            softcap: self.softcap,
            alibi_slopes: values(self.alibi).map(alibi_slopes),
            sinks: values(self.sinks).map(sinks),
            softmax_scale: softmax_scale(self.scale, self.scores, self.dtype, self.head_dim),
            ..Options::default()
        };
        let max_pages = self.is_paged().then(|| self.max_pages());
        let e4m3_cache = self.e4m3_cache.then(|| E4m3Cache {
            k_descale: self.descale(self.k_descale),
            v_descale: self.descale(self.v_descale),
        });
        let (tree_mask, latent) = (self.tree, self.latent);
        let options = DecodeOptions { attention, max_pages, e4m3_cache, tree_mask, latent };
        if self.queries.is_empty() {
            return DecodeProblem::new(tensors, self.dtype, options);
        }
        if self.on_device {
            let longest = self.queries.iter().copied().max().unwrap_or(0);
            return DecodeProblem::varlen_on_device(tensors, self.dtype, options, batch, longest);
        }
        DecodeProblem::varlen(tensors, self.dtype, options, &self.cu_seqlens_q())
    }

    /// Factors from 0.25 to 3.
    fn descale(&self, list: HeadList) -> Factor {
        let value = |index: usize| [0.5, 3.0, 0.25, 1.0, 1.3][index % 5];
        match list.len(self.kv_heads, self.used.len()) {
            Some(len) => Factor::Heads((0..len).map(value).collect()),
            None => Factor::Tensor(value(self.group)),
        }
    }

    /// The page table, whose entries behind those in use name no page.
    fn page_table(&self, pages: usize, draw: &mut Draw) -> Vec<i32> {
        let mut free: Vec<_> = (0..pages as i32).collect();
        for index in (1..free.len()).rev() {
            free.swap(index, draw.below(index + 1));
        }
        let mut table = Vec::new();
        for used in self.used() {
            let in_use = self.pages_of(used);
            for index in 0..self.max_pages() {
                let page = if index < in_use { free.pop() } else { None };
                table.push(page.unwrap_or_else(|| draw.pick(&[-1, i32::MAX, i32::MIN, pages as i32])));
            }
        }
        table
    }
}

pub(super) fn run(bench: &mut Bench<impl Machine>, case: &Decode) -> Result<(), Stop> {
    match case.dtype {
        DType::F32 => typed::<f32>(bench, case),
        DType::F16 => typed::<half::f16>(bench, case),
        DType::Bf16 => typed::<half::bf16>(bench, case),
        DType::E4m3 => {
            case.problem()?;
            Err(unsupported(Operation::Decode, DType::E4m3))
        }
    }
}

/// Lengths and page table, where the problem has them.
struct Lists {
    seqused_k: Option<Vec<i32>>,
    page_table: Option<Vec<i32>>,
    tree_mask: Option<Vec<u64>>,
}

fn typed<T: Element<Output = T>>(bench: &mut Bench<impl Machine>, case: &Decode) -> Result<(), Stop> {
    let problem = case.problem()?;
    let request = DecodeRequest {
        num_splits: Some(case.splits).filter(|&splits| splits > 0),
        batch_invariant: Some(case.batch_invariant),
        clusters: None,
        kernel: case.older.then_some(DecodeKernel::Decode),
        entry: Some(case.entry.clone()).filter(|entry| !entry.is_empty()),
    };
    let mut plan = Plan::new(&problem, bench.machine.device(), &request)?;
    let offsets = case.cu_seqlens_q();
    if case.on_device && !case.queries.is_empty() {
        plan = plan.with_cu_seqlens_q(&offsets)?;
    }
    let problem = plan.problem().clone();
    let dense = problem.dense();
    let o = dense.tensors().o;
    let entries = problem.max_pages().unwrap_or(0).saturating_mul(dense.batch());
    let spans = [dense.tensors().q, *problem.k(), *problem.v(), o].map(|layout| layout.span());
    let limits = bench.limits();
    limits.check_memory(&spans, plan.workspace_bytes())?;
    limits.check_memory(&[dense.lse_len(), entries], 0)?;
    limits.check_flops(dense.flops())?;
    check_range(dense, case.scores)?;

    let mut draw = Draw::new(case.seed.0);
    let used = || case.used().into_iter().map(|used| used as i32).collect();
    let lists = Lists {
        seqused_k: (!case.full).then(used),
        page_table: case.is_paged().then(|| case.page_table(problem.k().batch, &mut draw)),
        tree_mask: case.tree.then(|| (0..dense.batch() * case.seq).map(|_| draw.word()).collect()),
    };
    let memory = &mut bench.memory;
    let cache_bytes = problem.cache_dtype().bytes();
    let start = |offset: usize| match (case.e4m3_cache, dense.is_packed() || case.latent) {
        // A cache in e4m3 starts at multiples of 16 bytes.
        (true, _) => offset - offset % 16,
        // No other kernel takes packed queries, or latents, where tensor maps cannot start.
        (false, true) => offset - offset % 8,
        (false, false) => offset,
    };
    // Nor those over a widened cache, where no other takes that.
    let alone = plan.kernel() == DecodeKernel::ForwardSm90 && plan.unaligned().is_empty();
    let of_q = if alone || dense.is_packed() { case.q.offset - case.q.offset % 8 } else { case.q.offset };
    let inputs = [
        (dense.tensors().q, size_of::<T>(), of_q),
        (*problem.k(), cache_bytes, start(case.k.offset)),
        (*problem.v(), cache_bytes, start(case.v.offset)),
    ];
    let mut inputs =
        inputs.map(|(layout, bytes, offset)| memory.inputs.reserve((layout.span(), bytes), offset));
    if case.latent {
        inputs[2] = inputs[1];
    }
    let mut words = |list: &Option<Vec<i32>>| {
        let slot = list.as_ref().map(|list| memory.inputs.reserve((list.len(), 4), case.q.offset));
        slot.unwrap_or(inputs[0])
    };
    let (used_slot, table_slot) = (words(&lists.seqused_k), words(&lists.page_table));
    let offsets_slot = memory.inputs.reserve((offsets.len(), 4), case.q.offset);
    let mask_slot =
        lists.tree_mask.as_ref().map(|mask| memory.inputs.reserve((2 * mask.len(), 4), case.q.offset));
    let per_head = HeadLists::reserve(dense.per_head(), &mut memory.inputs, case.q.offset);
    let descales = [case.descale(case.k_descale), case.descale(case.v_descale)];
    let descales = if case.e4m3_cache { descales } else { Default::default() };
    let descales = FactorLists::reserve(&descales, &mut memory.inputs, case.q.offset);
    fill_inputs::<T>(memory, case, &problem, (&lists, inputs, [used_slot, table_slot]), &mut draw);
    per_head.put(&mut memory.inputs);
    if let (Some(mask), Some(slot)) = (&lists.tree_mask, mask_slot) {
        memory.inputs.put(
            slot,
            mask.iter().flat_map(|bits| [*bits as u32, (bits >> 32) as u32]).map(u32::to_le_bytes),
        );
    }
    memory.inputs.put(offsets_slot, offsets.iter().map(|word| word.to_ne_bytes()));
    descales.put(&mut memory.inputs);
    let outputs = &mut memory.outputs;
    let o_slot = outputs.reserve((o.span(), size_of::<T>()), case.o.offset);
    let lse_slot = (!case.no_lse).then(|| outputs.reserve((dense.lse_len(), 4), case.o.offset / 2));
    outputs.fill();
    let call = DecodeCall {
        plan: &plan,
        inputs,
        cu_seqlens_q: dense.is_packed().then_some(offsets_slot),
        seqused_k: lists.seqused_k.as_deref().map(|list| (list, used_slot)),
        page_table: lists.page_table.as_deref().map(|list| (list, table_slot)),
        tree_mask: lists.tree_mask.as_deref().zip(mask_slot),
        per_head: per_head.slots,
        descales: descales.slots,
        o: o_slot,
        lse: lse_slot,
        schedule: case.schedule,
    };
    bench.machine.decode::<T>(&call, memory)?;
    check_outputs::<T>(&memory.outputs, dense, o_slot, lse_slot)?;
    Ok(judge::<T>(memory, &problem, &call, case.seed.0)?)
}

/// Q, and what sequences use of K and V: the rest of the last page, of other pages and of a sequence's room
/// stays NaN.
fn fill_inputs<T: Element>(
    memory: &mut Memory,
    case: &Decode,
    problem: &DecodeProblem,
    (lists, slots, words): (&Lists, [Slot; 3], [Slot; 2]),
    draw: &mut Draw,
) {
    let image = &mut memory.inputs;
    image.fill();
    let dense = problem.dense();
    let q = &dense.tensors().q;
    let (scores, values) = (Source::new(case.scores), Source::new(case.values));
    scores.fill::<T>(image, slots[0], query_rows(dense, q).into_iter(), q.head_dim, draw);
    let lists_of = DecodeInputs::<T> {
        seqused_k: lists.seqused_k.as_deref(),
        page_table: lists.page_table.as_deref(),
        ..DecodeInputs::new(&[], &[], &[])
    };
    let rows = |cache: &TensorLayout| -> Vec<usize> {
        let of = |batch| {
            let keys = (0..problem.used(&lists_of, batch))
                .flat_map(|key| (0..cache.heads).map(move |head| (key, head)));
            keys.map(|(key, head)| problem.row(cache, &lists_of, batch, key, head)).collect::<Vec<_>>()
        };
        (0..dense.batch()).flat_map(of).collect()
    };
    let (k, v) = (rows(problem.k()).into_iter(), rows(problem.v()).into_iter());
    if problem.cache_dtype() == DType::E4m3 {
        scores.fill::<F8E4M3>(image, slots[1], k, q.head_dim, draw);
        values.fill::<F8E4M3>(image, slots[2], v, problem.v().head_dim, draw);
    } else {
        scores.fill::<T>(image, slots[1], k, q.head_dim, draw);
        if !problem.is_latent() {
            values.fill::<T>(image, slots[2], v, problem.v().head_dim, draw);
        }
    }
    for (list, slot) in [&lists.seqused_k, &lists.page_table].into_iter().zip(words) {
        if let Some(list) = list {
            image.put(slot, list.iter().map(|word| word.to_ne_bytes()));
        }
    }
}

fn judge<T: Element<Output = T>>(
    memory: &Memory,
    problem: &DecodeProblem,
    call: &DecodeCall<'_>,
    seed: u64,
) -> Result<(), Failure> {
    let dense = problem.dense();
    let count = rows_to_check(dense.seqlen_k() * (dense.head_dim() + dense.head_dim_v()));
    let rows = sample(dense, count, seed);
    let (q, [k, v]) = (memory.inputs.values::<T>(call.inputs[0]), call.cache(&memory.inputs));
    let inputs = DecodeInputs {
        seqused_k: call.seqused_k.map(|(list, _)| list),
        page_table: call.page_table.map(|(list, _)| list),
        tree_mask: call.tree_mask.map(|(mask, _)| mask),
        ..DecodeInputs::new(q, k, v)
    };
    let (exact, standard) = problem.reference(&inputs, &rows);
    let found = reference::gather(dense, memory.outputs.values::<T>(call.o), &rows);
    let accuracy = Accuracy::of_output(&found, &exact, &standard);
    let columns = dense.head_dim_v();
    judged("o", &accuracy, || worst(&found, &exact.o, |index| (rows[index / columns], index % columns)))?;
    let Some(lse) = call.lse else { return Ok(()) };
    let lse = memory.outputs.values::<f32>(lse);
    let found: Vec<_> = rows.iter().map(|at| lse[dense.lse_index(at.batch, at.head, at.row)]).collect();
    let accuracy = Accuracy::of_lse(&found, &exact, call.plan.score_roundoff());
    judged("lse", &accuracy, || worst(&found, &exact.lse, |index| (rows[index], 0)))
}
