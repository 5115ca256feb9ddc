//! Who has which rows, what is refused, and attention of ranks that are on the CPU.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_flash_attention::{ContextParallel, FlashAttn, flash_attn};

use crate::plain::{assert_close, values, variable};

pub(crate) fn masked(window_size_left: Option<usize>, window_size_right: Option<usize>) -> FlashAttn {
    FlashAttn { softmax_scale: 0.3, alibi_slopes: None, window_size_left, window_size_right, softcap: None }
}

fn on_cpu(world: usize, attention: FlashAttn, sq: usize, sk: usize) -> Result<ContextParallel> {
    ContextParallel::new(&vec![Device::Cpu; world], attention, sq, sk)
}

/// Asserts what the first line of a message is; a backtrace may follow it.
#[track_caller]
fn refused<T>(found: Result<T>, message: &str) {
    let found = found.err().unwrap().to_string();
    assert_eq!(found.lines().next(), Some(format!("flash-attn: {message}").as_str()));
}

fn zeros(shape: [usize; 4], dtype: DType) -> Tensor {
    Tensor::zeros(&shape, dtype, &Device::Cpu).unwrap()
}

#[test]
fn rows_of_a_zigzag() {
    let parallel = on_cpu(2, masked(None, Some(0)), 10, 13).unwrap();
    // Chunks of 3 and of 4 rows, the last one shorter; neighbours are one range.
    let ends = |rows: &[Vec<Range<usize>>]| -> Vec<Vec<[usize; 2]>> {
        rows.iter().map(|rows| rows.iter().map(|rows| [rows.start, rows.end]).collect()).collect()
    };
    assert_eq!(ends(parallel.query_rows()), [vec![[0, 3], [9, 10]], vec![[3, 9]]]);
    assert_eq!(ends(parallel.key_rows()), [vec![[0, 4], [12, 13]], vec![[4, 12]]]);
    let lists = |tensors: Vec<Tensor>| -> Vec<Vec<u32>> {
        tensors.iter().map(|tensor| tensor.to_vec1().unwrap()).collect()
    };
    // Query 0 of 10 stands at key 3 of 13.
    let positions = lists(parallel.query_positions().unwrap());
    assert_eq!(positions, [vec![3, 4, 5, 12], vec![6, 7, 8, 9, 10, 11]]);
    let positions = lists(parallel.key_positions().unwrap());
    assert_eq!(positions, [vec![0, 1, 2, 3, 12], (4..12).collect()]);
}

#[test]
fn parts_become_the_whole_again() {
    for world in 2..6 {
        for attention in [masked(None, None), masked(Some(100), Some(0))] {
            let parallel = on_cpu(world, attention, 4_000, 4_000).unwrap();
            for shape in [vec![3, 4_000], vec![1, 4_000, 2, 3]] {
                let whole = values(1, &shape, DType::F32);
                let parts = parallel.shard_queries(&whole).unwrap();
                assert!(parts.iter().all(Tensor::is_contiguous));
                let found = parallel.gather_queries(&parts, &Device::Cpu).unwrap();
                assert!(found.is_contiguous());
                assert_close("whole", &found, &whole, 0.0);
            }
            let keys: usize = parallel.key_rows().iter().flatten().map(Range::len).sum();
            assert_eq!((parallel.world(), keys), (world, 4_000));
        }
    }
}

#[test]
fn ranks_on_the_cpu_have_the_whole_problem() {
    let [q, k, v] = [(1, 20, 4), (2, 25, 2), (3, 25, 2)]
        .map(|(seed, rows, heads)| variable(seed, &[2, rows, heads, 16], DType::F32));
    let parallel = on_cpu(3, masked(None, Some(0)), 20, 25).unwrap();
    let (queries, keys) = (parallel.shard_queries(&q).unwrap(), parallel.shard_keys(&k).unwrap());
    let parts = parallel.attention(&queries, &keys, &parallel.shard_keys(&v).unwrap()).unwrap();
    assert_eq!(parts.iter().map(|part| part.dims()[1]).collect::<Vec<_>>(), [4, 8, 8]);
    let found = parallel.gather_queries(&parts, &Device::Cpu).unwrap();
    let expected = flash_attn(&q, &k, &v, 0.3, true).unwrap();
    assert_close("o", &found, &expected, 0.0);
    let dout = values(9, expected.dims(), DType::F32);
    let losses: Vec<_> = parts
        .iter()
        .zip(parallel.shard_queries(&dout).unwrap())
        .map(|(part, dout)| (part * dout).unwrap().sum_all().unwrap())
        .collect();
    let of_losses = parallel.sum(&losses).unwrap().backward().unwrap();
    let gradients = |o: Tensor| (o * &dout).unwrap().sum_all().unwrap().backward().unwrap();
    let (found, expected) = (gradients(found), gradients(expected));
    for of in [&q, &k, &v] {
        assert_close("gradient", found.get(of).unwrap(), expected.get(of).unwrap(), 0.0);
        assert_close("gradient", of_losses.get(of).unwrap(), expected.get(of).unwrap(), 0.0);
    }
}

