use candle_core::{DType, Device, Tensor};
use candle_flash_attention::{
    flash_attn, flash_attn_alibi, flash_attn_alibi_windowed, flash_attn_alibi_windowed_softcap,
    flash_attn_windowed,
};

use crate::plain::{Plain, assert_close, tolerance, values};

const TYPES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

/// Q, K and V of two sequences, with four query heads.
fn inputs([sq, sk, kv_heads, d]: [usize; 4], dtype: DType) -> [Tensor; 3] {
    let kv = [2, sk, kv_heads, d];
    [values(1, &[2, sq, 4, d], dtype), values(2, &kv, dtype), values(3, &kv, dtype)]
}

fn slopes() -> Tensor {
    Tensor::new(&[0.5_f32, 0.25, 0.125, 0.0625], &Device::Cpu).unwrap()
}

#[track_caller]
fn check(what: &str, found: &Tensor, plain: &Plain, [q, k, v]: &[Tensor; 3]) {
    assert_eq!(found.dtype(), q.dtype());
    assert!(found.is_contiguous());
    assert_close(what, found, &plain.dense(q, k, v).unwrap(), tolerance(q.dtype()));
}

#[test]
fn types_heads_lengths_and_masks() {
    for dtype in TYPES {
        for shape in
            [[7, 7, 4, 16], [5, 9, 2, 40], [9, 5, 1, 33], [70, 130, 2, 64], [1, 3, 4, 1], [3, 4, 4, 256]]
        {
            let [q, k, v] = inputs(shape, dtype);
            for causal in [false, true] {
                let o = flash_attn(&q, &k, &v, 0.3, causal).unwrap();
                let what = format!("{dtype:?} {shape:?} causal {causal}");
                check(&what, &o, &Plain::new(0.3, causal), &[q.clone(), k.clone(), v.clone()]);
            }
        }
    }
}

#[test]
fn strided_inputs() {
    for dtype in TYPES {
        // [B, H, S, D] in memory, and rows from the middle of longer tensors.
        let q = values(1, &[2, 4, 6, 16], dtype).transpose(1, 2).unwrap();
        let k = values(2, &[2, 12, 2, 16], dtype).narrow(1, 3, 7).unwrap();
        let v = values(3, &[2, 7, 2, 40], dtype).narrow(3, 8, 16).unwrap();
        let o = flash_attn(&q, &k, &v, 0.25, true).unwrap();
        check("strided", &o, &Plain::new(0.25, true), &[q, k, v]);
    }
    let q = values(1, &[2, 6, 4, 16], DType::F32);
    let k = values(2, &[1, 6, 1, 16], DType::F32).broadcast_as((2, 6, 4, 16)).unwrap();
    let o = flash_attn(&q, &k, &k, 0.25, false).unwrap();
    check("repeated", &o, &Plain::new(0.25, false), &[q, k.clone(), k]);
}

#[test]
fn windows() {
    for dtype in TYPES {
        for shape in [[8, 8, 4, 16], [6, 11, 2, 16], [11, 6, 2, 16]] {
            let tensors = inputs(shape, dtype);
            let [q, k, v] = &tensors;
            for (left, right) in [(Some(2), Some(1)), (Some(3), None), (None, Some(2)), (Some(0), Some(0))] {
                let o = flash_attn_windowed(q, k, v, 0.3, left, right).unwrap();
                let what = format!("{dtype:?} {shape:?} {left:?} {right:?}");
                check(&what, &o, &Plain::windowed(0.3, left, right), &tensors);
            }
        }
    }
}

#[test]
fn a_window_beyond_all_keys_is_none() {
    // Aligned bottom-right, a right side of 7 would leave the first rows without keys.
    let tensors = inputs([20, 6, 2, 16], DType::F32);
    let [q, k, v] = &tensors;
    let o = flash_attn_windowed(q, k, v, 0.3, Some(7), Some(7)).unwrap();
    check("beyond", &o, &Plain::new(0.3, false), &tensors);
    let o = flash_attn_windowed(q, k, v, 0.3, None, Some(6)).unwrap();
    check("as long", &o, &Plain::windowed(0.3, None, Some(6)), &tensors);
}

#[test]
fn alibi_windows_and_softcap() {
    let slopes = slopes();
    for dtype in TYPES {
        for shape in [[8, 8, 4, 16], [6, 11, 2, 16]] {
            let tensors = inputs(shape, dtype);
            let [q, k, v] = &tensors;
            for causal in [false, true] {
                let o = flash_attn_alibi(q, k, v, &slopes, 0.3, causal).unwrap();
                check("alibi", &o, &Plain::new(0.3, causal).alibi(&slopes), &tensors);
            }
            let window = Plain::windowed(0.3, Some(3), Some(1));
            let with_slopes = window.clone().alibi(&slopes);
            let o = flash_attn_alibi_windowed(q, k, v, &slopes, 0.3, Some(3), Some(1)).unwrap();
            check("alibi, window", &o, &with_slopes, &tensors);
            for (given, plain) in [(Some(&slopes), with_slopes), (None, window)] {
                let plain = Plain { softcap: 0.7, ..plain };
                let o =
                    flash_attn_alibi_windowed_softcap(q, k, v, given, 0.3, Some(3), Some(1), 0.7).unwrap();
                check("softcap", &o, &plain, &tensors);
            }
        }
    }
}
