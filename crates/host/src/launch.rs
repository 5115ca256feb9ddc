//! From a plan and addresses to the kernels' parameters.

mod maps;

use fa_kernels::attention::{pack, transpose};
use fa_kernels::config::Sm90Config;
use fa_kernels::entries::{Algorithm, Params, Tile};
use fa_kernels::mask::UNLIMITED;
use fa_kernels::params::{
    self, AttentionMaps, AttentionParams, CacheParams, CopiesBeside, KeySequences, Mapped, PackParams,
    PackTensor, Pages, PersistentParams, ScheduleParams, Strides,
};
use fa_kernels::ptx::tma;

pub(crate) use self::maps::class_map;
use self::maps::{class_maps, residue_maps};
use crate::decode;
use crate::forward::{MAX_SEQLEN, PerHead};
use crate::operation::Tensor;
use crate::plan::{
    CopyStage, Packed, PackedCopy, TileOrder, chunks, chunks_in_e4m3, head_units, is_shifted, margin,
    residues, tiles, unmapped, whole_tiles,
};
use crate::plan::{Launch, LaunchDetails};
use crate::tensor_map::TensorMap;
use crate::{DType, Error, Problem, Result, TensorLayout, Tensors};

/// Addresses of a problem's tensors on the device that runs it (host addresses in the simulator).
///
/// Each points at the first element of its view; [`Problem::tensors`] says how far the views reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Queries.
    pub q: u64,
    /// Keys.
    pub k: u64,
    /// Values.
    pub v: u64,
    /// Output.
    pub o: u64,
    /// Log-sum-exp, fp32 [B, H, Sq] contiguous, [H, total_q] of a packed batch; `None` where it is not
    /// wanted.
    pub lse: Option<u64>,
    /// [`Plan::workspace_bytes`](crate::Plan::workspace_bytes) of memory, aligned to 16 bytes; unused where
    /// that is 0.
    pub workspace: u64,
    /// What each head has.
    pub per_head: PerHead<u64>,
    /// Factors of the heads of Q, K and V in e4m3, fp32, where [`Options::descale`](crate::Options::descale)
    /// has lists.
    pub descale: [Option<u64>; 3],
    /// What functions of scores read, where [`Options::functions`](crate::Options::functions) has tensors.
    pub functions: [Option<u64>; params::MAX_FUNCTION_TENSORS],
    /// Offsets of a packed batch, u32 [B + 1], first of queries and then of keys: the same values as
    /// [`Problem::cu_seqlens`], or any within bounds where the host has none.
    pub cu_seqlens: Option<(u64, u64)>,
    /// Keys that each sequence uses, int32 `[B]`: the same values as [`Problem::seqused_k`], or any where the
    /// host has none. There, more than a sequence has count as all, and fewer than none as none.
    pub seqused_k: Option<u64>,
}

impl Addresses {
    /// Whether the tensors that these launches load by tensor maps start at multiples of 16 bytes, as maps
    /// want them: those of Q, K and V that are not copied.
    pub(crate) fn are_mapped(&self, launches: &[Launch]) -> bool {
        launches.iter().all(|launch| {
            let mut inputs = [self.q, self.k, self.v].into_iter().zip(launch.details.packed.copies);
            inputs.all(|(address, copy)| copy.is_some() || address.is_multiple_of(16))
        })
    }
}