#[test]
fn devices_and_lengths_that_are_refused() {
    let causal = || masked(None, Some(0));
    let few = "at least 2 are needed, flash_attn is attention on one";
    refused(on_cpu(0, causal(), 10, 10), &format!("devices are 0; {few}"));
    refused(on_cpu(1, causal(), 10, 10), &format!("devices are 1; {few}"));
    refused(on_cpu(2, causal(), 11, 10), "context parallelism: 11 queries are more than 10 keys");
    let short = "a sequence of 7 rows cannot be cut for 4 ranks; at least 8 are needed";
    refused(on_cpu(4, causal(), 7, 10), short);
    refused(
        on_cpu(2, masked(Some(5), Some(0)), 300, 300),
        "seqlen_q is 300, which leaves rank 1 of 2 without rows: under a left window and with ALiBi chunks \
         begin at multiples of 384",
    );
    let slopes = |dtype, right| FlashAttn {
        alibi_slopes: Some(Tensor::ones(2, dtype, &Device::Cpu).unwrap()),
        ..masked(None, right)
    };
    refused(on_cpu(2, slopes(DType::F16, Some(0)), 10, 10), "alibi_slopes is F16; F32 is needed");
    let full = on_cpu(2, slopes(DType::F32, None), 2_000, 2_000);
    let distances = "its distances are to the last key of a chunk";
    refused(full, &format!("context parallelism: ALiBi needs a causal mask: {distances}"));
    let scale = FlashAttn { softmax_scale: f32::NAN, ..causal() };
    let limit = "a number of at most 1.8446744e19 in magnitude is needed";
    refused(on_cpu(2, scale, 10, 10), &format!("softmax_scale is NaN; {limit}"));
}

#[test]
fn tensors_that_do_not_fit() {
    let parallel = on_cpu(2, masked(None, Some(0)), 10, 10).unwrap();
    let whole = zeros([2, 10, 4, 16], DType::F32);
    let parts = parallel.shard_queries(&whole).unwrap();
    let with = |q: &[Tensor], k: &[Tensor], v: &[Tensor]| parallel.attention(q, k, v);
    assert!(with(&parts, &parts, &parts).is_ok());
    let one = "are 1 tensors; 2 are needed, one of each rank";
    refused(with(&parts[..1], &parts, &parts), &format!("q {one}"));
    refused(with(&parts, &parts, &parts[1..]), &format!("v {one}"));
    let swapped = [parts[1].clone(), parts[0].clone()];
    refused(with(&parts, &swapped, &parts), "k[0] has shape [2, 6, 4, 16]; [2, 4, 4, 16] is needed");
    let half = [parts[0].clone(), parts[1].to_dtype(DType::F16).unwrap()];
    refused(with(&half, &parts, &parts), "q[1] is F16, but q[0] is F32");
    let double = parts.iter().map(|part| part.to_dtype(DType::F64).unwrap()).collect::<Vec<_>>();
    refused(with(&double, &double, &double), "q is F64; F16, BF16 and F32 are supported");
    let flat = [parts[0].flatten_all().unwrap(), parts[1].clone()];
    let axes = "four axes, [batch, rows, heads, head_dim], are needed";
    refused(with(&parts, &flat, &parts), &format!("k[0] has shape [512]; {axes}"));
    let odd = parallel.shard_keys(&zeros([2, 10, 3, 16], DType::F32)).unwrap();
    refused(with(&parts, &odd, &odd), "kv_heads is 3, which does not divide heads = 4");
    let longer = parallel.shard_queries(&zeros([2, 11, 4, 16], DType::F32));
    refused(longer, "a tensor to shard has shape [2, 11, 4, 16]; [batch, seqlen_q = 10, ..] is needed");
    let gathered = parallel.gather_queries(&swapped, &Device::Cpu);
    refused(parallel.sum(&parts[..1]), &format!("summands {one}"));
    refused(gathered, "queries[0] has shape [2, 6, 4, 16]; [batch, 4, ..] is needed");
    let slopes = FlashAttn { alibi_slopes: Some(values(1, &[3], DType::F32)), ..masked(None, Some(0)) };
    let alibi = on_cpu(2, slopes, 2_000, 2_000).unwrap();
    let parts = alibi.shard_queries(&zeros([1, 2_000, 2, 8], DType::F32)).unwrap();
    let keys = alibi.shard_keys(&zeros([1, 2_000, 2, 8], DType::F32)).unwrap();
    let message = "alibi_slopes has shape [3]; [2], one per head, is needed";
    refused(alibi.attention(&parts, &keys, &keys), message);
}

#[test]
fn copies_add_their_gradients_up() {
    let weight = variable(1, &[3, 5], DType::F32);
    let parallel = on_cpu(4, masked(None, None), 8, 8).unwrap();
    let squares: Vec<_> =
        parallel.replicate(&weight).unwrap().iter().map(|weight| weight.sqr().unwrap()).collect();
    let gradients = parallel.sum(&squares).unwrap().backward().unwrap();
    let expected = (weight.as_tensor() * 8.0).unwrap();
    assert_close("weight", gradients.get(&weight).unwrap(), &expected, 1e-6);
}

#[test]
fn a_loss_of_one_rank_has_gradients_on_all() {
    // A loss of one rank's rows has gradients of all keys before them.
    let k = Var::from_tensor(&values(2, &[1, 8, 1, 8], DType::F32)).unwrap();
    let q = values(1, &[1, 8, 1, 8], DType::F32);
    let parallel = on_cpu(2, masked(None, Some(0)), 8, 8).unwrap();
    let keys = parallel.shard_keys(&k).unwrap();
    let o = parallel.attention(&parallel.shard_queries(&q).unwrap(), &keys, &keys).unwrap();
    let gradients = o[1].sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let rows = gradients.get(&k).unwrap().abs().unwrap().sum((0, 2, 3)).unwrap().to_vec1::<f32>().unwrap();
    // Rank 1 has the rows 2 to 5.
    let has_gradient: Vec<_> = rows.iter().map(|&sum| sum > 0.0).collect();
    assert_eq!(has_gradient, [true, true, true, true, true, true, false, false]);
}
