use candle_core::{DType, Device, Result, Tensor};
use candle_flash_attention::{FlashAttnVarLen, flash_attn_varlen_paged_windowed};

use crate::plain::{Plain, assert_close, offsets, tolerance, values};

/// Pages of each cache: a prime, so that multiples of a smaller number name them all.
const PAGES: usize = 211;

/// Query rows and keys of sequences: rows that differ; the newest rows of longer sequences, or all; as many
/// rows of each; and few enough for decode. Each has a sequence without keys.
const LENGTHS: [&[(usize, usize)]; 4] = [
    &[(3, 4), (0, 2), (9, 7), (2, 0), (40, 70)],
    &[(40, 90), (17, 17), (1, 50), (5, 5), (3, 0)],
    &[(40, 60), (40, 0), (40, 41), (40, 3)],
    &[(3, 40), (3, 0), (3, 64), (3, 2)],
];

/// Attention of sequences whose keys lie in pages.
#[derive(Clone, Debug)]
pub(crate) struct Paged {
    lengths: &'static [(usize, usize)],
    page_size: usize,
    head_dim: usize,
    left: Option<usize>,
    right: Option<usize>,
    softcap: f32,
    has_slopes: bool,
}

impl Paged {
    /// All lengths in pages of several sizes under masks, softcap and ALiBi.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for lengths in LENGTHS {
            for (page_size, head_dim) in [(1, 64), (7, 24), (16, 128)] {
                for (left, right, softcap, has_slopes) in [
                    (None, None, 0.0, false),
                    (None, Some(0), 0.0, false),
                    (Some(5), Some(1), 0.0, false),
                    (Some(20), Some(0), 0.7, false),
                    (None, Some(0), 0.0, true),
                ] {
                    all.push(Self { lengths, page_size, head_dim, left, right, softcap, has_slopes });
                }
            }
        }
        all
    }

    /// [`Self::all`] of one size of pages.
    fn of_one_size() -> impl Iterator<Item = Self> {
        Self::all().into_iter().filter(|paged| paged.page_size == 7)
    }

    /// Keys of the longest sequence.
    fn longest(&self) -> usize {
        self.lengths.iter().map(|&(_, keys)| keys).max().unwrap()
    }

    /// Pages of each sequence, and a last column; what holds no keys names no page.
    pub(crate) fn table(&self) -> Vec<Vec<u32>> {
        let columns = self.longest().div_ceil(self.page_size) + 1;
        let mut next = (0..PAGES).map(|index| ((index * 29 + 3) % PAGES) as u32);
        let mut unused = [u32::MAX, 1 << 31, PAGES as u32].into_iter().cycle();
        let mut row = |keys: usize| {
            let used: Vec<_> = next.by_ref().take(keys.div_ceil(self.page_size)).collect();
            let missing = columns - used.len();
            used.into_iter().chain(unused.by_ref().take(missing)).collect()
        };
        self.lengths.iter().map(|&(_, keys)| row(keys)).collect()
    }

    /// Rows of the cache that hold the sequences' keys, in their order.
    fn rows(&self) -> Vec<u32> {
        let size = self.page_size;
        let of_sequence = |(&(_, keys), pages): (&(usize, usize), &Vec<u32>)| {
            (0..keys).map(|key| pages[key / size] * size as u32 + (key % size) as u32).collect::<Vec<_>>()
        };
        self.lengths.iter().zip(&self.table()).flat_map(of_sequence).collect()
    }

    fn q(&self, dtype: DType) -> Tensor {
        let rows = self.lengths.iter().map(|&(rows, _)| rows).sum();
        values(1, &[rows, 4, self.head_dim], dtype)
    }

    /// Pages of keys or values, NaN where no key lies.
    fn cache(&self, seed: u32, dtype: DType) -> Tensor {
        let shape = [PAGES, self.page_size, 2, self.head_dim];
        let mut unused = vec![f32::NAN; PAGES * self.page_size];
        for row in self.rows() {
            unused[row as usize] = 0.0;
        }
        let unused = Tensor::from_vec(unused, (PAGES, self.page_size, 1, 1), &Device::Cpu).unwrap();
        values(seed, &shape, DType::F32).broadcast_add(&unused).unwrap().to_dtype(dtype).unwrap()
    }

    fn slopes(&self) -> Option<Tensor> {
        let slopes = [0.5_f32, 0.25, 0.125, 0.0625];
        self.has_slopes.then(|| Tensor::new(&slopes, &Device::Cpu).unwrap())
    }

    /// The operation on a device, with the block table in a type.
    fn operation(&self, device: &Device, table: DType) -> Result<FlashAttnVarLen> {
        let (rows, keys): (Vec<_>, Vec<_>) = self.lengths.iter().copied().unzip();
        let table = match table {
            DType::I32 => {
                let signed = |row: Vec<u32>| row.into_iter().map(|page| page as i32).collect::<Vec<_>>();
                Tensor::new(self.table().into_iter().map(signed).collect::<Vec<_>>(), device)?
            }
            _ => Tensor::new(self.table(), device)?,
        };
        Ok(FlashAttnVarLen {
            softmax_scale: 0.3,
            max_seqlen_q: rows.iter().copied().max().unwrap(),
            max_seqlen_k: self.longest(),
            seqlens_q: offsets(&rows).to_device(device)?,
            seqlens_k: offsets(&keys).to_device(device)?,
            block_table: Some(table),
            mm_prefix_ranges: None,
            page_block_size: Some(self.page_size),
            alibi_slopes: self.slopes().map(|slopes| slopes.to_device(device)).transpose()?,
            window_size_left: self.left,
            window_size_right: self.right,
            softcap: Some(self.softcap),
        })
    }

    /// O on a device.
    pub(crate) fn run(&self, device: &Device, dtype: DType, table: DType) -> Result<Tensor> {
        let [q, k, v] = [self.q(dtype), self.cache(2, dtype), self.cache(3, dtype)];
        let [q, k, v] = [q.to_device(device)?, k.to_device(device)?, v.to_device(device)?];
        q.apply_op3(&k, &v, self.operation(device, table)?)?.to_device(&Device::Cpu)
    }

    /// O by plain attention.
    fn plain(&self, dtype: DType) -> Result<Tensor> {
        let plain = Plain { softcap: self.softcap, ..Plain::windowed(0.3, self.left, self.right) };
        let plain = self.slopes().map_or(plain.clone(), |slopes| plain.alibi(&slopes));
        let rows = Tensor::new(self.rows(), &Device::Cpu)?;
        let packed = |cache: Tensor| cache.flatten(0, 1)?.index_select(&rows, 0);
        let (k, v) = (packed(self.cache(2, dtype))?, packed(self.cache(3, dtype))?);
        plain.packed([&self.q(dtype), &k, &v], self.lengths)
    }
}

