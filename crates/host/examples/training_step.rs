//! Training a small model of two layers of causal attention: each row is to become the row before it.
//!
//! A layer is X + attention(X·Wq, X·Wk, X·Wv)·Wo, with an attention sink for each head. All of its products
//! and both passes of its attention run on the library's backend. Training is done twice, and ends with the
//! same bits: no gradient is summed by atomics.
//!
//! ```text
//! cargo run --release -p flash-attention --example training_step
//! ```

use std::error::Error;

use flash_attention::backward::{BackwardInputs, BackwardProblem, BackwardRequest, BackwardResults};
use flash_attention::forward::{Attention, Results};
use flash_attention::gemm::{GemmProblem, GemmRequest, Matrices, MatrixLayout};
use flash_attention::{Backend, BackendKind, DType, HostTensor, Result, TensorLayout, attention};

const BATCH: usize = 2;
const SEQ: usize = 48;
const HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const WIDTH: usize = HEADS * HEAD_DIM;
const ROWS: usize = BATCH * SEQ;
const STEPS: usize = 100;
const LEARNING_RATE: f32 = 0.3;

/// Activations: rows of all heads, as attention and products both read them.
const HEADS_OF_ROWS: TensorLayout = TensorLayout::bshd(BATCH, SEQ, HEADS, HEAD_DIM);
const ACTIVATIONS: MatrixLayout = MatrixLayout::row_major(ROWS, WIDTH);
const WEIGHTS: MatrixLayout = MatrixLayout::row_major(WIDTH, WIDTH);

/// What a layer learns: Wq, Wk, Wv, Wo, and the sink of each head.
type Layer = [Vec<f32>; 5];

/// What the backward pass of a layer needs of its forward pass.
struct Pass {
    x: Vec<f32>,
    qkv: [Vec<f32>; 3],
    attended: Results<f32>,
}

/// A model, and the inputs and targets that it is trained on.
struct Training<'a> {
    backend: &'a Backend,
    layers: Vec<Layer>,
    x: Vec<f32>,
    target: Vec<f32>,
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let cpu = Backend::open(Some(BackendKind::Cpu))?;
    let best = Backend::open(None)?;
    for backend in [Some(&cpu), best.as_cuda().map(|_| &best)].into_iter().flatten() {
        let [once, again] = [Training::new(backend).train()?, Training::new(backend).train()?];
        let Trained { losses: (first, last), differences, .. } = once;
        println!(
            "training_step: on {}: loss {first:.4}, after {STEPS} steps {last:.4}",
            backend.device().describe()
        );
        println!("training_step: gradients within {differences:.1e} of finite differences");
        match (last < first && differences < 5e-3, once.bits == again.bits) {
            (false, _) => return Err("the gradients are wrong".into()),
            (_, false) => return Err("training again gave other bits".into()),
            (true, true) => {}
        }
    }
    Ok(())
}

/// The losses before the first step and after the last, by how much the first gradients differ from finite
/// differences, and the bits of all parameters at the end.
struct Trained {
    losses: (f64, f64),
    differences: f64,
    bits: Vec<u32>,
}

