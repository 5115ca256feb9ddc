//! Random inputs: normal, and the same for a seed whatever the number of threads.

use flash_attention::{Element, Problem, TensorLayout};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use rayon::prelude::*;

/// Elements that one stream of the generator fills; even, because normal numbers come in pairs.
const CHUNK: usize = 1 << 16;

/// Q, K and V of a problem, each as long as its view reaches.
pub(crate) struct Inputs<T> {
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
}

impl<T: Element> Inputs<T> {
    /// Elements drawn from N(0, 1), rounded to the storage type; NaN behind the keys that are used.
    pub(crate) fn random(problem: &Problem, seed: u64) -> Self {
        let tensors = problem.tensors();
        let mut inputs = Self {
            q: normal(seed, 0, tensors.q.span()),
            k: normal(seed, 1, tensors.k.span()),
            v: normal(seed, 2, tensors.v.span()),
        };
        if problem.has_seqused_k() {
            poison_unused(problem, &tensors.k, &mut inputs.k);
            poison_unused(problem, &tensors.v, &mut inputs.v);
        }
        inputs
    }

    /// As [`Self::random`], with elements of V from N(`mean`, `deviation`²).
    pub(crate) fn around(problem: &Problem, seed: u64, mean: f32, deviation: f32) -> Self {
        let tensors = problem.tensors();
        let mut v = normal::<f32>(seed, 2, tensors.v.span());
        v.par_iter_mut().for_each(|value| *value = mean + deviation * *value);
        Self { v: v.into_iter().map(T::from_f32).collect(), ..Self::random(problem, seed) }
    }

    /// The three tensors, as the library takes them.
    pub(crate) fn tensors(&self) -> (&[T], &[T], &[T]) {
        (&self.q, &self.k, &self.v)
    }
}

/// Makes NaN of what no sequence uses in K or V, whose layout is given.
fn poison_unused<T: Element>(problem: &Problem, layout: &TensorLayout, values: &mut [T]) {
    for (value, is_used) in values.iter_mut().zip(used_elements(problem, layout)) {
        if !is_used {
            *value = T::from_f32(f32::NAN);
        }
    }
}

/// Of each element of K or V, or their gradients, whether a sequence uses its row.
pub(crate) fn used_elements(problem: &Problem, layout: &TensorLayout) -> Vec<bool> {
    let mut used = vec![false; layout.span()];
    for batch in 0..problem.batch() {
        for key in 0..problem.key_rows(batch).len() {
            for head in 0..layout.heads {
                let row = problem.key_index(layout, batch, key, head);
                used[row..][..layout.head_dim].fill(true);
            }
        }
    }
    used
}

/// `len` normal numbers; `tensor` keeps the streams of different tensors apart.
pub(crate) fn normal<T: Element>(seed: u64, tensor: u64, len: usize) -> Vec<T> {
    let mut values = vec![T::default(); len];
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, values)| {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(tensor << 48 | chunk as u64);
        for pair in values.chunks_mut(2) {
            let [first, second] = normal_pair(rng.next_u64());
            pair[0] = T::from_f32(first);
            if let Some(value) = pair.get_mut(1) {
                *value = T::from_f32(second);
            }
        }
    });
    values
}

/// Two independent normal numbers (Box and Muller, 1958) of a random word.
pub(crate) fn normal_pair(bits: u64) -> [f32; 2] {
    const UNIT: f32 = 1.0 / (1 << 24) as f32;
    // In (0, 1], so that the logarithm is finite.
    let radius = (-2.0 * ((bits >> 40) as f32 * UNIT + UNIT).ln()).sqrt();
    let angle = std::f32::consts::TAU * ((bits & 0xff_ffff) as f32 * UNIT);
    [radius * angle.cos(), radius * angle.sin()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_do_not_matter() {
        let of_threads = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| normal::<f32>(7, 0, 3 * CHUNK + 5))
        };
        assert_eq!(of_threads(1), of_threads(5));
    }

    #[test]
    fn seeds_tensors_and_chunks_differ() {
        let values = normal::<f32>(7, 0, 2 * CHUNK);
        assert_ne!(values[..CHUNK], values[CHUNK..]);
        assert_ne!(values, normal::<f32>(8, 0, 2 * CHUNK));
        assert_ne!(values, normal::<f32>(7, 1, 2 * CHUNK));
    }

    #[test]
    fn moments_are_those_of_the_normal_distribution() {
        let values = normal::<f32>(1, 0, 1 << 20);
        let moment =
            |power: i32| values.iter().map(|&x| f64::from(x).powi(power)).sum::<f64>() / values.len() as f64;
        // Standard errors at 2^20 samples: 0.001, 0.0014, 0.004, 0.01.
        for (power, expected, tolerance) in [(1, 0.0, 0.005), (2, 1.0, 0.007), (3, 0.0, 0.02), (4, 3.0, 0.05)]
        {
            assert!((moment(power) - expected).abs() < tolerance, "moment {power} is {}", moment(power));
        }
    }
}
