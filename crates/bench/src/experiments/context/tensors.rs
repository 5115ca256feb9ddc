//! The tensors of a problem on one GPU, and those of a rank.

use std::ops::Range;

use anyhow::Result;
use flash_attention::cuda::{Cuda, DeviceMemory, Stream};
use flash_attention::distributed::{Run, Shard, ShardAddresses, request_of_one};
use flash_attention::{Element, Plan, Problem, Request, TensorLayout, Tensors};

use super::pass::Pass;
use super::team::Work;
use crate::bytes;

/// Elements that repeat over a tensor; a prime number, so that no two rows are alike.
pub(super) const PATTERN: usize = 4_194_301;

/// Bytes that are compared or copied at a time.
const CHUNK: usize = 1 << 24;

/// The elements of Q, K, V and dO.
pub(super) type Patterns<T> = [Vec<T>; 4];

/// Where tensors begin, at multiples of 256 bytes of one allocation; those of a backward pass behind the
/// others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) q: usize,
    pub(super) k: usize,
    pub(super) v: usize,
    pub(super) o: usize,
    pub(super) lse: usize,
    pub(super) dout: usize,
    pub(super) dq: usize,
    pub(super) dk: usize,
    pub(super) dv: usize,
    pub(super) end: usize,
    is_backward: bool,
}

impl Places {
    pub(super) fn new(tensors: &Tensors, lse_len: usize, element: usize, is_backward: bool) -> Self {
        let mut end = 0;
        let mut next = |bytes: usize| {
            let at = end;
            end = (end + bytes).next_multiple_of(256);
            at
        };
        let Tensors { q, k, v, o } = tensors;
        let [q_bytes, k_bytes, v_bytes, o_bytes] = [q, k, v, o].map(|layout| layout.span() * element);
        let [q, k, v, o] = [q_bytes, k_bytes, v_bytes, o_bytes].map(&mut next);
        let lse = next(lse_len * size_of::<f32>());
        let [dout, dq, dk, dv] =
            [o_bytes, q_bytes, k_bytes, v_bytes].map(|bytes| next(if is_backward { bytes } else { 0 }));
        Self { q, k, v, o, lse, dout, dq, dk, dv, end, is_backward }
    }

    /// What is written, with what lies between.
    fn outputs(&self) -> Range<usize> {
        if self.is_backward { self.dq..self.end } else { self.o..self.end }
    }

    /// NaN in what is written.
    pub(super) fn poison(&self, memory: &mut DeviceMemory) -> Result<()> {
        let range = self.outputs();
        Ok(memory.fill(range.start, range.len(), 0xff)?)
    }
}

/// A problem on one GPU.
pub(super) struct Whole<O: Pass> {
    cuda: Cuda,
    plan: Plan<O>,
    memory: DeviceMemory,
    places: Places,
    workspace: Option<DeviceMemory>,
}

impl<O: Pass> Whole<O> {
    pub(super) fn new<T: Element>(
        cuda: &Cuda,
        (forward, problem): (&Problem, &O),
        pattern: &Patterns<T>,
    ) -> Result<Self> {
        let places = Places::new(forward.tensors(), forward.lse_len(), T::DTYPE.bytes(), O::IS_BACKWARD);
        let mut memory = cuda.device_memory(places.end)?;
        let Tensors { q, k, v, o } = forward.tensors();
        let inputs = [(q, places.q), (k, places.k), (v, places.v), (o, places.dout)];
        let count = if O::IS_BACKWARD { 4 } else { 3 };
        for ((layout, at), pattern) in inputs.into_iter().zip(pattern).take(count) {
            write(&mut memory, at, pattern, 0, layout.span())?;
        }
        let plan = Plan::new(problem, cuda.device(), &problem.request())?;
        let whole = Self { cuda: cuda.clone(), plan, memory, places, workspace: None };
        if O::IS_BACKWARD {
            let request = request_of_one(forward, &Request::default());
            whole.run_once(&Plan::new(forward, cuda.device(), &request)?)?;
        }
        cuda.load(&whole.plan)?;
        let workspace = whole.workspace(whole.plan.workspace_bytes())?;
        Ok(Self { workspace, ..whole })
    }

