//! What a call costs on GPU 0: the time of the host, and that of the GPU beside the library's own launches,
//! and of pages beside keys in order.
//!
//! ```text
//! cargo run --release --features cuda --example speed
//! ```

use std::thread::sleep;
use std::time::{Duration, Instant};

use candle_core::cuda_backend::cudarc::driver::sys::CUevent_flags;
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, DevicePtr};
use candle_core::{CudaDevice, DType, Device, Error, Result, Storage, Tensor, Var, bail};
use candle_flash_attention::{flash_attn, flash_attn_varlen, flash_attn_varlen_paged_windowed};
use flash_attention::cuda::{Cuda, Stream};
use flash_attention::forward::Addresses;
use flash_attention::{Options, Plan, Problem, Request, TensorLayout, Tensors};
use half::f16;

/// Calls that are enqueued for one time of the host.
const CALLS: u32 = 200;
/// Times of which the median is printed.
const ROUNDS: usize = 41;
/// Tokens of a batch, and what each has.
const TOKENS: usize = 16_384;
const HEADS: usize = 16;
const HEAD_DIM: usize = 128;
/// Keys of a page.
const PAGE: usize = 16;
/// Milliseconds of work before a time of the GPU is taken, and while it is.
const BUSY: f32 = 30.0;

fn main() -> Result<()> {
    let device = Device::new_cuda(0)?;
    host(&device)?;
    for seqlen in [1024, 2048, 4096, 8192, 16_384] {
        for causal in [false, true] {
            gpu(&device, seqlen, causal)?;
        }
    }
    for seqlen in [1024, 4096, 16_384] {
        for rows in [1, 256, seqlen] {
            pages(&device, seqlen, rows)?;
        }
    }
    Ok(())
}

/// Prints what the host needs to enqueue a call, beside a negation: an allocation and a launch of candle's.
fn host(device: &Device) -> Result<()> {
    let [q, k, v] = inputs(device, [1, 512, 8, 64])?;
    let variables = [&q, &k, &v].map(Var::from_tensor);
    let [vq, vk, vv] = variables;
    let (vq, vk, vv) = (vq?, vk?, vv?);
    println!("host, B=1 S=512 H=8 D=64, f16, {CALLS} calls, median of {ROUNDS}:");
    enqueued(device, "neg", || q.neg())?;
    enqueued(device, "flash_attn", || flash_attn(&q, &k, &v, 0.125, true))?;
    enqueued(device, "neg of a Var", || vq.neg())?;
    enqueued(device, "flash_attn of Vars", || flash_attn(&vq, &vk, &vv, 0.125, true))
}

fn enqueued(device: &Device, what: &str, call: impl Fn() -> Result<Tensor>) -> Result<()> {
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        // The pool of memory gave back what it had at the last wait.
        for _ in 0..10 {
            call()?;
        }
        let start = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        times.push(start.elapsed().as_secs_f32() * 1e6 / CALLS as f32);
        device.synchronize()?;
    }
    println!("  {what:<20} {:6.2} us", median(&mut times));
    Ok(())
}

/// Prints the GPU's time of a call through candle, and its ratio to that of the library's launches for the
/// same memory.
fn gpu(device: &Device, seqlen: usize, causal: bool) -> Result<()> {
    let shape = [TOKENS / seqlen, seqlen, HEADS, HEAD_DIM];
    let [q, k, v] = inputs(device, shape)?;
    let o = q.zeros_like()?;
    let scale = (HEAD_DIM as f32).sqrt().recip();
    let library = Library::new(device, [&q, &k, &v, &o], shape, scale, causal)?;
    let candle = || flash_attn(&q, &k, &v, scale, causal).map(drop);
    let direct = || library.enqueue();
    let clock = Clock { device: device.as_cuda_device()? };
    let (time, ratio) = clock.compared(&candle, &direct)?;
    println!(
        "GPU, B={} S={seqlen} H={HEADS} D={HEAD_DIM} causal={causal}: {time:.4} ms, {ratio:.4} times the \
         library's",
        shape[0],
    );
    Ok(())
}

/// Prints the GPU's time of the newest `rows` of each sequence against pages of its keys, and its ratio to
/// that against the same keys in order.
fn pages(device: &Device, seqlen: usize, rows: usize) -> Result<()> {
    let batch = TOKENS / seqlen;
    let random = |shape: &[usize]| Tensor::randn(0.0_f32, 1.0, shape, device)?.to_dtype(DType::F16);
    let q = random(&[batch * rows, HEADS, HEAD_DIM])?;
    let kv = [TOKENS / PAGE, PAGE, HEADS, HEAD_DIM];
    let (k, v) = (random(&kv)?, random(&kv)?);
    let (k_in_order, v_in_order) = (k.flatten(0, 1)?, v.flatten(0, 1)?);
    let table = Tensor::arange(0, (TOKENS / PAGE) as u32, device)?.reshape((batch, seqlen / PAGE))?;
    let ends = |rows: usize| Tensor::arange_step(0, ((batch + 1) * rows) as u32, rows as u32, device);
    let (sq, sk, scale) = (ends(rows)?, ends(seqlen)?, (HEAD_DIM as f32).sqrt().recip());
    let paged = || {
        flash_attn_varlen_paged_windowed(
            &q,
            &k,
            &v,
            &sq,
            &sk,
            &table,
            None,
            rows,
            seqlen,
            scale,
            None,
            Some(0),
            PAGE,
            None,
        )
        .map(drop)
    };
    let in_order =
        || flash_attn_varlen(&q, &k_in_order, &v_in_order, &sq, &sk, rows, seqlen, scale, true).map(drop);
    let (time, ratio) = Clock { device: device.as_cuda_device()? }.compared(&paged, &in_order)?;
    println!(
        "GPU, B={batch} Sq={rows} Sk={seqlen} H={HEADS} D={HEAD_DIM}, pages of {PAGE}: {time:.4} ms, \
         {ratio:.4} times that without pages"
    );
    Ok(())
}

