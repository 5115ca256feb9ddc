// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::gemm::sm90;
    use crate::params::GemmParams;
    use crate::params::Mapped;
    use crate::ptx::tma::TensorMap;
    use crate::ptx::tma::parameter_address;
    use crate::tile::mma_block::AlongK;
    use crate::tile::mma_block::AlongSpan;

    #[unsafe(export_name = "gemm_sm90_f16_m128_n256_k64_row_row")]
    unsafe extern "ptx-kernel" fn gemm_sm90_f16_m128_n256_k64_row_row(mapped: Mapped<[TensorMap; 3], GemmParams>) {
        let maps = parameter_address!("gemm_sm90_f16_m128_n256_k64_row_row");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm90::gemm_sm90::<sm90::GemmTile<F16, AlongK<128, 64>, AlongSpan<256, 64>, 256, 4>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "gemm_sm90_f16_m128_n256_k64_row_col")]
    unsafe extern "ptx-kernel" fn gemm_sm90_f16_m128_n256_k64_row_col(mapped: Mapped<[TensorMap; 3], GemmParams>) {
        let maps = parameter_address!("gemm_sm90_f16_m128_n256_k64_row_col");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm90::gemm_sm90::<sm90::GemmTile<F16, AlongK<128, 64>, AlongK<256, 64>, 256, 4>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "gemm_sm90_f16_m128_n256_k64_col_row")]
    unsafe extern "ptx-kernel" fn gemm_sm90_f16_m128_n256_k64_col_row(mapped: Mapped<[TensorMap; 3], GemmParams>) {
        let maps = parameter_address!("gemm_sm90_f16_m128_n256_k64_col_row");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm90::gemm_sm90::<sm90::GemmTile<F16, AlongSpan<128, 64>, AlongSpan<256, 64>, 256, 4>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "gemm_sm90_f16_m128_n256_k64_col_col")]
    unsafe extern "ptx-kernel" fn gemm_sm90_f16_m128_n256_k64_col_col(mapped: Mapped<[TensorMap; 3], GemmParams>) {
        let maps = parameter_address!("gemm_sm90_f16_m128_n256_k64_col_col");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm90::gemm_sm90::<sm90::GemmTile<F16, AlongSpan<128, 64>, AlongK<256, 64>, 256, 4>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "gemm_sm90_bf16_m128_n256_k64_row_row")]
    unsafe extern "ptx-kernel" fn gemm_sm90_bf16_m128_n256_k64_row_row(mapped: Mapped<[TensorMap; 3], GemmParams>) {
        let maps = parameter_address!("gemm_sm90_bf16_m128_n256_k64_row_row");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm90::gemm_sm90::<sm90::GemmTile<Bf16, AlongK<128, 64>, AlongSpan<256, 64>, 256, 4>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "gemm_sm90_bf16_m128_n256_k64_row_col")]
    unsafe extern "ptx-kernel" fn gemm_sm90_bf16_m128_n256_k64_row_col(mapped: Mapped<[TensorMap; 3], GemmParams>) {
        let maps = parameter_address!("gemm_sm90_bf16_m128_n256_k64_row_col");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm90::gemm_sm90::<sm90::GemmTile<Bf16, AlongK<128, 64>, AlongK<256, 64>, 256, 4>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "gemm_sm90_bf16_m128_n256_k64_col_row")]
    unsafe extern "ptx-kernel" fn gemm_sm90_bf16_m128_n256_k64_col_row(mapped: Mapped<[TensorMap; 3], GemmParams>) {
        let maps = parameter_address!("gemm_sm90_bf16_m128_n256_k64_col_row");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm90::gemm_sm90::<sm90::GemmTile<Bf16, AlongSpan<128, 64>, AlongSpan<256, 64>, 256, 4>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "gemm_sm90_bf16_m128_n256_k64_col_col")]
    unsafe extern "ptx-kernel" fn gemm_sm90_bf16_m128_n256_k64_col_col(mapped: Mapped<[TensorMap; 3], GemmParams>) {
        let maps = parameter_address!("gemm_sm90_bf16_m128_n256_k64_col_col");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm90::gemm_sm90::<sm90::GemmTile<Bf16, AlongSpan<128, 64>, AlongK<256, 64>, 256, 4>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "gemm_sm90_f16_m128_n128_k64_row_row")]
    unsafe extern "ptx-kernel" fn gemm_sm90_f16_m128_n128_k64_row_row(mapped: Mapped<[TensorMap; 3], GemmParams>) {
        let maps = parameter_address!("gemm_sm90_f16_m128_n128_k64_row_row");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm90::gemm_sm90::<sm90::GemmTile<F16, AlongK<128, 64>, AlongSpan<128, 64>, 128, 6>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "gemm_sm90_f16_m128_n128_k64_row_col")]
    unsafe extern "ptx-kernel" fn gemm_sm90_f16_m128_n128_k64_row_col(mapped: Mapped<[TensorMap; 3], GemmParams>) {
        let maps = parameter_address!("gemm_sm90_f16_m128_n128_k64_row_col");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm90::gemm_sm90::<sm90::GemmTile<F16, AlongK<128, 64>, AlongK<128, 64>, 128, 6>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "gemm_sm90_f16_m128_n128_k64_col_row")]
    unsafe extern "ptx-kernel" fn gemm_sm90_f16_m128_n128_k64_col_row(mapped: Mapped<[TensorMap; 3], GemmParams>) {
        let maps = parameter_address!("gemm_sm90_f16_m128_n128_k64_col_row");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm90::gemm_sm90::<sm90::GemmTile<F16, AlongSpan<128, 64>, AlongSpan<128, 64>, 128, 6>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "gemm_sm90_f16_m128_n128_k64_col_col")]
    unsafe extern "ptx-kernel" fn gemm_sm90_f16_m128_n128_k64_col_col(mapped: Mapped<[TensorMap; 3], GemmParams>) {
        let maps = parameter_address!("gemm_sm90_f16_m128_n128_k64_col_col");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm90::gemm_sm90::<sm90::GemmTile<F16, AlongSpan<128, 64>, AlongK<128, 64>, 128, 6>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "gemm_sm90_bf16_m128_n128_k64_row_row")]
    unsafe extern "ptx-kernel" fn gemm_sm90_bf16_m128_n128_k64_row_row(mapped: Mapped<[TensorMap; 3], GemmParams>) {
        let maps = parameter_address!("gemm_sm90_bf16_m128_n128_k64_row_row");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm90::gemm_sm90::<sm90::GemmTile<Bf16, AlongK<128, 64>, AlongSpan<128, 64>, 128, 6>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "gemm_sm90_bf16_m128_n128_k64_row_col")]
    unsafe extern "ptx-kernel" fn gemm_sm90_bf16_m128_n128_k64_row_col(mapped: Mapped<[TensorMap; 3], GemmParams>) {
        let maps = parameter_address!("gemm_sm90_bf16_m128_n128_k64_row_col");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm90::gemm_sm90::<sm90::GemmTile<Bf16, AlongK<128, 64>, AlongK<128, 64>, 128, 6>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "gemm_sm90_bf16_m128_n128_k64_col_row")]
    unsafe extern "ptx-kernel" fn gemm_sm90_bf16_m128_n128_k64_col_row(mapped: Mapped<[TensorMap; 3], GemmParams>) {
        let maps = parameter_address!("gemm_sm90_bf16_m128_n128_k64_col_row");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm90::gemm_sm90::<sm90::GemmTile<Bf16, AlongSpan<128, 64>, AlongSpan<128, 64>, 128, 6>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "gemm_sm90_bf16_m128_n128_k64_col_col")]
    unsafe extern "ptx-kernel" fn gemm_sm90_bf16_m128_n128_k64_col_col(mapped: Mapped<[TensorMap; 3], GemmParams>) {
        let maps = parameter_address!("gemm_sm90_bf16_m128_n128_k64_col_col");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { sm90::gemm_sm90::<sm90::GemmTile<Bf16, AlongSpan<128, 64>, AlongK<128, 64>, 128, 6>>(&mapped.params, maps) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::entries::Run;
    use crate::gemm::sm90;
    use crate::tile::mma_block::AlongK;
    use crate::tile::mma_block::AlongSpan;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("gemm_sm90_f16_m128_n256_k64_row_row", Run::MappedGemm(sm90::gemm_sm90::<sm90::GemmTile<F16, AlongK<128, 64>, AlongSpan<256, 64>, 256, 4>>)),
        ("gemm_sm90_f16_m128_n256_k64_row_col", Run::MappedGemm(sm90::gemm_sm90::<sm90::GemmTile<F16, AlongK<128, 64>, AlongK<256, 64>, 256, 4>>)),
        ("gemm_sm90_f16_m128_n256_k64_col_row", Run::MappedGemm(sm90::gemm_sm90::<sm90::GemmTile<F16, AlongSpan<128, 64>, AlongSpan<256, 64>, 256, 4>>)),
        ("gemm_sm90_f16_m128_n256_k64_col_col", Run::MappedGemm(sm90::gemm_sm90::<sm90::GemmTile<F16, AlongSpan<128, 64>, AlongK<256, 64>, 256, 4>>)),
        ("gemm_sm90_bf16_m128_n256_k64_row_row", Run::MappedGemm(sm90::gemm_sm90::<sm90::GemmTile<Bf16, AlongK<128, 64>, AlongSpan<256, 64>, 256, 4>>)),
        ("gemm_sm90_bf16_m128_n256_k64_row_col", Run::MappedGemm(sm90::gemm_sm90::<sm90::GemmTile<Bf16, AlongK<128, 64>, AlongK<256, 64>, 256, 4>>)),
        ("gemm_sm90_bf16_m128_n256_k64_col_row", Run::MappedGemm(sm90::gemm_sm90::<sm90::GemmTile<Bf16, AlongSpan<128, 64>, AlongSpan<256, 64>, 256, 4>>)),
        ("gemm_sm90_bf16_m128_n256_k64_col_col", Run::MappedGemm(sm90::gemm_sm90::<sm90::GemmTile<Bf16, AlongSpan<128, 64>, AlongK<256, 64>, 256, 4>>)),
        ("gemm_sm90_f16_m128_n128_k64_row_row", Run::MappedGemm(sm90::gemm_sm90::<sm90::GemmTile<F16, AlongK<128, 64>, AlongSpan<128, 64>, 128, 6>>)),
        ("gemm_sm90_f16_m128_n128_k64_row_col", Run::MappedGemm(sm90::gemm_sm90::<sm90::GemmTile<F16, AlongK<128, 64>, AlongK<128, 64>, 128, 6>>)),
        ("gemm_sm90_f16_m128_n128_k64_col_row", Run::MappedGemm(sm90::gemm_sm90::<sm90::GemmTile<F16, AlongSpan<128, 64>, AlongSpan<128, 64>, 128, 6>>)),
        ("gemm_sm90_f16_m128_n128_k64_col_col", Run::MappedGemm(sm90::gemm_sm90::<sm90::GemmTile<F16, AlongSpan<128, 64>, AlongK<128, 64>, 128, 6>>)),
        ("gemm_sm90_bf16_m128_n128_k64_row_row", Run::MappedGemm(sm90::gemm_sm90::<sm90::GemmTile<Bf16, AlongK<128, 64>, AlongSpan<128, 64>, 128, 6>>)),
        ("gemm_sm90_bf16_m128_n128_k64_row_col", Run::MappedGemm(sm90::gemm_sm90::<sm90::GemmTile<Bf16, AlongK<128, 64>, AlongK<128, 64>, 128, 6>>)),
        ("gemm_sm90_bf16_m128_n128_k64_col_row", Run::MappedGemm(sm90::gemm_sm90::<sm90::GemmTile<Bf16, AlongSpan<128, 64>, AlongSpan<128, 64>, 128, 6>>)),
        ("gemm_sm90_bf16_m128_n128_k64_col_col", Run::MappedGemm(sm90::gemm_sm90::<sm90::GemmTile<Bf16, AlongSpan<128, 64>, AlongK<128, 64>, 128, 6>>)),
    ];
}
