//! On a GPU the same as on the CPU, for builds with the feature `cuda`: these tests need one.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_flash_attention::{
    flash_attn, flash_attn_alibi_windowed_softcap, flash_attn_varlen_alibi_windowed_softcap,
};

use crate::paged::{Paged, of_views, table_types};
use crate::plain::{assert_close, offsets, values};

fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        _ => 5e-5,
    }
}

/// Compares O and the gradients of Q, K and V, which have these shapes, on the GPU with those on the CPU.
#[track_caller]
fn check(
    what: &str,
    shapes: [&[usize]; 3],
    dtype: DType,
    compute: impl Fn(&Device, [&Tensor; 3]) -> Result<Tensor>,
) {
    let results = |device: &Device| -> Result<[Tensor; 4]> {
        let variable = |index: usize| {
            Var::from_tensor(&values(index as u32 + 1, shapes[index], dtype).to_device(device)?)
        };
        let [q, k, v] = [variable(0)?, variable(1)?, variable(2)?];
        let o = compute(device, [&q, &k, &v])?;
        let dout = values(9, o.dims(), dtype).to_device(device)?;
        let gradients = (&o * dout)?.sum_all()?.backward()?;
        let gradient = |variable: &Var| gradients.get(variable).unwrap().to_device(&Device::Cpu);
        Ok([o.to_device(&Device::Cpu)?, gradient(&q)?, gradient(&k)?, gradient(&v)?])
    };
    let found = results(&Device::new_cuda(0).unwrap()).unwrap();
    let expected = results(&Device::Cpu).unwrap();
    for (name, (found, expected)) in ["o", "dq", "dk", "dv"].iter().zip(found.iter().zip(&expected)) {
        assert_close(&format!("{what}, {name}"), found, expected, tolerance(dtype));
    }
}

fn slopes(device: &Device) -> Tensor {
    Tensor::new(&[0.5_f32, 0.25, 0.125, 0.0625], device).unwrap()
}

#[test]
fn dense() {
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for [sq, sk, kv_heads, d] in [[7, 7, 4, 16], [5, 9, 2, 40], [200, 300, 1, 129], [130, 90, 2, 64]] {
            let shapes: [&[usize]; 3] = [&[2, sq, 4, d], &[2, sk, kv_heads, d], &[2, sk, kv_heads, d]];
            for causal in [false, true] {
                let what = format!("{dtype:?} {shapes:?} causal {causal}");
                check(&what, shapes, dtype, |_, [q, k, v]| flash_attn(q, k, v, 0.3, causal));
            }
            check("softcap", shapes, dtype, |device, [q, k, v]| {
                let slopes = slopes(device);
                flash_attn_alibi_windowed_softcap(q, k, v, Some(&slopes), 0.3, Some(3), Some(1), 0.7)
            });
        }
    }
}

#[test]
fn heads_first_in_memory() {
    let shapes: [&[usize]; 3] = [&[2, 4, 70, 64], &[2, 2, 90, 64], &[2, 2, 90, 64]];
    check("views", shapes, DType::F16, |_, tensors| {
        let [q, k, v] = tensors.map(|tensor| tensor.transpose(1, 2).unwrap());
        flash_attn(&q, &k, &v, 0.1, true)
    });
}

#[test]
fn packed() {
    let (seqlens_q, seqlens_k) = (offsets(&[3, 0, 9, 2, 40]), offsets(&[4, 2, 7, 0, 70]));
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let shapes: [&[usize]; 3] = [&[54, 4, 24], &[83, 2, 24], &[83, 2, 24]];
        for (given, right) in [(false, Some(0)), (true, Some(1)), (false, None)] {
            check(&format!("{dtype:?} {right:?}"), shapes, dtype, |device, [q, k, v]| {
                let [sq, sk] = [&seqlens_q, &seqlens_k].map(|seqlens| seqlens.to_device(device).unwrap());
                let slopes = given.then(|| slopes(device));
                flash_attn_varlen_alibi_windowed_softcap(
                    q,
                    k,
                    v,
                    slopes.as_ref(),
                    &sq,
                    &sk,
                    40,
                    70,
                    0.3,
                    Some(20),
                    right,
                    0.0,
                )
            });
        }
    }
}

#[test]
fn pages() {
    let gpu = Device::new_cuda(0).unwrap();
    for paged in Paged::all() {
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            let expected = paged.run(&Device::Cpu, dtype, DType::U32).unwrap();
            for table in table_types(dtype) {
                let found = paged.run(&gpu, dtype, *table).unwrap();
                assert_close(&format!("{dtype:?} {paged:?}"), &found, &expected, tolerance(dtype));
            }
        }
    }
}

#[test]
fn views_of_pages() {
    let gpu = Device::new_cuda(0).unwrap();
    for paged in Paged::all() {
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            let [views, whole] = of_views(&paged, &gpu, dtype).unwrap();
            assert_close(&format!("{dtype:?} {paged:?}"), &views, &whole, tolerance(dtype));
        }
    }
}