    fn workspace(&self, bytes: u64) -> Result<Option<DeviceMemory>> {
        Ok((bytes > 0).then(|| self.cuda.device_memory(bytes as usize)).transpose()?)
    }

    /// Runs another plan over the same tensors.
    fn run_once<P: Pass>(&self, plan: &Plan<P>) -> Result<()> {
        self.cuda.load(plan)?;
        let workspace = self.workspace(plan.workspace_bytes())?;
        self.enqueue_plan(plan, workspace.as_ref())?;
        self.wait()
    }

    fn enqueue_plan<P: Pass>(&self, plan: &Plan<P>, workspace: Option<&DeviceMemory>) -> Result<()> {
        let workspace = workspace.map_or(0, DeviceMemory::address);
        let addresses = P::addresses(&self.places, self.memory.address(), workspace);
        // SAFETY: the tensors are as long as the problem says, and live until the stream's work is over.
        unsafe { self.cuda.enqueue(plan, &addresses, self.memory.stream()) }?;
        Ok(())
    }

    /// What a run writes whose bits ranks have.
    pub(super) fn outputs(&mut self, problem: &O) -> Result<Expected> {
        let range = self.places.outputs();
        self.places.poison(&mut self.memory)?;
        self.run_once(&Plan::new(problem, self.cuda.device(), &problem.request_of_bits())?)?;
        let mut bytes = vec![0; range.len()];
        self.memory.read(range.start, &mut bytes)?;
        Ok(Expected { bytes, places: self.places })
    }

    /// Why it is computed so, by one GPU.
    pub(super) fn reason(&self) -> String {
        let names: Vec<_> = self.plan.launches().iter().map(|launch| launch.entry.name).collect();
        format!("one GPU: {}", names.join(", "))
    }
}

impl<O: Pass> Work for Whole<O> {
    fn enqueue(&self) -> Result<()> {
        self.enqueue_plan(&self.plan, self.workspace.as_ref())
    }

    fn wait(&self) -> Result<()> {
        Ok(self.memory.read(0, &mut [0])?)
    }
}

/// What one GPU computes.
pub(super) struct Expected {
    bytes: Vec<u8>,
    places: Places,
}

/// A rank's part.
pub(super) struct Part {
    shard: Shard,
    memory: DeviceMemory,
    places: Places,
}

impl Part {
    /// Of a rank on the GPU of a whole problem.
    pub(super) fn new<O: Pass, T: Element>(
        cuda: &Cuda,
        shard: &Shard,
        (of, pattern): (&Whole<O>, &Patterns<T>),
    ) -> Result<Self> {
        let (own, whole) = (shard.tensors(), shard.problem().tensors());
        let places = Places::new(own, shard.lse_len(), T::DTYPE.bytes(), O::IS_BACKWARD);
        let mut memory = cuda.device_memory(places.end)?;
        let inputs = [
            (false, (own.q, whole.q), places.q),
            (true, (own.k, whole.k), places.k),
            (true, (own.v, whole.v), places.v),
            (false, (own.o, whole.o), places.dout),
        ];
        let count = if O::IS_BACKWARD { 4 } else { 3 };
        for ((of_keys, (own, whole), at), pattern) in inputs.into_iter().zip(pattern).take(count) {
            for (from, to, len) in spans(shard, of_keys, &whole, &own) {
                write(&mut memory, at + to * T::DTYPE.bytes(), pattern, from, len)?;
            }
        }
        let mut part = Self { shard: shard.clone(), memory, places };
        if O::IS_BACKWARD {
            part.take_outputs(of, T::DTYPE.bytes())?;
        }
        Ok(part)
    }

