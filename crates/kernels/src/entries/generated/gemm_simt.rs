// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::gemm::simt;
    use crate::params::GemmParams;

    #[unsafe(export_name = "gemm_simt_f32_m128_n64")]
    unsafe extern "ptx-kernel" fn gemm_simt_f32_m128_n64(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { simt::gemm_simt::<f32, 128, 64, 128, 8, 4>(&params) }
    }

    #[unsafe(export_name = "gemm_simt_f16_m128_n64")]
    unsafe extern "ptx-kernel" fn gemm_simt_f16_m128_n64(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { simt::gemm_simt::<F16, 128, 64, 128, 8, 4>(&params) }
    }

    #[unsafe(export_name = "gemm_simt_bf16_m128_n64")]
    unsafe extern "ptx-kernel" fn gemm_simt_bf16_m128_n64(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { simt::gemm_simt::<Bf16, 128, 64, 128, 8, 4>(&params) }
    }

    #[unsafe(export_name = "gemm_simt_f32_m64_n64")]
    unsafe extern "ptx-kernel" fn gemm_simt_f32_m64_n64(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { simt::gemm_simt::<f32, 64, 64, 64, 8, 8>(&params) }
    }

    #[unsafe(export_name = "gemm_simt_f16_m64_n64")]
    unsafe extern "ptx-kernel" fn gemm_simt_f16_m64_n64(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { simt::gemm_simt::<F16, 64, 64, 64, 8, 8>(&params) }
    }

    #[unsafe(export_name = "gemm_simt_bf16_m64_n64")]
    unsafe extern "ptx-kernel" fn gemm_simt_bf16_m64_n64(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { simt::gemm_simt::<Bf16, 64, 64, 64, 8, 8>(&params) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::entries::Run;
    use crate::gemm::simt;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("gemm_simt_f32_m128_n64", Run::Gemm(simt::gemm_simt::<f32, 128, 64, 128, 8, 4>)),
        ("gemm_simt_f16_m128_n64", Run::Gemm(simt::gemm_simt::<F16, 128, 64, 128, 8, 4>)),
        ("gemm_simt_bf16_m128_n64", Run::Gemm(simt::gemm_simt::<Bf16, 128, 64, 128, 8, 4>)),
        ("gemm_simt_f32_m64_n64", Run::Gemm(simt::gemm_simt::<f32, 64, 64, 64, 8, 8>)),
        ("gemm_simt_f16_m64_n64", Run::Gemm(simt::gemm_simt::<F16, 64, 64, 64, 8, 8>)),
        ("gemm_simt_bf16_m64_n64", Run::Gemm(simt::gemm_simt::<Bf16, 64, 64, 64, 8, 8>)),
    ];
}