fn inputs(device: &Device, shape: [usize; 4]) -> Result<[Tensor; 3]> {
    let random = || Tensor::randn(0.0_f32, 1.0, &shape, device)?.to_dtype(DType::F16);
    Ok([random()?, random()?, random()?])
}

/// The library's launches for memory of candle's tensors.
struct Library {
    cuda: Cuda,
    plan: Plan,
    addresses: Addresses,
    stream: Stream,
    /// What the addresses are of.
    _tensors: Vec<Tensor>,
}

impl Library {
    fn new(
        device: &Device,
        tensors: [&Tensor; 4],
        [batch, seqlen, heads, head_dim]: [usize; 4],
        softmax_scale: f32,
        causal: bool,
    ) -> Result<Self> {
        let cuda = Cuda::new(0).map_err(Error::wrap)?;
        let layout = TensorLayout::bshd(batch, seqlen, heads, head_dim);
        let layouts = Tensors { q: layout, k: layout, v: layout, o: layout };
        let window = (None, causal.then_some(0));
        let options = Options { softmax_scale: Some(softmax_scale), window, ..Options::default() };
        let problem = Problem::new(layouts, flash_attention::DType::F16, options).map_err(Error::wrap)?;
        let plan = Plan::new(&problem, cuda.device(), &Request::default()).map_err(Error::wrap)?;
        if plan.workspace_bytes() > 0 {
            bail!("the plan of {layout:?} needs a workspace of {} bytes", plan.workspace_bytes());
        }
        let device = device.as_cuda_device()?;
        let [q, k, v, o] = tensors.map(|tensor| address(device, tensor));
        let addresses = Addresses { q: q?, k: k?, v: v?, o: o?, ..Addresses::default() };
        // SAFETY: the device keeps the stream, and lives until the program ends.
        let stream = unsafe { Stream::from_raw(device.cuda_stream().cu_stream().cast()) };
        Ok(Self { cuda, plan, addresses, stream, _tensors: tensors.map(Tensor::clone).to_vec() })
    }

    fn enqueue(&self) -> Result<()> {
        // SAFETY: the tensors are held, and used on this stream alone.
        unsafe { self.cuda.enqueue(&self.plan, &self.addresses, self.stream) }.map_err(Error::wrap)
    }
}

/// The address of a contiguous tensor.
fn address(device: &CudaDevice, tensor: &Tensor) -> Result<u64> {
    let (storage, _) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else { bail!("the tensor is not on a GPU") };
    let stream = device.cuda_stream();
    let (address, _guard) = storage.as_cuda_slice::<f16>()?.device_ptr(&stream);
    Ok(address)
}

/// Times on candle's stream.
struct Clock<'a> {
    device: &'a CudaDevice,
}

impl Clock<'_> {
    /// Milliseconds of a call, and their ratio to those of another. They take turns after equal rests.
    fn compared(
        &self,
        call: &impl Fn() -> Result<()>,
        other: &impl Fn() -> Result<()>,
    ) -> Result<(f32, f32)> {
        self.calls(5, call)?;
        let calls = (BUSY / self.calls(5, call)?).ceil().max(5.0) as u32;
        let (mut times, mut ratios) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
        for _ in 0..ROUNDS {
            let time = self.rested(calls, call)?;
            times.push(time);
            ratios.push(time / self.rested(calls, other)?);
        }
        Ok((median(&mut times), median(&mut ratios)))
    }

    /// Milliseconds of a call, after a rest and as many calls to warm up.
    fn rested(&self, calls: u32, call: &impl Fn() -> Result<()>) -> Result<f32> {
        self.device.cuda_stream().synchronize().map_err(Error::wrap)?;
        sleep(Duration::from_millis(30));
        for _ in 0..calls {
            call()?;
        }
        self.calls(calls, call)
    }

    /// Milliseconds of a call.
    fn calls(&self, calls: u32, call: &impl Fn() -> Result<()>) -> Result<f32> {
        let start = self.event()?;
        for _ in 0..calls {
            call()?;
        }
        Ok(start.elapsed_ms(&self.event()?).map_err(Error::wrap)? / calls as f32)
    }

    fn event(&self) -> Result<CudaEvent> {
        let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
        self.device.cuda_stream().record_event(flags).map_err(Error::wrap)
    }
}

fn median(values: &mut [f32]) -> f32 {
    values.sort_by(f32::total_cmp);
    values[values.len() / 2]
}
