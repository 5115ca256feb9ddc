//! Training a layer of causal attention whose sequence lies on all GPUs of this machine, a part of its rows
//! on each; on one GPU, two ranks take turns. Each row is to become its own elements in the reverse order.
//!
//! Weights are alike on all ranks; products of few columns are computed here, and attention and its gradients
//! there. What is summed over rows is summed in the order of ranks.
//!
//! ```text
//! cargo run --release -p flash-attention --example training_on_several_gpus
//! ```

use flash_attention::backward::{BackwardProblem, BackwardRequest};
use flash_attention::cuda::{Cuda, DeviceMemory};
use flash_attention::distributed::{LocalRanks, Partition, Shard, ShardAddresses};
use flash_attention::{DType, Options, Problem, Request, Result, TensorLayout, Tensors};

const SEQ: usize = 2_000;
const HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const WIDTH: usize = HEADS * HEAD_DIM;
const STEPS: usize = 60;
const LEARNING_RATE: f32 = 2.0;

/// Wq, Wk and Wv, [WIDTH, WIDTH], row-major.
type Weights = [Vec<f32>; 3];

fn main() -> Result<()> {
    let mut gpus: Vec<Cuda> = (0..8).map_while(|ordinal| Cuda::new(ordinal).ok()).collect();
    match gpus.as_slice() {
        [] => {
            let reason = Cuda::new(0).err().map_or(String::new(), |error| error.to_string());
            println!("training_on_several_gpus: there is no GPU: {reason}");
            return Ok(());
        }
        [only] => gpus = vec![only.clone(), only.clone()],
        _ => {}
    }
    let layout = TensorLayout::bshd(1, SEQ, HEADS, HEAD_DIM);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let problem = Problem::new(tensors, DType::F32, Options { causal: true, ..Options::default() })?;
    let layer = Layer {
        forward: LocalRanks::new(&gpus, &problem, Partition::ZigZag, &Request::default())?,
        backward: LocalRanks::new(
            &gpus,
            &BackwardProblem::like(problem)?,
            Partition::ZigZag,
            &BackwardRequest::default(),
        )?,
    };
    let shards: Vec<&Shard> = (0..gpus.len()).filter_map(|rank| layer.forward.shard(rank)).collect();
    let mut ranks =
        gpus.iter().zip(shards).map(|(gpu, shard)| Rank::new(gpu, shard)).collect::<Result<Vec<_>>>()?;
    let mut weights: Weights = [1, 2, 3].map(|seed| values(seed, WIDTH * WIDTH, 0.3));
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let (loss, gradients) = layer.step(&mut ranks, &weights)?;
        losses.push(loss);
        for (weights, gradient) in weights.iter_mut().zip(&gradients) {
            weights.iter_mut().zip(gradient).for_each(|(weight, slope)| *weight -= LEARNING_RATE * slope);
        }
    }
    let (first, last) = (losses[0], losses[STEPS - 1]);
    println!(
        "training_on_several_gpus: {} ranks: loss {first:.4}, after {STEPS} steps {last:.4}",
        ranks.len()
    );
    Ok(())
}

/// Attention over all ranks' rows, and its gradients.
struct Layer {
    forward: LocalRanks,
    backward: LocalRanks<BackwardProblem>,
}

/// A rank's rows.
struct Rank {
    /// [rows, WIDTH].
    x: Vec<f32>,
    /// Q, K, V, O, dO, dQ, dK and dV, one behind the other, and lse.
    memory: DeviceMemory,
}

impl Rank {
    fn new(gpu: &Cuda, shard: &Shard) -> Result<Self> {
        let x: Vec<f32> = shard.query_positions().flat_map(|row| values(100 + row, WIDTH, 1.0)).collect();
        let memory = gpu.device_memory(4 * (8 * x.len() + shard.lse_len()))?;
        Ok(Self { x, memory })
    }

    /// Where the `index`-th tensor begins.
    const fn at(&self, index: usize) -> usize {
        4 * index * self.x.len()
    }

    fn addresses(&self) -> ShardAddresses {
        let [q, k, v, o, dout, dq, dk, dv, lse] =
            [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|index| self.memory.address() + self.at(index) as u64);
        ShardAddresses { q, k, v, o, lse: Some(lse), dout, dq, dk, dv }
    }

    fn write(&mut self, index: usize, tensor: &[f32]) -> Result<()> {
        let bytes: Vec<u8> = tensor.iter().flat_map(|value| value.to_ne_bytes()).collect();
        self.memory.write(self.at(index), &bytes)
    }

    fn read(&self, index: usize) -> Result<Vec<f32>> {
        let mut bytes = vec![0; 4 * self.x.len()];
        self.memory.read(self.at(index), &mut bytes)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_ne_bytes(bytes)).collect())
    }
}

impl Layer {
    /// The loss, the mean square of what each element lacks, and its gradients.
    fn step(&self, ranks: &mut [Rank], weights: &Weights) -> Result<(f32, Weights)> {
        for rank in ranks.iter_mut() {
            for (index, weights) in weights.iter().enumerate() {
                rank.write(index, &product(&rank.x, weights))?;
            }
        }
        let addresses: Vec<_> = ranks.iter().map(Rank::addresses).collect();
        let streams: Vec<_> = ranks.iter().map(|rank| rank.memory.stream()).collect();
        // SAFETY: the tensors lie in the ranks' memories, which live until the work is over.
        unsafe { self.forward.forward(&addresses, &streams) }?;
        self.forward.wait()?;
        let mut loss = 0.0;
        for rank in ranks.iter_mut() {
            let o = rank.read(3)?;
            let count = (SEQ * WIDTH) as f32;
            let targets = rank.x.chunks(WIDTH).flat_map(|row| row.iter().rev());
            let lacks: Vec<f32> = o.iter().zip(targets).map(|(o, target)| o - target).collect();
            loss += lacks.iter().map(|lack| lack * lack / count).sum::<f32>();
            rank.write(4, &lacks.iter().map(|lack| 2.0 * lack / count).collect::<Vec<_>>())?;
        }
        // SAFETY: as above.
        unsafe { self.backward.backward(&addresses, &streams) }?;
        self.backward.wait()?;
        let mut gradients: Weights = std::array::from_fn(|_| vec![0.0; WIDTH * WIDTH]);
        for rank in ranks.iter() {
            for (index, sum) in gradients.iter_mut().enumerate() {
                let gradient = rank.read(5 + index)?;
                for (x, gradient) in rank.x.chunks(WIDTH).zip(gradient.chunks(WIDTH)) {
                    for (sum, x) in sum.chunks_mut(WIDTH).zip(x) {
                        sum.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += x * gradient);
                    }
                }
            }
        }
        Ok((loss, gradients))
    }
}

/// X·W of rows.
fn product(x: &[f32], weights: &[f32]) -> Vec<f32> {
    let of_row = |row: &[f32]| {
        let mut sums = [0.0; WIDTH];
        for (x, weights) in row.iter().zip(weights.chunks(WIDTH)) {
            sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += x * weight);
        }
        sums
    };
    x.chunks(WIDTH).flat_map(of_row).collect()
}

/// Numbers from −`scale` to `scale`, the same for a seed.
fn values(seed: usize, len: usize, scale: f32) -> Vec<f32> {
    let mut state = seed as u64 * 2 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
    };
    (0..len).map(|_| next()).collect()
}
