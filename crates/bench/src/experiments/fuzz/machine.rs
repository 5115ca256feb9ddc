//! What runs a planned problem over the tensors of two images.

use std::convert::Infallible;

use flash_attention::backward::{BackwardAddresses, BackwardInputs, BackwardOutputs, BackwardPlan};
use flash_attention::cuda::{Cuda, DeviceMemory, Stream};
use flash_attention::decode::{CacheData, DecodeAddresses, DecodeInputs, DecodePlan};
use flash_attention::forward::{Addresses, Factor, Outputs, PerHead};
use flash_attention::gemm::{GemmAddresses, GemmPlan};
use flash_attention::sim::Sim;
use flash_attention::{Backend, DType, Device, Element, Plan};

use super::image::{INPUT_CANARY, Image, OUTPUT_CANARY, Slot, elements_mut};
use super::outcome::{Failure, Kind, ran};

/// Inputs and outputs of a problem.
pub(super) struct Memory {
    pub(super) inputs: Image,
    pub(super) outputs: Image,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self { inputs: Image::new(INPUT_CANARY), outputs: Image::new(OUTPUT_CANARY) }
    }

    pub(super) fn clear(&mut self) {
        self.inputs.clear();
        self.outputs.clear();
    }
}

/// A planned forward pass and where its tensors lie; `o` and `lse` among the outputs.
pub(super) struct ForwardCall<'a> {
    pub(super) plan: &'a Plan,
    /// Q, K and V.
    pub(super) inputs: [Slot; 3],
    pub(super) extras: Extras,
    pub(super) o: Slot,
    pub(super) lse: Option<Slot>,
    pub(super) schedule: u64,
}

/// Lists with a value for each head, which have places in the image of inputs.
pub(super) struct HeadLists<'a> {
    values: Vec<(Slot, &'a [f32])>,
    pub(super) slots: PerHead<Slot>,
}

impl<'a> HeadLists<'a> {
    /// Reserves their places, each so many words behind a multiple of 256 bytes.
    pub(super) fn reserve(lists: PerHead<&'a [f32]>, image: &mut Image, offset: usize) -> Self {
        let mut values = Vec::new();
        let Ok(slots) = lists.try_map(|_, &list| {
            let slot = image.reserve((list.len(), 4), offset);
            values.push((slot, list));
            Ok::<_, Infallible>(slot)
        });
        Self { values, slots }
    }

    /// Writes them to their places.
    pub(super) fn put(&self, image: &mut Image) {
        for (slot, list) in &self.values {
            image.put(*slot, list.iter().map(|value| value.to_ne_bytes()));
        }
    }
}

/// Factors of heads, which have places in the image of inputs.
pub(super) struct FactorLists<'a, const N: usize> {
    factors: &'a [Factor; N],
    pub(super) slots: [Option<Slot>; N],
}

impl<'a, const N: usize> FactorLists<'a, N> {
    /// As [`HeadLists::reserve`].
    pub(super) fn reserve(factors: &'a [Factor; N], image: &mut Image, offset: usize) -> Self {
        let slots = factors.each_ref().map(|factor| match factor {
            Factor::Heads(values) => Some(image.reserve((values.len(), 4), offset)),
            _ => None,
        });
        Self { factors, slots }
    }

    /// Writes them to their places.
    pub(super) fn put(&self, image: &mut Image) {
        for (factor, slot) in self.factors.iter().zip(self.slots) {
            if let (Factor::Heads(values), Some(slot)) = (factor, slot) {
                image.put(slot, values.iter().map(|value| value.to_ne_bytes()));
            }
        }
    }
}

/// What a problem has beside its tensors.
#[derive(Clone, Copy, Default)]
pub(super) struct Extras {
    pub(super) per_head: PerHead<Slot>,
    pub(super) descale: [Option<Slot>; 3],
    pub(super) cu_seqlens: Option<[Slot; 2]>,
    pub(super) seqused_k: Option<Slot>,
}

/// A planned backward pass and where its tensors lie.
pub(super) struct BackwardCall<'a> {
    pub(super) plan: &'a BackwardPlan,
    /// Q, K, V, O, dO and lse.
    pub(super) inputs: [Slot; 6],
    pub(super) dlse: Option<Slot>,
    pub(super) extras: Extras,
    /// dQ, dK and dV.
    pub(super) gradients: [Slot; 3],
    pub(super) dsinks: Option<Slot>,
    pub(super) schedule: u64,
}