/// The parameters that a launch takes; its tensor maps, where it has some, in the form that `encode` gives
/// them.
///
/// # Errors
/// When an address that the problem needs was left out, and where `encode` fails.
pub(crate) fn params(
    problem: &Problem,
    launch: &Launch,
    addresses: &Addresses,
    encode: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
) -> Result<Params> {
    let Launch { entry, details: LaunchDetails { packed, schedule, splits, .. }, .. } = launch;
    if problem.dtype() == DType::E4m3 {
        // V is always copied.
        let mapped = [("q", addresses.q), ("k", addresses.k)].into_iter().zip(packed.copies);
        mapped.filter(|(_, copy)| copy.is_none()).try_for_each(|(tensor, _)| check_aligned(tensor))?;
    }
    if matches!(entry.algorithm, Algorithm::Pack | Algorithm::Transpose) {
        check_workspace(addresses.workspace, packed.bytes)?;
        let Tensors { q, k, v, .. } = problem.tensors();
        let sources = [(addresses.q, q), (addresses.k, k), (addresses.v, v)];
        return Ok(Params::Pack(match entry.algorithm {
            Algorithm::Transpose => transpose_params(problem, packed, addresses)?,
            _ => pack_params(sources, (packed, launch.details.stage), addresses.workspace),
        }));
    }
    if entry.algorithm.decodes() {
        return decode::dense_launch_params(problem, entry, *splits, addresses, encode);
    }
    let attention = attention_params(problem, addresses)?;
    if let (Algorithm::TileSchedule, Some(space)) = (entry.algorithm, schedule) {
        check_workspace(addresses.workspace, space.offset + ScheduleParams::bytes(space.rows.into()))?;
        return Ok(Params::Schedule(ScheduleParams {
            attention,
            schedule: addresses.workspace + space.offset,
            sequences: problem.batch() as u32,
            block_m: space.block_m,
            most: space.rows,
        }));
    }
    if !entry.algorithm.is_persistent() {
        return Ok(Params::Attention(attention));
    }
    Ok(Params::Persistent(persistent_params(problem, launch, addresses, attention, encode)?))
}

/// The parameters of an entry of `forward_sm90`, and its tensor maps.
fn persistent_params(
    problem: &Problem,
    launch: &Launch,
    addresses: &Addresses,
    attention: AttentionParams,
    encode: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
) -> Result<Mapped<AttentionMaps, PersistentParams>> {
    let Launch { entry, details: LaunchDetails { order, packed, schedule, .. }, .. } = launch;
    let reads = packed.reads(problem);
    let [q_read, k_read, v_read] = reads;
    let at = |index: usize, address| {
        packed.copies[index].map_or(address, |copy| addresses.workspace + copy.offset)
    };
    let [q, k, v] = [at(0, addresses.q), at(1, addresses.k), at(2, addresses.v)];
    let Tile { block_m, block_n, head_dim, head_dim_v } = entry.tile;
    let v_margin = margin(v, &v_read, head_dim_v);
    let by_residues = entry.algorithm == Algorithm::ForwardSm90Residues;
    // V's shift moves the columns of O. A store through a map writes whole chunks of 16 bytes, past the ends
    // of rows too.
    let o_by_rows = by_residues
        || !problem.head_dim_v().is_multiple_of(CHUNK as usize)
        || !addresses.o.is_multiple_of(16)
        || unmapped("o", &problem.tensors().o).is_some()
        || is_shifted(&v_read)
        || v_margin >= CHUNK;
    let element_bytes = problem.dtype().bytes() as u32;
    let o = || encode(&class_map((addresses.o, 2), &problem.tensors().o, Sm90Config::WARP_ROWS, 0));
    let classes = residues(problem);
    let inputs = |address, layout: &TensorLayout, rows| {
        if by_residues {
            residue_maps(address, layout, classes, rows, &encode)
        } else {
            class_maps((address, element_bytes), layout, rows, &encode)
        }
    };
    let q_rows = Sm90Config::WARPGROUP_ROWS;
    // Of V transposed, columns are rows.
    let v_rows = if element_bytes == 1 { head_dim_v } else { block_n };
    let maps = AttentionMaps {
        q: inputs(q, &q_read, if by_residues { classes.rows(q_rows) } else { q_rows })?,
        k: inputs(k, &k_read, block_n)?,
        v: inputs(v, &v_read, v_rows)?,
        o: if o_by_rows { tma::TensorMap::default() } else { o()? },
    };
    let TileOrder { heads_per_swizzle, snake_order, short_tiles, tail_tiles, sequence_step, .. } = *order;
    let is_varlen = problem.is_packed();
    let whole_tiles = whole_tiles(problem, &entry.tile, short_tiles);
    let config = Sm90Config { block_m, block_n, head_dim, head_dim_v, element_bytes };
    let landed = config.fix_up_distance();
    let [q_strides, k_strides, v_strides] = reads.map(|layout| strides(&layout));
    let seqlen_k = if by_residues { classes.rows(attention.seqlen_k) } else { attention.seqlen_k };
    let are_shifted = by_residues || is_shifted(&q_read) || is_shifted(&k_read);
    let params = PersistentParams {
        attention: AttentionParams { q_strides, k_strides, v_strides, seqlen_k, ..attention },
        // The plan checked that all heads' tiles are below 2^31.
        tiles: tiles(problem, &entry.tile, short_tiles) as u32,
        short_tiles,
        whole_tiles,
        heads_per_swizzle,
        snake_order: snake_order.into(),
        tail_tiles,
        // A map clips at the end of its tensor, and not at that of a packed sequence.
        o_by_rows: if o_by_rows { 2 } else { is_varlen.into() },
        sequences: if is_varlen { problem.batch() as u32 } else { 0 },
        sequence_step,
        schedule: match (schedule, launch.details.stage) {
            (Some(space), _) => addresses.workspace + space.offset,
            (None, CopyStage::Beside(beside)) => addresses.workspace + beside.counters,
            _ => 0,
        },
        // Transposed, V has zeros behind the keys.
        v_fix_up: if problem.has_rows_behind_keys() && element_bytes == 2 { landed } else { 0 },
        qk_fix_up: if are_shifted { landed } else { 0 },
        v_margin,
        qk_margin: margin(k, &k_read, head_dim),
        descale: problem.scores().factor_params(addresses.descale)?,
        copies: match launch.details.stage {
            CopyStage::Beside(beside) => CopiesBeside {
                counters: addresses.workspace + beside.counters,
                first: beside.first,
                awaited: packed.group_units() as u32,
                heads: problem.tensors().k.heads as u32,
            },
            _ => CopiesBeside::default(),
        },
        cache: CacheParams::default(),
    };
    Ok(Mapped { maps, params })
}

