// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::attention::backward_delta;
    use crate::attention::backward_simt;
    use crate::attention::backward_sinks;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::params::BackwardParams;

    #[unsafe(export_name = "backward_delta_f32")]
    unsafe extern "ptx-kernel" fn backward_delta_f32(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_delta::backward_delta::<f32>(&params) }
    }

    #[unsafe(export_name = "backward_delta_f16")]
    unsafe extern "ptx-kernel" fn backward_delta_f16(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_delta::backward_delta::<F16>(&params) }
    }

    #[unsafe(export_name = "backward_delta_bf16")]
    unsafe extern "ptx-kernel" fn backward_delta_bf16(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_delta::backward_delta::<Bf16>(&params) }
    }

    #[unsafe(export_name = "backward_sinks_f32")]
    unsafe extern "ptx-kernel" fn backward_sinks_f32(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sinks::backward_sinks(&params) }
    }

    #[unsafe(export_name = "backward_keys_f32_m64_n64_d64")]
    unsafe extern "ptx-kernel" fn backward_keys_f32_m64_n64_d64(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 64, 64, 64, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f16_m64_n64_d64")]
    unsafe extern "ptx-kernel" fn backward_keys_f16_m64_n64_d64(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 64, 64, 64, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_bf16_m64_n64_d64")]
    unsafe extern "ptx-kernel" fn backward_keys_bf16_m64_n64_d64(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 64, 64, 64, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f32_m32_n64_d64")]
    unsafe extern "ptx-kernel" fn backward_keys_f32_m32_n64_d64(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 64, 32, 64, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f16_m32_n64_d64")]
    unsafe extern "ptx-kernel" fn backward_keys_f16_m32_n64_d64(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 64, 32, 64, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_bf16_m32_n64_d64")]
    unsafe extern "ptx-kernel" fn backward_keys_bf16_m32_n64_d64(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 64, 32, 64, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f32_m32_n64_d128")]
    unsafe extern "ptx-kernel" fn backward_keys_f32_m32_n64_d128(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 64, 32, 128, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f16_m32_n64_d128")]
    unsafe extern "ptx-kernel" fn backward_keys_f16_m32_n64_d128(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 64, 32, 128, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_bf16_m32_n64_d128")]
    unsafe extern "ptx-kernel" fn backward_keys_bf16_m32_n64_d128(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 64, 32, 128, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f32_m16_n32_d128")]
    unsafe extern "ptx-kernel" fn backward_keys_f32_m16_n32_d128(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 32, 16, 128, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f16_m16_n32_d128")]
    unsafe extern "ptx-kernel" fn backward_keys_f16_m16_n32_d128(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 32, 16, 128, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_bf16_m16_n32_d128")]
    unsafe extern "ptx-kernel" fn backward_keys_bf16_m16_n32_d128(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 32, 16, 128, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f32_m32_n64_d256")]
    unsafe extern "ptx-kernel" fn backward_keys_f32_m32_n64_d256(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 64, 32, 256, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f16_m32_n64_d256")]
    unsafe extern "ptx-kernel" fn backward_keys_f16_m32_n64_d256(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 64, 32, 256, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_bf16_m32_n64_d256")]
    unsafe extern "ptx-kernel" fn backward_keys_bf16_m32_n64_d256(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 64, 32, 256, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f32_m16_n8_d256")]
    unsafe extern "ptx-kernel" fn backward_keys_f32_m16_n8_d256(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 8, 16, 256, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f16_m16_n8_d256")]
    unsafe extern "ptx-kernel" fn backward_keys_f16_m16_n8_d256(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 8, 16, 256, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_bf16_m16_n8_d256")]
    unsafe extern "ptx-kernel" fn backward_keys_bf16_m16_n8_d256(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 8, 16, 256, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f32_m64_n64_d64")]
    unsafe extern "ptx-kernel" fn backward_queries_f32_m64_n64_d64(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 64, 64, 64, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f16_m64_n64_d64")]
    unsafe extern "ptx-kernel" fn backward_queries_f16_m64_n64_d64(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 64, 64, 64, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_bf16_m64_n64_d64")]
    unsafe extern "ptx-kernel" fn backward_queries_bf16_m64_n64_d64(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 64, 64, 64, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f32_m64_n32_d64")]
    unsafe extern "ptx-kernel" fn backward_queries_f32_m64_n32_d64(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 64, 32, 64, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f16_m64_n32_d64")]
    unsafe extern "ptx-kernel" fn backward_queries_f16_m64_n32_d64(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 64, 32, 64, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_bf16_m64_n32_d64")]
    unsafe extern "ptx-kernel" fn backward_queries_bf16_m64_n32_d64(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 64, 32, 64, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f32_m32_n32_d128")]
    unsafe extern "ptx-kernel" fn backward_queries_f32_m32_n32_d128(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 32, 32, 128, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f16_m32_n32_d128")]
    unsafe extern "ptx-kernel" fn backward_queries_f16_m32_n32_d128(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 32, 32, 128, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_bf16_m32_n32_d128")]
    unsafe extern "ptx-kernel" fn backward_queries_bf16_m32_n32_d128(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 32, 32, 128, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f32_m32_n16_d128")]
    unsafe extern "ptx-kernel" fn backward_queries_f32_m32_n16_d128(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 32, 16, 128, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f16_m32_n16_d128")]
    unsafe extern "ptx-kernel" fn backward_queries_f16_m32_n16_d128(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 32, 16, 128, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_bf16_m32_n16_d128")]
    unsafe extern "ptx-kernel" fn backward_queries_bf16_m32_n16_d128(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 32, 16, 128, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f32_m64_n32_d256")]
    unsafe extern "ptx-kernel" fn backward_queries_f32_m64_n32_d256(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 64, 32, 256, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f16_m64_n32_d256")]
    unsafe extern "ptx-kernel" fn backward_queries_f16_m64_n32_d256(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 64, 32, 256, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_bf16_m64_n32_d256")]
    unsafe extern "ptx-kernel" fn backward_queries_bf16_m64_n32_d256(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 64, 32, 256, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f32_m8_n16_d256")]
    unsafe extern "ptx-kernel" fn backward_queries_f32_m8_n16_d256(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 8, 16, 256, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f16_m8_n16_d256")]
    unsafe extern "ptx-kernel" fn backward_queries_f16_m8_n16_d256(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 8, 16, 256, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_bf16_m8_n16_d256")]
    unsafe extern "ptx-kernel" fn backward_queries_bf16_m8_n16_d256(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 8, 16, 256, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f32_m32_n64_d64_dropout")]
    unsafe extern "ptx-kernel" fn backward_keys_f32_m32_n64_d64_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 64, 32, 64, true>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f16_m32_n64_d64_dropout")]
    unsafe extern "ptx-kernel" fn backward_keys_f16_m32_n64_d64_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 64, 32, 64, true>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_bf16_m32_n64_d64_dropout")]
    unsafe extern "ptx-kernel" fn backward_keys_bf16_m32_n64_d64_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 64, 32, 64, true>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f32_m16_n32_d128_dropout")]
    unsafe extern "ptx-kernel" fn backward_keys_f32_m16_n32_d128_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 32, 16, 128, true>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f16_m16_n32_d128_dropout")]
    unsafe extern "ptx-kernel" fn backward_keys_f16_m16_n32_d128_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 32, 16, 128, true>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_bf16_m16_n32_d128_dropout")]
    unsafe extern "ptx-kernel" fn backward_keys_bf16_m16_n32_d128_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 32, 16, 128, true>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f32_m16_n8_d256_dropout")]
    unsafe extern "ptx-kernel" fn backward_keys_f32_m16_n8_d256_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 8, 16, 256, true>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_f16_m16_n8_d256_dropout")]
    unsafe extern "ptx-kernel" fn backward_keys_f16_m16_n8_d256_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 8, 16, 256, true>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_bf16_m16_n8_d256_dropout")]
    unsafe extern "ptx-kernel" fn backward_keys_bf16_m16_n8_d256_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 8, 16, 256, true>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f32_m64_n32_d64_dropout")]
    unsafe extern "ptx-kernel" fn backward_queries_f32_m64_n32_d64_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 64, 32, 64, true>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f16_m64_n32_d64_dropout")]
    unsafe extern "ptx-kernel" fn backward_queries_f16_m64_n32_d64_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 64, 32, 64, true>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_bf16_m64_n32_d64_dropout")]
    unsafe extern "ptx-kernel" fn backward_queries_bf16_m64_n32_d64_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 64, 32, 64, true>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f32_m32_n16_d128_dropout")]
    unsafe extern "ptx-kernel" fn backward_queries_f32_m32_n16_d128_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 32, 16, 128, true>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f16_m32_n16_d128_dropout")]
    unsafe extern "ptx-kernel" fn backward_queries_f16_m32_n16_d128_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 32, 16, 128, true>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_bf16_m32_n16_d128_dropout")]
    unsafe extern "ptx-kernel" fn backward_queries_bf16_m32_n16_d128_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 32, 16, 128, true>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f32_m8_n16_d256_dropout")]
    unsafe extern "ptx-kernel" fn backward_queries_f32_m8_n16_d256_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 8, 16, 256, true>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_f16_m8_n16_d256_dropout")]
    unsafe extern "ptx-kernel" fn backward_queries_f16_m8_n16_d256_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 8, 16, 256, true>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_bf16_m8_n16_d256_dropout")]
    unsafe extern "ptx-kernel" fn backward_queries_bf16_m8_n16_d256_dropout(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 8, 16, 256, true>>(&params) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::attention::backward_delta;
    use crate::attention::backward_simt;
    use crate::attention::backward_sinks;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::entries::Run;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("backward_delta_f32", Run::Backward(backward_delta::backward_delta::<f32>)),
        ("backward_delta_f16", Run::Backward(backward_delta::backward_delta::<F16>)),
        ("backward_delta_bf16", Run::Backward(backward_delta::backward_delta::<Bf16>)),
        ("backward_sinks_f32", Run::Backward(backward_sinks::backward_sinks)),
        ("backward_keys_f32_m64_n64_d64", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 64, 64, 64, false>>)),
        ("backward_keys_f16_m64_n64_d64", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 64, 64, 64, false>>)),
        ("backward_keys_bf16_m64_n64_d64", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 64, 64, 64, false>>)),
        ("backward_keys_f32_m32_n64_d64", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 64, 32, 64, false>>)),
        ("backward_keys_f16_m32_n64_d64", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 64, 32, 64, false>>)),
        ("backward_keys_bf16_m32_n64_d64", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 64, 32, 64, false>>)),
        ("backward_keys_f32_m32_n64_d128", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 64, 32, 128, false>>)),
        ("backward_keys_f16_m32_n64_d128", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 64, 32, 128, false>>)),
        ("backward_keys_bf16_m32_n64_d128", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 64, 32, 128, false>>)),
        ("backward_keys_f32_m16_n32_d128", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 32, 16, 128, false>>)),
        ("backward_keys_f16_m16_n32_d128", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 32, 16, 128, false>>)),
        ("backward_keys_bf16_m16_n32_d128", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 32, 16, 128, false>>)),
        ("backward_keys_f32_m32_n64_d256", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 64, 32, 256, false>>)),
        ("backward_keys_f16_m32_n64_d256", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 64, 32, 256, false>>)),
        ("backward_keys_bf16_m32_n64_d256", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 64, 32, 256, false>>)),
        ("backward_keys_f32_m16_n8_d256", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 8, 16, 256, false>>)),
        ("backward_keys_f16_m16_n8_d256", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 8, 16, 256, false>>)),
        ("backward_keys_bf16_m16_n8_d256", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 8, 16, 256, false>>)),
        ("backward_queries_f32_m64_n64_d64", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 64, 64, 64, false>>)),
        ("backward_queries_f16_m64_n64_d64", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 64, 64, 64, false>>)),
        ("backward_queries_bf16_m64_n64_d64", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 64, 64, 64, false>>)),
        ("backward_queries_f32_m64_n32_d64", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 64, 32, 64, false>>)),
        ("backward_queries_f16_m64_n32_d64", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 64, 32, 64, false>>)),
        ("backward_queries_bf16_m64_n32_d64", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 64, 32, 64, false>>)),
        ("backward_queries_f32_m32_n32_d128", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 32, 32, 128, false>>)),
        ("backward_queries_f16_m32_n32_d128", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 32, 32, 128, false>>)),
        ("backward_queries_bf16_m32_n32_d128", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 32, 32, 128, false>>)),
        ("backward_queries_f32_m32_n16_d128", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 32, 16, 128, false>>)),
        ("backward_queries_f16_m32_n16_d128", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 32, 16, 128, false>>)),
        ("backward_queries_bf16_m32_n16_d128", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 32, 16, 128, false>>)),
        ("backward_queries_f32_m64_n32_d256", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 64, 32, 256, false>>)),
        ("backward_queries_f16_m64_n32_d256", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 64, 32, 256, false>>)),
        ("backward_queries_bf16_m64_n32_d256", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 64, 32, 256, false>>)),
        ("backward_queries_f32_m8_n16_d256", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 8, 16, 256, false>>)),
        ("backward_queries_f16_m8_n16_d256", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 8, 16, 256, false>>)),
        ("backward_queries_bf16_m8_n16_d256", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 8, 16, 256, false>>)),
        ("backward_keys_f32_m32_n64_d64_dropout", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 64, 32, 64, true>>)),
        ("backward_keys_f16_m32_n64_d64_dropout", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 64, 32, 64, true>>)),
        ("backward_keys_bf16_m32_n64_d64_dropout", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 64, 32, 64, true>>)),
        ("backward_keys_f32_m16_n32_d128_dropout", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 32, 16, 128, true>>)),
        ("backward_keys_f16_m16_n32_d128_dropout", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 32, 16, 128, true>>)),
        ("backward_keys_bf16_m16_n32_d128_dropout", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 32, 16, 128, true>>)),
        ("backward_keys_f32_m16_n8_d256_dropout", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<f32, 8, 16, 256, true>>)),
        ("backward_keys_f16_m16_n8_d256_dropout", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<F16, 8, 16, 256, true>>)),
        ("backward_keys_bf16_m16_n8_d256_dropout", Run::Backward(backward_simt::backward_keys::<backward_simt::BackwardSimtTile<Bf16, 8, 16, 256, true>>)),
        ("backward_queries_f32_m64_n32_d64_dropout", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 64, 32, 64, true>>)),
        ("backward_queries_f16_m64_n32_d64_dropout", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 64, 32, 64, true>>)),
        ("backward_queries_bf16_m64_n32_d64_dropout", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 64, 32, 64, true>>)),
        ("backward_queries_f32_m32_n16_d128_dropout", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 32, 16, 128, true>>)),
        ("backward_queries_f16_m32_n16_d128_dropout", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 32, 16, 128, true>>)),
        ("backward_queries_bf16_m32_n16_d128_dropout", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 32, 16, 128, true>>)),
        ("backward_queries_f32_m8_n16_d256_dropout", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<f32, 8, 16, 256, true>>)),
        ("backward_queries_f16_m8_n16_d256_dropout", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<F16, 8, 16, 256, true>>)),
        ("backward_queries_bf16_m8_n16_d256_dropout", Run::Backward(backward_simt::backward_queries::<backward_simt::BackwardSimtTile<Bf16, 8, 16, 256, true>>)),
    ];
}
