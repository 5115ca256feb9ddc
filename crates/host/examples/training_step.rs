//! A step of training: forward, a loss, backward, and Q, K and V a step downhill. The gradients are compared
//! with finite differences of the loss.
//!
//! ```text
//! cargo run --release -p flash-attention --example training_step
//! ```

use std::error::Error;

use flash_attention::backward::{BackwardInputs, BackwardProblem, BackwardRequest, BackwardResults};
use flash_attention::forward::Results;
use flash_attention::{Backend, HostTensor, TensorLayout, attention};

const LAYOUT: TensorLayout = TensorLayout::bshd(1, 40, 2, 16);

/// Q, K and V.
type Weights = [Vec<f32>; 3];

fn main() -> Result<(), Box<dyn Error>> {
    let backend = Backend::open(None)?;
    let values = |seed: usize| -> Vec<f32> {
        (0..LAYOUT.span()).map(|index| ((index * 37 + seed * 101) % 199) as f32 / 99.5 - 1.0).collect()
    };
    let mut weights: Weights = [1, 2, 3].map(values);
    let target = values(4);

    let before = forward(&backend, &weights)?;
    let gradients = backward(&backend, &weights, &before, &target)?;
    let worst = finite_differences(&backend, &weights, &gradients, &target)?;
    for (weight, gradient) in weights.iter_mut().zip(&gradients) {
        weight.iter_mut().zip(gradient).for_each(|(weight, gradient)| *weight -= 0.1 * gradient);
    }
    let (first, second) = (loss(&before.o, &target), loss(&forward(&backend, &weights)?.o, &target));
    println!(
        "training_step: on {}: loss {first:.3}, after a step {second:.3}; gradients within {worst:.1e} of finite \
         differences",
        backend.device().describe()
    );
    if worst > 5e-3 || second >= first { Err("the gradients are wrong".into()) } else { Ok(()) }
}

fn forward(backend: &Backend, weights: &Weights) -> flash_attention::Result<Results<f32>> {
    let [q, k, v] = weights.each_ref().map(|values| HostTensor::new(values, LAYOUT));
    attention(&q, &k, &v).causal().run(backend)
}

/// L = Σ (O − target)² / 2.
fn loss(o: &[f32], target: &[f32]) -> f64 {
    o.iter().zip(target).map(|(&o, &target)| (f64::from(o) - f64::from(target)).powi(2) / 2.0).sum()
}

/// dL/dQ, dL/dK and dL/dV, from dL/dO = O − target.
fn backward(
    backend: &Backend,
    weights: &Weights,
    Results { o, lse }: &Results<f32>,
    target: &[f32],
) -> flash_attention::Result<Weights> {
    let [q, k, v] = weights;
    let tensors = [q, k, v].map(|values| HostTensor::new(values, LAYOUT));
    let problem =
        BackwardProblem::like(attention(&tensors[0], &tensors[1], &tensors[2]).causal().problem()?)?;
    let plan = backend.plan(&problem, &BackwardRequest::default())?;
    let dout: Vec<f32> = o.iter().zip(target).map(|(o, target)| o - target).collect();
    let mut prepared = backend.prepare(&plan, BackwardInputs { q, k, v, o, lse, dout: &dout })?;
    prepared.run()?;
    let BackwardResults { dq, dk, dv } = prepared.outputs()?.clone();
    Ok([dq, dk, dv])
}

/// By how much some elements of the gradients differ from central differences, as a share of the largest.
fn finite_differences(
    backend: &Backend,
    weights: &Weights,
    gradients: &Weights,
    target: &[f32],
) -> flash_attention::Result<f64> {
    const STEP: f32 = 1e-2;
    let mut worst = 0.0_f64;
    for (tensor, gradient) in gradients.iter().enumerate() {
        let largest = gradient.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        for index in (0..gradient.len()).step_by(211) {
            let shifted = |step: f32| {
                let mut weights = weights.clone();
                weights[tensor][index] += step;
                Ok::<_, flash_attention::Error>(loss(&forward(backend, &weights)?.o, target))
            };
            let slope = (shifted(STEP)? - shifted(-STEP)?) / (2.0 * f64::from(STEP));
            worst = worst.max((f64::from(gradient[index]) - slope).abs() / f64::from(largest));
        }
    }
    Ok(worst)
}
