//! `forward_sm90` in the simulator, where a block goes through several tiles: what the cases of `verify`, with a block for each
//! tile, do not reach.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Case, Order};
use flash_attention::{
    DType, Device, Element, Kernel, Options, Plan, Request, Sim, accuracy, plan, reference,
};
use half::{bf16, f16};

/// Sizes with an odd number of tiles on a device of two multiprocessors: B, Sq, Sk, Hkv, group.
const SHAPES: [([usize; 5], Options); 6] = [
    ([1, 200, 300, 3, 1], PLAIN),
    ([2, 400, 400, 1, 2], CAUSAL),
    ([1, 500, 250, 2, 1], CAUSAL),
    ([1, 250, 500, 3, 1], CAUSAL),
    ([1, 600, 600, 1, 1], Options { window: (Some(100), Some(0)), ..PLAIN }),
    ([1, 450, 450, 1, 2], Options { window: (Some(30), Some(250)), ..PLAIN }),
];

const PLAIN: Options =
    Options { causal: false, softmax_scale: None, window: (None, None), softcap: 0.0, alibi_slopes: None };
const CAUSAL: Options = Options { causal: true, ..PLAIN };

/// A device whose two multiprocessors share all tiles.
fn two_multiprocessors(sim: &Sim) -> Device {
    Device { multiprocessors: 2, ..sim.device().clone() }
}

fn request(block_m: usize, block_n: usize) -> Request {
    Request { kernel: Some(Kernel::ForwardSm90), block_m: Some(block_m), block_n: Some(block_n) }
}

fn check<T: Element>(case: &Case, sim: &Sim, plan: &Plan) {
    let problem = case.problem();
    let [q, k, v] = case.inputs::<T>();
    let mut o = vec![T::from_f32(f32::NAN); problem.tensors().o.span()];
    let mut lse = vec![f32::NAN; problem.lse_len()];
    sim.forward(&problem, plan, (&q, &k, &v), &mut o, Some(&mut lse)).unwrap();
    let rows = reference::all(&problem);
    let report = accuracy::check(&problem, (&q, &k, &v), &o, Some(&lse), DType::F32, &rows);
    assert!(report.passed(), "{case:?}: {report}");
}

#[test]
fn blocks_go_through_several_tiles() {
    let tiles = [(192, 128, 64), (192, 80, 128), (128, 128, 128), (128, 80, 256)];
    for (index, (shape, options)) in SHAPES.into_iter().enumerate() {
        for (block_m, block_n, head_dim) in tiles {
            let [b, sq, sk, h, group] = shape;
            let case = Case {
                dtype: if index % 2 == 0 { DType::F16 } else { DType::Bf16 },
                shape: [b, sq, sk, h, group, head_dim - 8],
                head_dim_v: Some(head_dim),
                orders: [Order::Bshd, Order::Bhsd, Order::Bshd],
                options: options.clone(),
                seed: index as u64,
            };
            let sim = Sim::new(index as u64);
            let plan = plan(&case.problem(), &two_multiprocessors(&sim), &request(block_m, block_n)).unwrap();
            assert_eq!(plan.steps[0].grid, 2);
            match case.dtype {
                DType::F16 => check::<f16>(&case, &sim, &plan),
                _ => check::<bf16>(&case, &sim, &plan),
            }
        }
    }
}
