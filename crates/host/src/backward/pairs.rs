//! Pairs of launches before Hopper: one owns keys and stores dS of some key/value heads, and the next
//! multiplies it with K. All pairs have the same memory for dS.

use fa_kernels::attention::stored_ds::{PANEL, PIECE};
use fa_kernels::entries::{Algorithm, Entry};
use fa_kernels::params::StoredDs;

use super::plan::kernel::{is_first, needs_score_mod};
use super::stored::{self, kv_heads};
use crate::plan::{check_fits, that_hold};
use crate::{Device, Error, Problem, Result};

/// The key/value heads of a pair, of one sequence after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    /// The first.
    pub(super) first: usize,
    /// How many.
    pub(super) heads: usize,
}

/// Whether a launch is one of a pair.
pub(super) const fn is_of_pair(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::BackwardKeysDsSm80 | Algorithm::BackwardDqSm80)
}

/// The pairs of launches with which dS is stored, if it is, and why; an entry may be `asked` for.
///
/// # Errors
/// When the entry asked for is one of a pair, and dS of no head fits.
pub(super) fn chosen(
    forward: &Problem,
    device: &Device,
    (asked, limit): (Option<&'static Entry>, u64),
) -> Result<(Vec<Pair>, Option<String>)> {
    let of_pair = asked.filter(|entry| is_of_pair(entry.algorithm));
    let of_others = asked.filter(|entry| !is_of_pair(entry.algorithm) && !is_first(entry.algorithm));
    if of_others.is_some() {
        return Ok((Vec::new(), Some("scores are computed twice: so the entry asked for does".to_owned())));
    }
    if !are_built(forward, device) {
        return Ok((Vec::new(), None));
    }
    let pairs = within(forward, limit);
    match of_pair {
        _ if !pairs.is_empty() => {
            let why = reason(forward, &pairs);
            Ok((pairs, Some(why)))
        }
        Some(entry) => Err(Error::UnfitEntry { entry: entry.name, reason: refusal(forward, limit) }),
        None => Ok((pairs, Some(format!("scores are computed twice: {}", refusal(forward, limit))))),
    }
}

/// Whether there are tiles of both launches for the problem that fit the device.
fn are_built(forward: &Problem, device: &Device) -> bool {
    let fits = |algorithm| {
        let built = that_hold(algorithm, forward.dtype(), forward.widest_head_dim());
        built.into_iter().any(|entry| check_fits(entry, forward, device).is_ok())
    };
    !needs_score_mod(forward) && fits(Algorithm::BackwardKeysDsSm80) && fits(Algorithm::BackwardDqSm80)
}

/// As few pairs as there is room for, with about as many heads each; none where there is none for one head.
fn within(forward: &Problem, limit: u64) -> Vec<Pair> {
    // Pieces are numbered in 32 bits.
    let limit = limit.min(u64::from(PIECE) * u64::from(u32::MAX));
    let (all, fitting) = (kv_heads(forward), limit / unit_bytes(forward));
    let most = usize::try_from(fitting).map_or(all, |fitting| fitting.min(all));
    if most == 0 {
        return Vec::new();
    }
    let heads = all.div_ceil(all.div_ceil(most));
    (0..all).step_by(heads).map(|first| Pair { first, heads: heads.min(all - first) }).collect()
}

/// Why dS of one key/value head does not fit.
fn refusal(forward: &Problem, limit: u64) -> String {
    format!("dS of one key/value head takes {} bytes, and workspace_limit is {limit}", unit_bytes(forward))
}

/// What is stored at a time, and in how many launches.
fn reason(forward: &Problem, pairs: &[Pair]) -> String {
    let heads = pairs.first().map_or(0, |pair| pair.heads);
    let (all, bytes) = (kv_heads(forward), ds_bytes(forward, pairs));
    let launches = match pairs.len() {
        1 => "a launch that owns keys and one for dQ".to_owned(),
        pairs => format!("{pairs} launches that own keys, and one for dQ behind each"),
    };
    format!(
        "dS of {heads} of {all} key/value heads at a time is stored, {bytes} bytes, so that no score is computed twice: {launches}"
    )
}

/// Bytes of dS of the largest of these.
fn ds_bytes(forward: &Problem, pairs: &[Pair]) -> u64 {
    pairs.first().map_or(0, |pair| pair.heads as u64 * unit_bytes(forward))
}

/// Bytes of a workspace for these.
pub(super) fn workspace_bytes(forward: &Problem, pairs: &[Pair]) -> u64 {
    stored::behind_delta(forward).saturating_add(ds_bytes(forward, pairs))
}

/// How dS of a pair lies in a workspace at this address.
pub(super) fn layout(forward: &Problem, workspace: u64, pair: Pair) -> StoredDs {
    // All that is stored has fewer pieces than 2^32.
    let panel_pieces = stored::panel_bytes(forward) / u64::from(PIECE);
    StoredDs {
        address: workspace + stored::behind_delta(forward),
        panel_pieces: panel_pieces as u32,
        head_pieces: (panel_pieces * panels(forward)) as u32,
        first_unit: pair.first as u32,
    }
}

/// Blocks of a launch of a pair.
pub(super) fn blocks(forward: &Problem, entry: &Entry, pair: Pair) -> u128 {
    let tiles = match entry.algorithm {
        Algorithm::BackwardDqSm80 => {
            forward.seqlen_q().div_ceil(entry.tile.block_m as usize) * forward.group()
        }
        _ => forward.seqlen_k().div_ceil(entry.tile.block_n as usize),
    };
    tiles as u128 * pair.heads as u128
}

/// Panels of a query head.
fn panels(forward: &Problem) -> u64 {
    forward.seqlen_q().div_ceil(PANEL as usize) as u64
}

/// Bytes of dS of the query heads that share a key/value head.
fn unit_bytes(forward: &Problem) -> u64 {
    stored::panel_bytes(forward).saturating_mul(panels(forward)).saturating_mul(forward.group() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Sim;
    use crate::{DType, Options, TensorLayout, Tensors};

    fn problem((batch, seqlen, heads, kv_heads): (usize, usize, usize, usize)) -> Problem {
        let [q, kv] = [heads, kv_heads].map(|heads| TensorLayout::bshd(batch, seqlen, heads, 64));
        Problem::new(Tensors { q, k: kv, v: kv, o: q }, DType::F16, Options::default()).unwrap()
    }

    #[test]
    fn pairs_are_as_few_as_fit_and_about_alike() {
        let mib = 1 << 20;
        let heads = |shape, limit| {
            let pairs = within(&problem(shape), limit);
            pairs.into_iter().map(|pair| pair.heads).collect::<Vec<_>>()
        };
        // 32 MiB a head of 4096 rows, and 2 of 1024.
        assert_eq!(heads((4, 4096, 16, 16), 512 * mib), [16; 4]);
        assert_eq!(heads((4, 1024, 16, 16), 512 * mib), [64]);
        assert_eq!(heads((1, 4096, 16, 16), 200 * mib), [6, 6, 4]);
        // Heads that share keys are stored together.
        assert_eq!(heads((1, 4096, 8, 2), 128 * mib), [1, 1]);
        assert_eq!(heads((1, 4096, 8, 2), 128 * mib - 1), [0_usize; 0]);
        assert_eq!(heads((1, 4096, 8, 2), 0), [0_usize; 0]);
    }

    #[test]
    fn a_device_has_pairs_whose_tiles_fit_it() {
        let device = |shared_per_block| Device { shared_per_block, ..Sim::new(0).device().clone() };
        for head_dim in [64, 128] {
            let layout = TensorLayout::bshd(1, 300, 2, head_dim);
            let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
            let forward = Problem::new(tensors, DType::F16, Options::default()).unwrap();
            // The least of a block since sm_80, and what older ones have.
            let [enough, too_little] = [99 << 10, 64 << 10].map(|bytes| are_built(&forward, &device(bytes)));
            assert!(enough && !too_little, "{head_dim}");
        }
        let layout = TensorLayout::bshd(1, 300, 2, 129);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let forward = Problem::new(tensors, DType::F16, Options::default()).unwrap();
        assert!(!are_built(&forward, &device(227 << 10)));
    }

    #[test]
    fn pairs_have_all_heads_once_and_fit() {
        for (shape, limit) in [((3, 100, 6, 2), 1 << 17), ((2, 1000, 4, 4), 9 << 20), ((1, 1, 1, 1), 1 << 14)]
        {
            let forward = problem(shape);
            let pairs = within(&forward, limit);
            assert!(ds_bytes(&forward, &pairs) <= limit);
            let mut next = 0;
            for pair in &pairs {
                assert_eq!((pair.first, pair.heads > 0), (next, true));
                next += pair.heads;
            }
            assert_eq!(next, kv_heads(&forward), "{shape:?}");
        }
    }

    #[test]
    fn ds_of_a_pair_ends_where_its_bytes_do() {
        let forward = problem((2, 300, 6, 3));
        let pairs = within(&forward, 2 << 20);
        for &pair in &pairs {
            let ds = layout(&forward, 512, pair);
            let heads = (pair.heads * forward.group()) as u64;
            let end = ds.address + u64::from(PIECE) * heads * u64::from(ds.head_pieces);
            assert!(end <= 512 + workspace_bytes(&forward, &pairs), "{pair:?}");
            assert_eq!(ds.address % 256, 0);
        }
    }
}
