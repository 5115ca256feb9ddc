//! The calls of steps on a GPU: tensors that stay there, launches of all layers between two of its events.

use std::marker::PhantomData;

use anyhow::Result;
use flash_attention::Element;
use flash_attention::cuda::{Cuda, DeviceMemory, Stream};
use flash_attention::decode::DecodeAddresses;
use flash_attention::decode::DecodePlan;

use super::kernels::Engine;
use super::model::{Call, LayerTensors, Model, Outputs, Room};
use crate::bytes;

/// What tensors begin at a multiple of.
const ALIGNMENT: usize = 256;

/// Of the memory that is free, what the caches may take.
const SHARE: f64 = 0.8;

/// Offsets in bytes.
#[derive(Clone, Copy)]
struct Places {
    q: usize,
    o: usize,
    lse: usize,
    lists: usize,
    /// K and V of each layer that has its own, one behind the other.
    caches: usize,
}

/// Where a call's rows and lists begin.
struct Placed {
    row: usize,
    seqused_k: usize,
    page_table: usize,
}

/// A GPU with the tensors of a trace.
pub(super) struct OnGpu<T> {
    cuda: Cuda,
    model: Model,
    memory: DeviceMemory,
    workspace: DeviceMemory,
    places: Places,
    /// Layers that have a cache of their own; the others take turns with these.
    pub(super) caches: usize,
    element: PhantomData<T>,
}

impl<T: Element> OnGpu<T> {
    /// Copies the tensors to the device, K and V once for each layer, or for as many as there is room for.
    ///
    /// # Errors
    /// When the device has no room for one layer, or fails.
    pub(super) fn new(
        cuda: &Cuda,
        model: Model,
        &Room { rows, sequences, keys }: &Room,
        tensors: &LayerTensors<T>,
    ) -> Result<Self> {
        let pool = size_of_val(&tensors.k[..]).next_multiple_of(ALIGNMENT);
        let room = (SHARE * cuda.free_bytes()? as f64) as usize / (2 * pool);
        let caches = room.clamp(1, model.layers);
        // A list of lengths and a table, for all sequences in one call or for each in its own.
        let words = sequences * (keys.div_ceil(model.page_size) + 1);
        let sizes = [
            size_of_val(&tensors.q[..]),
            rows * model.row() * size_of::<T::Output>(),
            4 * rows * model.heads,
            4 * words,
            2 * pool * caches,
        ];
        let mut end = 0;
        let [q, o, lse, lists, caches_at] = sizes.map(|bytes| {
            let begin = end;
            end += bytes.next_multiple_of(ALIGNMENT);
            begin
        });
        let mut memory = cuda.device_memory(end)?;
        memory.write(q, bytes::of(&tensors.q))?;
        for cache in 0..caches {
            memory.write(caches_at + 2 * cache * pool, bytes::of(&tensors.k))?;
            memory.write(caches_at + (2 * cache + 1) * pool, bytes::of(&tensors.v))?;
        }
        Ok(Self {
            cuda: cuda.clone(),
            model,
            memory,
            workspace: cuda.device_memory(ALIGNMENT)?,
            places: Places { q, o, lse, lists, caches: caches_at },
            caches,
            element: PhantomData,
        })
    }

    /// Copies the calls' lists to the device, and says where they and the calls' rows begin.
    fn place(&mut self, calls: &[Call]) -> Result<Vec<Placed>> {
        let (mut row, mut words) = (0, Vec::<i32>::new());
        let mut placed = Vec::new();
        for call in calls {
            let at = |words: &[i32]| self.places.lists + 4 * words.len();
            let seqused_k = at(&words);
            words.extend(&call.seqused_k);
            let page_table = at(&words);
            words.extend(&call.page_table);
            placed.push(Placed { row, seqused_k, page_table });
            row += call.rows();
        }
        let list: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.memory.write(self.places.lists, &list)?;
        Ok(placed)
    }

    /// Loads a plan's kernels, and makes room for its workspace.
    fn ready(&mut self, plan: &DecodePlan) -> flash_attention::Result<()> {
        let bytes = plan.workspace_bytes() as usize;
        if self.workspace.bytes() < bytes {
            self.workspace = self.cuda.device_memory(bytes.next_power_of_two())?;
        }
        self.cuda.load(plan)
    }

    fn address(&self, offset: usize) -> u64 {
        self.memory.address() + offset as u64
    }

    /// Where Q, K, V, O, lse and the lists of a call lie in a layer.
    fn addresses(&self, layer: usize, placed: &Placed) -> DecodeAddresses {
        let Places { q, o, lse, caches, .. } = self.places;
        let model = &self.model;
        let pool = (model.pages * model.page_bytes() / 2).next_multiple_of(ALIGNMENT);
        let k = caches + 2 * (layer % self.caches) * pool;
        let elements = placed.row * model.row();
        DecodeAddresses {
            q: self.address(q + elements * size_of::<T>()),
            k: self.address(k),
            v: self.address(k + pool),
            o: self.address(o + elements * size_of::<T::Output>()),
            lse: Some(self.address(lse + 4 * placed.row * model.heads)),
            seqused_k: Some(self.address(placed.seqused_k)),
            page_table: Some(self.address(placed.page_table)),
            workspace: self.workspace.address(),
            ..DecodeAddresses::default()
        }
    }

    fn enqueue(
        &self,
        layer: usize,
        call: &Call,
        placed: &Placed,
        stream: Stream,
    ) -> flash_attention::Result<()> {
        // SAFETY: the scheduler bounds rows, keys and pages by what `new` made room for, and `time` waits for
        // the stream before the memory is touched again.
        unsafe { self.cuda.enqueue(&call.plan, &self.addresses(layer, placed), stream) }
    }

    /// O and lse of the calls as they lie on the device.
    fn read(&self, calls: &[Call], placed: &[Placed], outputs: &mut Vec<Outputs<T>>) -> Result<()> {
        for (call, placed) in calls.iter().zip(placed) {
            let (rows, model) = (call.rows(), &self.model);
            let mut o = vec![T::Output::default(); rows * model.row()];
            let mut lse = vec![0.0; rows * model.heads];
            let first = placed.row * model.row() * size_of::<T::Output>();
            self.memory.read(self.places.o + first, bytes::of_mut(&mut o))?;
            self.memory.read(self.places.lse + 4 * placed.row * model.heads, bytes::of_mut(&mut lse))?;
            outputs.push((o, lse));
        }
        Ok(())
    }

    /// Fills O and lse with NaN.
    fn poison(&mut self) -> Result<()> {
        let Places { o, lists, .. } = self.places;
        Ok(self.memory.fill(o, lists - o, 0xff)?)
    }
}

impl<T: Element> Engine<T> for OnGpu<T> {
    fn run(&mut self, calls: &[Call], outputs: Option<&mut Vec<Outputs<T>>>) -> Result<f64> {
        for call in calls {
            self.ready(&call.plan)?;
        }
        let placed = self.place(calls)?;
        if outputs.is_some() {
            self.poison()?;
        }
        let time = self.memory.time(|stream| {
            (0..self.model.layers).try_for_each(|layer| {
                let mut calls = calls.iter().zip(&placed);
                calls.try_for_each(|(call, placed)| self.enqueue(layer, call, placed, stream))
            })
        })?;
        if let Some(outputs) = outputs {
            self.read(calls, &placed, outputs)?;
        }
        Ok(time.as_secs_f64())
    }
}
