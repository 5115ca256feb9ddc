use candle_core::{CustomOp3, DType, Device, Result, Tensor, Var};
use candle_flash_attention::{
    FlashAttn, FlashAttnVarLen, flash_attn, flash_attn_alibi_windowed_softcap, flash_attn_varlen,
    flash_attn_varlen_alibi_windowed_softcap, flash_attn_windowed,
};

use crate::plain::{Plain, assert_close, offsets, values, variable};

/// What gradients of values up to about 1 may differ by.
fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        _ => 3e-5,
    }
}

/// Compares the gradients of two ways to compute O from the same variables, for a random dO.
#[track_caller]
fn check(what: &str, variables: &[&Var], found: Result<Tensor>, expected: Result<Tensor>) {
    let (found, expected) = (found.unwrap(), expected.unwrap());
    let dtype = found.dtype();
    let dout = values(9, found.dims(), dtype);
    let gradients = |o: Tensor, dout: &Tensor| (o * dout).unwrap().sum_all().unwrap().backward().unwrap();
    let expected = gradients(expected, &dout.to_dtype(DType::F32).unwrap());
    let found = gradients(found, &dout);
    for (index, variable) in variables.iter().enumerate() {
        let gradient = found.get(variable).unwrap();
        assert_eq!(gradient.dtype(), dtype);
        let what = format!("{what}, gradient {index}");
        assert_close(&what, gradient, expected.get(variable).unwrap(), tolerance(dtype));
    }
}

fn inputs([sq, sk, kv_heads, d]: [usize; 4], dtype: DType) -> [Var; 3] {
    let kv = [2, sk, kv_heads, d];
    [variable(1, &[2, sq, 4, d], dtype), variable(2, &kv, dtype), variable(3, &kv, dtype)]
}

fn slopes() -> Tensor {
    Tensor::new(&[0.5_f32, 0.25, 0.125, 0.0625], &Device::Cpu).unwrap()
}

#[test]
fn dense() {
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for shape in [[7, 7, 4, 16], [5, 9, 2, 40], [9, 5, 1, 33], [70, 90, 2, 64]] {
            let [q, k, v] = inputs(shape, dtype);
            for causal in [false, true] {
                let found = flash_attn(&q, &k, &v, 0.3, causal);
                let expected = Plain::new(0.3, causal).dense(&q, &k, &v);
                check(&format!("{dtype:?} {shape:?} causal {causal}"), &[&q, &k, &v], found, expected);
            }
            let found = flash_attn_windowed(&q, &k, &v, 0.3, Some(3), Some(1));
            let window = Plain::windowed(0.3, Some(3), Some(1));
            check("window", &[&q, &k, &v], found, window.dense(&q, &k, &v));
            let slopes = slopes();
            let found =
                flash_attn_alibi_windowed_softcap(&q, &k, &v, Some(&slopes), 0.3, Some(3), Some(1), 0.7);
            let expected = Plain { softcap: 0.7, ..window.alibi(&slopes) }.dense(&q, &k, &v);
            check("softcap", &[&q, &k, &v], found, expected);
        }
    }
}

#[test]
fn views_and_shared_tensors() {
    let [q, k] = [1, 2].map(|seed| variable(seed, &[2, 4, 6, 16], DType::F32));
    // Heads first in memory; K and V are one tensor.
    let (queries, keys) = (q.transpose(1, 2).unwrap(), k.transpose(1, 2).unwrap());
    let found = flash_attn(&queries, &keys, &keys, 0.3, true);
    check("views", &[&q, &k], found, Plain::new(0.3, true).dense(&queries, &keys, &keys));
}

