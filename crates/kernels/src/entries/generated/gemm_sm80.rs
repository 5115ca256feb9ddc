// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::gemm::sm80;
    use crate::params::GemmParams;
    use crate::tile::mma_block::AlongK;
    use crate::tile::mma_block::AlongSpan;

    #[unsafe(export_name = "gemm_sm80_f16_m128_n256_k64_row_row")]
    unsafe extern "ptx-kernel" fn gemm_sm80_f16_m128_n256_k64_row_row(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<F16, AlongK<128, 64>, AlongSpan<256, 64>, 4, 3, 256, 4, 4, 4, 8, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_f16_m128_n256_k64_row_col")]
    unsafe extern "ptx-kernel" fn gemm_sm80_f16_m128_n256_k64_row_col(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<F16, AlongK<128, 64>, AlongK<256, 64>, 4, 3, 256, 4, 4, 4, 8, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_f16_m128_n256_k64_col_row")]
    unsafe extern "ptx-kernel" fn gemm_sm80_f16_m128_n256_k64_col_row(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<F16, AlongSpan<128, 64>, AlongSpan<256, 64>, 4, 3, 256, 4, 4, 4, 8, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_f16_m128_n256_k64_col_col")]
    unsafe extern "ptx-kernel" fn gemm_sm80_f16_m128_n256_k64_col_col(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<F16, AlongSpan<128, 64>, AlongK<256, 64>, 4, 3, 256, 4, 4, 4, 8, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_bf16_m128_n256_k64_row_row")]
    unsafe extern "ptx-kernel" fn gemm_sm80_bf16_m128_n256_k64_row_row(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<Bf16, AlongK<128, 64>, AlongSpan<256, 64>, 4, 3, 256, 4, 4, 4, 8, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_bf16_m128_n256_k64_row_col")]
    unsafe extern "ptx-kernel" fn gemm_sm80_bf16_m128_n256_k64_row_col(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<Bf16, AlongK<128, 64>, AlongK<256, 64>, 4, 3, 256, 4, 4, 4, 8, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_bf16_m128_n256_k64_col_row")]
    unsafe extern "ptx-kernel" fn gemm_sm80_bf16_m128_n256_k64_col_row(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<Bf16, AlongSpan<128, 64>, AlongSpan<256, 64>, 4, 3, 256, 4, 4, 4, 8, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_bf16_m128_n256_k64_col_col")]
    unsafe extern "ptx-kernel" fn gemm_sm80_bf16_m128_n256_k64_col_col(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<Bf16, AlongSpan<128, 64>, AlongK<256, 64>, 4, 3, 256, 4, 4, 4, 8, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_f16_m128_n128_k32_row_row")]
    unsafe extern "ptx-kernel" fn gemm_sm80_f16_m128_n128_k32_row_row(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<F16, AlongK<128, 32>, AlongSpan<128, 32>, 2, 4, 128, 4, 4, 4, 4, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_f16_m128_n128_k32_row_col")]
    unsafe extern "ptx-kernel" fn gemm_sm80_f16_m128_n128_k32_row_col(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<F16, AlongK<128, 32>, AlongK<128, 32>, 2, 4, 128, 4, 4, 4, 4, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_f16_m128_n128_k32_col_row")]
    unsafe extern "ptx-kernel" fn gemm_sm80_f16_m128_n128_k32_col_row(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<F16, AlongSpan<128, 32>, AlongSpan<128, 32>, 2, 4, 128, 4, 4, 4, 4, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_f16_m128_n128_k32_col_col")]
    unsafe extern "ptx-kernel" fn gemm_sm80_f16_m128_n128_k32_col_col(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<F16, AlongSpan<128, 32>, AlongK<128, 32>, 2, 4, 128, 4, 4, 4, 4, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_bf16_m128_n128_k32_row_row")]
    unsafe extern "ptx-kernel" fn gemm_sm80_bf16_m128_n128_k32_row_row(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<Bf16, AlongK<128, 32>, AlongSpan<128, 32>, 2, 4, 128, 4, 4, 4, 4, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_bf16_m128_n128_k32_row_col")]
    unsafe extern "ptx-kernel" fn gemm_sm80_bf16_m128_n128_k32_row_col(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<Bf16, AlongK<128, 32>, AlongK<128, 32>, 2, 4, 128, 4, 4, 4, 4, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_bf16_m128_n128_k32_col_row")]
    unsafe extern "ptx-kernel" fn gemm_sm80_bf16_m128_n128_k32_col_row(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<Bf16, AlongSpan<128, 32>, AlongSpan<128, 32>, 2, 4, 128, 4, 4, 4, 4, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_bf16_m128_n128_k32_col_col")]
    unsafe extern "ptx-kernel" fn gemm_sm80_bf16_m128_n128_k32_col_col(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<Bf16, AlongSpan<128, 32>, AlongK<128, 32>, 2, 4, 128, 4, 4, 4, 4, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_f16_m64_n64_k64_row_row")]
    unsafe extern "ptx-kernel" fn gemm_sm80_f16_m64_n64_k64_row_row(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<F16, AlongK<64, 64>, AlongSpan<64, 64>, 2, 3, 128, 2, 2, 4, 4, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_f16_m64_n64_k64_row_col")]
    unsafe extern "ptx-kernel" fn gemm_sm80_f16_m64_n64_k64_row_col(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<F16, AlongK<64, 64>, AlongK<64, 64>, 2, 3, 128, 2, 2, 4, 4, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_f16_m64_n64_k64_col_row")]
    unsafe extern "ptx-kernel" fn gemm_sm80_f16_m64_n64_k64_col_row(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<F16, AlongSpan<64, 64>, AlongSpan<64, 64>, 2, 3, 128, 2, 2, 4, 4, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_f16_m64_n64_k64_col_col")]
    unsafe extern "ptx-kernel" fn gemm_sm80_f16_m64_n64_k64_col_col(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<F16, AlongSpan<64, 64>, AlongK<64, 64>, 2, 3, 128, 2, 2, 4, 4, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_bf16_m64_n64_k64_row_row")]
    unsafe extern "ptx-kernel" fn gemm_sm80_bf16_m64_n64_k64_row_row(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<Bf16, AlongK<64, 64>, AlongSpan<64, 64>, 2, 3, 128, 2, 2, 4, 4, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_bf16_m64_n64_k64_row_col")]
    unsafe extern "ptx-kernel" fn gemm_sm80_bf16_m64_n64_k64_row_col(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<Bf16, AlongK<64, 64>, AlongK<64, 64>, 2, 3, 128, 2, 2, 4, 4, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_bf16_m64_n64_k64_col_row")]
    unsafe extern "ptx-kernel" fn gemm_sm80_bf16_m64_n64_k64_col_row(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<Bf16, AlongSpan<64, 64>, AlongSpan<64, 64>, 2, 3, 128, 2, 2, 4, 4, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_bf16_m64_n64_k64_col_col")]
    unsafe extern "ptx-kernel" fn gemm_sm80_bf16_m64_n64_k64_col_col(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<Bf16, AlongSpan<64, 64>, AlongK<64, 64>, 2, 3, 128, 2, 2, 4, 4, true>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_f16_m128_n128_k32_row_row_unaligned")]
    unsafe extern "ptx-kernel" fn gemm_sm80_f16_m128_n128_k32_row_row_unaligned(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<F16, AlongK<128, 32>, AlongSpan<128, 32>, 2, 3, 256, 2, 4, 2, 2, false>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_f16_m128_n128_k32_row_col_unaligned")]
    unsafe extern "ptx-kernel" fn gemm_sm80_f16_m128_n128_k32_row_col_unaligned(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<F16, AlongK<128, 32>, AlongK<128, 32>, 2, 3, 256, 2, 4, 2, 2, false>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_f16_m128_n128_k32_col_row_unaligned")]
    unsafe extern "ptx-kernel" fn gemm_sm80_f16_m128_n128_k32_col_row_unaligned(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<F16, AlongSpan<128, 32>, AlongSpan<128, 32>, 2, 3, 256, 2, 4, 2, 2, false>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_f16_m128_n128_k32_col_col_unaligned")]
    unsafe extern "ptx-kernel" fn gemm_sm80_f16_m128_n128_k32_col_col_unaligned(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<F16, AlongSpan<128, 32>, AlongK<128, 32>, 2, 3, 256, 2, 4, 2, 2, false>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_bf16_m128_n128_k32_row_row_unaligned")]
    unsafe extern "ptx-kernel" fn gemm_sm80_bf16_m128_n128_k32_row_row_unaligned(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<Bf16, AlongK<128, 32>, AlongSpan<128, 32>, 2, 3, 256, 2, 4, 2, 2, false>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_bf16_m128_n128_k32_row_col_unaligned")]
    unsafe extern "ptx-kernel" fn gemm_sm80_bf16_m128_n128_k32_row_col_unaligned(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<Bf16, AlongK<128, 32>, AlongK<128, 32>, 2, 3, 256, 2, 4, 2, 2, false>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_bf16_m128_n128_k32_col_row_unaligned")]
    unsafe extern "ptx-kernel" fn gemm_sm80_bf16_m128_n128_k32_col_row_unaligned(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<Bf16, AlongSpan<128, 32>, AlongSpan<128, 32>, 2, 3, 256, 2, 4, 2, 2, false>(&params) }
    }

    #[unsafe(export_name = "gemm_sm80_bf16_m128_n128_k32_col_col_unaligned")]
    unsafe extern "ptx-kernel" fn gemm_sm80_bf16_m128_n128_k32_col_col_unaligned(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm80::gemm_sm80::<Bf16, AlongSpan<128, 32>, AlongK<128, 32>, 2, 3, 256, 2, 4, 2, 2, false>(&params) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::entries::Run;
    use crate::gemm::sm80;
    use crate::tile::mma_block::AlongK;
    use crate::tile::mma_block::AlongSpan;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("gemm_sm80_f16_m128_n256_k64_row_row", Run::Gemm(sm80::gemm_sm80::<F16, AlongK<128, 64>, AlongSpan<256, 64>, 4, 3, 256, 4, 4, 4, 8, true>)),
        ("gemm_sm80_f16_m128_n256_k64_row_col", Run::Gemm(sm80::gemm_sm80::<F16, AlongK<128, 64>, AlongK<256, 64>, 4, 3, 256, 4, 4, 4, 8, true>)),
        ("gemm_sm80_f16_m128_n256_k64_col_row", Run::Gemm(sm80::gemm_sm80::<F16, AlongSpan<128, 64>, AlongSpan<256, 64>, 4, 3, 256, 4, 4, 4, 8, true>)),
        ("gemm_sm80_f16_m128_n256_k64_col_col", Run::Gemm(sm80::gemm_sm80::<F16, AlongSpan<128, 64>, AlongK<256, 64>, 4, 3, 256, 4, 4, 4, 8, true>)),
        ("gemm_sm80_bf16_m128_n256_k64_row_row", Run::Gemm(sm80::gemm_sm80::<Bf16, AlongK<128, 64>, AlongSpan<256, 64>, 4, 3, 256, 4, 4, 4, 8, true>)),
        ("gemm_sm80_bf16_m128_n256_k64_row_col", Run::Gemm(sm80::gemm_sm80::<Bf16, AlongK<128, 64>, AlongK<256, 64>, 4, 3, 256, 4, 4, 4, 8, true>)),
        ("gemm_sm80_bf16_m128_n256_k64_col_row", Run::Gemm(sm80::gemm_sm80::<Bf16, AlongSpan<128, 64>, AlongSpan<256, 64>, 4, 3, 256, 4, 4, 4, 8, true>)),
        ("gemm_sm80_bf16_m128_n256_k64_col_col", Run::Gemm(sm80::gemm_sm80::<Bf16, AlongSpan<128, 64>, AlongK<256, 64>, 4, 3, 256, 4, 4, 4, 8, true>)),
        ("gemm_sm80_f16_m128_n128_k32_row_row", Run::Gemm(sm80::gemm_sm80::<F16, AlongK<128, 32>, AlongSpan<128, 32>, 2, 4, 128, 4, 4, 4, 4, true>)),
        ("gemm_sm80_f16_m128_n128_k32_row_col", Run::Gemm(sm80::gemm_sm80::<F16, AlongK<128, 32>, AlongK<128, 32>, 2, 4, 128, 4, 4, 4, 4, true>)),
        ("gemm_sm80_f16_m128_n128_k32_col_row", Run::Gemm(sm80::gemm_sm80::<F16, AlongSpan<128, 32>, AlongSpan<128, 32>, 2, 4, 128, 4, 4, 4, 4, true>)),
        ("gemm_sm80_f16_m128_n128_k32_col_col", Run::Gemm(sm80::gemm_sm80::<F16, AlongSpan<128, 32>, AlongK<128, 32>, 2, 4, 128, 4, 4, 4, 4, true>)),
        ("gemm_sm80_bf16_m128_n128_k32_row_row", Run::Gemm(sm80::gemm_sm80::<Bf16, AlongK<128, 32>, AlongSpan<128, 32>, 2, 4, 128, 4, 4, 4, 4, true>)),
        ("gemm_sm80_bf16_m128_n128_k32_row_col", Run::Gemm(sm80::gemm_sm80::<Bf16, AlongK<128, 32>, AlongK<128, 32>, 2, 4, 128, 4, 4, 4, 4, true>)),
        ("gemm_sm80_bf16_m128_n128_k32_col_row", Run::Gemm(sm80::gemm_sm80::<Bf16, AlongSpan<128, 32>, AlongSpan<128, 32>, 2, 4, 128, 4, 4, 4, 4, true>)),
        ("gemm_sm80_bf16_m128_n128_k32_col_col", Run::Gemm(sm80::gemm_sm80::<Bf16, AlongSpan<128, 32>, AlongK<128, 32>, 2, 4, 128, 4, 4, 4, 4, true>)),
        ("gemm_sm80_f16_m64_n64_k64_row_row", Run::Gemm(sm80::gemm_sm80::<F16, AlongK<64, 64>, AlongSpan<64, 64>, 2, 3, 128, 2, 2, 4, 4, true>)),
        ("gemm_sm80_f16_m64_n64_k64_row_col", Run::Gemm(sm80::gemm_sm80::<F16, AlongK<64, 64>, AlongK<64, 64>, 2, 3, 128, 2, 2, 4, 4, true>)),
        ("gemm_sm80_f16_m64_n64_k64_col_row", Run::Gemm(sm80::gemm_sm80::<F16, AlongSpan<64, 64>, AlongSpan<64, 64>, 2, 3, 128, 2, 2, 4, 4, true>)),
        ("gemm_sm80_f16_m64_n64_k64_col_col", Run::Gemm(sm80::gemm_sm80::<F16, AlongSpan<64, 64>, AlongK<64, 64>, 2, 3, 128, 2, 2, 4, 4, true>)),
        ("gemm_sm80_bf16_m64_n64_k64_row_row", Run::Gemm(sm80::gemm_sm80::<Bf16, AlongK<64, 64>, AlongSpan<64, 64>, 2, 3, 128, 2, 2, 4, 4, true>)),
        ("gemm_sm80_bf16_m64_n64_k64_row_col", Run::Gemm(sm80::gemm_sm80::<Bf16, AlongK<64, 64>, AlongK<64, 64>, 2, 3, 128, 2, 2, 4, 4, true>)),
        ("gemm_sm80_bf16_m64_n64_k64_col_row", Run::Gemm(sm80::gemm_sm80::<Bf16, AlongSpan<64, 64>, AlongSpan<64, 64>, 2, 3, 128, 2, 2, 4, 4, true>)),
        ("gemm_sm80_bf16_m64_n64_k64_col_col", Run::Gemm(sm80::gemm_sm80::<Bf16, AlongSpan<64, 64>, AlongK<64, 64>, 2, 3, 128, 2, 2, 4, 4, true>)),
        ("gemm_sm80_f16_m128_n128_k32_row_row_unaligned", Run::Gemm(sm80::gemm_sm80::<F16, AlongK<128, 32>, AlongSpan<128, 32>, 2, 3, 256, 2, 4, 2, 2, false>)),
        ("gemm_sm80_f16_m128_n128_k32_row_col_unaligned", Run::Gemm(sm80::gemm_sm80::<F16, AlongK<128, 32>, AlongK<128, 32>, 2, 3, 256, 2, 4, 2, 2, false>)),
        ("gemm_sm80_f16_m128_n128_k32_col_row_unaligned", Run::Gemm(sm80::gemm_sm80::<F16, AlongSpan<128, 32>, AlongSpan<128, 32>, 2, 3, 256, 2, 4, 2, 2, false>)),
        ("gemm_sm80_f16_m128_n128_k32_col_col_unaligned", Run::Gemm(sm80::gemm_sm80::<F16, AlongSpan<128, 32>, AlongK<128, 32>, 2, 3, 256, 2, 4, 2, 2, false>)),
        ("gemm_sm80_bf16_m128_n128_k32_row_row_unaligned", Run::Gemm(sm80::gemm_sm80::<Bf16, AlongK<128, 32>, AlongSpan<128, 32>, 2, 3, 256, 2, 4, 2, 2, false>)),
        ("gemm_sm80_bf16_m128_n128_k32_row_col_unaligned", Run::Gemm(sm80::gemm_sm80::<Bf16, AlongK<128, 32>, AlongK<128, 32>, 2, 3, 256, 2, 4, 2, 2, false>)),
        ("gemm_sm80_bf16_m128_n128_k32_col_row_unaligned", Run::Gemm(sm80::gemm_sm80::<Bf16, AlongSpan<128, 32>, AlongSpan<128, 32>, 2, 3, 256, 2, 4, 2, 2, false>)),
        ("gemm_sm80_bf16_m128_n128_k32_col_col_unaligned", Run::Gemm(sm80::gemm_sm80::<Bf16, AlongSpan<128, 32>, AlongK<128, 32>, 2, 3, 256, 2, 4, 2, 2, false>)),
    ];
}
