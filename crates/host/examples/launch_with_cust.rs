//! Launches a shipped kernel with `cust`, to show that the PTX and its manifest need no driver crate of ours.
//!
//! `cust` 0.3 links to libcuda when it is built, so this needs a CUDA toolkit and a feature of its own:
//!
//! ```text
//! cargo run --release -p flash-attention --features cust --example launch_with_cust
//! ```

use std::error::Error;

use cust::memory::DeviceCopy;
use cust::prelude::*;
use fa_kernels::mask::UNLIMITED;
use fa_kernels::params::{AttentionParams, Strides};
use flash_attention::forward::Outputs;
use flash_attention::{
    Backend, BackendKind, DType, Options, Problem, Request, TensorLayout, Tensors, shipped,
};

/// The entry: fp32, BLOCK_M 32, BLOCK_N 32, HEAD_DIM 64. It takes less than the 48 KiB of shared
/// memory beyond which `cust` 0.3 has no call to raise a kernel's limit.
const ENTRY: &str = "forward_simt_f32_m32_n32_d64";
const BLOCK_M: u32 = 32;
const SEQLEN: usize = 300;
const HEADS: usize = 4;
const HEAD_DIM: usize = 60;

/// The launch contract, as `cust` wants its arguments.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Params(AttentionParams);

// SAFETY: plain numbers; the addresses in it are device addresses already.
unsafe impl DeviceCopy for Params {}

fn main() -> Result<(), Box<dyn Error>> {
    let layout = TensorLayout::bshd(1, SEQLEN, HEADS, HEAD_DIM);
    let values = |seed: usize| -> Vec<f32> {
        (0..layout.span()).map(|i| ((i * 37 + seed * 101) % 199) as f32 / 99.5 - 1.0).collect()
    };
    let (q, k, v) = (values(1), values(2), values(3));

    let _context = cust::quick_init()?;
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None)?;
    let module = Module::from_ptx(shipped::ptx(ENTRY)?, &[])?;
    let function = module.get_function(ENTRY)?;
    let (q_device, k_device, v_device) =
        (DeviceBuffer::from_slice(&q)?, DeviceBuffer::from_slice(&k)?, DeviceBuffer::from_slice(&v)?);
    let o_device = DeviceBuffer::from_slice(&vec![f32::NAN; layout.span()])?;

    let strides = Strides {
        batch: layout.stride_batch as u64,
        row: layout.stride_seq as u64,
        head: layout.stride_head as u64,
    };
    let params = Params(AttentionParams {
        q: q_device.as_device_ptr().as_raw(),
        k: k_device.as_device_ptr().as_raw(),
        v: v_device.as_device_ptr().as_raw(),
        o: o_device.as_device_ptr().as_raw(),
        q_strides: strides,
        k_strides: strides,
        v_strides: strides,
        o_strides: strides,
        seqlen_q: SEQLEN as u32,
        seqlen_k: SEQLEN as u32,
        heads: HEADS as u32,
        group: 1,
        head_dim: HEAD_DIM as u32,
        head_dim_v: HEAD_DIM as u32,
        window_left: UNLIMITED,
        window_span: 2 * UNLIMITED,
        softmax_scale: 1.0 / (HEAD_DIM as f32).sqrt(),
        rows: (HEADS * SEQLEN) as u64,
        ..AttentionParams::default()
    });
    // The manifest says what a launch needs: threads of a block and bytes of shared memory.
    let shipped = shipped::entry(ENTRY)?;
    let grid = SEQLEN.div_ceil(BLOCK_M as usize) * HEADS;
    // SAFETY: the parameters describe the buffers above, which outlive the synchronisation below.
    unsafe {
        launch!(function<<<grid as u32, shipped.threads, shipped.shared_bytes, stream>>>(params))?;
    }
    stream.synchronize()?;
    let mut o = vec![0.0; layout.span()];
    o_device.copy_to(&mut o)?;

    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let problem = Problem::new(tensors, DType::F32, Options::default())?;
    let cpu = Backend::open(Some(BackendKind::Cpu))?;
    let mut expected = vec![0.0; layout.span()];
    let plan = cpu.plan(&problem, &Request::default())?;
    cpu.run(&plan, (&q[..], &k[..], &v[..]), Outputs { o: &mut expected, lse: None })?;
    let error = o.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{ENTRY} through cust: max difference from the CPU backend {error:e}");
    // `max` drops NaN, so what the kernel left unwritten is looked for on its own.
    if error > 1e-5 || o.iter().any(|value| value.is_nan()) {
        return Err("the kernel's output is wrong".into());
    }
    Ok(())
}