#[test]
fn any_strides_of_the_gradient_of_o() {
    let attention = FlashAttn {
        softmax_scale: 0.3,
        alibi_slopes: None,
        window_size_left: None,
        window_size_right: Some(0),
        softcap: None,
    };
    let [q, k, v] = [1, 2, 3].map(|seed| values(seed, &[2, 6, 4, 16], DType::F32));
    let o = flash_attn(&q, &k, &v, 0.3, true).unwrap();
    let gradients = |dout: &Tensor| attention.bwd(&q, &k, &v, &o, dout).unwrap();
    let number = values(8, &[1], DType::F32).broadcast_as((2, 6, 4, 16)).unwrap();
    let heads_first = values(8, &[2, 4, 6, 16], DType::F32).transpose(1, 2).unwrap();
    let columns_first = values(8, &[2, 6, 16, 4], DType::F32).transpose(2, 3).unwrap();
    for dout in [number, heads_first, columns_first] {
        let (found, expected) = (gradients(&dout), gradients(&dout.contiguous().unwrap()));
        for (found, expected) in [(found.0, expected.0), (found.1, expected.1), (found.2, expected.2)] {
            assert_close("dO", &found.unwrap(), &expected.unwrap(), 1e-6);
        }
    }
}

#[test]
fn one_input_that_has_a_gradient() {
    let [q, k, v] = [1, 2, 3].map(|seed| values(seed, &[1, 6, 2, 8], DType::F32));
    let v = Var::from_tensor(&v).unwrap();
    check("v", &[&v], flash_attn(&q, &k, &v, 0.3, true), Plain::new(0.3, true).dense(&q, &k, &v));
}

#[test]
fn packed() {
    let lengths = [(3, 4), (0, 2), (9, 7), (2, 0), (40, 50)];
    let (lengths_q, lengths_k): (Vec<_>, Vec<_>) = lengths.into_iter().unzip();
    let (sq, sk, slopes) = (offsets(&lengths_q), offsets(&lengths_k), slopes());
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let (q, k) = (variable(1, &[54, 4, 24], dtype), variable(2, &[63, 2, 24], dtype));
        let v = variable(3, &[63, 2, 24], dtype);
        for causal in [false, true] {
            let found = flash_attn_varlen(&q, &k, &v, &sq, &sk, 40, 50, 0.3, causal);
            check("packed", &[&q, &k, &v], found, Plain::new(0.3, causal).packed([&q, &k, &v], &lengths));
        }
        let found = flash_attn_varlen_alibi_windowed_softcap(
            &q,
            &k,
            &v,
            Some(&slopes),
            &sq,
            &sk,
            40,
            50,
            0.3,
            Some(5),
            Some(1),
            0.7,
        );
        let plain = Plain { softcap: 0.7, ..Plain::windowed(0.3, Some(5), Some(1)).alibi(&slopes) };
        check("softcap", &[&q, &k, &v], found, plain.packed([&q, &k, &v], &lengths));
    }
}

#[test]
fn operations_that_keep_nothing() {
    let [q, k, v] = inputs([6, 8, 2, 16], DType::F32);
    let dense = FlashAttn {
        softmax_scale: 0.3,
        alibi_slopes: None,
        window_size_left: None,
        window_size_right: Some(0),
        softcap: None,
    };
    check("dense", &[&q, &k, &v], q.apply_op3(&k, &v, dense), Plain::new(0.3, true).dense(&q, &k, &v));
    let (q, k) = (variable(1, &[9, 2, 8], DType::F32), variable(2, &[7, 1, 8], DType::F32));
    let packed = FlashAttnVarLen {
        softmax_scale: 0.3,
        max_seqlen_q: 6,
        max_seqlen_k: 5,
        seqlens_q: offsets(&[3, 6]),
        seqlens_k: offsets(&[2, 5]),
        block_table: None,
        mm_prefix_ranges: None,
        page_block_size: None,
        alibi_slopes: None,
        window_size_left: None,
        window_size_right: None,
        softcap: None,
    };
    let expected = Plain::new(0.3, false).packed([&q, &k, &k], &[(3, 2), (6, 5)]);
    check("packed", &[&q, &k], q.apply_op3(&k, &k, packed), expected);
}
