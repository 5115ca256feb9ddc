// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::attention::forward_sm90;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::params::AttentionMaps;
    use crate::params::Mapped;
    use crate::params::PersistentParams;
    use crate::ptx::tma::parameter_address;

    #[unsafe(export_name = "forward_sm90_cached_f16_m128_n128_d64")]
    unsafe extern "ptx-kernel" fn forward_sm90_cached_f16_m128_n128_d64(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_cached_f16_m128_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, forward_sm90::Cached, 128, 128, 64, 64, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_cached_bf16_m128_n128_d64")]
    unsafe extern "ptx-kernel" fn forward_sm90_cached_bf16_m128_n128_d64(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_cached_bf16_m128_n128_d64");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, forward_sm90::Cached, 128, 128, 64, 64, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_cached_f16_m128_n128_d128")]
    unsafe extern "ptx-kernel" fn forward_sm90_cached_f16_m128_n128_d128(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_cached_f16_m128_n128_d128");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, forward_sm90::Cached, 128, 128, 128, 128, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_cached_bf16_m128_n128_d128")]
    unsafe extern "ptx-kernel" fn forward_sm90_cached_bf16_m128_n128_d128(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_cached_bf16_m128_n128_d128");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, forward_sm90::Cached, 128, 128, 128, 128, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_cached_f16_m128_n64_d192")]
    unsafe extern "ptx-kernel" fn forward_sm90_cached_f16_m128_n64_d192(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_cached_f16_m128_n64_d192");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, forward_sm90::Cached, 128, 64, 192, 192, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_cached_bf16_m128_n64_d192")]
    unsafe extern "ptx-kernel" fn forward_sm90_cached_bf16_m128_n64_d192(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_cached_bf16_m128_n64_d192");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, forward_sm90::Cached, 128, 64, 192, 192, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_cached_f16_m128_n32_d256")]
    unsafe extern "ptx-kernel" fn forward_sm90_cached_f16_m128_n32_d256(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_cached_f16_m128_n32_d256");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, forward_sm90::Cached, 128, 32, 256, 256, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_cached_bf16_m128_n32_d256")]
    unsafe extern "ptx-kernel" fn forward_sm90_cached_bf16_m128_n32_d256(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_cached_bf16_m128_n32_d256");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, forward_sm90::Cached, 128, 32, 256, 256, false, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_cached_f16_m128_n128_d64_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_cached_f16_m128_n128_d64_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_cached_f16_m128_n128_d64_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, forward_sm90::Cached, 128, 128, 64, 64, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_cached_bf16_m128_n128_d64_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_cached_bf16_m128_n128_d64_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_cached_bf16_m128_n128_d64_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, forward_sm90::Cached, 128, 128, 64, 64, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_cached_f16_m128_n128_d128_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_cached_f16_m128_n128_d128_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_cached_f16_m128_n128_d128_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, forward_sm90::Cached, 128, 128, 128, 128, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_cached_bf16_m128_n128_d128_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_cached_bf16_m128_n128_d128_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_cached_bf16_m128_n128_d128_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, forward_sm90::Cached, 128, 128, 128, 128, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_cached_f16_m128_n64_d192_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_cached_f16_m128_n64_d192_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_cached_f16_m128_n64_d192_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, forward_sm90::Cached, 128, 64, 192, 192, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_cached_bf16_m128_n64_d192_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_cached_bf16_m128_n64_d192_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_cached_bf16_m128_n64_d192_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, forward_sm90::Cached, 128, 64, 192, 192, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_cached_f16_m128_n32_d256_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_cached_f16_m128_n32_d256_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_cached_f16_m128_n32_d256_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, forward_sm90::Cached, 128, 32, 256, 256, true, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "forward_sm90_cached_bf16_m128_n32_d256_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm90_cached_bf16_m128_n32_d256_score_mod(mapped: Mapped<AttentionMaps, PersistentParams>) {
        let maps = parameter_address!("forward_sm90_cached_bf16_m128_n32_d256_score_mod");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, forward_sm90::Cached, 128, 32, 256, 256, true, false>>(&mapped.params, maps) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::attention::forward_sm90;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::entries::Run;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("forward_sm90_cached_f16_m128_n128_d64", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, forward_sm90::Cached, 128, 128, 64, 64, false, false>>)),
        ("forward_sm90_cached_bf16_m128_n128_d64", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, forward_sm90::Cached, 128, 128, 64, 64, false, false>>)),
        ("forward_sm90_cached_f16_m128_n128_d128", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, forward_sm90::Cached, 128, 128, 128, 128, false, false>>)),
        ("forward_sm90_cached_bf16_m128_n128_d128", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, forward_sm90::Cached, 128, 128, 128, 128, false, false>>)),
        ("forward_sm90_cached_f16_m128_n64_d192", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, forward_sm90::Cached, 128, 64, 192, 192, false, false>>)),
        ("forward_sm90_cached_bf16_m128_n64_d192", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, forward_sm90::Cached, 128, 64, 192, 192, false, false>>)),
        ("forward_sm90_cached_f16_m128_n32_d256", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, forward_sm90::Cached, 128, 32, 256, 256, false, false>>)),
        ("forward_sm90_cached_bf16_m128_n32_d256", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, forward_sm90::Cached, 128, 32, 256, 256, false, false>>)),
        ("forward_sm90_cached_f16_m128_n128_d64_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, forward_sm90::Cached, 128, 128, 64, 64, true, false>>)),
        ("forward_sm90_cached_bf16_m128_n128_d64_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, forward_sm90::Cached, 128, 128, 64, 64, true, false>>)),
        ("forward_sm90_cached_f16_m128_n128_d128_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, forward_sm90::Cached, 128, 128, 128, 128, true, false>>)),
        ("forward_sm90_cached_bf16_m128_n128_d128_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, forward_sm90::Cached, 128, 128, 128, 128, true, false>>)),
        ("forward_sm90_cached_f16_m128_n64_d192_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, forward_sm90::Cached, 128, 64, 192, 192, true, false>>)),
        ("forward_sm90_cached_bf16_m128_n64_d192_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, forward_sm90::Cached, 128, 64, 192, 192, true, false>>)),
        ("forward_sm90_cached_f16_m128_n32_d256_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<F16, forward_sm90::Cached, 128, 32, 256, 256, true, false>>)),
        ("forward_sm90_cached_bf16_m128_n32_d256_score_mod", Run::Persistent(forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<Bf16, forward_sm90::Cached, 128, 32, 256, 256, true, false>>)),
    ];
}