/// A planned decode problem and where its tensors lie.
pub(super) struct DecodeCall<'a> {
    pub(super) plan: &'a DecodePlan,
    /// Q, K and V.
    pub(super) inputs: [Slot; 3],
    pub(super) cu_seqlens_q: Option<Slot>,
    pub(super) seqused_k: Option<(&'a [i32], Slot)>,
    pub(super) page_table: Option<(&'a [i32], Slot)>,
    pub(super) tree_mask: Option<(&'a [u64], Slot)>,
    pub(super) per_head: PerHead<Slot>,
    /// Lists of factors of K and V.
    pub(super) descales: [Option<Slot>; 2],
    pub(super) o: Slot,
    pub(super) lse: Option<Slot>,
    pub(super) schedule: u64,
}

impl DecodeCall<'_> {
    /// K and V in an image of the inputs.
    pub(super) fn cache<'i, T: Element>(&self, inputs: &'i Image) -> [CacheData<'i, T>; 2] {
        let [_, k, v] = self.inputs;
        [k, v].map(|slot| match self.plan.problem().cache_dtype() {
            DType::E4m3 => CacheData::E4m3(inputs.values(slot)),
            _ => CacheData::Same(inputs.values(slot)),
        })
    }
}

/// A planned matrix multiplication and where its matrices lie.
pub(super) struct GemmCall<'a> {
    pub(super) plan: &'a GemmPlan,
    /// A and B.
    pub(super) inputs: [Slot; 2],
    pub(super) c: Slot,
    pub(super) schedule: u64,
}

/// Runs problems, one at a time.
pub(super) trait Machine {
    fn device(&self) -> &Device;

