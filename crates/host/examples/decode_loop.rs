//! A decode loop: each step appends a key and a value to every sequence's cache, whose pages are handed out
//! when they are needed, and attends to all that is there.
//!
//! ```text
//! cargo run --release -p flash-attention --example decode_loop
//! ```

use std::error::Error;

use flash_attention::decode::{DecodeInputs, DecodeOptions, DecodePlan, DecodeProblem, DecodeRequest};
use flash_attention::forward::Outputs;
use flash_attention::{Backend, DType, HostTensor, TensorLayout, Tensors, attention};
use half::f16;

const SEQUENCES: usize = 3;
const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const PAGE_SIZE: usize = 16;
const PAGES: usize = 12;
/// Pages that one sequence may have.
const MAX_PAGES: usize = 6;
const STEPS: usize = 50;

/// Elements of a key, or a value, of all heads.
const ROW: usize = KV_HEADS * HEAD_DIM;

fn main() -> Result<(), Box<dyn Error>> {
    let backend = Backend::open(None)?;
    let queries = TensorLayout::bshd(SEQUENCES, 1, HEADS, HEAD_DIM);
    let pages = TensorLayout::bshd(PAGES, PAGE_SIZE, KV_HEADS, HEAD_DIM);
    let tensors = Tensors { q: queries, k: pages, v: pages, o: queries };
    let options = DecodeOptions { max_pages: Some(MAX_PAGES), ..DecodeOptions::default() };
    let problem = DecodeProblem::new(tensors, DType::F16, options)?;
    // One plan for all steps: lengths and pages are inputs.
    let plan = backend.plan(&problem, &DecodeRequest::default())?;

    let mut cache = Cache::new();
    let (mut q, mut o) = (Vec::new(), vec![f16::NAN; queries.span()]);
    for step in 0..STEPS {
        // The sequences came at different times.
        (0..SEQUENCES).filter(|sequence| step >= 7 * sequence).try_for_each(|it| cache.append(it, step))?;
        q = values(3 * step, queries.span());
        cache.attend(&backend, &plan, &q, &mut o)?;
    }

    let mut worst = 0.0_f32;
    for (sequence, (q, o)) in q.chunks(HEADS * HEAD_DIM).zip(o.chunks(HEADS * HEAD_DIM)).enumerate() {
        let (k, v) = cache.contiguous(sequence);
        let keys = [1, cache.lengths[sequence] as usize, KV_HEADS, HEAD_DIM];
        let q = HostTensor::bshd(q, [1, 1, HEADS, HEAD_DIM]);
        let expected =
            attention(&q, &HostTensor::bshd(&k, keys), &HostTensor::bshd(&v, keys)).run(&backend)?;
        let errors = o.iter().zip(&expected.o).map(|(o, expected)| (o.to_f32() - expected.to_f32()).abs());
        worst = errors.fold(worst, |worst, error| if error.is_nan() { error } else { worst.max(error) });
    }
    println!(
        "decode_loop: on {}: {STEPS} steps, {:?} keys in {} pages; largest difference from attention over contiguous \
         keys {worst:.1e}",
        backend.device().describe(),
        cache.lengths,
        PAGES - cache.free.len(),
    );
    if worst <= 4e-3 { Ok(()) } else { Err("O of the last step is wrong".into()) }
}

/// Keys and values of all sequences, in pages.
struct Cache {
    k: Vec<f16>,
    v: Vec<f16>,
    free: Vec<i32>,
    /// Of each sequence, [SEQUENCES, MAX_PAGES]; −1 where there is none yet.
    page_table: Vec<i32>,
    /// Keys of each sequence.
    lengths: Vec<i32>,
}

impl Cache {
    fn new() -> Self {
        let empty = vec![f16::NAN; PAGES * PAGE_SIZE * ROW];
        Self {
            k: empty.clone(),
            v: empty,
            free: (0..PAGES as i32).collect(),
            page_table: vec![-1; SEQUENCES * MAX_PAGES],
            lengths: vec![0; SEQUENCES],
        }
    }

    /// Appends a step's key and value to a sequence.
    fn append(&mut self, sequence: usize, step: usize) -> Result<(), Box<dyn Error>> {
        let (page, row) =
            (self.lengths[sequence] as usize / PAGE_SIZE, self.lengths[sequence] as usize % PAGE_SIZE);
        let entry = &mut self.page_table[sequence * MAX_PAGES..][..MAX_PAGES][page];
        if row == 0 {
            *entry = self.free.pop().ok_or("all pages are taken")?;
        }
        let first = (*entry as usize * PAGE_SIZE + row) * ROW;
        self.k[first..][..ROW].copy_from_slice(&values(5 * step + sequence, ROW));
        self.v[first..][..ROW].copy_from_slice(&values(7 * step + sequence, ROW));
        self.lengths[sequence] += 1;
        Ok(())
    }

    /// One query of each sequence against its keys.
    fn attend(
        &self,
        backend: &Backend,
        plan: &DecodePlan,
        q: &[f16],
        o: &mut [f16],
    ) -> flash_attention::Result<()> {
        let inputs = DecodeInputs {
            seqused_k: Some(&self.lengths),
            page_table: Some(&self.page_table),
            ..DecodeInputs::new(q, &self.k, &self.v)
        };
        backend.run(plan, inputs, Outputs { o, lse: None })
    }

    /// A sequence's keys and values in their order.
    fn contiguous(&self, sequence: usize) -> (Vec<f16>, Vec<f16>) {
        let gather = |data: &[f16]| {
            let rows = (0..self.lengths[sequence] as usize).flat_map(|key| {
                let page = self.page_table[sequence * MAX_PAGES + key / PAGE_SIZE] as usize;
                &data[(page * PAGE_SIZE + key % PAGE_SIZE) * ROW..][..ROW]
            });
            rows.copied().collect()
        };
        (gather(&self.k), gather(&self.v))
    }
}

/// Numbers from −1 to 1 that `seed` names.
fn values(seed: usize, len: usize) -> Vec<f16> {
    (0..len).map(|index| f16::from_f32(((index * 37 + seed * 101) % 199) as f32 / 99.5 - 1.0)).collect()
}
