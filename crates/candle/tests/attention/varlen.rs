use candle_core::{DType, Device, Tensor};
use candle_flash_attention::{
    flash_attn_varlen, flash_attn_varlen_alibi, flash_attn_varlen_alibi_windowed,
    flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_windowed,
};

use crate::plain::{Plain, assert_close, offsets, tolerance, values};

/// Query rows and keys of each sequence: one has no queries, one no keys.
const LENGTHS: [(usize, usize); 5] = [(3, 4), (0, 2), (9, 7), (2, 0), (40, 70)];

struct Packed {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seqlens_q: Tensor,
    seqlens_k: Tensor,
}

impl Packed {
    fn new(dtype: DType) -> Self {
        let (lengths_q, lengths_k): (Vec<_>, Vec<_>) = LENGTHS.into_iter().unzip();
        let [total_q, total_k] = [&lengths_q, &lengths_k].map(|lengths| lengths.iter().sum::<usize>());
        Self {
            // Heads first in memory.
            q: values(1, &[4, total_q, 24], dtype).transpose(0, 1).unwrap(),
            k: values(2, &[total_k, 2, 24], dtype),
            v: values(3, &[total_k, 2, 24], dtype),
            seqlens_q: offsets(&lengths_q),
            seqlens_k: offsets(&lengths_k),
        }
    }

    #[track_caller]
    fn check(&self, found: candle_core::Result<Tensor>, plain: &Plain) {
        let expected = plain.packed([&self.q, &self.k, &self.v], &LENGTHS).unwrap();
        let found = found.unwrap();
        assert_eq!(found.dtype(), self.q.dtype());
        assert_close("packed", &found, &expected, tolerance(self.q.dtype()));
    }
}

#[test]
fn packed_sequences() {
    let slopes = Tensor::new(&[0.5_f32, 0.25, 0.125, 0.0625], &Device::Cpu).unwrap();
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let packed = Packed::new(dtype);
        let Packed { q, k, v, seqlens_q: sq, seqlens_k: sk } = &packed;
        for causal in [false, true] {
            packed.check(flash_attn_varlen(q, k, v, sq, sk, 40, 70, 0.3, causal), &Plain::new(0.3, causal));
            // Bounds may be larger than the lengths.
            let found = flash_attn_varlen_alibi(q, k, v, &slopes, sq, sk, 64, 128, 0.3, causal);
            packed.check(found, &Plain::new(0.3, causal).alibi(&slopes));
        }
        let window = Plain::windowed(0.3, Some(2), Some(1));
        let found = flash_attn_varlen_windowed(q, k, v, sq, sk, 40, 70, 0.3, Some(2), Some(1));
        packed.check(found, &window);
        let found = flash_attn_varlen_alibi_windowed(q, k, v, &slopes, sq, sk, 40, 70, 0.3, Some(2), Some(1));
        packed.check(found, &window.clone().alibi(&slopes));
        for given in [None, Some(&slopes)] {
            let found = flash_attn_varlen_alibi_windowed_softcap(
                q,
                k,
                v,
                given,
                sq,
                sk,
                40,
                70,
                0.3,
                Some(2),
                Some(1),
                0.7,
            );
            let plain = Plain { softcap: 0.7, ..window.clone() };
            packed.check(found, &given.map_or(plain.clone(), |slopes| plain.alibi(slopes)));
        }
    }
}

#[test]
fn rows_of_no_sequence_are_zero() {
    let q = values(1, &[6, 2, 8], DType::F32);
    let seqlens = offsets(&[2, 2]);
    let o = flash_attn_varlen(&q, &q, &q, &seqlens, &seqlens, 2, 2, 0.3, false).unwrap();
    let rest = o.narrow(0, 4, 2).unwrap();
    assert_close("rest", &rest, &rest.zeros_like().unwrap(), 0.0);
    let first = q.narrow(0, 0, 4).unwrap();
    let expected = Plain::new(0.3, false).packed([&first, &first, &first], &[(2, 2), (2, 2)]).unwrap();
    assert_close("first", &o.narrow(0, 0, 4).unwrap(), &expected, 1e-5);
}
