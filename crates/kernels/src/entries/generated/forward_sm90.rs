// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::attention::alignment::ByHeads;
    use crate::attention::alignment::ByRows;
    use crate::attention::forward_sm90;
    use crate::element::Bf16;
    use crate::element::E4m3;
    use crate::element::F16;
    use crate::params::AttentionMaps;
    use crate::params::Mapped;
    use crate::params::PersistentParams;
    use crate::ptx::tma::parameter_address;

    #[unsafe(export_name = "forward_sm90_f16_m192_n128_d32")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n128_d32(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n128_d32");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 128, 32, 32, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n128_d32")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n128_d32(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n128_d32");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 128, 32, 32, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n128_d64")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n128_d64(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 128, 64, 64, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n128_d64")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n128_d64(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 128, 64, 64, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m128_n128_d64")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m128_n128_d64(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m128_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 128, 64, 64, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m128_n128_d64")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m128_n128_d64(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m128_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 128, 64, 64, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n64_d64")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n64_d64(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n64_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 64, 64, 64, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n64_d64")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n64_d64(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n64_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 64, 64, 64, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m64_n64_d64")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m64_n64_d64(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m64_n64_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 64, 64, 64, 64, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m64_n64_d64")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m64_n64_d64(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m64_n64_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 64, 64, 64, 64, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n64_d80")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n64_d80(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n64_d80");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 64, 80, 80, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n64_d80")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n64_d80(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n64_d80");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 64, 80, 80, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n64_d96")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n64_d96(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n64_d96");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 64, 96, 96, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n64_d96")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n64_d96(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n64_d96");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 64, 96, 96, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n64_d112")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n64_d112(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n64_d112");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 64, 112, 112, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n64_d112")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n64_d112(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n64_d112");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 64, 112, 112, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n80_d128")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n80_d128(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n80_d128");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 80, 128, 128, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n80_d128")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n80_d128(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n80_d128");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 80, 128, 128, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m128_n128_d128")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m128_n128_d128(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m128_n128_d128");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 128, 128, 128, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m128_n128_d128")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m128_n128_d128(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m128_n128_d128");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 128, 128, 128, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n64_d144")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n64_d144(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n64_d144");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 64, 144, 144, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n64_d144")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n64_d144(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n64_d144");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 64, 144, 144, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m128_n64_d160")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m128_n64_d160(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m128_n64_d160");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 160, 160, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m128_n64_d160")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m128_n64_d160(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m128_n64_d160");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 160, 160, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m128_n64_d176")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m128_n64_d176(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m128_n64_d176");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 176, 176, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m128_n64_d176")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m128_n64_d176(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m128_n64_d176");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 176, 176, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m128_n64_d192")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m128_n64_d192(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m128_n64_d192");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 192, 192, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m128_n64_d192")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m128_n64_d192(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m128_n64_d192");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 192, 192, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m128_n64_d208")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m128_n64_d208(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m128_n64_d208");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 208, 208, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m128_n64_d208")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m128_n64_d208(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m128_n64_d208");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 208, 208, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m128_n64_d224")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m128_n64_d224(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m128_n64_d224");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 224, 224, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m128_n64_d224")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m128_n64_d224(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m128_n64_d224");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 224, 224, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m128_n64_d240")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m128_n64_d240(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m128_n64_d240");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 240, 240, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m128_n64_d240")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m128_n64_d240(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m128_n64_d240");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 240, 240, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m128_n64_d256")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m128_n64_d256(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m128_n64_d256");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 256, 256, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m128_n64_d256")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m128_n64_d256(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m128_n64_d256");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 256, 256, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n80_d192_v128")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n80_d192_v128(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n80_d192_v128");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 80, 192, 128, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n80_d192_v128")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n80_d192_v128(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n80_d192_v128");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 80, 192, 128, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n128_d64_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n128_d64_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n128_d64_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 128, 64, 64, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n128_d64_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n128_d64_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n128_d64_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 128, 64, 64, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n64_d64_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n64_d64_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n64_d64_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 64, 64, 64, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n64_d64_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n64_d64_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n64_d64_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 64, 64, 64, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n80_d128_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n80_d128_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n80_d128_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 80, 128, 128, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n80_d128_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n80_d128_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n80_d128_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 80, 128, 128, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m128_n128_d128_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m128_n128_d128_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m128_n128_d128_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 128, 128, 128, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m128_n128_d128_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m128_n128_d128_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m128_n128_d128_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 128, 128, 128, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m128_n64_d256_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m128_n64_d256_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m128_n64_d256_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 256, 256, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m128_n64_d256_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m128_n64_d256_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m128_n64_d256_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 256, 256, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n128_d64_dropout")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n128_d64_dropout(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n128_d64_dropout");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 128, 64, 64, true, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n128_d64_dropout")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n128_d64_dropout(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n128_d64_dropout");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 128, 64, 64, true, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m128_n128_d128_dropout")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m128_n128_d128_dropout(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m128_n128_d128_dropout");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 128, 128, 128, true, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m128_n128_d128_dropout")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m128_n128_d128_dropout(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m128_n128_d128_dropout");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 128, 128, 128, true, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m128_n64_d256_dropout")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m128_n64_d256_dropout(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m128_n64_d256_dropout");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 256, 256, true, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m128_n64_d256_dropout")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m128_n64_d256_dropout(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m128_n64_d256_dropout");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 256, 256, true, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n64_d32_residues")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n64_d32_residues(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n64_d32_residues");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByRows, 192, 64, 32, 32, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n64_d32_residues")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n64_d32_residues(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n64_d32_residues");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByRows, 192, 64, 32, 32, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n64_d64_residues")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n64_d64_residues(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n64_d64_residues");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByRows, 192, 64, 64, 64, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n64_d64_residues")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n64_d64_residues(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n64_d64_residues");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByRows, 192, 64, 64, 64, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n64_d80_residues")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n64_d80_residues(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n64_d80_residues");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByRows, 192, 64, 80, 80, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n64_d80_residues")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n64_d80_residues(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n64_d80_residues");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByRows, 192, 64, 80, 80, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n64_d96_residues")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n64_d96_residues(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n64_d96_residues");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByRows, 192, 64, 96, 96, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n64_d96_residues")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n64_d96_residues(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n64_d96_residues");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByRows, 192, 64, 96, 96, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n64_d112_residues")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n64_d112_residues(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n64_d112_residues");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByRows, 192, 64, 112, 112, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n64_d112_residues")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n64_d112_residues(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n64_d112_residues");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByRows, 192, 64, 112, 112, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n64_d128_residues")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n64_d128_residues(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n64_d128_residues");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByRows, 192, 64, 128, 128, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n64_d128_residues")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n64_d128_residues(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n64_d128_residues");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByRows, 192, 64, 128, 128, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_f16_m192_n64_d144_residues")]
    unsafe extern "ptx-kernel" fn forward_sm90_f16_m192_n64_d144_residues(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_f16_m192_n64_d144_residues");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByRows, 192, 64, 144, 144, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_bf16_m192_n64_d144_residues")]
    unsafe extern "ptx-kernel" fn forward_sm90_bf16_m192_n64_d144_residues(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_bf16_m192_n64_d144_residues");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByRows, 192, 64, 144, 144, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m192_n128_d64")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m192_n128_d64(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m192_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 192, 128, 64, 64, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m192_n96_d64")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m192_n96_d64(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m192_n96_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 192, 96, 64, 64, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m192_n128_d96")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m192_n128_d96(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m192_n128_d96");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 192, 128, 96, 96, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m192_n96_d128")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m192_n96_d128(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m192_n96_d128");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 192, 96, 128, 128, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m128_n128_d128")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m128_n128_d128(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m128_n128_d128");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 128, 128, 128, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m128_n128_d160")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m128_n128_d160(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m128_n128_d160");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 128, 160, 160, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m128_n128_d192")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m128_n128_d192(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m128_n128_d192");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 128, 192, 192, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m128_n96_d224")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m128_n96_d224(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m128_n96_d224");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 96, 224, 224, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m128_n96_d256")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m128_n96_d256(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m128_n96_d256");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 96, 256, 256, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m192_n128_d64_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m192_n128_d64_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m192_n128_d64_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 192, 128, 64, 64, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m192_n96_d64_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m192_n96_d64_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m192_n96_d64_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 192, 96, 64, 64, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m192_n128_d96_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m192_n128_d96_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m192_n128_d96_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 192, 128, 96, 96, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m192_n96_d128_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m192_n96_d128_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m192_n96_d128_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 192, 96, 128, 128, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m128_n128_d128_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m128_n128_d128_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m128_n128_d128_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 128, 128, 128, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m128_n128_d160_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m128_n128_d160_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m128_n128_d160_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 128, 160, 160, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m128_n128_d192_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m128_n128_d192_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m128_n128_d192_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 128, 192, 192, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m128_n96_d224_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m128_n96_d224_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m128_n96_d224_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 96, 224, 224, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_e4m3_m128_n96_d256_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_e4m3_m128_n96_d256_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_e4m3_m128_n96_d256_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 96, 256, 256, true, false>>(&mapped.params, maps) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::attention::alignment::ByHeads;
    use crate::attention::alignment::ByRows;
    use crate::attention::forward_sm90;
    use crate::element::Bf16;
    use crate::element::E4m3;
    use crate::element::F16;
    use crate::entries::Run;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("forward_sm90_f16_m192_n128_d32", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 128, 32, 32, false, false>>)),
        ("forward_sm90_bf16_m192_n128_d32", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 128, 32, 32, false, false>>)),
        ("forward_sm90_f16_m192_n128_d64", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 128, 64, 64, false, false>>)),
        ("forward_sm90_bf16_m192_n128_d64", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 128, 64, 64, false, false>>)),
        ("forward_sm90_f16_m128_n128_d64", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 128, 64, 64, false, false>>)),
        ("forward_sm90_bf16_m128_n128_d64", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 128, 64, 64, false, false>>)),
        ("forward_sm90_f16_m192_n64_d64", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 64, 64, 64, false, false>>)),
        ("forward_sm90_bf16_m192_n64_d64", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 64, 64, 64, false, false>>)),
        ("forward_sm90_f16_m64_n64_d64", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 64, 64, 64, 64, false, false>>)),
        ("forward_sm90_bf16_m64_n64_d64", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 64, 64, 64, 64, false, false>>)),
        ("forward_sm90_f16_m192_n64_d80", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 64, 80, 80, false, false>>)),
        ("forward_sm90_bf16_m192_n64_d80", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 64, 80, 80, false, false>>)),
        ("forward_sm90_f16_m192_n64_d96", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 64, 96, 96, false, false>>)),
        ("forward_sm90_bf16_m192_n64_d96", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 64, 96, 96, false, false>>)),
        ("forward_sm90_f16_m192_n64_d112", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 64, 112, 112, false, false>>)),
        ("forward_sm90_bf16_m192_n64_d112", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 64, 112, 112, false, false>>)),
        ("forward_sm90_f16_m192_n80_d128", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 80, 128, 128, false, false>>)),
        ("forward_sm90_bf16_m192_n80_d128", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 80, 128, 128, false, false>>)),
        ("forward_sm90_f16_m128_n128_d128", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 128, 128, 128, false, false>>)),
        ("forward_sm90_bf16_m128_n128_d128", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 128, 128, 128, false, false>>)),
        ("forward_sm90_f16_m192_n64_d144", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 64, 144, 144, false, false>>)),
        ("forward_sm90_bf16_m192_n64_d144", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 64, 144, 144, false, false>>)),
        ("forward_sm90_f16_m128_n64_d160", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 160, 160, false, false>>)),
        ("forward_sm90_bf16_m128_n64_d160", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 160, 160, false, false>>)),
        ("forward_sm90_f16_m128_n64_d176", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 176, 176, false, false>>)),
        ("forward_sm90_bf16_m128_n64_d176", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 176, 176, false, false>>)),
        ("forward_sm90_f16_m128_n64_d192", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 192, 192, false, false>>)),
        ("forward_sm90_bf16_m128_n64_d192", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 192, 192, false, false>>)),
        ("forward_sm90_f16_m128_n64_d208", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 208, 208, false, false>>)),
        ("forward_sm90_bf16_m128_n64_d208", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 208, 208, false, false>>)),
        ("forward_sm90_f16_m128_n64_d224", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 224, 224, false, false>>)),
        ("forward_sm90_bf16_m128_n64_d224", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 224, 224, false, false>>)),
        ("forward_sm90_f16_m128_n64_d240", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 240, 240, false, false>>)),
        ("forward_sm90_bf16_m128_n64_d240", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 240, 240, false, false>>)),
        ("forward_sm90_f16_m128_n64_d256", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 256, 256, false, false>>)),
        ("forward_sm90_bf16_m128_n64_d256", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 256, 256, false, false>>)),
        ("forward_sm90_f16_m192_n80_d192_v128", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 80, 192, 128, false, false>>)),
        ("forward_sm90_bf16_m192_n80_d192_v128", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 80, 192, 128, false, false>>)),
        ("forward_sm90_f16_m192_n128_d64_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 128, 64, 64, true, false>>)),
        ("forward_sm90_bf16_m192_n128_d64_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 128, 64, 64, true, false>>)),
        ("forward_sm90_f16_m192_n64_d64_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 64, 64, 64, true, false>>)),
        ("forward_sm90_bf16_m192_n64_d64_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 64, 64, 64, true, false>>)),
        ("forward_sm90_f16_m192_n80_d128_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 80, 128, 128, true, false>>)),
        ("forward_sm90_bf16_m192_n80_d128_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 80, 128, 128, true, false>>)),
        ("forward_sm90_f16_m128_n128_d128_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 128, 128, 128, true, false>>)),
        ("forward_sm90_bf16_m128_n128_d128_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 128, 128, 128, true, false>>)),
        ("forward_sm90_f16_m128_n64_d256_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 256, 256, true, false>>)),
        ("forward_sm90_bf16_m128_n64_d256_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 256, 256, true, false>>)),
        ("forward_sm90_f16_m192_n128_d64_dropout", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 192, 128, 64, 64, true, true>>)),
        ("forward_sm90_bf16_m192_n128_d64_dropout", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 192, 128, 64, 64, true, true>>)),
        ("forward_sm90_f16_m128_n128_d128_dropout", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 128, 128, 128, true, true>>)),
        ("forward_sm90_bf16_m128_n128_d128_dropout", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 128, 128, 128, true, true>>)),
        ("forward_sm90_f16_m128_n64_d256_dropout", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByHeads, 128, 64, 256, 256, true, true>>)),
        ("forward_sm90_bf16_m128_n64_d256_dropout", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByHeads, 128, 64, 256, 256, true, true>>)),
        ("forward_sm90_f16_m192_n64_d32_residues", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByRows, 192, 64, 32, 32, false, false>>)),
        ("forward_sm90_bf16_m192_n64_d32_residues", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByRows, 192, 64, 32, 32, false, false>>)),
        ("forward_sm90_f16_m192_n64_d64_residues", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByRows, 192, 64, 64, 64, false, false>>)),
        ("forward_sm90_bf16_m192_n64_d64_residues", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByRows, 192, 64, 64, 64, false, false>>)),
        ("forward_sm90_f16_m192_n64_d80_residues", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByRows, 192, 64, 80, 80, false, false>>)),
        ("forward_sm90_bf16_m192_n64_d80_residues", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByRows, 192, 64, 80, 80, false, false>>)),
        ("forward_sm90_f16_m192_n64_d96_residues", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByRows, 192, 64, 96, 96, false, false>>)),
        ("forward_sm90_bf16_m192_n64_d96_residues", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByRows, 192, 64, 96, 96, false, false>>)),
        ("forward_sm90_f16_m192_n64_d112_residues", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByRows, 192, 64, 112, 112, false, false>>)),
        ("forward_sm90_bf16_m192_n64_d112_residues", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByRows, 192, 64, 112, 112, false, false>>)),
        ("forward_sm90_f16_m192_n64_d128_residues", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByRows, 192, 64, 128, 128, false, false>>)),
        ("forward_sm90_bf16_m192_n64_d128_residues", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByRows, 192, 64, 128, 128, false, false>>)),
        ("forward_sm90_f16_m192_n64_d144_residues", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, ByRows, 192, 64, 144, 144, false, false>>)),
        ("forward_sm90_bf16_m192_n64_d144_residues", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, ByRows, 192, 64, 144, 144, false, false>>)),
        ("forward_sm90_e4m3_m192_n128_d64", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 192, 128, 64, 64, false, false>>)),
        ("forward_sm90_e4m3_m192_n96_d64", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 192, 96, 64, 64, false, false>>)),
        ("forward_sm90_e4m3_m192_n128_d96", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 192, 128, 96, 96, false, false>>)),
        ("forward_sm90_e4m3_m192_n96_d128", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 192, 96, 128, 128, false, false>>)),
        ("forward_sm90_e4m3_m128_n128_d128", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 128, 128, 128, false, false>>)),
        ("forward_sm90_e4m3_m128_n128_d160", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 128, 160, 160, false, false>>)),
        ("forward_sm90_e4m3_m128_n128_d192", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 128, 192, 192, false, false>>)),
        ("forward_sm90_e4m3_m128_n96_d224", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 96, 224, 224, false, false>>)),
        ("forward_sm90_e4m3_m128_n96_d256", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 96, 256, 256, false, false>>)),
        ("forward_sm90_e4m3_m192_n128_d64_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 192, 128, 64, 64, true, false>>)),
        ("forward_sm90_e4m3_m192_n96_d64_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 192, 96, 64, 64, true, false>>)),
        ("forward_sm90_e4m3_m192_n128_d96_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 192, 128, 96, 96, true, false>>)),
        ("forward_sm90_e4m3_m192_n96_d128_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 192, 96, 128, 128, true, false>>)),
        ("forward_sm90_e4m3_m128_n128_d128_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 128, 128, 128, true, false>>)),
        ("forward_sm90_e4m3_m128_n128_d160_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 128, 160, 160, true, false>>)),
        ("forward_sm90_e4m3_m128_n128_d192_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 128, 192, 192, true, false>>)),
        ("forward_sm90_e4m3_m128_n96_d224_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 96, 224, 224, true, false>>)),
        ("forward_sm90_e4m3_m128_n96_d256_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<E4m3, ByHeads, 128, 96, 256, 256, true, false>>)),
    ];
}
