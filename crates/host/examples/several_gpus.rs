//! One sequence on all GPUs of this machine (context parallelism), a rank on each; on one GPU, two ranks in
//! turns.
//!
//! ```text
//! cargo run --release -p flash-attention --example several_gpus
//! ```

use flash_attention::cuda::Cuda;
use flash_attention::distributed::{LocalRanks, Partition, ShardAddresses};
use flash_attention::{DType, Options, Problem, Request, TensorLayout, Tensors};
use half::bf16;

fn main() -> flash_attention::Result<()> {
    let mut gpus: Vec<Cuda> = (0..8).map_while(|ordinal| Cuda::new(ordinal).ok()).collect();
    match gpus.as_slice() {
        [] => {
            println!(
                "there is no GPU: {}",
                Cuda::new(0).err().map_or(String::new(), |error| error.to_string())
            );
            return Ok(());
        }
        [only] => gpus = vec![only.clone(), only.clone()],
        _ => {}
    }
    let q = TensorLayout::bshd(1, 65_536, 32, 128); // batch, seqlen, heads, head_dim
    let k = TensorLayout { heads: 8, stride_head: 128, stride_seq: 1024, stride_batch: 1024 * 65_536, ..q };
    let tensors = Tensors { q, k, v: k, o: q };
    let problem = Problem::new(tensors, DType::Bf16, Options { causal: true, ..Options::default() })?;
    let ranks = LocalRanks::new(&gpus, &problem, Partition::ZigZag, &Request::default())?;
    ranks.reasons().iter().for_each(|reason| println!("{reason}"));

    // Each rank has its rows alone. Here all elements are alike; `query_positions` says which rows they are.
    let (mut memories, mut addresses, mut streams) = (Vec::new(), Vec::new(), Vec::new());
    for (rank, gpu) in gpus.iter().enumerate() {
        let Some(shard) = ranks.shard(rank) else { break };
        let Tensors { q, k, v, o } = shard.tensors();
        let [q, k, v, o] = [q, k, v, o].map(|layout| layout.span() * size_of::<bf16>());
        let mut memory = gpu.device_memory(q + k + v + o)?;
        memory.fill(0, q + k + v, 0x3c)?;
        let at = |offset: usize| memory.address() + offset as u64;
        addresses.push(ShardAddresses {
            q: at(0),
            k: at(q),
            v: at(q + k),
            o: at(q + k + v),
            ..ShardAddresses::default()
        });
        streams.push(memory.stream());
        let rows: Vec<_> = shard.query_positions().collect();
        println!("rank {rank}: {} rows, from {:?} to {:?}", rows.len(), rows.first(), rows.last());
        memories.push((memory, q + k + v));
    }
    // SAFETY: the tensors lie in the memories, which live until the work is over, one behind the other.
    unsafe { ranks.forward(&addresses, &streams) }?;
    ranks.wait()?;
    for (rank, (memory, o)) in memories.iter().enumerate() {
        let mut first = [0; 2];
        memory.read(*o, &mut first)?;
        println!("rank {rank}: O begins with {}", bf16::from_le_bytes(first));
    }
    Ok(())
}