    /// Takes O and lse from one GPU's.
    fn take_outputs<O: Pass>(&mut self, of: &Whole<O>, element: usize) -> Result<()> {
        let Self { shard, memory, places } = self;
        let mut take = |from: usize, to: usize, len: usize| -> Result<()> {
            let mut bytes = vec![0; CHUNK.min(len)];
            for done in (0..len).step_by(CHUNK) {
                let bytes = &mut bytes[..CHUNK.min(len - done)];
                of.memory.read(from + done, bytes)?;
                memory.write(to + done, bytes)?;
            }
            Ok(())
        };
        for (from, to, len) in spans(shard, false, &shard.problem().tensors().o, &shard.tensors().o) {
            take(of.places.o + from * element, places.o + to * element, len * element)?;
        }
        for (from, to, len) in lse_spans(shard) {
            take(of.places.lse + 4 * from, places.lse + 4 * to, 4 * len)?;
        }
        Ok(())
    }

    pub(super) fn poison(&mut self) -> Result<()> {
        self.places.poison(&mut self.memory)
    }

    pub(super) fn addresses(&self) -> ShardAddresses {
        let at = |offset: usize| self.memory.address() + offset as u64;
        let Places { q, k, v, o, lse, dout, dq, dk, dv, .. } = self.places;
        ShardAddresses {
            q: at(q),
            k: at(k),
            v: at(v),
            o: at(o),
            lse: Some(at(lse)),
            dout: at(dout),
            dq: at(dq),
            dk: at(dk),
            dv: at(dv),
        }
    }

    pub(super) fn stream(&self) -> Stream {
        self.memory.stream()
    }

    /// The first difference in bits of what the rank wrote from the whole problem's.
    pub(super) fn difference<T: Element>(&self, expected: &Expected) -> Result<Option<String>> {
        let Self { shard, places, .. } = self;
        let (own, whole, of) = (shard.tensors(), shard.problem().tensors(), &expected.places);
        let rows = |name, of_keys, (own, whole), places| {
            (name, T::DTYPE.bytes(), spans(shard, of_keys, whole, own), places)
        };
        let outputs = if places.is_backward {
            vec![
                rows("dQ", false, (&own.q, &whole.q), (places.dq, of.dq)),
                rows("dK", true, (&own.k, &whole.k), (places.dk, of.dk)),
                rows("dV", true, (&own.v, &whole.v), (places.dv, of.dv)),
            ]
        } else {
            vec![
                rows("O", false, (&own.o, &whole.o), (places.o, of.o)),
                ("lse", size_of::<f32>(), lse_spans(shard), (places.lse, of.lse)),
            ]
        };
        let first = of.outputs().start;
        for (name, element, spans, (at, of_whole)) in outputs {
            for (from, to, len) in spans {
                let expected = &expected.bytes[of_whole - first + from * element..][..len * element];
                if let Some(found) = differ(expected, (&self.memory, at + to * element))? {
                    let (rank, index) = (shard.rank(), to + found / element);
                    return Ok(Some(format!("{name} of rank {rank}, element {index}")));
                }
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
    let runs: Vec<_> = if of_keys { shard.key_runs().collect() } else { shard.query_runs().collect() };
    let of_run = |(batch, run): (usize, &Run)| {
        let (from, to) = (whole.row(batch, run.whole.start, 0), own.row(batch, run.first, 0));
        (from, to, run.whole.len() * whole.stride_seq)
    };
    (0..whole.batch).flat_map(|batch| runs.iter().map(move |run| (batch, run))).map(of_run).collect()
}

/// The same of lse, [B, H, S] of both.
fn lse_spans(shard: &Shard) -> Vec<(usize, usize, usize)> {
    let (o, runs) = (shard.problem().tensors().o, shard.query_runs().collect::<Vec<_>>());
    let lse = |seqlen| TensorLayout::bhsd(o.batch, seqlen, o.heads, 1);
    let (whole, own) = (lse(o.seqlen), lse(shard.tensors().o.seqlen));
    let of_run = |((batch, head), run): ((usize, usize), &Run)| {
        let (from, to) = (whole.row(batch, run.whole.start, head), own.row(batch, run.first, head));
        (from, to, run.whole.len())
    };
    let heads = (0..o.batch).flat_map(|batch| (0..o.heads).map(move |head| (batch, head)));
    heads.flat_map(|head| runs.iter().map(move |run| (head, run))).map(of_run).collect()
}

/// Writes the elements from `first` on of a pattern that repeats.
pub(super) fn write<T: Element>(
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
