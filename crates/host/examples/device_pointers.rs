//! Tensors that lie on a GPU already, on a stream of the caller's: in one call, and recorded in a CUDA graph.
//!
//! The caller's runtime is `cudarc` here; candle, burn, PyTorch and `cust` have pointers and streams alike.
//!
//! ```text
//! cargo run --release -p flash-attention --example device_pointers
//! ```

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, sys};
use flash_attention::cuda::Cuda;
use flash_attention::forward::Addresses;
use flash_attention::{Backend, BackendKind, DType, DeviceTensor, HostTensor, TensorLayout, attention};
use half::f16;

/// [B, S, H, D].
const LAYOUT: TensorLayout = TensorLayout::bshd(2, 500, 4, 64);

fn main() -> Result<(), Box<dyn Error>> {
    let cuda = match Cuda::new(0) {
        Ok(cuda) => cuda,
        Err(error) => {
            println!("device_pointers: not run, because {error}");
            return Ok(());
        }
    };
    let values = |seed: usize| -> Vec<f16> {
        let number = |index: usize| ((index * 37 + seed * 101) % 199) as f32 / 99.5 - 1.0;
        (0..LAYOUT.span()).map(|index| f16::from_f32(number(index))).collect()
    };
    let inputs = [values(1), values(2), values(3)];
    let [q, k, v] = inputs.each_ref().map(|values| HostTensor::new(values, LAYOUT));
    let expected = attention(&q, &k, &v).causal().run(&Backend::open(Some(BackendKind::Cpu))?)?.o;

    // What an embedding runtime has: memory of the primary context, and a stream.
    let stream = CudaContext::new(0)?.new_stream()?;
    let [q, k, v] = inputs.each_ref().map(|values| upload(&stream, values));
    let (q, k, v, o) = (q?, k?, v?, upload(&stream, &vec![f16::NAN; LAYOUT.span()])?);
    let [q, k, v, o_tensor] = [&q, &k, &v, &o]
        .map(|slice| DeviceTensor::new(slice.device_ptr(&stream).0, slice.len(), DType::F16, LAYOUT));

    // SAFETY: the slices outlive the copy back, which waits for the stream; nothing else uses them.
    unsafe { attention(&q, &k, &v).causal().enqueue(&cuda, &o_tensor, stream.cu_stream())? };
    compare("one call", &stream, &o, &expected)?;

    // A call that is made often keeps its plan. With the kernels loaded, it can be recorded.
    let plan = attention(&q, &k, &v).causal().plan(cuda.device())?;
    cuda.load(&plan)?;
    let addresses = Addresses {
        q: q.address(),
        k: k.address(),
        v: v.address(),
        o: o_tensor.address(),
        ..Addresses::default()
    };
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    // SAFETY: as above; the graph is replayed while the slices are there.
    let enqueued = unsafe { cuda.enqueue(&plan, &addresses, stream.cu_stream()) };
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0))?.ok_or("nothing was recorded")?;
    enqueued?;
    // SAFETY: O is as long, and the stream orders the fill before the replay.
    unsafe {
        cudarc::driver::result::memset_d8_async(addresses.o, 0xff, 2 * LAYOUT.span(), stream.cu_stream())?
    };
    graph.launch()?;
    compare("a replayed graph", &stream, &o, &expected)
}

/// The bits of `values` in device memory.
fn upload(stream: &Arc<CudaStream>, values: &[f16]) -> Result<CudaSlice<u16>, Box<dyn Error>> {
    let bits: Vec<u16> = values.iter().map(|value| value.to_bits()).collect();
    Ok(stream.clone_htod(&bits)?)
}

/// Reads O back and compares it with what the CPU computes.
fn compare(
    what: &str,
    stream: &Arc<CudaStream>,
    o: &CudaSlice<u16>,
    expected: &[f16],
) -> Result<(), Box<dyn Error>> {
    let found: Vec<u16> = stream.clone_dtoh(o)?;
    stream.synchronize()?;
    let error = |(&found, expected): (&u16, &f16)| (f16::from_bits(found).to_f32() - expected.to_f32()).abs();
    let errors: Vec<_> = found.iter().zip(expected).map(error).collect();
    let worst = errors.iter().copied().fold(0.0, f32::max);
    println!("device_pointers: {what}: largest difference from the CPU {worst:.1e}");
    // `max` drops NaN, so that what was left unwritten is looked for by itself.
    if worst > 4e-3 || errors.iter().any(|error| error.is_nan()) {
        return Err(format!("O of {what} is wrong").into());
    }
    Ok(())
}
