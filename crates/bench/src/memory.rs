//! Whether a problem fits, found out before anything of its size is allocated.

use flash_attention::gemm::{GemmProblem, Matrices};
use flash_attention::{BackendKind, DType, Device, Error, Kernel, Plan, Problem, Result};

/// Bytes of Q, K and V, and of O and lse. The lengths were validated to fit an address space.
fn footprint(problem: &Problem) -> (u128, u128) {
    let tensors = problem.tensors();
    let bytes = |elements: usize, dtype: DType| elements as u128 * dtype.bytes() as u128;
    let inputs: u128 =
        [tensors.q, tensors.k, tensors.v].iter().map(|tensor| bytes(tensor.span(), problem.dtype())).sum();
    (inputs, bytes(tensors.o.span(), problem.dtype().output()) + 4 * problem.lse_len() as u128)
}

/// Refuses tensors that the host, or the device that has a memory of its own, cannot hold.
pub(crate) fn check_tensors(problem: &Problem, device: &Device, host: &Device) -> Result<()> {
    let (inputs, outputs) = footprint(problem);
    if device.backend == BackendKind::Cuda {
        fits("Q, K, V, O and lse", inputs + outputs, device)?;
        return fits("the host's copy of Q, K, V, O and lse", inputs + outputs, host);
    }
    // The outputs exist twice: as the kernel writes them, and as they are read.
    fits("Q, K, V, O and lse", inputs + 2 * outputs, host)
}

/// Refuses a plan whose workspace does not fit beside the tensors.
pub(crate) fn check_workspace(problem: &Problem, plan: &Plan, device: &Device, host: &Device) -> Result<()> {
    let (inputs, outputs) = footprint(problem);
    let memory = if device.backend == BackendKind::Cuda { device } else { host };
    let what = match plan.kernel() {
        Kernel::ForwardSm90 => "the copies of Q, K and V, with Q, K, V, O and lse",
        _ => "the score matrix with Q, K, V, O and lse",
    };
    fits(what, inputs + outputs + u128::from(plan.workspace_bytes()), memory)
}

/// Refuses a multiplication whose matrices the host, or the device that has a memory of its own, cannot hold.
pub(crate) fn check_matrices(problem: &GemmProblem, device: &Device, host: &Device) -> Result<()> {
    let Matrices { a, b, c } = problem.matrices();
    let bytes = |elements: usize| elements as u128 * problem.dtype().bytes() as u128;
    let (inputs, output) = (bytes(a.span()) + bytes(b.span()), bytes(c.span()));
    if device.backend == BackendKind::Cuda {
        fits("A, B and C", inputs + output, device)?;
    }
    fits("A, B and twice C", inputs + 2 * output, host)
}

/// Refuses so many bytes of the host, and of the device that has a memory of its own.
pub(crate) fn check_bytes(what: &'static str, bytes: u128, device: &Device, host: &Device) -> Result<()> {
    if device.backend == BackendKind::Cuda {
        fits(what, bytes, device)?;
    }
    fits(what, bytes, host)
}

fn fits(what: &'static str, needed: u128, memory: &Device) -> Result<()> {
    let available = memory.memory.into();
    if needed <= available {
        return Ok(());
    }
    let device = match memory.backend {
        BackendKind::Cpu => "the host".to_owned(),
        BackendKind::Cuda | BackendKind::Sim => memory.name.clone(),
    };
    Err(Error::OutOfMemory { what, needed, available, device })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash_attention::{Options, Request, TensorLayout, Tensors};

    fn device(backend: BackendKind, memory: u64) -> Device {
        Device {
            backend,
            name: "a device".to_owned(),
            driver: String::new(),
            compute_capability: 0,
            multiprocessors: 1,
            shared_per_block: 0,
            shared_per_multiprocessor: 0,
            memory_bandwidth: 0,
            memory,
        }
    }

    #[test]
    fn the_memory_that_is_too_small_is_named() {
        let layout = TensorLayout::bshd(1, 10, 1, 4);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let problem = Problem::new(tensors, DType::F32, Options::default()).unwrap();
        // Each tensor is 160 bytes, lse 40.
        let host = device(BackendKind::Cpu, 880);
        check_tensors(&problem, &host, &host).unwrap();
        let small = device(BackendKind::Cpu, 879);
        let message = check_tensors(&problem, &small, &small).unwrap_err().to_string();
        assert_eq!(message, "Q, K, V, O and lse needs 880 bytes; the host has 879 bytes free");
        let gpu = device(BackendKind::Cuda, 680);
        check_tensors(&problem, &gpu, &host).unwrap();
        let message =
            check_tensors(&problem, &device(BackendKind::Cuda, 679), &host).unwrap_err().to_string();
        assert_eq!(message, "Q, K, V, O and lse needs 680 bytes; a device has 679 bytes free");
        assert!(check_tensors(&problem, &gpu, &device(BackendKind::Cpu, 679)).is_err());

        // Scores of 10 x 10 fp32.
        let standard = Request { kernel: Some(Kernel::Standard), ..Request::default() };
        let plan = Plan::new(&problem, &host, &standard).unwrap();
        let large = device(BackendKind::Cpu, 1080);
        check_workspace(&problem, &plan, &large, &large).unwrap();
        let small = device(BackendKind::Cpu, 1079);
        let message = check_workspace(&problem, &plan, &small, &small).unwrap_err().to_string();
        assert_eq!(
            message,
            "the score matrix with Q, K, V, O and lse needs 1080 bytes; the host has 1079 bytes free"
        );
        assert!(check_workspace(&problem, &plan, &gpu, &large).is_err());
    }
}
