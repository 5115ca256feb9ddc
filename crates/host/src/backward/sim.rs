//! Backward problems in the simulator.

use fa_sim::Buffer;

use super::{BackwardAddresses, BackwardInputs, BackwardOutputs, BackwardPlan, BackwardProblem, params};
use crate::sim::output;
use crate::{Addresses, Element, Result, Sim, Traffic};

impl Sim {
    /// Runs a plan over host tensors and returns the bytes of global memory that it read and wrote.
    ///
    /// # Errors
    /// When a buffer is too small, and when the simulator finds a fault in a kernel.
    pub fn backward<T: Element>(
        &self,
        problem: &BackwardProblem,
        plan: &BackwardPlan,
        inputs: &BackwardInputs<'_, T>,
        outputs: &mut BackwardOutputs<'_, T>,
    ) -> Result<Traffic> {
        problem.check(inputs, outputs)?;
        let (forward, layouts) = (problem.forward(), problem.layouts());
        // NaN, so that a delta that is read before it is written shows.
        let mut workspace = vec![f32::NAN; plan.workspace_bytes as usize / 4];
        let (cu_seqlens_q, cu_seqlens_k) = forward.cu_seqlens().unwrap_or_default();
        let buffers = [
            Buffer::read("q", inputs.q),
            Buffer::read("k", inputs.k),
            Buffer::read("v", inputs.v),
            Buffer::read("o", inputs.o),
            Buffer::read("lse", inputs.lse),
            Buffer::read("dout", inputs.dout),
            output("dq", outputs.dq, &layouts.dq),
            output("dk", outputs.dk, &layouts.dk),
            output("dv", outputs.dv, &layouts.dv),
            Buffer::read_write("workspace", &mut workspace),
            Buffer::read("alibi_slopes", forward.alibi_slopes().unwrap_or_default()),
            Buffer::read("cu_seqlens_q", cu_seqlens_q),
            Buffer::read("cu_seqlens_k", cu_seqlens_k),
        ];
        let address = |tensor: usize| buffers[tensor].address;
        let addresses = BackwardAddresses {
            forward: Addresses {
                q: address(0),
                k: address(1),
                v: address(2),
                o: address(3),
                lse: Some(address(4)),
                workspace: address(9),
                alibi_slopes: Some(address(10)),
                cu_seqlens: Some((address(11), address(12))),
            },
            dout: address(5),
            dq: address(6),
            dk: address(7),
            dv: address(8),
        };
        self.launch(&plan.steps, &params(problem, &addresses)?, &buffers)
    }
}
