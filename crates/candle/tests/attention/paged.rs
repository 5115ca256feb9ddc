use candle_core::{DType, Device, Tensor};
use candle_flash_attention::flash_attn_varlen_paged_windowed;

use crate::plain::{Plain, assert_close, offsets, tolerance, values};

#[test]
fn pages_are_the_keys_of_their_sequence() {
    let lengths = [5, 0, 8, 9];
    // Entries behind a sequence's keys are not looked at.
    let pages: [[u32; 3]; 4] = [[6, 1, 99], [99, 99, 99], [0, 5, 99], [2, 3, 7]];
    let table = Tensor::new(&pages, &Device::Cpu).unwrap();
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let (k, v) = (values(2, &[8, 4, 2, 16], dtype), values(3, &[8, 4, 2, 16], dtype));
        for (rows, right) in [(1, None), (3, None), (3, Some(0))] {
            let q = values(1, &[4 * rows, 6, 16], dtype);
            let (seqlens_q, seqlens_k) = (offsets(&[rows; 4]), offsets(&lengths));
            for table in [&table, &table.to_dtype(DType::I32).unwrap()] {
                let found = flash_attn_varlen_paged_windowed(
                    &q, &k, &v, &seqlens_q, &seqlens_k, table, None, rows, 12, 0.3, None, right, 4, None,
                );
                let packed = |cache: &Tensor| {
                    let parts: Vec<_> = lengths
                        .iter()
                        .zip(&pages)
                        .filter(|(length, _)| **length > 0)
                        .map(|(&length, pages)| {
                            let used = pages
                                .iter()
                                .take(length.div_ceil(4))
                                .map(|&page| cache.get(page as usize).unwrap());
                            Tensor::cat(&used.collect::<Vec<_>>(), 0).unwrap().narrow(0, 0, length).unwrap()
                        })
                        .collect();
                    Tensor::cat(&parts, 0).unwrap()
                };
                let plain = Plain::windowed(0.3, None, right);
                let expected =
                    plain.packed([&q, &packed(&k), &packed(&v)], &lengths.map(|keys| (rows, keys)));
                assert_close("paged", &found.unwrap(), &expected.unwrap(), tolerance(dtype));
            }
        }
    }
}
