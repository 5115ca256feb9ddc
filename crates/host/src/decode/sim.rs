//! Decode problems in the simulator.

use fa_kernels::entries::Params;
use fa_sim::Buffer;

use super::{DecodeAddresses, DecodeInputs, DecodePlan, DecodeProblem, params};
use crate::sim::output;
use crate::{Element, Result, Sim, Traffic};

impl Sim {
    /// Runs a plan over host tensors and returns the bytes of global memory that it read and wrote.
    ///
    /// # Errors
    /// When a buffer is too small, an input out of range, and when the simulator finds a fault in a kernel.
    pub fn decode<T: Element>(
        &self,
        problem: &DecodeProblem,
        plan: &DecodePlan,
        inputs: &DecodeInputs<'_, T>,
        o: &mut [T::Output],
        mut lse: Option<&mut [f32]>,
    ) -> Result<Traffic> {
        problem.check(inputs, o.len(), lse.as_ref().map(|lse| lse.len()))?;
        // NaN, so that a result that no split wrote shows.
        let mut workspace = vec![f32::NAN; plan.workspace_bytes as usize / 4];
        let buffers = [
            Buffer::read("q", inputs.q),
            Buffer::read("k", inputs.k),
            Buffer::read("v", inputs.v),
            output("o", o, &problem.dense().tensors().o),
            Buffer::read_write("workspace", &mut workspace),
            Buffer::read_write("lse", lse.as_deref_mut().unwrap_or_default()),
            Buffer::read("seqused_k", inputs.seqused_k.unwrap_or_default()),
            Buffer::read("page_table", inputs.page_table.unwrap_or_default()),
        ];
        let address = |buffer: usize| buffers[buffer].address;
        let addresses = DecodeAddresses {
            q: address(0),
            k: address(1),
            v: address(2),
            o: address(3),
            workspace: address(4),
            lse: lse.is_some().then(|| address(5)),
            seqused_k: inputs.seqused_k.map(|_| address(6)),
            page_table: inputs.page_table.map(|_| address(7)),
        };
        self.launch(&plan.steps, &Params::Decode(params(problem, plan, &addresses)), &buffers)
    }
}
