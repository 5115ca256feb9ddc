//! Tensors that lie on a GPU already, on a stream of the caller's: in one call, and recorded in a CUDA graph.
//!
//! The caller's runtime stands at the end: functions of the CUDA driver, and none of this library's. candle,
//! burn, cudarc, `cust` and PyTorch have pointers and streams alike.
//!
//! ```text
//! cargo run --release -p flash-attention --example device_pointers
//! ```

use std::error::Error;
use std::ffi::{c_uchar, c_uint, c_ulonglong, c_void};
use std::ptr::null_mut;

use flash_attention::cuda::{Cuda, Stream};
use flash_attention::forward::Addresses;
use flash_attention::{Backend, BackendKind, DType, DeviceTensor, HostTensor, TensorLayout, attention};
use half::f16;
use libloading::Library;

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
    let runtime = Runtime::new()?;
    let [q, k, v] = inputs.each_ref().map(|values| runtime.upload(values));
    let o = runtime.upload(&vec![f16::NAN; LAYOUT.span()])?;
    let [q, k, v, o] =
        [q?, k?, v?, o].map(|address| DeviceTensor::new(address, LAYOUT.span(), DType::F16, LAYOUT));
    // SAFETY: the stream lives until the program ends.
    let stream = unsafe { Stream::from_raw(runtime.stream) };

    // SAFETY: the memory lives until the program ends; nothing else uses it.
    unsafe { attention(&q, &k, &v).causal().enqueue(&cuda, &o, stream)? };
    compare("one call", &runtime.download(o.address(), LAYOUT.span())?, &expected)?;

    // A call that is made often keeps its plan. With the kernels loaded, it can be recorded.
    let plan = attention(&q, &k, &v).causal().plan(cuda.device())?;
    cuda.load(&plan)?;
    let addresses =
        Addresses { q: q.address(), k: k.address(), v: v.address(), o: o.address(), ..Addresses::default() };
    runtime.begin_capture()?;
    // SAFETY: as above; the graph is replayed while the memory is there.
    let enqueued = unsafe { cuda.enqueue(&plan, &addresses, stream) };
    let graph = runtime.end_capture()?;
    enqueued?;
    runtime.fill(o.address(), 2 * LAYOUT.span())?;
    runtime.launch(graph)?;
    compare("a replayed graph", &runtime.download(o.address(), LAYOUT.span())?, &expected)
}

/// Compares O with what the CPU computes.
fn compare(what: &str, found: &[f16], expected: &[f16]) -> Result<(), Box<dyn Error>> {
    let error = |(found, expected): (&f16, &f16)| (found.to_f32() - expected.to_f32()).abs();
    let errors: Vec<_> = found.iter().zip(expected).map(error).collect();
    let worst = errors.iter().copied().fold(0.0, f32::max);
    println!("device_pointers: {what}: largest difference from the CPU {worst:.1e}");
    // `max` drops NaN, so that what was left unwritten is looked for by itself.
    if worst > 4e-3 || errors.iter().any(|error| error.is_nan()) {
        return Err(format!("O of {what} is wrong").into());
    }
    Ok(())
}

/// The caller's runtime: what it makes lives until the program ends.
struct Runtime {
    driver: Library,
    stream: *mut c_void,
}

/// Calls a function of the driver with arguments of the types that `cuda.h` declares.
macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr => $type:ty),*)) => {{
        type Function = unsafe extern "system" fn($($type),*) -> c_uint;
        // SAFETY: `cuda.h` declares the function so. Addresses are of this runtime's memory or of a variable,
        // and handles of its stream or graph.
        let code = unsafe { $driver.get::<Function>(stringify!($name))?($($argument),*) };
        if code != 0 {
            return Err(format!("{} failed with {code}", stringify!($name)).into());
        }
    }};
}

impl Runtime {
    fn new() -> Result<Self, Box<dyn Error>> {
        let file = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
        // SAFETY: the driver is open already. `Cuda::new` has made the primary context this thread's.
        let driver = unsafe { Library::new(file) }?;
        let mut stream = null_mut();
        call!(driver, cuStreamCreate(&raw mut stream => *mut *mut c_void, 1 => c_uint));
        Ok(Self { driver, stream })
    }

    /// Device memory with `values`.
    fn upload(&self, values: &[f16]) -> Result<u64, Box<dyn Error>> {
        let (mut address, bytes) = (0, size_of_val(values));
        call!(self.driver, cuMemAlloc_v2(&raw mut address => *mut u64, bytes => usize));
        let from = values.as_ptr().cast();
        call!(self.driver, cuMemcpyHtoDAsync_v2(
            address => u64, from => *const c_void, bytes => usize, self.stream => *mut c_void
        ));
        Ok(address)
    }

    /// Waits for the stream and copies `len` elements to the host.
    fn download(&self, address: u64, len: usize) -> Result<Vec<f16>, Box<dyn Error>> {
        let mut values = vec![f16::ZERO; len];
        let (to, bytes) = (values.as_mut_ptr().cast(), size_of_val(&values[..]));
        call!(self.driver, cuMemcpyDtoHAsync_v2(
            to => *mut c_void, address => u64, bytes => usize, self.stream => *mut c_void
        ));
        call!(self.driver, cuStreamSynchronize(self.stream => *mut c_void));
        Ok(values)
    }

    /// Sets bytes to 0xff.
    fn fill(&self, address: u64, bytes: usize) -> Result<(), Box<dyn Error>> {
        call!(self.driver, cuMemsetD8Async(
            address => u64, 0xff => c_uchar, bytes => usize, self.stream => *mut c_void
        ));
        Ok(())
    }

    /// Records what this thread puts on the stream.
    fn begin_capture(&self) -> Result<(), Box<dyn Error>> {
        call!(self.driver, cuStreamBeginCapture_v2(self.stream => *mut c_void, 1 => c_uint));
        Ok(())
    }

    fn end_capture(&self) -> Result<*mut c_void, Box<dyn Error>> {
        let (mut graph, mut exec) = (null_mut(), null_mut());
        call!(self.driver, cuStreamEndCapture(self.stream => *mut c_void, &raw mut graph => *mut *mut c_void));
        call!(self.driver, cuGraphInstantiateWithFlags(
            &raw mut exec => *mut *mut c_void, graph => *mut c_void, 0 => c_ulonglong
        ));
        Ok(exec)
    }

    fn launch(&self, exec: *mut c_void) -> Result<(), Box<dyn Error>> {
        call!(self.driver, cuGraphLaunch(exec => *mut c_void, self.stream => *mut c_void));
        Ok(())
    }
}
