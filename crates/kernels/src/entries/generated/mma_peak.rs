// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::gemm::peak;
    use crate::params::GemmParams;

    #[unsafe(export_name = "mma_peak_f16")]
    unsafe extern "ptx-kernel" fn mma_peak_f16(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { peak::mma_peak::<F16>(&params) }
    }

    #[unsafe(export_name = "mma_peak_bf16")]
    unsafe extern "ptx-kernel" fn mma_peak_bf16(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { peak::mma_peak::<Bf16>(&params) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::entries::Run;
    use crate::gemm::peak;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("mma_peak_f16", Run::Gemm(peak::mma_peak::<F16>)),
        ("mma_peak_bf16", Run::Gemm(peak::mma_peak::<Bf16>)),
    ];
}