impl<'a> Training<'a> {
    /// The same weights and rows each time, from −1 to 1 times a scale.
    fn new(backend: &'a Backend) -> Self {
        let values = |len: usize, seed: usize, scale: f32| -> Vec<f32> {
            let mut state = seed as u32;
            let next = |_| {
                state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
                scale * ((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
            };
            (0..len).map(next).collect()
        };
        let layer = |index: usize| -> Layer {
            let [wq, wk, wv, wo] = [1, 2, 3, 4].map(|seed| values(WEIGHTS.span(), 10 * index + seed, 0.3));
            [wq, wk, wv, wo, vec![0.0; HEADS]]
        };
        let x = values(ACTIVATIONS.span(), 99, 1.0);
        // The row before; the first of each sequence stays.
        let from = |row: usize| if row.is_multiple_of(SEQ) { row } else { row - 1 };
        let target = (0..ROWS).flat_map(|row| x[from(row) * WIDTH..][..WIDTH].to_vec()).collect();
        Self { backend, layers: vec![layer(0), layer(1)], x, target }
    }

    fn train(mut self) -> Result<Trained> {
        let first = self.loss()?;
        let differences = self.finite_differences()?;
        for _ in 0..STEPS {
            let gradients = self.gradients()?;
            let parameters = self.layers.as_flattened_mut().iter_mut();
            for (parameter, gradient) in parameters.zip(gradients.as_flattened()) {
                parameter.iter_mut().zip(gradient).for_each(|(value, slope)| *value -= LEARNING_RATE * slope);
            }
        }
        let bits = self.layers.iter().flatten().flatten().map(|value| value.to_bits()).collect();
        Ok(Trained { losses: (first, self.loss()?), differences, bits })
    }

    /// What each layer had, and the rows behind the last.
    fn forward(&self) -> Result<(Vec<Pass>, Vec<f32>)> {
        let (mut passes, mut x) = (Vec::new(), self.x.clone());
        for [wq, wk, wv, wo, sinks] in &self.layers {
            let project = |w: &[f32]| self.product((&x, ACTIVATIONS), (w, WEIGHTS));
            let qkv = [project(wq)?, project(wk)?, project(wv)?];
            let attended = attend(&qkv, sinks).run(self.backend)?;
            let projected = self.product((&attended.o, ACTIVATIONS), (wo, WEIGHTS))?;
            let next = sum(&x, &projected);
            passes.push(Pass { x, qkv, attended });
            x = next;
        }
        Ok((passes, x))
    }

    /// Σ (y − target)² / 2 of a row, on average.
    fn loss(&self) -> Result<f64> {
        let (_, y) = self.forward()?;
        let square = |(&y, &target): (&f32, &f32)| (f64::from(y) - f64::from(target)).powi(2);
        Ok(y.iter().zip(&self.target).map(square).sum::<f64>() / (2 * ROWS) as f64)
    }

    /// The slopes of the loss, from the last layer to the first.
    fn gradients(&self) -> Result<Vec<Layer>> {
        let (passes, y) = self.forward()?;
        let slope = |(y, target): (&f32, &f32)| (y - target) / ROWS as f32;
        let mut dy: Vec<f32> = y.iter().zip(&self.target).map(slope).collect();
        let of_weights =
            |x: &[f32], dy: &[f32]| self.product((x, ACTIVATIONS.transposed()), (dy, ACTIVATIONS));
        let of_rows = |dy: &[f32], w: &[f32]| self.product((dy, ACTIVATIONS), (w, WEIGHTS.transposed()));
        let mut all = Vec::new();
        for ([wq, wk, wv, wo, sinks], Pass { x, qkv, attended }) in self.layers.iter().zip(&passes).rev() {
            let (dwo, dout) = (of_weights(&attended.o, &dy)?, of_rows(&dy, wo)?);
            let BackwardResults { dq, dk, dv, dsinks } =
                self.attention_gradients(qkv, sinks, attended, &dout)?;
            // A layer's input goes into its products and, as it is, into what follows.
            for (gradient, w) in [(&dq, wq), (&dk, wk), (&dv, wv)] {
                dy = sum(&dy, &of_rows(gradient, w)?);
            }
            let [dwq, dwk, dwv] = [of_weights(x, &dq)?, of_weights(x, &dk)?, of_weights(x, &dv)?];
            all.push([dwq, dwk, dwv, dwo, dsinks.unwrap_or_default()]);
        }
        all.reverse();
        Ok(all)
    }

    /// dQ, dK, dV and dsinks from dO.
    fn attention_gradients(
        &self,
        qkv @ [q, k, v]: &[Vec<f32>; 3],
        sinks: &[f32],
        Results { o, lse }: &Results<f32>,
        dout: &[f32],
    ) -> Result<BackwardResults<f32>> {
        let problem = BackwardProblem::like(attend(qkv, sinks).problem()?)?;
        let plan = self.backend.plan(&problem, &BackwardRequest::default())?;
        let inputs = BackwardInputs { q, k, v, o, lse, dout, dlse: None, delta: None };
        let mut prepared = self.backend.prepare(&plan, inputs)?;
        prepared.run()?;
        Ok(prepared.outputs()?.clone())
    }

    /// By how much some gradients of the first layer differ from central differences, as a share of the
    /// largest of their tensor.
    fn finite_differences(&mut self) -> Result<f64> {
        const STEP: f32 = 1e-2;
        let mut worst = 0.0_f64;
        for (tensor, gradient) in self.gradients()?[0].iter().enumerate() {
            let largest = gradient.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            for index in (0..gradient.len()).step_by(173) {
                let value = self.layers[0][tensor][index];
                let mut shifted = |step: f32| {
                    self.layers[0][tensor][index] = value + step;
                    self.loss()
                };
                let slope = (shifted(STEP)? - shifted(-STEP)?) / (2.0 * f64::from(STEP));
                self.layers[0][tensor][index] = value;
                worst = worst.max((f64::from(gradient[index]) - slope).abs() / f64::from(largest));
            }
        }
        Ok(worst)
    }

    /// A·B.
    fn product(
        &self,
        (a, a_at): (&[f32], MatrixLayout),
        (b, b_at): (&[f32], MatrixLayout),
    ) -> Result<Vec<f32>> {
        let c_at = MatrixLayout::row_major(a_at.rows, b_at.columns);
        let problem = GemmProblem::new(Matrices { a: a_at, b: b_at, c: c_at }, DType::F32)?;
        let mut c = vec![0.0; c_at.span()];
        self.backend.run(&self.backend.plan(&problem, &GemmRequest::default())?, (a, b), &mut c)?;
        Ok(c)
    }
}

/// Causal attention with sinks.
fn attend<'a>([q, k, v]: &'a [Vec<f32>; 3], sinks: &[f32]) -> Attention<HostTensor<'a, f32>> {
    let [q, k, v] = [q, k, v].map(|values| HostTensor::new(values, HEADS_OF_ROWS));
    attention(&q, &k, &v).causal().sinks(sinks.to_vec())
}

fn sum(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}
