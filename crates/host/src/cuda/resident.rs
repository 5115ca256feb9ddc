//! A plan whose tensors lie on the device: run it, read it back.

use super::Cuda;
use super::buffer::Buffer;
#[cfg(feature = "testing")]
use super::timing::Clock;
#[cfg(feature = "testing")]
use crate::operation::Launch;
use crate::operation::{Data, Tensor, copy_rows};
use crate::{Element, Operation, Plan, Result};

/// A plan with its inputs, outputs and workspace in device memory.
pub(crate) struct Resident<O: Operation> {
    cuda: Cuda,
    plan: Plan<O>,
    addresses: O::Addresses,
    /// In the order of the operation's table.
    tensors: Vec<Placed>,
    #[cfg(feature = "testing")]
    pub(crate) clock: Clock,
}

/// A tensor in device memory.
struct Placed {
    buffer: Buffer,
    /// Outputs and the workspace.
    #[cfg_attr(not(feature = "testing"), allow(dead_code, reason = "poisoned in tests alone"))]
    is_written: bool,
}

impl<O: Operation> Resident<O> {
    /// Allocates the tensors of a call that was checked, and copies its inputs.
    ///
    /// # Errors
    /// When the driver refuses a kernel, or the device has not the memory.
    pub(crate) fn new<T: Element>(
        cuda: &Cuda,
        plan: &Plan<O>,
        inputs: O::Inputs<'_, T>,
        outputs: &mut O::Outputs<'_, T>,
    ) -> Result<Self> {
        Self::with_workspace(cuda, plan, inputs, outputs, plan.workspace_bytes() as usize)
    }

    /// [`Self::new`] with a workspace of another length; where it is shorter, nothing may run.
    fn with_workspace<T: Element>(
        cuda: &Cuda,
        plan: &Plan<O>,
        inputs: O::Inputs<'_, T>,
        outputs: &mut O::Outputs<'_, T>,
        workspace_bytes: usize,
    ) -> Result<Self> {
        cuda.load(plan)?;
        let mut tensors = Vec::new();
        let addresses = O::tensors(plan, inputs, outputs, &mut |tensor| {
            let bytes = match tensor.data {
                Data::Workspace => workspace_bytes,
                Data::Input(_) | Data::Output(_) | Data::Updated(_) => tensor.bytes(),
            };
            let buffer = cuda.buffer(tensor.name, bytes)?;
            let is_written = match tensor.data {
                Data::Input(data) => {
                    buffer.write(&data[..bytes], cuda.stream())?;
                    false
                }
                Data::Updated(data) => {
                    buffer.write(&data[..bytes], cuda.stream())?;
                    true
                }
                Data::Output(_) | Data::Workspace => true,
            };
            let address = buffer.address();
            tensors.push(Placed { buffer, is_written });
            Ok(address)
        })?;
        Ok(Self {
            #[cfg(feature = "testing")]
            clock: Clock::new(cuda)?,
            cuda: cuda.clone(),
            plan: plan.clone(),
            addresses,
            tensors,
        })
    }

    pub(crate) const fn plan(&self) -> &Plan<O> {
        &self.plan
    }

    /// Enqueues one run on the backend's stream.
    ///
    /// # Errors
    /// When the driver refuses a launch.
    pub(crate) fn run(&self) -> Result<()> {
        // SAFETY: the buffers are this object's, and as long as the table says; it outlives the stream's
        // work, because reading and dropping it synchronise. Indices were checked before they were copied.
        unsafe { self.cuda.enqueue(&self.plan, &self.addresses, self.cuda.stream()) }
    }

    /// Waits for the runs so far.
    ///
    /// # Errors
    /// When a kernel faulted.
    pub(crate) fn wait(&self) -> Result<()> {
        self.cuda.stream.synchronize()
    }

    /// Waits for the runs so far and copies what they wrote; the inputs are those that were copied.
    ///
    /// # Errors
    /// When a kernel faulted.
    pub(crate) fn read<T: Element>(
        &self,
        inputs: O::Inputs<'_, T>,
        outputs: &mut O::Outputs<'_, T>,
    ) -> Result<()> {
        self.wait()?;
        let mut tensors = self.tensors.iter();
        let read = &mut |tensor: Tensor<'_>| {
            let (bytes, next) = (tensor.bytes(), tensors.next());
            if let (Data::Output(data) | Data::Updated(data), Some(Placed { buffer, .. })) =
                (tensor.data, next)
            {
                if tensor.layout.elements() == tensor.layout.span() {
                    buffer.read(&mut data[..bytes])?;
                } else {
                    let mut span: Vec<u8> = self.cuda.device.allocate(tensor.name, bytes)?;
                    buffer.read(&mut span)?;
                    copy_rows(&tensor.layout, tensor.element_bytes, &span, data);
                }
            }
            Ok(0)
        };
        O::tensors(&self.plan, inputs, outputs, read).map(drop)
    }
}

#[cfg(feature = "testing")]
impl Cuda {
    /// The tensors of a plan in device memory without its workspace, for those who count bytes.
    ///
    /// # Errors
    /// As [`Backend::prepare`](crate::Backend::prepare).
    pub fn tensor_memory<O: Operation, T: Element>(
        &self,
        plan: &Plan<O>,
        inputs: O::Inputs<'_, T>,
    ) -> Result<impl Sized + use<O, T>> {
        let mut results = plan.problem().results(&self.device)?;
        let outputs = &mut O::outputs(&mut results);
        plan.check(&self.device, inputs, outputs)?;
        Resident::with_workspace(self, plan, inputs, outputs, 0)
    }
}

#[cfg(feature = "testing")]
impl<O: Operation> Resident<O> {
    /// Fills outputs and workspace with NaN bits.
    ///
    /// # Errors
    /// When the driver fails.
    pub(crate) fn poison(&self) -> Result<()> {
        let mut written = self.tensors.iter().filter(|tensor| tensor.is_written);
        written.try_for_each(|tensor| tensor.buffer.fill(0xff, self.cuda.stream()))
    }

    pub(crate) fn launches(&self) -> &[Launch<O>] {
        self.plan.launches_at(&self.addresses)
    }

    /// Enqueues one launch on the backend's stream.
    ///
    /// # Errors
    /// When the driver refuses it.
    pub(crate) fn launch(&self, launch: &Launch<O>) -> Result<()> {
        // SAFETY: as in `run`.
        unsafe {
            let launches = std::slice::from_ref(launch);
            self.cuda.enqueue_launches(&self.plan, launches, &self.addresses, self.cuda.stream())
        }
    }
}

impl<O: Operation> Drop for Resident<O> {
    fn drop(&mut self) {
        // The buffers are freed next; the device must be done with them. A fault was reported by the call
        // that saw it, or will be by the next.
        let _ = self.cuda.stream.synchronize();
    }
}