    fn forward<T: Element>(&mut self, call: &ForwardCall<'_>, memory: &mut Memory) -> Result<(), Failure>;

    fn backward<T: Element>(&mut self, call: &BackwardCall<'_>, memory: &mut Memory) -> Result<(), Failure>;

    fn decode<T: Element>(&mut self, call: &DecodeCall<'_>, memory: &mut Memory) -> Result<(), Failure>;

    fn gemm<T: Element>(&mut self, call: &GemmCall<'_>, memory: &mut Memory) -> Result<(), Failure>;
}

/// The CPU and the simulator, which read and write the images themselves.
pub(super) enum OnHost {
    Cpu(Backend),
    Sim(Device),
}

impl Machine for OnHost {
    fn device(&self) -> &Device {
        match self {
            Self::Cpu(backend) => backend.device(),
            Self::Sim(device) => device,
        }
    }

    fn forward<T: Element>(&mut self, call: &ForwardCall<'_>, memory: &mut Memory) -> Result<(), Failure> {
        let Memory { inputs, outputs } = memory;
        let plan = call.plan;
        let [q, k, v] = call.inputs.map(|slot| inputs.values::<T>(slot));
        let (o, lse) = output_and_lse(outputs, call.o, call.lse);
        let o = elements_mut::<T::Output>(o);
        ran(match self {
            Self::Cpu(backend) => backend.run(plan, (q, k, v), Outputs { o, lse }),
            Self::Sim(device) => {
                simulator(device, call.schedule).run(plan, (q, k, v), Outputs { o, lse }).map(drop)
            }
        })
    }

    fn backward<T: Element>(&mut self, call: &BackwardCall<'_>, memory: &mut Memory) -> Result<(), Failure> {
        let Memory { inputs, outputs } = memory;
        let plan = call.plan;
        let [q, k, v, o, dout] = [0, 1, 2, 3, 4].map(|index| inputs.values::<T>(call.inputs[index]));
        let lse = inputs.values::<f32>(call.inputs[5]);
        let dlse = call.dlse.map(|dlse| inputs.values::<f32>(dlse));
        let inputs = BackwardInputs { q, k, v, o, lse, dout, dlse, delta: None };
        let [dq, dk, dv] = call.gradients;
        let ([dq, dk, dv], dsinks) = match call.dsinks {
            Some(dsinks) => {
                let [dq, dk, dv, dsinks] = outputs.split([dq, dk, dv, dsinks]);
                ([dq, dk, dv], Some(elements_mut::<f32>(dsinks)))
            }
            None => (outputs.split([dq, dk, dv]), None),
        };
        let [dq, dk, dv] = [dq, dk, dv].map(elements_mut::<T>);
        let outputs = BackwardOutputs { dq, dk, dv, dsinks, delta: None };
        ran(match self {
            Self::Cpu(backend) => backend.run(plan, inputs, outputs),
            Self::Sim(device) => simulator(device, call.schedule).run(plan, inputs, outputs).map(drop),
        })
    }

    fn decode<T: Element>(&mut self, call: &DecodeCall<'_>, memory: &mut Memory) -> Result<(), Failure> {
        let Memory { inputs, outputs } = memory;
        let plan = call.plan;
        let (q, [k, v]) = (inputs.values::<T>(call.inputs[0]), call.cache(inputs));
        let list = |of: Option<(_, Slot)>| of.map(|(values, _)| values);
        let inputs = DecodeInputs {
            seqused_k: list(call.seqused_k),
            page_table: list(call.page_table),
            tree_mask: call.tree_mask.map(|(mask, _)| mask),
            ..DecodeInputs::new(q, k, v)
        };
        let (o, lse) = output_and_lse(outputs, call.o, call.lse);
        let o = elements_mut::<T::Output>(o);
        ran(match self {
            Self::Cpu(backend) => backend.run(plan, inputs, Outputs { o, lse }),
            Self::Sim(device) => {
                simulator(device, call.schedule).run(plan, inputs, Outputs { o, lse }).map(drop)
            }
        })
    }

    fn gemm<T: Element>(&mut self, call: &GemmCall<'_>, memory: &mut Memory) -> Result<(), Failure> {
        let Memory { inputs, outputs } = memory;
        let plan = call.plan;
        let [a, b] = call.inputs.map(|slot| inputs.values::<T>(slot));
        let c = outputs.values_mut::<T>(call.c);
        ran(match self {
            Self::Cpu(backend) => backend.run(plan, (a, b), c),
            Self::Sim(device) => simulator(device, call.schedule).run(plan, (a, b), c).map(drop),
        })
    }
}

fn simulator(device: &Device, schedule: u64) -> Sim {
    Sim::of_device(device.clone(), schedule)
}

fn output_and_lse(outputs: &mut Image, o: Slot, lse: Option<Slot>) -> (&mut [u8], Option<&mut [f32]>) {
    if let Some(lse) = lse {
        let [o, lse] = outputs.split([o, lse]);
        return (o, Some(elements_mut(lse)));
    }
    let [o] = outputs.split([o]);
    (o, None)
}

/// A GPU, with memory and a stream of this machine's own.
pub(super) struct OnGpu {
    cuda: Cuda,
    memory: DeviceMemory,
    /// The inputs as they are after the run.
    after: Vec<u8>,
}

/// Where the images and the workspace begin on the device.
#[derive(Clone, Copy)]
struct Places {
    inputs: u64,
    outputs: u64,
    workspace: u64,
}

impl Places {
    const fn input(self, slot: Slot) -> u64 {
        self.inputs + slot.start as u64
    }

    const fn output(self, slot: Slot) -> u64 {
        self.outputs + slot.start as u64
    }
}

/// Bytes of canary behind the workspace.
const BEHIND: usize = 256;

impl OnGpu {
    pub(super) fn new(cuda: &Cuda) -> flash_attention::Result<Self> {
        Ok(Self { cuda: cuda.clone(), memory: cuda.device_memory(4 << 20)?, after: Vec::new() })
    }

    /// Copies the images to the device, enqueues, waits, and copies the outputs back.
    fn run(
        &mut self,
        memory: &mut Memory,
        workspace_bytes: u64,
        enqueue: impl FnOnce(&Cuda, Places, Stream) -> flash_attention::Result<()>,
    ) -> Result<(), Failure> {
        let Memory { inputs, outputs } = memory;
        let outputs_at = inputs.len();
        let workspace_at = outputs_at + outputs.len();
        let end = workspace_at + workspace_bytes as usize;
        let all = end + BEHIND;
        if self.memory.bytes() < all {
            self.memory = ran(self.cuda.device_memory(all.next_power_of_two()))?;
        }
        let device = &mut self.memory;
        let at = |offset: usize| device.address() + offset as u64;
        let places = Places { inputs: at(0), outputs: at(outputs_at), workspace: at(workspace_at) };
        ran(device.write(0, inputs.bytes()))?;
        ran(device.write(outputs_at, outputs.bytes()))?;
        ran(device.fill(workspace_at, all - workspace_at, 0xff))?;
        ran(enqueue(&self.cuda, places, device.stream()))?;
        ran(device.read(outputs_at, outputs.bytes_mut()))?;
        self.after.resize(inputs.len(), 0);
        ran(device.read(0, &mut self.after))?;
        if self.after != inputs.bytes() {
            let byte = self.after.iter().zip(inputs.bytes()).position(|(after, before)| after != before);
            let what = format!("byte {} of the inputs was written", byte.unwrap_or_default());
            return Err(Failure::new(Kind::InputChanged, what));
        }
        let mut behind = [0; BEHIND];
        ran(device.read(end, &mut behind))?;
        if let Some(byte) = behind.iter().position(|&byte| byte != 0xff) {
            let what = format!("byte {byte} behind the workspace of {workspace_bytes} bytes was written");
            return Err(Failure::new(Kind::Overwritten, what));
        }
        Ok(())
    }
}

impl Extras {
    /// The addresses of a problem that has these alone.
    fn addresses(&self, places: Places) -> Addresses {
        Addresses {
            per_head: addresses(self.per_head, places),
            descale: self.descale.map(|slot| slot.map(|slot| places.input(slot))),
            cu_seqlens: self.cu_seqlens.map(|[q, k]| (places.input(q), places.input(k))),
            seqused_k: self.seqused_k.map(|used| places.input(used)),
            workspace: places.workspace,
            ..Addresses::default()
        }
    }
}

/// Where the lists with a value for each head lie.
fn addresses(lists: PerHead<Slot>, places: Places) -> PerHead<u64> {
    let Ok(addresses) = lists.try_map(|_, &slot| Ok::<_, Infallible>(places.input(slot)));
    addresses
}

impl Machine for OnGpu {
    fn device(&self) -> &Device {
        self.cuda.device()
    }

    fn forward<T: Element>(&mut self, call: &ForwardCall<'_>, memory: &mut Memory) -> Result<(), Failure> {
        let plan = call.plan;
        self.run(memory, plan.workspace_bytes(), |cuda, places, stream| {
            let [q, k, v] = call.inputs.map(|slot| places.input(slot));
            let (o, lse) = (places.output(call.o), call.lse.map(|lse| places.output(lse)));
            let addresses = Addresses { q, k, v, o, lse, ..call.extras.addresses(places) };
            // SAFETY: the problem's views lie in places that were reserved for them,
            // aligned to their elements; `run` waits for the stream before anything else touches the memory.
            unsafe { cuda.enqueue(plan, &addresses, stream) }
        })
    }

    fn backward<T: Element>(&mut self, call: &BackwardCall<'_>, memory: &mut Memory) -> Result<(), Failure> {
        let plan = call.plan;
        self.run(memory, plan.workspace_bytes(), |cuda, places, stream| {
            let [q, k, v, o, dout, lse] = call.inputs.map(|slot| places.input(slot));
            let forward = Addresses { q, k, v, o, lse: Some(lse), ..call.extras.addresses(places) };
            let [dq, dk, dv] = call.gradients.map(|slot| places.output(slot));
            let dlse = call.dlse.map(|slot| places.input(slot));
            let dsinks = call.dsinks.map(|slot| places.output(slot));
            let addresses = BackwardAddresses { forward, dout, dq, dk, dv, dlse, dsinks, delta: None };
            // SAFETY: as in `forward`.
            unsafe { cuda.enqueue(plan, &addresses, stream) }
        })
    }

    fn decode<T: Element>(&mut self, call: &DecodeCall<'_>, memory: &mut Memory) -> Result<(), Failure> {
        let plan = call.plan;
        self.run(memory, plan.workspace_bytes(), |cuda, places, stream| {
            let [q, k, v] = call.inputs.map(|slot| places.input(slot));
            let list = |of: Option<(_, Slot)>| of.map(|(_, slot)| places.input(slot));
            let addresses = DecodeAddresses {
                q,
                k,
                v,
                o: places.output(call.o),
                lse: call.lse.map(|lse| places.output(lse)),
                cu_seqlens_q: call.cu_seqlens_q.map(|slot| places.input(slot)),
                seqused_k: list(call.seqused_k),
                page_table: list(call.page_table),
                k_descale: call.descales[0].map(|slot| places.input(slot)),
                v_descale: call.descales[1].map(|slot| places.input(slot)),
                tree_mask: call.tree_mask.map(|(_, slot)| places.input(slot)),
                workspace: places.workspace,
                per_head: addresses(call.per_head, places),
            };
            // SAFETY: as in `forward`; the page table's entries in use were drawn from the pages that there
            // are.
            unsafe { cuda.enqueue(plan, &addresses, stream) }
        })
    }

    fn gemm<T: Element>(&mut self, call: &GemmCall<'_>, memory: &mut Memory) -> Result<(), Failure> {
        let plan = call.plan;
        self.run(memory, 0, |cuda, places, stream| {
            let [a, b] = call.inputs.map(|slot| places.input(slot));
            let addresses = GemmAddresses { a, b, c: places.output(call.c) };
            // SAFETY: as in `forward`.
            unsafe { cuda.enqueue(plan, &addresses, stream) }
        })
    }
}
