//! Attention over host slices on all cores of this machine, beside the definition.
//!
//! ```text
//! cargo run --release -p flash-attention --example cpu_attention
//! ```

use std::time::Instant;

use flash_attention::{Backend, BackendKind, HostTensor, attention};

const BATCH: usize = 1;
const SEQLEN: usize = 300;
const HEADS: usize = 8;
/// Four query heads share a key/value head.
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let values = |seed: usize, heads: usize| -> Vec<f32> {
        let len = BATCH * SEQLEN * heads * HEAD_DIM;
        (0..len).map(|index| ((index * 37 + seed * 101) % 199) as f32 / 99.5 - 1.0).collect()
    };
    let (q, k, v) = (values(1, HEADS), values(2, KV_HEADS), values(3, KV_HEADS));
    let queries = HostTensor::bshd(&q, [BATCH, SEQLEN, HEADS, HEAD_DIM]);
    let [keys, of_keys] = [&k, &v].map(|data| HostTensor::bshd(data, [BATCH, SEQLEN, KV_HEADS, HEAD_DIM]));

    let backend = Backend::open(Some(BackendKind::Cpu))?;
    let start = Instant::now();
    let found = attention(&queries, &keys, &of_keys).causal().run(&backend)?;
    let elapsed = start.elapsed();

    let row = |data: &[f32], heads: usize, row: usize, head: usize| -> Vec<f32> {
        data[(row * heads + head) * HEAD_DIM..][..HEAD_DIM].to_vec()
    };
    let mut worst = 0.0_f64;
    for (query, head) in [(0, 0), (1, 7), (150, 3), (SEQLEN - 1, 4)] {
        let kv_head = head / (HEADS / KV_HEADS);
        let expected = by_definition(
            &row(&q, HEADS, query, head),
            (0..=query).map(|key| (row(&k, KV_HEADS, key, kv_head), row(&v, KV_HEADS, key, kv_head))),
        );
        let o = row(&found.o, HEADS, query, head);
        worst = o.iter().zip(&expected).map(|(&o, &e)| (f64::from(o) - e).abs()).fold(worst, f64::max);
    }
    println!("cpu_attention: {elapsed:.1?} on {}; largest error {worst:.1e}", backend.device().describe());
    if worst > 1e-5 { Err("O is not what the definition says".into()) } else { Ok(()) }
}

/// softmax(q·Kᵀ / √D) · V of one query, in f64.
fn by_definition(q: &[f32], pairs: impl Iterator<Item = (Vec<f32>, Vec<f32>)>) -> Vec<f64> {
    let (mut o, mut sum) = (vec![0.0; HEAD_DIM], 0.0);
    for (k, v) in pairs {
        let score: f64 = q.iter().zip(&k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
        let weight = (score / (HEAD_DIM as f64).sqrt()).exp();
        sum += weight;
        o.iter_mut().zip(&v).for_each(|(o, &v)| *o += weight * f64::from(v));
    }
    o.iter().map(|o| o / sum).collect()
}
