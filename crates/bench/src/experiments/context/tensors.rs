//! The tensors of a problem on one GPU, and those of a rank.

use anyhow::Result;
use flash_attention::cuda::{Cuda, DeviceMemory, Stream};
use flash_attention::distributed::{Half, Shard, ShardAddresses};
use flash_attention::forward::Addresses;
use flash_attention::{Element, Plan, TensorLayout, Tensors};

use crate::bytes;

/// Elements that repeat over a tensor; a prime number, so that no two rows are alike.
pub(super) const PATTERN: usize = 4_194_301;

/// Bytes that are compared at a time.
const CHUNK: usize = 1 << 24;

/// Where tensors begin, at multiples of 256 bytes of one allocation.
#[derive(Clone, Copy, Debug)]
struct Places {
    q: usize,
    k: usize,
    v: usize,
    o: usize,
    lse: usize,
    end: usize,
}

impl Places {
    fn new(tensors: &Tensors, lse_len: usize, element: usize) -> Self {
        let mut end = 0;
        let mut next = |bytes: usize| {
            let at = end;
            end = (end + bytes).next_multiple_of(256);
            at
        };
        let Tensors { q, k, v, o } = tensors;
        let [q, k, v, o] = [q, k, v, o].map(|layout| next(layout.span() * element));
        let lse = next(lse_len * size_of::<f32>());
        Self { q, k, v, o, lse, end }
    }
}

/// A problem on one GPU.
pub(super) struct Whole {
    cuda: Cuda,
    plan: Plan,
    memory: DeviceMemory,
    places: Places,
    workspace: Option<DeviceMemory>,
}

impl Whole {
    pub(super) fn new<T: Element>(cuda: &Cuda, plan: Plan, pattern: &[Vec<T>; 3]) -> Result<Self> {
        let problem = plan.problem();
        let places = Places::new(problem.tensors(), problem.lse_len(), problem.dtype().bytes());
        let mut memory = cuda.device_memory(places.end)?;
        let Tensors { q, k, v, .. } = problem.tensors();
        for ((layout, at), pattern) in [(q, places.q), (k, places.k), (v, places.v)].into_iter().zip(pattern)
        {
            write(&mut memory, at, pattern, 0, layout.span())?;
        }
        cuda.load(&plan)?;
        let bytes = plan.workspace_bytes() as usize;
        let workspace = (bytes > 0).then(|| cuda.device_memory(bytes)).transpose()?;
        Ok(Self { cuda: cuda.clone(), plan, memory, places, workspace })
    }

    /// O and lse of a run, and what lies between them.
    pub(super) fn outputs(&mut self) -> Result<Expected> {
        poison(&mut self.memory, self.places)?;
        self.enqueue()?;
        let mut bytes = vec![0; self.places.end - self.places.o];
        self.memory.read(self.places.o, &mut bytes)?;
        Ok(Expected { bytes, lse: self.places.lse - self.places.o })
    }

    pub(super) fn enqueue(&self) -> Result<()> {
        let at = |offset: usize| self.memory.address() + offset as u64;
        let addresses = Addresses {
            q: at(self.places.q),
            k: at(self.places.k),
            v: at(self.places.v),
            o: at(self.places.o),
            lse: Some(at(self.places.lse)),
            workspace: self.workspace.as_ref().map_or(0, DeviceMemory::address),
            ..Addresses::default()
        };
        // SAFETY: the tensors are as long as the problem says, and live until the stream's work is over.
        unsafe { self.cuda.enqueue(&self.plan, &addresses, self.memory.stream()) }?;
        Ok(())
    }

    pub(super) fn wait(&self) -> Result<()> {
        Ok(self.memory.read(0, &mut [0])?)
    }
}

/// What one GPU computes: O, and lse from a byte on.
pub(super) struct Expected {
    bytes: Vec<u8>,
    lse: usize,
}

/// A rank's part.
pub(super) struct Part {
    shard: Shard,
    memory: DeviceMemory,
    places: Places,
}

impl Part {
    pub(super) fn new<T: Element>(cuda: &Cuda, shard: &Shard, pattern: &[Vec<T>; 3]) -> Result<Self> {
        let (tensors, whole) = (shard.tensors(), shard.problem().tensors());
        let places = Places::new(tensors, shard.lse_len(), T::DTYPE.bytes());
        let mut memory = cuda.device_memory(places.end)?;
        let parts = [
            (false, (tensors.q, whole.q), places.q),
            (true, (tensors.k, whole.k), places.k),
            (true, (tensors.v, whole.v), places.v),
        ];
        for ((of_keys, (own, whole), at), pattern) in parts.into_iter().zip(pattern) {
            for (from, to, len) in spans(shard, of_keys, &whole, &own) {
                write(&mut memory, at + to * T::DTYPE.bytes(), pattern, from, len)?;
            }
        }
        Ok(Self { shard: shard.clone(), memory, places })
    }

