//! Ranks on GPUs 0 and 1, or where there is one on that alone, against one GPU: these tests need a GPU.

use std::fmt::Debug;

use candle_core::{DType, Device, Tensor, Var, WithDType};
use candle_flash_attention::{ContextParallel, FlashAttn};
use flash_attention::backward::{BackwardInputs, BackwardOutputs, BackwardProblem, BackwardRequest};
use flash_attention::forward::Outputs;
use flash_attention::{Backend, BackendKind, Element, Options, Problem, Request, TensorLayout, Tensors};
use half::{bf16, f16};

use crate::context::masked;
use crate::plain::values;

/// A type of tensors.
trait Value: WithDType + Element<Output = Self> + Debug {}

impl<T: WithDType + Element<Output = T> + Debug> Value for T {}

/// A device for each of so many ranks, of both GPUs in turns.
fn devices(world: usize) -> Vec<Device> {
    let one = Device::new_cuda_with_stream(0).unwrap();
    let other = Device::new_cuda_with_stream(1).or_else(|_| Device::new_cuda_with_stream(0)).unwrap();
    (0..world).map(|rank| if rank % 2 == 0 { one.clone() } else { other.clone() }).collect()
}

/// B, Sq, Sk, H, Hkv, D and Dv.
#[derive(Clone, Copy, Debug)]
struct Sizes(usize, usize, usize, usize, usize, usize, usize);

impl Sizes {
    /// Q, K, V and dO, in host memory.
    fn tensors(self, dtype: DType) -> [Tensor; 4] {
        let Self(b, sq, sk, h, hkv, d, dv) = self;
        [
            values(1, &[b, sq, h, d], dtype),
            values(2, &[b, sk, hkv, d], dtype),
            values(3, &[b, sk, hkv, dv], dtype),
            values(4, &[b, sq, h, dv], dtype),
        ]
    }

    fn layouts(self) -> Tensors {
        let Self(b, sq, sk, h, hkv, d, dv) = self;
        Tensors {
            q: TensorLayout::bshd(b, sq, h, d),
            k: TensorLayout::bshd(b, sk, hkv, d),
            v: TensorLayout::bshd(b, sk, hkv, dv),
            o: TensorLayout::bshd(b, sq, h, dv),
        }
    }
}

