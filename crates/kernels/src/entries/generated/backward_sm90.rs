// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::attention::backward_sm90;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::params::BackwardParams;
    use crate::params::Mapped;
    use crate::ptx::tma::TensorMap;
    use crate::ptx::tma::parameter_address;

    #[unsafe(export_name = "backward_keys_sm90_f16_m64_n128_d64")]
    unsafe extern "ptx-kernel" fn backward_keys_sm90_f16_m64_n128_d64(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_sm90_f16_m64_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, false, false, 64, 64, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_sm90_bf16_m64_n128_d64")]
    unsafe extern "ptx-kernel" fn backward_keys_sm90_bf16_m64_n128_d64(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_sm90_bf16_m64_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, false, false, 64, 64, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_sm90_f16_m64_n128_d96")]
    unsafe extern "ptx-kernel" fn backward_keys_sm90_f16_m64_n128_d96(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_sm90_f16_m64_n128_d96");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, false, false, 64, 96, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_sm90_bf16_m64_n128_d96")]
    unsafe extern "ptx-kernel" fn backward_keys_sm90_bf16_m64_n128_d96(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_sm90_bf16_m64_n128_d96");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, false, false, 64, 96, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_sm90_f16_m64_n128_d128")]
    unsafe extern "ptx-kernel" fn backward_keys_sm90_f16_m64_n128_d128(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_sm90_f16_m64_n128_d128");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, false, false, 64, 128, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_sm90_bf16_m64_n128_d128")]
    unsafe extern "ptx-kernel" fn backward_keys_sm90_bf16_m64_n128_d128(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_sm90_bf16_m64_n128_d128");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, false, false, 64, 128, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_f16_m128_n128_d64")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_f16_m128_n128_d64(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_f16_m128_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 128, 64, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_bf16_m128_n128_d64")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_bf16_m128_n128_d64(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_bf16_m128_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 128, 64, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_f16_m64_n128_d64")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_f16_m64_n128_d64(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_f16_m64_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 64, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_bf16_m64_n128_d64")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_bf16_m64_n128_d64(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_bf16_m64_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 64, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_f16_m64_n128_d96")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_f16_m64_n128_d96(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_f16_m64_n128_d96");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 96, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_bf16_m64_n128_d96")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_bf16_m64_n128_d96(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_bf16_m64_n128_d96");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 96, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_f16_m64_n128_d128")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_f16_m64_n128_d128(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_f16_m64_n128_d128");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 128, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_bf16_m64_n128_d128")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_bf16_m64_n128_d128(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_bf16_m64_n128_d128");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 128, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_f16_m32_n128_d144")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_f16_m32_n128_d144(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_f16_m32_n128_d144");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 32, 144, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_bf16_m32_n128_d144")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_bf16_m32_n128_d144(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_bf16_m32_n128_d144");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 32, 144, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_f16_m32_n128_d160")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_f16_m32_n128_d160(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_f16_m32_n128_d160");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 32, 160, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_bf16_m32_n128_d160")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_bf16_m32_n128_d160(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_bf16_m32_n128_d160");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 32, 160, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_f16_m64_n64_d192")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_f16_m64_n64_d192(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_f16_m64_n64_d192");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 192, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_bf16_m64_n64_d192")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_bf16_m64_n64_d192(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_bf16_m64_n64_d192");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 192, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_f16_m64_n64_d256")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_f16_m64_n64_d256(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_f16_m64_n64_d256");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 256, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_bf16_m64_n64_d256")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_bf16_m64_n64_d256(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_bf16_m64_n64_d256");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 256, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_f16_m64_n128_d64_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_f16_m64_n128_d64_score_mod(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_f16_m64_n128_d64_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 64, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_bf16_m64_n128_d64_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_bf16_m64_n128_d64_score_mod(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_bf16_m64_n128_d64_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 64, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_f16_m64_n128_d96_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_f16_m64_n128_d96_score_mod(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_f16_m64_n128_d96_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 96, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_bf16_m64_n128_d96_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_bf16_m64_n128_d96_score_mod(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_bf16_m64_n128_d96_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 96, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_f16_m64_n128_d128_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_f16_m64_n128_d128_score_mod(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_f16_m64_n128_d128_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 128, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_bf16_m64_n128_d128_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_bf16_m64_n128_d128_score_mod(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_bf16_m64_n128_d128_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 128, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_f16_m32_n128_d160_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_f16_m32_n128_d160_score_mod(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_f16_m32_n128_d160_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 32, 160, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_bf16_m32_n128_d160_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_bf16_m32_n128_d160_score_mod(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_bf16_m32_n128_d160_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 32, 160, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_f16_m64_n64_d192_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_f16_m64_n64_d192_score_mod(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_f16_m64_n64_d192_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 192, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_bf16_m64_n64_d192_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_bf16_m64_n64_d192_score_mod(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_bf16_m64_n64_d192_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 192, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_f16_m64_n64_d256_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_f16_m64_n64_d256_score_mod(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_f16_m64_n64_d256_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 256, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_ds_sm90_bf16_m64_n64_d256_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_ds_sm90_bf16_m64_n64_d256_score_mod(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_ds_sm90_bf16_m64_n64_d256_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 256, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_dq_sm90_f16_m64_n128_d64")]
    unsafe extern "ptx-kernel" fn backward_keys_dq_sm90_f16_m64_n128_d64(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_dq_sm90_f16_m64_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, false, true, 64, 64, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_dq_sm90_bf16_m64_n128_d64")]
    unsafe extern "ptx-kernel" fn backward_keys_dq_sm90_bf16_m64_n128_d64(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_dq_sm90_bf16_m64_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, false, true, 64, 64, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_dq_sm90_f16_m64_n128_d64_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_dq_sm90_f16_m64_n128_d64_score_mod(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_dq_sm90_f16_m64_n128_d64_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, false, true, 64, 64, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_keys_dq_sm90_bf16_m64_n128_d64_score_mod")]
    unsafe extern "ptx-kernel" fn backward_keys_dq_sm90_bf16_m64_n128_d64_score_mod(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_keys_dq_sm90_bf16_m64_n128_d64_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, false, true, 64, 64, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_queries_sm90_f16_m128_n128_d64")]
    unsafe extern "ptx-kernel" fn backward_queries_sm90_f16_m128_n128_d64(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_queries_sm90_f16_m128_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, false, false, false, 128, 64, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_queries_sm90_bf16_m128_n128_d64")]
    unsafe extern "ptx-kernel" fn backward_queries_sm90_bf16_m128_n128_d64(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_queries_sm90_bf16_m128_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, false, false, false, 128, 64, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_queries_sm90_f16_m128_n128_d96")]
    unsafe extern "ptx-kernel" fn backward_queries_sm90_f16_m128_n128_d96(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_queries_sm90_f16_m128_n128_d96");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, false, false, false, 128, 96, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_queries_sm90_bf16_m128_n128_d96")]
    unsafe extern "ptx-kernel" fn backward_queries_sm90_bf16_m128_n128_d96(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_queries_sm90_bf16_m128_n128_d96");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, false, false, false, 128, 96, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_queries_sm90_f16_m128_n128_d128")]
    unsafe extern "ptx-kernel" fn backward_queries_sm90_f16_m128_n128_d128(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_queries_sm90_f16_m128_n128_d128");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, false, false, false, 128, 128, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "backward_queries_sm90_bf16_m128_n128_d128")]
    unsafe extern "ptx-kernel" fn backward_queries_sm90_bf16_m128_n128_d128(mapped: Mapped<[TensorMap; 5], BackwardParams>) {
        let maps = parameter_address!("backward_queries_sm90_bf16_m128_n128_d128");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, false, false, false, 128, 128, false>>(&mapped.params, maps) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::attention::backward_sm90;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::entries::Run;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("backward_keys_sm90_f16_m64_n128_d64", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, false, false, 64, 64, false>>)),
        ("backward_keys_sm90_bf16_m64_n128_d64", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, false, false, 64, 64, false>>)),
        ("backward_keys_sm90_f16_m64_n128_d96", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, false, false, 64, 96, false>>)),
        ("backward_keys_sm90_bf16_m64_n128_d96", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, false, false, 64, 96, false>>)),
        ("backward_keys_sm90_f16_m64_n128_d128", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, false, false, 64, 128, false>>)),
        ("backward_keys_sm90_bf16_m64_n128_d128", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, false, false, 64, 128, false>>)),
        ("backward_keys_ds_sm90_f16_m128_n128_d64", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 128, 64, false>>)),
        ("backward_keys_ds_sm90_bf16_m128_n128_d64", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 128, 64, false>>)),
        ("backward_keys_ds_sm90_f16_m64_n128_d64", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 64, false>>)),
        ("backward_keys_ds_sm90_bf16_m64_n128_d64", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 64, false>>)),
        ("backward_keys_ds_sm90_f16_m64_n128_d96", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 96, false>>)),
        ("backward_keys_ds_sm90_bf16_m64_n128_d96", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 96, false>>)),
        ("backward_keys_ds_sm90_f16_m64_n128_d128", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 128, false>>)),
        ("backward_keys_ds_sm90_bf16_m64_n128_d128", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 128, false>>)),
        ("backward_keys_ds_sm90_f16_m32_n128_d144", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 32, 144, false>>)),
        ("backward_keys_ds_sm90_bf16_m32_n128_d144", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 32, 144, false>>)),
        ("backward_keys_ds_sm90_f16_m32_n128_d160", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 32, 160, false>>)),
        ("backward_keys_ds_sm90_bf16_m32_n128_d160", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 32, 160, false>>)),
        ("backward_keys_ds_sm90_f16_m64_n64_d192", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 192, false>>)),
        ("backward_keys_ds_sm90_bf16_m64_n64_d192", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 192, false>>)),
        ("backward_keys_ds_sm90_f16_m64_n64_d256", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 256, false>>)),
        ("backward_keys_ds_sm90_bf16_m64_n64_d256", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 256, false>>)),
        ("backward_keys_ds_sm90_f16_m64_n128_d64_score_mod", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 64, true>>)),
        ("backward_keys_ds_sm90_bf16_m64_n128_d64_score_mod", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 64, true>>)),
        ("backward_keys_ds_sm90_f16_m64_n128_d96_score_mod", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 96, true>>)),
        ("backward_keys_ds_sm90_bf16_m64_n128_d96_score_mod", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 96, true>>)),
        ("backward_keys_ds_sm90_f16_m64_n128_d128_score_mod", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 128, true>>)),
        ("backward_keys_ds_sm90_bf16_m64_n128_d128_score_mod", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 128, true>>)),
        ("backward_keys_ds_sm90_f16_m32_n128_d160_score_mod", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 32, 160, true>>)),
        ("backward_keys_ds_sm90_bf16_m32_n128_d160_score_mod", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 32, 160, true>>)),
        ("backward_keys_ds_sm90_f16_m64_n64_d192_score_mod", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 192, true>>)),
        ("backward_keys_ds_sm90_bf16_m64_n64_d192_score_mod", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 192, true>>)),
        ("backward_keys_ds_sm90_f16_m64_n64_d256_score_mod", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, true, false, 64, 256, true>>)),
        ("backward_keys_ds_sm90_bf16_m64_n64_d256_score_mod", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, true, false, 64, 256, true>>)),
        ("backward_keys_dq_sm90_f16_m64_n128_d64", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, false, true, 64, 64, false>>)),
        ("backward_keys_dq_sm90_bf16_m64_n128_d64", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, false, true, 64, 64, false>>)),
        ("backward_keys_dq_sm90_f16_m64_n128_d64_score_mod", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, true, false, true, 64, 64, true>>)),
        ("backward_keys_dq_sm90_bf16_m64_n128_d64_score_mod", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, true, false, true, 64, 64, true>>)),
        ("backward_queries_sm90_f16_m128_n128_d64", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, false, false, false, 128, 64, false>>)),
        ("backward_queries_sm90_bf16_m128_n128_d64", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, false, false, false, 128, 64, false>>)),
        ("backward_queries_sm90_f16_m128_n128_d96", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, false, false, false, 128, 96, false>>)),
        ("backward_queries_sm90_bf16_m128_n128_d96", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, false, false, false, 128, 96, false>>)),
        ("backward_queries_sm90_f16_m128_n128_d128", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<F16, false, false, false, 128, 128, false>>)),
        ("backward_queries_sm90_bf16_m128_n128_d128", Run::MappedBackward(backward_sm90::backward_sm90::<backward_sm90::BackwardSm90Tile<Bf16, false, false, false, 128, 128, false>>)),
    ];
}