/// Types of block tables that are tried with Q of a type.
pub(crate) fn table_types(dtype: DType) -> &'static [DType] {
    if dtype == DType::BF16 { &[DType::U32, DType::I32] } else { &[DType::U32] }
}

#[test]
fn lengths_pages_masks_softcap_and_alibi() {
    for paged in Paged::all() {
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            let expected = paged.plain(dtype).unwrap();
            for table in table_types(dtype) {
                let found = paged.run(&Device::Cpu, dtype, *table).unwrap();
                assert_eq!(found.dtype(), dtype);
                assert_close(&format!("{dtype:?} {paged:?}"), &found, &expected, tolerance(dtype));
            }
        }
    }
}

#[test]
fn the_function_is_the_operation() {
    for paged in Paged::of_one_size().filter(|paged| !paged.has_slopes) {
        let op = paged.operation(&Device::Cpu, DType::U32).unwrap();
        let [q, k, v] = [paged.q(DType::F32), paged.cache(2, DType::F32), paged.cache(3, DType::F32)];
        let found = flash_attn_varlen_paged_windowed(
            &q,
            &k,
            &v,
            &op.seqlens_q,
            &op.seqlens_k,
            op.block_table.as_ref().unwrap(),
            None,
            op.max_seqlen_q,
            op.max_seqlen_k,
            op.softmax_scale,
            paged.left,
            paged.right,
            paged.page_size,
            op.softcap,
        );
        assert_close("function", &found.unwrap(), &q.apply_op3(&k, &v, op).unwrap(), 0.0);
    }
}

/// O of pages that are views of larger ones, of values with another head_dim, on a device.
pub(crate) fn of_views(paged: &Paged, device: &Device, dtype: DType) -> Result<[Tensor; 2]> {
    let q = paged.q(dtype).to_device(device)?;
    let cache = |seed| paged.cache(seed, dtype).to_device(device);
    let (k, v) = (cache(2)?, cache(3)?);
    let both = Tensor::stack(&[&k, &v], 1)?;
    let (k_view, v_view) = (both.get_on_dim(1, 0)?, both.get_on_dim(1, 1)?.narrow(3, 0, 16)?);
    assert!(!k_view.is_contiguous() && !v_view.is_contiguous());
    let views = q.apply_op3(&k_view, &v_view, paged.operation(device, DType::U32)?)?;
    let whole = q.apply_op3(&k, &v, paged.operation(device, DType::U32)?)?.narrow(2, 0, 16)?;
    Ok([views.to_device(&Device::Cpu)?, whole.to_device(&Device::Cpu)?])
}

#[test]
fn views_of_pages() {
    for paged in Paged::of_one_size() {
        let [views, whole] = of_views(&paged, &Device::Cpu, DType::F32).unwrap();
        assert_close(&format!("{paged:?}"), &views, &whole, 1e-5);
    }
}

#[test]
fn bounds_may_be_larger_than_the_lengths() {
    for paged in Paged::of_one_size() {
        let [q, k, v] = [paged.q(DType::F32), paged.cache(2, DType::F32), paged.cache(3, DType::F32)];
        let op = paged.operation(&Device::Cpu, DType::U32).unwrap();
        let larger = FlashAttnVarLen {
            max_seqlen_q: op.max_seqlen_q + 20,
            max_seqlen_k: op.max_seqlen_k + 100,
            ..op.clone()
        };
        let [found, expected] = [larger, op].map(|op| q.apply_op3(&k, &v, op).unwrap());
        assert_close(&format!("{paged:?}"), &found, &expected, 1e-5);
    }
}