fn list<T: WithDType>(tensor: &Tensor) -> Vec<T> {
    tensor.to_device(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// O of one GPU, and if they are wanted dQ, dK and dV.
fn of_one<T: Value>(
    sizes: Sizes,
    tensors: &[Tensor; 4],
    attention: &FlashAttn,
    wants_gradients: bool,
) -> Vec<Vec<T>> {
    let slopes = attention.alibi_slopes.as_ref().map(list::<f32>);
    let batch_invariant = slopes.is_some() || attention.window_size_left.is_some();
    let options = Options {
        softmax_scale: Some(attention.softmax_scale),
        window: (attention.window_size_left, attention.window_size_right),
        softcap: attention.softcap.unwrap_or(0.0),
        alibi_slopes: slopes,
        ..Options::default()
    };
    let problem = Problem::new(sizes.layouts(), <T as Element>::DTYPE, options).unwrap();
    let backend = Backend::open(Some(BackendKind::Cuda)).unwrap();
    let [q, k, v, dout] = tensors.each_ref().map(list::<T>);
    let (mut o, mut lse) = (vec![T::zero(); dout.len()], vec![0.0; problem.lse_len()]);
    let plan = backend.plan(&problem, &Request { batch_invariant, ..Request::default() }).unwrap();
    backend.run(&plan, (&q, &k, &v), Outputs { o: &mut o, lse: Some(&mut lse) }).unwrap();
    if !wants_gradients {
        return vec![o];
    }
    // What ranks do, too: scores twice, and no dS in memory.
    let request = BackwardRequest { workspace_limit: Some(0), ..BackwardRequest::default() };
    let plan = backend.plan(&BackwardProblem::like(problem).unwrap(), &request).unwrap();
    let [mut dq, mut dk, mut dv] = [&q, &k, &v].map(|of| vec![T::zero(); of.len()]);
    let inputs =
        BackwardInputs { q: &q, k: &k, v: &v, o: &o, lse: &lse, dout: &dout, dlse: None, delta: None };
    let outputs = BackwardOutputs { dq: &mut dq, dk: &mut dk, dv: &mut dv, dsinks: None, delta: None };
    backend.run(&plan, inputs, outputs).unwrap();
    vec![o, dq, dk, dv]
}

/// A case on several ranks.
struct Ranks {
    parallel: ContextParallel,
    /// Q, K and V, whole, on the first device.
    variables: [Var; 3],
    /// dO of each rank.
    douts: Vec<Tensor>,
}

impl Ranks {
    fn new(devices: &[Device], sizes: Sizes, [q, k, v, dout]: &[Tensor; 4], attention: FlashAttn) -> Self {
        let parallel = ContextParallel::new(devices, attention, sizes.1, sizes.2).unwrap();
        let variable = |of: &Tensor| Var::from_tensor(&of.to_device(&devices[0]).unwrap()).unwrap();
        let douts = parallel.shard_queries(dout).unwrap();
        Self { parallel, variables: [variable(q), variable(k), variable(v)], douts }
    }

    fn attention(&self) -> Vec<Tensor> {
        let [q, k, v] = &self.variables;
        let (q, k) = (self.parallel.shard_queries(q).unwrap(), self.parallel.shard_keys(k).unwrap());
        self.parallel.attention(&q, &k, &self.parallel.shard_keys(v).unwrap()).unwrap()
    }

    /// The sum of the products of O and dO.
    fn loss(&self, o: &[Tensor]) -> Tensor {
        let losses: Vec<_> = (0..o.len()).map(|rank| self.loss_of(o, rank)).collect();
        self.parallel.sum(&losses).unwrap()
    }

    /// The same of one rank.
    fn loss_of(&self, o: &[Tensor], rank: usize) -> Tensor {
        (&o[rank] * &self.douts[rank]).unwrap().sum_all().unwrap()
    }

    /// dQ, dK and dV of a loss.
    fn gradients<T: WithDType>(&self, loss: &Tensor) -> [Vec<T>; 3] {
        let gradients = loss.backward().unwrap();
        self.variables.each_ref().map(|of| list(gradients.get(of).unwrap()))
    }

    fn whole<T: WithDType>(&self, o: &[Tensor]) -> Vec<T> {
        list(&self.parallel.gather_queries(o, &Device::Cpu).unwrap())
    }
}

/// Compares all elements; 0 is -0, since candle adds gradients to 0.
#[track_caller]
fn same<T: Value>(what: &str, found: &[T], expected: &[T]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(found == expected, "{what}: element {index} is {found:?}, and {expected:?} was expected");
    }
}

#[track_caller]
fn check<T: Value>(world: usize, sizes: Sizes, attention: &FlashAttn) {
    let what = format!("{world} ranks, {sizes:?}, {:?}, {attention:?}", <T as WithDType>::DTYPE);
    let tensors = sizes.tensors(<T as WithDType>::DTYPE);
    let expected = of_one::<T>(sizes, &tensors, attention, true);
    let ranks = Ranks::new(&devices(world), sizes, &tensors, attention.clone());
    for run in 0..3 {
        let o = ranks.attention();
        let gradients = ranks.gradients::<T>(&ranks.loss(&o));
        same(&format!("{what}, run {run}, o"), &ranks.whole::<T>(&o), &expected[0]);
        for ((name, found), expected) in ["dq", "dk", "dv"].iter().zip(&gradients).zip(&expected[1..]) {
            same(&format!("{what}, run {run}, {name}"), found, expected);
        }
    }
}

#[test]
fn bits_of_one_gpu() {
    for sizes in [
        Sizes(1, 512, 512, 4, 4, 64, 64),
        Sizes(2, 700, 900, 4, 2, 128, 128),
        Sizes(1, 4_500, 4_500, 8, 2, 64, 96),
        Sizes(1, 9, 30, 3, 1, 16, 16),
    ] {
        for right in [Some(0), None] {
            check::<f16>(2, sizes, &masked(None, right));
            check::<bf16>(3, sizes, &masked(None, right));
        }
    }
    let softcap = FlashAttn { softcap: Some(0.7), ..masked(None, Some(5)) };
    check::<bf16>(2, Sizes(2, 700, 900, 4, 2, 128, 128), &softcap);
    check::<f32>(2, Sizes(1, 300, 300, 2, 1, 32, 32), &masked(None, Some(0)));
}

#[test]
fn bits_without_gradients() {
    let slopes = Tensor::new(&[0.5_f32, 0.25], &Device::Cpu).unwrap();
    let alibi = FlashAttn { alibi_slopes: Some(slopes), ..masked(None, Some(0)) };
    for attention in [alibi, masked(Some(100), Some(0))] {
        let sizes = Sizes(1, 4_000, 4_000, 2, 1, 64, 64);
        let tensors = sizes.tensors(DType::F16);
        let ranks = Ranks::new(&devices(2), sizes, &tensors, attention.clone());
        let o = ranks.attention();
        same("o", &ranks.whole::<f16>(&o), &of_one(sizes, &tensors, &attention, false)[0]);
        let refused = ranks.loss(&o).backward().unwrap_err().to_string();
        assert!(refused.starts_with("flash-attn: context parallelism: "), "{refused}");
        // Without history, nothing of it is made.
        let detached = ranks.variables.each_ref().map(|of| of.as_detached_tensor());
        let (q, k) = (ranks.parallel.shard_queries(&detached[0]), ranks.parallel.shard_keys(&detached[1]));
        let v = ranks.parallel.shard_keys(&detached[2]).unwrap();
        let found = ranks.parallel.attention(&q.unwrap(), &k.unwrap(), &v).unwrap();
        assert!(found.iter().all(|o| !o.track_op() && o.is_contiguous()));
        same("o", &ranks.whole::<f16>(&found), &ranks.whole(&o));
    }
}

/// Losses of one rank, more than once, and of both, from one forward pass.
#[test]
fn several_ways_back() {
    let sizes = Sizes(1, 600, 600, 4, 2, 64, 64);
    let tensors = sizes.tensors(DType::BF16);
    let attention = masked(None, Some(0));
    let ranks = Ranks::new(&devices(2), sizes, &tensors, attention.clone());
    let o = ranks.attention();
    for rank in [1, 0, 0] {
        let found = ranks.gradients::<bf16>(&ranks.loss_of(&o, rank));
        let mut tensors = tensors.clone();
        let mut parts = ranks.douts.clone();
        parts[1 - rank] = parts[1 - rank].zeros_like().unwrap();
        tensors[3] = ranks.parallel.gather_queries(&parts, &Device::Cpu).unwrap();
        let expected = of_one::<bf16>(sizes, &tensors, &attention, true);
        for (found, expected) in found.iter().zip(&expected[1..]) {
            same(&format!("rank {rank}"), found, expected);
        }
    }
    let expected = of_one::<bf16>(sizes, &tensors, &attention, true);
    let found = ranks.gradients::<bf16>(&ranks.loss(&o));
    same("both", &found[1], &expected[2]);
}

/// One rank's keys alone are variables, its tensors lie heads first, and two shapes take turns.
#[test]
fn views_and_constants() {
    let devices = devices(2);
    let parallel = ContextParallel::new(&devices, masked(None, Some(0)), 400, 400).unwrap();
    for (round, batch) in [1, 2, 1].into_iter().enumerate() {
        let sizes = Sizes(batch, 400, 400, 4, 4, 64, 64);
        let tensors = sizes.tensors(DType::F16);
        let expected = of_one::<f16>(sizes, &tensors, &masked(None, Some(0)), true);
        let heads_first = |of: Vec<Tensor>| -> Vec<Tensor> {
            let turned = |of: &Tensor| of.transpose(1, 2)?.contiguous()?.transpose(1, 2);
            of.iter().map(|of| turned(of).unwrap()).collect()
        };
        let q = heads_first(parallel.shard_queries(&tensors[0]).unwrap());
        let mut k = heads_first(parallel.shard_keys(&tensors[1]).unwrap());
        let v = heads_first(parallel.shard_keys(&tensors[2]).unwrap());
        let variable = Var::from_tensor(&k[1]).unwrap();
        k[1] = variable.as_tensor().clone();
        let o = parallel.attention(&q, &k, &v).unwrap();
        let dout = tensors[3].to_device(&devices[0]).unwrap();
        let loss = (parallel.gather_queries(&o, &devices[0]).unwrap() * dout).unwrap().sum_all().unwrap();
        let gradient = loss.backward().unwrap().get(&variable).unwrap().clone();
        // Beside zeros, as the other rank's rows.
        let both = [k[0].zeros_like().unwrap(), gradient];
        let found = list::<f16>(&parallel.gather_queries(&both, &Device::Cpu).unwrap());
        let own = parallel
            .shard_keys(
                &Tensor::new(expected[2].clone(), &Device::Cpu).unwrap().reshape(tensors[1].shape()).unwrap(),
            )
            .unwrap();
        let own = [own[0].zeros_like().unwrap(), own[1].clone()];
        same(&format!("round {round}"), &found, &list(&parallel.gather_queries(&own, &Device::Cpu).unwrap()));
    }
}

#[test]
fn devices_that_are_refused() {
    let with = |devices: &[Device]| ContextParallel::new(devices, masked(None, None), 10, 10);
    let own = devices(1).remove(0);
    let mixed = with(&[own.clone(), Device::Cpu]).err().unwrap().to_string();
    assert!(mixed.starts_with("flash-attn: devices[1] is Cpu, but devices[0] Cuda"), "{mixed}");
    let default = with(&[own, Device::new_cuda(0).unwrap()]).err().unwrap().to_string();
    assert!(default.starts_with("flash-attn: devices[1] has the thread's default stream"), "{default}");
}