/// Refuses what tensor maps cannot start at, where no other kernel takes the problem.
pub(crate) fn check_aligned((tensor, address): (&'static str, u64)) -> Result<()> {
    if address.is_multiple_of(16) { Ok(()) } else { Err(Error::UnalignedTensor { tensor, address }) }
}

/// Refuses a workspace that is not there, or where no copy may begin; the plan needs so many bytes.
pub(crate) fn check_workspace(address: u64, bytes: u64) -> Result<()> {
    if address == 0 || !address.is_multiple_of(16) {
        return Err(Error::Workspace { address, bytes });
    }
    Ok(())
}

/// What a launch copies of the tensors at these addresses, and where to from `target` on.
pub(crate) fn pack_params<const N: usize>(
    sources: [(u64, &TensorLayout); N],
    (packed, stage): (&Packed<N>, CopyStage),
    target: u64,
) -> PackParams {
    const { assert!(N <= PackParams::MOST) };
    let copies = sources.into_iter().zip(packed.copies).filter_map(|(source, copy)| Some((source, copy?)));
    let mut params = PackParams::default();
    let mut units = 0;
    for (index, ((source, from), PackedCopy { offset, layout })) in copies.enumerate() {
        // The plan checked that all units together are below 2^31.
        units += head_units(&layout) * packed.group_heads(&layout);
        params.ends[index..].fill(units);
        params.tensors[index] = PackTensor {
            source,
            end: source + 2 * from.span() as u64,
            target: target + offset,
            strides: strides(from),
            rows: layout.seqlen as u32,
            heads: layout.heads as u32,
            group: packed.group_heads(&layout),
            columns: layout.head_dim as u32,
            chunks: chunks(&layout),
            unit_rows: pack::unit_rows(chunks(&layout)),
            head_blocks: head_units(&layout),
        };
    }
    let all = units * packed.groups;
    match stage {
        CopyStage::All => PackParams { end: all, ..params },
        CopyStage::First(beside) => PackParams {
            end: units * beside.first,
            counters: target + beside.counters,
            cleared: CopiesBeside::counter_count(packed.groups.into()) as u32,
            ..params
        },
        CopyStage::Beside(beside) => {
            let (first, counters) = (units * beside.first, target + beside.counters);
            PackParams { first, end: all, counters, ..params }
        }
    }
}

/// What the launch before `forward_sm90` in e4m3 copies of V, Q and K, and where to.
fn transpose_params(problem: &Problem, packed: &Packed, addresses: &Addresses) -> Result<PackParams> {
    let Tensors { q, k, v, .. } = problem.tensors();
    let [copy_q, copy_k, copy_v] = packed.copies;
    let Some(copy_v) = copy_v else { return Ok(PackParams::default()) };
    let tensor = |source, from: &TensorLayout, PackedCopy { offset, .. }| PackTensor {
        source,
        end: source + from.span() as u64,
        target: addresses.workspace + offset,
        strides: strides(from),
        rows: from.seqlen as u32,
        heads: from.heads as u32,
        columns: from.head_dim as u32,
        group: 1,
        ..PackTensor::default()
    };
    // Of V's copy, the columns are positions.
    let positions = copy_v.layout.head_dim as u32;
    let head_blocks = transpose::head_blocks(v.head_dim as u32, positions);
    let of_v = PackTensor { chunks: positions / 16, head_blocks, ..tensor(addresses.v, v, copy_v) };
    let rows = |source, from: &TensorLayout, copy: Option<PackedCopy>| {
        copy.map_or_else(PackTensor::default, |copy| {
            let chunks = chunks_in_e4m3(&copy.layout);
            let head_blocks = transpose::row_blocks(from.seqlen as u32, chunks);
            PackTensor { chunks, head_blocks, ..tensor(source, from, copy) }
        })
    };
    let AttentionParams { cu_seqlens_k, seqused_k, .. } = attention_params(problem, addresses)?;
    let count = if problem.is_packed() { problem.batch() as u32 } else { 0 };
    // The plan checked that all blocks together are below 2^31.
    let [v_end, q_end, end] = packed.blocks_in_e4m3(problem).map(|end| end as u32);
    Ok(PackParams {
        tensors: [of_v, rows(addresses.q, q, copy_q), rows(addresses.k, k, copy_k), PackTensor::default()],
        ends: [v_end, q_end, end, end],
        keys: KeySequences { cu_seqlens: cu_seqlens_k, seqused: seqused_k, count },
        ..PackParams::default()
    })
}

/// 16-bit elements of 16 bytes.
const CHUNK: u32 = 8;

/// Places the offsets of a packed batch.
pub(crate) fn place_cu_seqlens<'t>(
    problem: &'t Problem,
    place: &mut dyn FnMut(Tensor<'t>) -> Result<u64>,
) -> Result<Option<(u64, u64)>> {
    if !problem.is_packed() {
        return Ok(None);
    }
    let (q, k) = problem.cu_seqlens().ok_or(Error::CuSeqlensOnDevice)?;
    let q = place(Tensor::list("cu_seqlens_q", q, q.len()))?;
    Ok(Some((q, place(Tensor::list("cu_seqlens_k", k, k.len()))?)))
}

/// Places the numbers of keys that sequences use.
pub(crate) fn place_seqused_k<'t>(
    problem: &'t Problem,
    place: &mut dyn FnMut(Tensor<'t>) -> Result<u64>,
) -> Result<Option<u64>> {
    if !problem.has_seqused_k() {
        return Ok(None);
    }
    let used = problem.seqused_k().ok_or(Error::SeqUsedOnDevice)?;
    place(Tensor::list("seqused_k", used, used.len())).map(Some)
}

/// The parameters that every entry of a plan for `problem` has.
pub(crate) fn attention_params(problem: &Problem, addresses: &Addresses) -> Result<AttentionParams> {
    let (cu_seqlens_q, cu_seqlens_k) = if problem.is_packed() {
        addresses.cu_seqlens.ok_or(Error::MissingAddress { tensor: "cu_seqlens" })?
    } else {
        (0, 0)
    };
    let seqused_k = if problem.has_seqused_k() {
        addresses.seqused_k.ok_or(Error::MissingAddress { tensor: "seqused_k" })?
    } else {
        0
    };
    let tensors = problem.tensors();
    // A packed batch has no steps from one sequence to the next.
    let [lse_batch, lse_head] = problem.lse_strides();
    let steps = u64::from(!problem.is_packed());
    let strides = |layout: &TensorLayout| {
        let strides = strides(layout);
        Strides { batch: steps * strides.batch, ..strides }
    };
    // `Problem::new` bounds sequences by MAX_SEQLEN and head_dim by MAX_HEAD_DIM, and the grid check
    // bounds heads, so these casts keep their values.
    Ok(AttentionParams {
        q: addresses.q,
        k: addresses.k,
        v: addresses.v,
        o: addresses.o,
        lse: addresses.lse.unwrap_or(0),
        scores: addresses.workspace,
        q_strides: strides(&tensors.q),
        k_strides: strides(&tensors.k),
        v_strides: strides(&tensors.v),
        o_strides: strides(&tensors.o),
        lse_strides: Strides { batch: steps * lse_batch as u64, row: 1, head: lse_head as u64 },
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_k,
        seqlen_q: problem.seqlen_q() as u32,
        seqlen_k: problem.seqlen_k() as u32,
        heads: problem.heads() as u32,
        group: problem.group() as u32,
        head_dim: problem.head_dim() as u32,
        head_dim_v: problem.head_dim_v() as u32,
        window_left: side(problem.window().0),
        window_span: side(problem.window().0) + side(problem.window().1),
        softmax_scale: problem.softmax_scale(),
        softcap: problem.softcap(),
        per_head: problem.scores().params(&addresses.per_head)?,
        dropout: problem.dropout().copied().unwrap_or(NO_DROPOUT),
        functions: match problem.functions() {
            Some(functions) => functions.params(&addresses.functions)?,
            None => params::FunctionData::default(),
        },
    })
}

/// All weights are kept as they are.
const NO_DROPOUT: params::Dropout = params::Dropout { scale: 1.0, threshold: 0, seed: 0, offset: 0 };

/// A view's strides, as kernels take them.
pub(crate) fn strides(layout: &TensorLayout) -> Strides {
    // The stride of an axis of one index may be anything. Kernels multiply it by indices of rows that they
    // then leave out.
    let step = |len, stride| if len > 1 { stride as u64 } else { 0 };
    Strides {
        batch: step(layout.batch, layout.stride_batch),
        row: step(layout.seqlen, layout.stride_seq),
        head: step(layout.heads, layout.stride_head),
    }
}

/// The address of a tensor that a problem may need; 0 where it does not.
///
/// # Errors
/// When it is needed and was left out.
pub(crate) fn needed(tensor: &'static str, address: Option<u64>, is_needed: bool) -> Result<u64> {
    match address {
        _ if !is_needed => Ok(0),
        Some(address) => Ok(address),
        None => Err(Error::MissingAddress { tensor }),
    }
}

/// Where the keys of a cache lie, whose layout is of pages if sequences have so many of them.
pub(crate) fn pages(cache: &TensorLayout, max_pages: Option<usize>, table: u64) -> Pages {
    // Problems bound both, so these casts keep their values.
    max_pages.map_or_else(Pages::default, |max_pages| Pages {
        table,
        page_size: cache.seqlen as u32,
        max_pages: max_pages as u32,
    })
}

/// A side of the window; one wider than any sequence hides nothing.
fn side(size: Option<usize>) -> u32 {
    size.map_or(UNLIMITED, |size| size.min(MAX_SEQLEN) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::plan;
    use crate::sim::Sim;
    use crate::{Kernel, Options, Request};

    #[test]
    fn an_axis_of_one_index_has_no_stride() {
        let layout = TensorLayout::strided([1, 1, 2, 8], [usize::MAX, 1 << 60, 8, 1]);
        assert_eq!(strides(&layout), Strides { batch: 0, row: 0, head: 8 });
    }

    #[test]
    fn copies_need_a_workspace() {
        let layout = TensorLayout::bhsd(2, 5, 3, 9);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let problem = Problem::new(tensors, DType::F16, Options::default()).unwrap();
        let request = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
        let plan = plan(&problem, Sim::new(0).device(), &request).unwrap();
        let at = |workspace| {
            let addresses = Addresses { q: 2, k: 4, v: 6, o: 8, workspace, ..Addresses::default() };
            let no_maps = |_: &TensorMap| Ok(tma::TensorMap::default());
            params(&problem, &plan.launches[0], &addresses, no_maps)
        };
        for address in [0, 8] {
            let error = at(address).unwrap_err().to_string();
            let bytes = "the plan needs 3072 bytes at a multiple of 16";
            assert_eq!(error, format!("workspace is at address {address:#x}; {bytes}"));
        }
        let Params::Pack(packed) = at(4096).unwrap() else { panic!("the first launch packs") };
        // 30 rows of 16 columns each, in one unit for each of six heads.
        assert_eq!((packed.ends, packed.first, packed.end), ([1, 2, 3, 3], 0, 18));
        assert_eq!(packed.tensors.map(|tensor| tensor.target), [4096, 4096 + 1024, 4096 + 2048, 0]);
        let last = packed.tensors[2];
        assert_eq!((last.source, last.end, last.rows, last.columns, last.chunks), (6, 6 + 540, 5, 9, 2));
    }

    #[test]
    fn tensors_in_8_bits_start_at_multiples_of_16_bytes() {
        let layout = TensorLayout::bshd(2, 5, 3, 16);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let problem = Problem::new(tensors, DType::E4m3, Options::default()).unwrap();
        let plan = plan(&problem, Sim::new(0).device(), &Request::default()).unwrap();
        let at = |[q, k, v]: [u64; 3]| {
            let addresses = Addresses { q, k, v, o: 2, workspace: 4096, ..Addresses::default() };
            let no_maps = |_: &TensorMap| Ok(tma::TensorMap::default());
            // The first launch says so, before anything has run.
            params(&problem, &plan.launches[0], &addresses, no_maps)
        };
        // V is transposed from wherever it starts.
        assert!(at([16, 32, 49]).is_ok());
        let needed = "in e4m3, or with packed queries over a cache, a multiple of 16 is needed";
        for (index, tensor) in ["q", "k"].into_iter().enumerate() {
            let mut addresses = [16; 3];
            addresses[index] = 24;
            let error = at(addresses).unwrap_err().to_string();
            assert_eq!(error, format!("{tensor} is at address 0x18; {needed}"));
        }
    }

    #[test]
    fn rows_in_8_bits_are_copied_where_no_map_describes_them() {
        let layout = |head_dim| TensorLayout::bshd(2, 5, 3, head_dim);
        let tensors = Tensors { q: layout(17), k: layout(17), v: layout(16), o: layout(16) };
        let problem = Problem::new(tensors, DType::E4m3, Options::default()).unwrap();
        let plan = plan(&problem, Sim::new(0).device(), &Request::default()).unwrap();
        let addresses = Addresses { q: 3, k: 5, v: 7, o: 2, workspace: 4096, ..Addresses::default() };
        let no_maps = |_: &TensorMap| Ok(tma::TensorMap::default());
        let Params::Pack(packed) = params(&problem, &plan.launches[0], &addresses, no_maps).unwrap() else {
            panic!("the first launch copies")
        };
        // A block for each of six heads of each tensor. V's copy has rows of 32 positions, theirs 32 bytes.
        assert_eq!((packed.ends, plan.launches[0].grid), ([6, 12, 18, 18], 18));
        assert_eq!(packed.tensors.map(|tensor| tensor.target), [4096, 4096 + 3072, 4096 + 3072 + 1024, 0]);
        assert_eq!(packed.tensors.map(|tensor| tensor.chunks), [2, 2, 2, 0]);
        let last = packed.tensors[2];
        assert_eq!((last.source, last.end, last.rows, last.columns), (5, 5 + 510, 5, 17));
        // What is copied may start anywhere.
        assert!(params(&problem, &plan.launches[1], &addresses, no_maps).is_ok());
    }

    #[test]
    fn a_tensor_of_the_problem_needs_its_address() {
        let layout = TensorLayout::bshd(2, 5, 3, 8);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let options = Options { alibi_slopes: Some(vec![0.5; 6]), ..Options::default() };
        let problem = Problem::new(tensors, DType::F16, options).unwrap();
        let error = attention_params(&problem, &Addresses::default()).unwrap_err().to_string();
        assert_eq!(error, "alibi_slopes: no address was given, but the problem has it");
        let per_head = PerHead { alibi_slopes: Some(64), ..PerHead::default() };
        let params = attention_params(&problem, &Addresses { per_head, ..Addresses::default() }).unwrap();
        assert_eq!(params.per_head.alibi_slopes, params::HeadValues { address: 64, batch_stride: 3 });
    }
}
