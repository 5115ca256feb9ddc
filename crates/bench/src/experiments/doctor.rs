//! What this machine has, which kernels that lets run, and how to get what is missing.

mod toolchain;

use anyhow::Result;
use flash_attention::decode::DecodeRequest;
use flash_attention::gemm::{GemmKernel, GemmProblem, GemmRequest, Matrices, Order};
use flash_attention::{BackendKind, DType, Device, Kernel, Request, shipped};

use crate::args::LabArgs;
use crate::decode::Shape as DecodeShape;
use crate::lab::{self, Lab, Recipe, Row, Shared, Unit, is_refusal};
use crate::problem::{Layout, Shape};

const RECIPE: Recipe = Recipe {
    name: "doctor",
    what: "what this machine has, and which kernels that lets run",
    reported_elsewhere: None,
    axis: None,
    iterations: 1,
    scaled: false,
};

/// What kernels use, and since which compute capability.
const FEATURES: [(&str, u32); 5] = [
    ("tensor cores (mma.sync, fp16)", 75),
    ("tensor cores (mma.sync m16n8k16, bf16)", 80),
    ("asynchronous copies (cp.async)", 80),
    ("tensor maps (TMA) and clusters", 90),
    ("asynchronous tensor cores (wgmma)", 90),
];

/// Arguments of `doctor`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    lab: LabArgs,
}

/// Runs the experiment; false never.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        let session = std::rc::Rc::clone(&lab.session);
        let device = session.device();
        for dtype in DType::ALL {
            attention(lab, dtype)?;
            products(lab, dtype)?;
        }
        lab.figure("memory", Unit::Bytes, device.memory as f64);
        match device.backend {
            BackendKind::Cpu => no_gpu(lab, session.backend.reason()),
            BackendKind::Cuda | BackendKind::Sim => features(lab, device),
        }
        match shipped::manifest() {
            Ok(manifest) => {
                let entries = manifest.entries.len();
                lab.note(format!("{entries} kernels ship, compiled by {}", manifest.compiler));
            }
            Err(error) => {
                lab.note(format!("no kernels ship: {error}; `cargo xtask kernels --install` builds them"))
            }
        }
        lab.note(toolchain::note());
        if lab.peer().is_none() {
            lab.note("no peer was asked for; --peer torch=PYTHON looks whether that Python has PyTorch");
        }
        Ok(())
    })
}

/// A row for each kernel of attention in a storage type.
fn attention(lab: &mut Lab, dtype: DType) -> Result<()> {
    let session = std::rc::Rc::clone(&lab.session);
    let shape = Shape { batch: 1, heads: 8, seq: 4096, head_dim: 128, dtype, causal: false };
    let problem = shape.problem(Layout::Bshd)?;
    // Decode has another problem, below.
    let kernels = Kernel::of_backend(lab.kind()).iter().filter(|kernel| **kernel != Kernel::Decode);
    for &kernel in kernels {
        let request = Request { kernel: Some(kernel), ..Request::default() };
        let plan = session.backend.plan(&problem, &request);
        answer(lab, dtype, kernel.name(), plan.map(drop))?;
    }
    let decode = DecodeShape {
        batch: 1,
        heads: 8,
        kv_heads: 1,
        head_dim: 128,
        seq_q: 1,
        seq_k: 4096,
        page_size: None,
        row_multiple: 1,
        tree_mask: false,
        latent: false,
        dtype,
        causal: false,
        softmax_scale: None,
    };
    let plan = decode.problem();
    let plan = plan.and_then(|problem| session.backend.plan(&problem, &DecodeRequest::default()));
    answer(lab, dtype, "decode", plan.map(drop))
}

/// A row for each kernel of matrix multiplication.
fn products(lab: &mut Lab, dtype: DType) -> Result<()> {
    let session = std::rc::Rc::clone(&lab.session);
    let matrix = Order::RowMajor.matrix(1024, 1024);
    for &kernel in GemmKernel::of_backend(lab.kind()) {
        let request = GemmRequest { kernel: Some(kernel), ..GemmRequest::default() };
        let problem = GemmProblem::new(Matrices { a: matrix, b: matrix, c: matrix }, dtype);
        let plan = problem.and_then(|problem| session.backend.plan(&problem, &request));
        answer(lab, dtype, kernel.name(), plan.map(drop))?;
    }
    Ok(())
}

/// A row that says that a kernel runs, or why not.
fn answer(lab: &mut Lab, dtype: DType, series: &str, plan: flash_attention::Result<()>) -> Result<()> {
    let row = match plan {
        Ok(()) => Row { case: dtype.name().to_owned(), series: series.to_owned(), ..Row::default() },
        Err(error) if is_refusal(&error) => Row::refused(dtype.name(), series, error.to_string()),
        Err(error) => return Err(error.into()),
    };
    lab.push(row).map(drop)
}

fn features(lab: &mut Lab, device: &Device) {
    for (feature, since) in FEATURES {
        let there = device.compute_capability >= since;
        lab.note(match there {
            true => format!("{feature}: yes"),
            false => {
                format!("{feature}: no, sm_{} lacks what came with sm_{since}", device.compute_capability)
            }
        });
    }
    lab.figure("shared memory of a block", Unit::Bytes, device.shared_per_block as f64);
    lab.figure("multiprocessors", Unit::Count, device.multiprocessors.into());
    if device.compute_capability > 90 {
        lab.note(
            "forward_sm90 and gemm_sm90 run on Hopper alone: this device runs forward_sm80 and gemm_sm80",
        );
    }
}

fn no_gpu(lab: &mut Lab, reason: &str) {
    let reason = if reason == "asked for" { "the CPU was asked for" } else { reason };
    lab.note(format!("no GPU is used: {reason}"));
    lab.note(
        "for one: an NVIDIA GPU of sm_75 or later, and its driver, whose libcuda (libcuda.so.1, nvcuda.dll) must be where \
         the loader finds it; a CUDA toolkit is not needed",
    );
}