    pub(super) fn poison(&mut self) -> Result<()> {
        poison(&mut self.memory, self.places)
    }

    pub(super) fn addresses(&self) -> ShardAddresses {
        let at = |offset: usize| self.memory.address() + offset as u64;
        let Places { q, k, v, o, lse, .. } = self.places;
        ShardAddresses { q: at(q), k: at(k), v: at(v), o: at(o), lse: Some(at(lse)), ..ShardAddresses::default() }
    }

    pub(super) fn stream(&self) -> Stream {
        self.memory.stream()
    }

    /// The first difference in bits of the rank's O or lse from the whole problem's.
    pub(super) fn difference<T: Element>(&self, expected: &Expected) -> Result<Option<String>> {
        let Self { shard, memory, places } = self;
        let (element, rank) = (T::DTYPE.bytes(), shard.rank());
        let o = shard.problem().tensors().o;
        for (from, to, len) in spans(shard, false, &o, &shard.tensors().o) {
            let expected = &expected.bytes[from * element..][..len * element];
            if let Some(at) = differ(expected, (memory, places.o + to * element))? {
                return Ok(Some(format!("O of rank {rank}, element {}", to + at / element)));
            }
        }
        let lse = |seqlen| TensorLayout::bhsd(o.batch, seqlen, o.heads, 1);
        let (of_whole, own) = (lse(o.seqlen), lse(shard.tensors().o.seqlen));
        for index in 0..o.batch * o.heads * 2 {
            let (batch, head, half) = (index / 2 / o.heads, index / 2 % o.heads, Half::ALL[index % 2]);
            let rows = shard.queries().rows_of(rank, half);
            let from = of_whole.row(batch, rows.start, head);
            let to = own.row(batch, shard.queries().local_start(rank, half), head);
            let expected = &expected.bytes[expected.lse + 4 * from..][..4 * rows.len()];
            if let Some(at) = differ(expected, (memory, places.lse + 4 * to))? {
                return Ok(Some(format!("lse of rank {rank}, element {}", to + at / 4)));
            }
        }
        Ok(None)
    }
}

/// A rank's rows, of two contiguous [B, S, H, D]: element of the whole, element of the part, and how many.
fn spans(
    shard: &Shard,
    of_keys: bool,
    whole: &TensorLayout,
    own: &TensorLayout,
) -> Vec<(usize, usize, usize)> {
    let cut = if of_keys { shard.keys() } else { shard.queries() };
    let halves = (0..whole.batch).flat_map(|batch| Half::ALL.map(|half| (batch, half)));
    halves
        .map(|(batch, half)| {
            let rows = cut.rows_of(shard.rank(), half);
            let to = own.row(batch, cut.local_start(shard.rank(), half), 0);
            (whole.row(batch, rows.start, 0), to, rows.len() * whole.stride_seq)
        })
        .collect()
}

/// Writes the elements from `first` on of a pattern that repeats.
fn write<T: Element>(
    memory: &mut DeviceMemory,
    at: usize,
    pattern: &[T],
    first: usize,
    len: usize,
) -> Result<()> {
    let mut done = 0;
    while done < len {
        let from = (first + done) % pattern.len();
        let part = &pattern[from..pattern.len().min(from + len - done)];
        memory.write(at + done * T::DTYPE.bytes(), bytes::of(part))?;
        done += part.len();
    }
    Ok(())
}

/// NaN in O and lse.
fn poison(memory: &mut DeviceMemory, places: Places) -> Result<()> {
    Ok(memory.fill(places.o, places.end - places.o, 0xff)?)
}

/// The first byte in which memory differs from what is expected.
fn differ(expected: &[u8], (memory, at): (&DeviceMemory, usize)) -> Result<Option<usize>> {
    let mut found = vec![0; CHUNK.min(expected.len())];
    for (index, expected) in expected.chunks(CHUNK).enumerate() {
        let found = &mut found[..expected.len()];
        memory.read(at + index * CHUNK, found)?;
        if found != expected {
            return Ok((0..found.len()).find(|&at| found[at] != expected[at]).map(|at| index * CHUNK + at));
        }
    }
    Ok(None)
}
