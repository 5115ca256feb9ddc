//! Random decode problems.

use fa_kernels::entries::{Algorithm, entries};
use flash_attention::BackendKind;
use flash_attention::decode::{MAX_DECODE_SEQLEN_Q, MAX_TREE_SEQLEN_Q};
use flash_attention::forward::MAX_LATENT_HEAD_DIMS;

use super::super::case::{Decode, HeadList};
use super::super::draw::Draw;
use super::super::place::Place;
use super::parts::{
    self, Size, data, head_list, length, place, result_dtype, scale, seed, shrink_to, softcap, window,
};

pub(super) fn draw(draw: &mut Draw, backend: BackendKind, size: Size) -> Decode {
    // Kernels of GPUs have no fp32.
    let dtype = match (backend, result_dtype(draw)) {
        (BackendKind::Cuda | BackendKind::Sim, flash_attention::DType::F32) if !draw.once_in(8) => {
            flash_attention::DType::F16
        }
        (_, dtype) => dtype,
    };
    let latent = draw.once_in(8);
    let (head_dim, head_dim_v) = match latent {
        true => latent_dims(draw),
        false => (parts::head_dim(draw), draw.once_in(6).then(|| parts::head_dim(draw))),
    };
    let widest = head_dim.max(head_dim_v.unwrap_or(0));
    let mut batch = draw.between(1, 6);
    let (mut kv_heads, mut group) = (draw.pick(&[1, 1, 2, 3]), draw.pick(&[1, 1, 2, 4, 8, 13]));
    let mut seq = match draw.below(6) {
        0..=2 => 1,
        3..=4 => draw.between(1, MAX_DECODE_SEQLEN_Q),
        // A part of a prompt.
        _ => length(draw, size.rows),
    };
    let mut keys = length(draw, size.rows);
    // So many sequences that whole tiles fill a device.
    let many = !latent && seq == 1 && draw.once_in(10);
    if many {
        (batch, kv_heads, keys) = (draw.between(60, 200), draw.between(2, 4), draw.between(257, 900));
    }
    let products = |of: &[usize]| of[0] * of[1] * size.tiles(of[2] * of[3]) * size.tiles(of[4]) * 2 * widest;
    let lengths = &mut [&mut batch, &mut kv_heads, &mut group, &mut seq, &mut keys];
    shrink_to(lengths, size.products, products);
    shrink_to(lengths, size.elements, |of| of[0] * of[1] * of[4] * widest);
    // Each sequence has its own number of queries, of which some have none.
    let queries: Vec<_> = match !latent && draw.once_in(4) {
        true => (0..batch).map(|_| draw.logarithmic(1, seq + 1) - 1).collect(),
        false => Vec::new(),
    };
    let longest = draw.below(batch);
    let used = (0..batch)
        .map(|index| match draw.below(5) {
            _ if index == longest => keys,
            1.. if many => draw.between(keys / 2, keys),
            0 => 0,
            1 => keys,
            _ => draw.logarithmic(1, keys),
        })
        .collect();
    let page_size: usize =
        if draw.once_in(2) { 0 } else { draw.pick(&[1, 3, 8, 16, 16, 64, 64, 100, 128, 256]) };
    let q = place(draw, dtype, head_dim, false);
    let e4m3_cache = draw.once_in(3) && !latent;
    // Other caches in e4m3, and of latents, are refused on a GPU, which is worth a look now and then.
    let mapped = (e4m3_cache || latent) && backend != BackendKind::Cpu && !draw.once_in(8);
    // Packed queries have their cache widened, which takes any pages.
    let page_size = if mapped && queries.is_empty() { page_size.next_multiple_of(8) } else { page_size };
    let of_cache = if e4m3_cache { flash_attention::DType::E4m3 } else { dtype };
    let mut cache = |columns| {
        let place = place(draw, of_cache, columns, false);
        // A cache that repeats its pages would have keys that are NaN in others' places.
        let place = Place { repeat: [false, false, place.repeat[2]], ..place };
        if mapped { Place { gaps: [columns.next_multiple_of(16) - columns, 0, 0], ..place } } else { place }
    };
    let columns_v = head_dim_v.unwrap_or(head_dim);
    let (k, v) = (cache(head_dim), cache(columns_v));
    let o = place(draw, dtype, columns_v, true);
    let is_packed = !queries.is_empty();
    let older = !is_packed && !latent && draw.once_in(4);
    let mut case = Decode {
        dtype,
        kv_heads,
        group,
        seq,
        on_device: !queries.is_empty() && draw.once_in(2),
        queries,
        head_dim,
        head_dim_v,
        used,
        full: draw.once_in(6),
        spare_keys: draw.pick(&[0, 0, 1, 9, 70]),
        page_size,
        spare_pages: draw.below(4),
        spare_entries: draw.pick(&[0, 0, 1, 5]),
        q,
        k,
        v,
        o,
        causal: draw.once_in(2),
        tree: false,
        window: if draw.once_in(4) { window(draw, keys) } else { [None; 2] },
        scale: scale(draw),
        softcap: softcap(draw),
        alibi: head_list(draw, 6),
        sinks: head_list(draw, 3),
        e4m3_cache,
        latent,
        k_descale: head_list(draw, 2),
        v_descale: head_list(draw, 2),
        no_lse: draw.once_in(5),
        scores: data(draw),
        values: data(draw),
        splits: 0,
        batch_invariant: many || draw.once_in(2),
        older,
        entry: String::new(),
        seed: seed(draw),
        schedule: draw.below(64) as u64,
        spoil: Vec::new(),
    };
    if latent {
        if !draw.once_in(8) {
            (case.softcap, case.alibi) = (0.0, HeadList::Off);
        }
    } else if draw.once_in(5) {
        let beside = (false, [None; 2], HeadList::Off);
        (case.tree, (case.causal, case.window, case.alibi)) = (true, beside);
        if draw.once_in(2) {
            case.seq = draw.between(1, MAX_TREE_SEQLEN_Q);
        }
    }
    if backend != BackendKind::Cpu {
        case.splits = if !is_packed && draw.once_in(3) { draw.logarithmic(1, 128) } else { 0 };
        if backend == BackendKind::Sim {
            // Each split is a launch's block.
            case.splits = case.splits.min(6);
        }
        let named = entries()
            .filter(|entry| match entry.algorithm {
                algorithm if latent => algorithm == Algorithm::MlaSm90,
                algorithm if algorithm.reads_e4m3() => e4m3_cache,
                algorithm if algorithm == Algorithm::Decode || algorithm.is_decode_sm90() => {
                    !is_packed && !e4m3_cache
                }
                algorithm => algorithm.is_cached_forward(),
            })
            .filter(|entry| entry.dtype == dtype.name())
            .filter(|entry| entry.tile.head_dim as usize >= widest)
            .map(|entry| entry.name)
            .collect::<Vec<_>>();
        if !named.is_empty() && draw.once_in(4) {
            case.entry = draw.pick(&named).to_owned();
            case.older = false;
        }
    }
    case
}

/// head_dim of latents, and of their values: often those of DeepSeek.
fn latent_dims(draw: &mut Draw) -> (usize, Option<usize>) {
    let [most, most_v] = MAX_LATENT_HEAD_DIMS;
    let head_dim = if draw.once_in(2) { most } else { draw.between(1, most) };
    let widest = head_dim.min(most_v);
    (head_dim, Some(if draw.once_in(2) { widest } else { draw.between(1, widest) }))
}
