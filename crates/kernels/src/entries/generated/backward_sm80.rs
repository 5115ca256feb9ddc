// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::attention::backward_sm80;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::params::BackwardParams;

    #[unsafe(export_name = "backward_keys_sm80_f16_m32_n128_d64_w4")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_f16_m32_n128_d64_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 4, 4, 32, 64, 64, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_bf16_m32_n128_d64_w4")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_bf16_m32_n128_d64_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 4, 4, 32, 64, 64, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_f16_m32_n64_d128_w4")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_f16_m32_n64_d128_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 32, 128, 128, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_bf16_m32_n64_d128_w4")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_bf16_m32_n64_d128_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 32, 128, 128, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_f16_m16_n64_d160_w4")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_f16_m16_n64_d160_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 16, 160, 160, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_bf16_m16_n64_d160_w4")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_bf16_m16_n64_d160_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 16, 160, 160, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_f16_m16_n64_d192_w8")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_f16_m16_n64_d192_w8(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 8, 2, 16, 192, 96, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_bf16_m16_n64_d192_w8")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_bf16_m16_n64_d192_w8(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 8, 2, 16, 192, 96, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_f16_m16_n64_d256_w8")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_f16_m16_n64_d256_w8(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 8, 2, 16, 256, 128, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_bf16_m16_n64_d256_w8")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_bf16_m16_n64_d256_w8(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 8, 2, 16, 256, 128, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_f16_m128_n32_d64_w4")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_f16_m128_n32_d64_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 4, 32, 64, 64, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_bf16_m128_n32_d64_w4")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_bf16_m128_n32_d64_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 4, 32, 64, 64, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_f16_m128_n32_d128_w4")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_f16_m128_n32_d128_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 4, 32, 128, 128, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_bf16_m128_n32_d128_w4")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_bf16_m128_n32_d128_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 4, 32, 128, 128, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_f16_m64_n32_d128_w4")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_f16_m64_n32_d128_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 32, 128, 128, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_bf16_m64_n32_d128_w4")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_bf16_m64_n32_d128_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 32, 128, 128, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_f16_m64_n32_d160_w4")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_f16_m64_n32_d160_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 32, 160, 160, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_bf16_m64_n32_d160_w4")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_bf16_m64_n32_d160_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 32, 160, 160, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_f16_m64_n16_d192_w4")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_f16_m64_n16_d192_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 16, 192, 192, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_bf16_m64_n16_d192_w4")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_bf16_m64_n16_d192_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 16, 192, 192, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_f16_m64_n16_d256_w4")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_f16_m64_n16_d256_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 16, 256, 256, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_bf16_m64_n16_d256_w4")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_bf16_m64_n16_d256_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 16, 256, 256, false, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm80_f16_m32_n128_d64_w4")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm80_f16_m32_n128_d64_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys_ds::<backward_sm80::BackwardSm80Tile<F16, 4, 4, 32, 64, 64, false, true>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm80_bf16_m32_n128_d64_w4")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm80_bf16_m32_n128_d64_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys_ds::<backward_sm80::BackwardSm80Tile<Bf16, 4, 4, 32, 64, 64, false, true>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm80_f16_m64_n128_d128_w8")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm80_f16_m64_n128_d128_w8(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys_ds::<backward_sm80::BackwardSm80Tile<F16, 8, 2, 64, 128, 128, false, true>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm80_bf16_m64_n128_d128_w8")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm80_bf16_m64_n128_d128_w8(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys_ds::<backward_sm80::BackwardSm80Tile<Bf16, 8, 2, 64, 128, 128, false, true>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm80_f16_m32_n64_d128_w4")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm80_f16_m32_n64_d128_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys_ds::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 32, 128, 128, false, true>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm80_bf16_m32_n64_d128_w4")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm80_bf16_m32_n64_d128_w4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys_ds::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 32, 128, 128, false, true>>(&params) }
    }

    #[unsafe(export_name = "backward_dq_sm80_f16_m128_n64_d64_w4_s4")]
    unsafe extern "ptx-kernel" fn backward_dq_sm80_f16_m128_n64_d64_w4_s4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_dq::<F16, 128, 64, 64, 4, 4, 2, 4>(&params) }
    }

    #[unsafe(export_name = "backward_dq_sm80_bf16_m128_n64_d64_w4_s4")]
    unsafe extern "ptx-kernel" fn backward_dq_sm80_bf16_m128_n64_d64_w4_s4(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_dq::<Bf16, 128, 64, 64, 4, 4, 2, 4>(&params) }
    }

    #[unsafe(export_name = "backward_dq_sm80_f16_m128_n64_d128_w4_s3")]
    unsafe extern "ptx-kernel" fn backward_dq_sm80_f16_m128_n64_d128_w4_s3(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_dq::<F16, 128, 64, 128, 2, 3, 4, 4>(&params) }
    }

    #[unsafe(export_name = "backward_dq_sm80_bf16_m128_n64_d128_w4_s3")]
    unsafe extern "ptx-kernel" fn backward_dq_sm80_bf16_m128_n64_d128_w4_s3(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_dq::<Bf16, 128, 64, 128, 2, 3, 4, 4>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_f16_m16_n128_d64_w4_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_f16_m16_n128_d64_w4_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 4, 4, 16, 64, 64, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_bf16_m16_n128_d64_w4_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_bf16_m16_n128_d64_w4_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 4, 4, 16, 64, 64, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_f16_m32_n64_d128_w4_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_f16_m32_n64_d128_w4_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 32, 128, 128, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_bf16_m32_n64_d128_w4_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_bf16_m32_n64_d128_w4_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 32, 128, 128, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_f16_m16_n64_d160_w4_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_f16_m16_n64_d160_w4_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 16, 160, 160, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_bf16_m16_n64_d160_w4_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_bf16_m16_n64_d160_w4_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 16, 160, 160, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_f16_m16_n64_d192_w8_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_f16_m16_n64_d192_w8_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 8, 2, 16, 192, 96, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_bf16_m16_n64_d192_w8_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_bf16_m16_n64_d192_w8_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 8, 2, 16, 192, 96, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_f16_m16_n64_d256_w8_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_f16_m16_n64_d256_w8_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 8, 2, 16, 256, 128, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_keys_sm80_bf16_m16_n64_d256_w8_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_sm80_bf16_m16_n64_d256_w8_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 8, 2, 16, 256, 128, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_f16_m128_n32_d64_w4_score_mod")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_f16_m128_n32_d64_w4_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 4, 32, 64, 64, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_bf16_m128_n32_d64_w4_score_mod")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_bf16_m128_n32_d64_w4_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 4, 32, 64, 64, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_f16_m64_n32_d128_w4_score_mod")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_f16_m64_n32_d128_w4_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 32, 128, 128, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_bf16_m64_n32_d128_w4_score_mod")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_bf16_m64_n32_d128_w4_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 32, 128, 128, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_f16_m64_n32_d160_w4_score_mod")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_f16_m64_n32_d160_w4_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 32, 160, 160, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_bf16_m64_n32_d160_w4_score_mod")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_bf16_m64_n32_d160_w4_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 32, 160, 160, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_f16_m64_n16_d192_w4_score_mod")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_f16_m64_n16_d192_w4_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 16, 192, 192, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_bf16_m64_n16_d192_w4_score_mod")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_bf16_m64_n16_d192_w4_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 16, 192, 192, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_f16_m64_n16_d256_w4_score_mod")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_f16_m64_n16_d256_w4_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 16, 256, 256, true, false>>(&params) }
    }

    #[unsafe(export_name = "backward_queries_sm80_bf16_m64_n16_d256_w4_score_mod")]
    unsafe extern "ptx-kernel" fn backward_queries_sm80_bf16_m64_n16_d256_w4_score_mod(params: BackwardParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 16, 256, 256, true, false>>(&params) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::attention::backward_sm80;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::entries::Run;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("backward_keys_sm80_f16_m32_n128_d64_w4", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 4, 4, 32, 64, 64, false, false>>)),
        ("backward_keys_sm80_bf16_m32_n128_d64_w4", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 4, 4, 32, 64, 64, false, false>>)),
        ("backward_keys_sm80_f16_m32_n64_d128_w4", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 32, 128, 128, false, false>>)),
        ("backward_keys_sm80_bf16_m32_n64_d128_w4", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 32, 128, 128, false, false>>)),
        ("backward_keys_sm80_f16_m16_n64_d160_w4", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 16, 160, 160, false, false>>)),
        ("backward_keys_sm80_bf16_m16_n64_d160_w4", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 16, 160, 160, false, false>>)),
        ("backward_keys_sm80_f16_m16_n64_d192_w8", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 8, 2, 16, 192, 96, false, false>>)),
        ("backward_keys_sm80_bf16_m16_n64_d192_w8", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 8, 2, 16, 192, 96, false, false>>)),
        ("backward_keys_sm80_f16_m16_n64_d256_w8", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 8, 2, 16, 256, 128, false, false>>)),
        ("backward_keys_sm80_bf16_m16_n64_d256_w8", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 8, 2, 16, 256, 128, false, false>>)),
        ("backward_queries_sm80_f16_m128_n32_d64_w4", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 4, 32, 64, 64, false, false>>)),
        ("backward_queries_sm80_bf16_m128_n32_d64_w4", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 4, 32, 64, 64, false, false>>)),
        ("backward_queries_sm80_f16_m128_n32_d128_w4", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 4, 32, 128, 128, false, false>>)),
        ("backward_queries_sm80_bf16_m128_n32_d128_w4", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 4, 32, 128, 128, false, false>>)),
        ("backward_queries_sm80_f16_m64_n32_d128_w4", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 32, 128, 128, false, false>>)),
        ("backward_queries_sm80_bf16_m64_n32_d128_w4", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 32, 128, 128, false, false>>)),
        ("backward_queries_sm80_f16_m64_n32_d160_w4", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 32, 160, 160, false, false>>)),
        ("backward_queries_sm80_bf16_m64_n32_d160_w4", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 32, 160, 160, false, false>>)),
        ("backward_queries_sm80_f16_m64_n16_d192_w4", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 16, 192, 192, false, false>>)),
        ("backward_queries_sm80_bf16_m64_n16_d192_w4", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 16, 192, 192, false, false>>)),
        ("backward_queries_sm80_f16_m64_n16_d256_w4", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 16, 256, 256, false, false>>)),
        ("backward_queries_sm80_bf16_m64_n16_d256_w4", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 16, 256, 256, false, false>>)),
        ("backward_keys_ds_sm80_f16_m32_n128_d64_w4", Run::Backward(backward_sm80::backward_keys_ds::<backward_sm80::BackwardSm80Tile<F16, 4, 4, 32, 64, 64, false, true>>)),
        ("backward_keys_ds_sm80_bf16_m32_n128_d64_w4", Run::Backward(backward_sm80::backward_keys_ds::<backward_sm80::BackwardSm80Tile<Bf16, 4, 4, 32, 64, 64, false, true>>)),
        ("backward_keys_ds_sm80_f16_m64_n128_d128_w8", Run::Backward(backward_sm80::backward_keys_ds::<backward_sm80::BackwardSm80Tile<F16, 8, 2, 64, 128, 128, false, true>>)),
        ("backward_keys_ds_sm80_bf16_m64_n128_d128_w8", Run::Backward(backward_sm80::backward_keys_ds::<backward_sm80::BackwardSm80Tile<Bf16, 8, 2, 64, 128, 128, false, true>>)),
        ("backward_keys_ds_sm80_f16_m32_n64_d128_w4", Run::Backward(backward_sm80::backward_keys_ds::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 32, 128, 128, false, true>>)),
        ("backward_keys_ds_sm80_bf16_m32_n64_d128_w4", Run::Backward(backward_sm80::backward_keys_ds::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 32, 128, 128, false, true>>)),
        ("backward_dq_sm80_f16_m128_n64_d64_w4_s4", Run::Backward(backward_sm80::backward_dq::<F16, 128, 64, 64, 4, 4, 2, 4>)),
        ("backward_dq_sm80_bf16_m128_n64_d64_w4_s4", Run::Backward(backward_sm80::backward_dq::<Bf16, 128, 64, 64, 4, 4, 2, 4>)),
        ("backward_dq_sm80_f16_m128_n64_d128_w4_s3", Run::Backward(backward_sm80::backward_dq::<F16, 128, 64, 128, 2, 3, 4, 4>)),
        ("backward_dq_sm80_bf16_m128_n64_d128_w4_s3", Run::Backward(backward_sm80::backward_dq::<Bf16, 128, 64, 128, 2, 3, 4, 4>)),
        ("backward_keys_sm80_f16_m16_n128_d64_w4_score_mod", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 4, 4, 16, 64, 64, true, false>>)),
        ("backward_keys_sm80_bf16_m16_n128_d64_w4_score_mod", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 4, 4, 16, 64, 64, true, false>>)),
        ("backward_keys_sm80_f16_m32_n64_d128_w4_score_mod", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 32, 128, 128, true, false>>)),
        ("backward_keys_sm80_bf16_m32_n64_d128_w4_score_mod", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 32, 128, 128, true, false>>)),
        ("backward_keys_sm80_f16_m16_n64_d160_w4_score_mod", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 16, 160, 160, true, false>>)),
        ("backward_keys_sm80_bf16_m16_n64_d160_w4_score_mod", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 16, 160, 160, true, false>>)),
        ("backward_keys_sm80_f16_m16_n64_d192_w8_score_mod", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 8, 2, 16, 192, 96, true, false>>)),
        ("backward_keys_sm80_bf16_m16_n64_d192_w8_score_mod", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 8, 2, 16, 192, 96, true, false>>)),
        ("backward_keys_sm80_f16_m16_n64_d256_w8_score_mod", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<F16, 8, 2, 16, 256, 128, true, false>>)),
        ("backward_keys_sm80_bf16_m16_n64_d256_w8_score_mod", Run::Backward(backward_sm80::backward_keys::<backward_sm80::BackwardSm80Tile<Bf16, 8, 2, 16, 256, 128, true, false>>)),
        ("backward_queries_sm80_f16_m128_n32_d64_w4_score_mod", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 4, 32, 64, 64, true, false>>)),
        ("backward_queries_sm80_bf16_m128_n32_d64_w4_score_mod", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 4, 32, 64, 64, true, false>>)),
        ("backward_queries_sm80_f16_m64_n32_d128_w4_score_mod", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 32, 128, 128, true, false>>)),
        ("backward_queries_sm80_bf16_m64_n32_d128_w4_score_mod", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 32, 128, 128, true, false>>)),
        ("backward_queries_sm80_f16_m64_n32_d160_w4_score_mod", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 32, 160, 160, true, false>>)),
        ("backward_queries_sm80_bf16_m64_n32_d160_w4_score_mod", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 32, 160, 160, true, false>>)),
        ("backward_queries_sm80_f16_m64_n16_d192_w4_score_mod", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 16, 192, 192, true, false>>)),
        ("backward_queries_sm80_bf16_m64_n16_d192_w4_score_mod", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 16, 192, 192, true, false>>)),
        ("backward_queries_sm80_f16_m64_n16_d256_w4_score_mod", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<F16, 4, 2, 16, 256, 256, true, false>>)),
        ("backward_queries_sm80_bf16_m64_n16_d256_w4_score_mod", Run::Backward(backward_sm80::backward_queries::<backward_sm80::BackwardSm80Tile<Bf16, 4, 2, 16, 256, 256, true, false>>)),
    ];
}
