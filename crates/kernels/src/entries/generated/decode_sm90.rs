// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::attention::combine;
    use crate::attention::decode_sm90;
    use crate::element::Bf16;
    use crate::element::E4m3;
    use crate::element::F16;
    use crate::params::DecodeParams;
    use crate::params::Mapped;
    use crate::ptx::tma::TensorMap;
    use crate::ptx::tma::parameter_address;

    #[unsafe(export_name = "decode_sm90_f16_m16_n128_d64_s6")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m16_n128_d64_s6(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m16_n128_d64_s6");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 64, 1, 6, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m16_n128_d64_s6")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m16_n128_d64_s6(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m16_n128_d64_s6");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 16, 4, 2, 4, 64, 1, 6, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m32_n128_d64_s5")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m32_n128_d64_s5(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m32_n128_d64_s5");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 32, 8, 2, 4, 64, 1, 5, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m32_n128_d64_s5")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m32_n128_d64_s5(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m32_n128_d64_s5");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 32, 8, 2, 4, 64, 1, 5, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m64_n128_d64_s9")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m64_n128_d64_s9(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m64_n128_d64_s9");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 64, 16, 2, 4, 64, 1, 9, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m64_n128_d64_s9")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m64_n128_d64_s9(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m64_n128_d64_s9");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 64, 16, 2, 4, 64, 1, 9, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m16_n128_d128_s3")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m16_n128_d128_s3(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m16_n128_d128_s3");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 128, 2, 3, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m16_n128_d128_s3")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m16_n128_d128_s3(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m16_n128_d128_s3");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 16, 4, 2, 4, 128, 2, 3, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m32_n128_d128_s5")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m32_n128_d128_s5(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m32_n128_d128_s5");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 32, 8, 2, 4, 128, 2, 5, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m32_n128_d128_s5")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m32_n128_d128_s5(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m32_n128_d128_s5");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 32, 8, 2, 4, 128, 2, 5, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m64_n64_d128_s10")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m64_n64_d128_s10(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m64_n64_d128_s10");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 64, 16, 1, 2, 128, 2, 10, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m64_n64_d128_s10")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m64_n64_d128_s10(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m64_n64_d128_s10");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 64, 16, 1, 2, 128, 2, 10, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m16_n128_d192_s4")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m16_n128_d192_s4(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m16_n128_d192_s4");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 192, 3, 4, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m16_n128_d192_s4")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m16_n128_d192_s4(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m16_n128_d192_s4");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 16, 4, 2, 4, 192, 3, 4, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m64_n64_d192_s6")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m64_n64_d192_s6(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m64_n64_d192_s6");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 64, 16, 1, 2, 192, 3, 6, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m64_n64_d192_s6")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m64_n64_d192_s6(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m64_n64_d192_s6");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 64, 16, 1, 2, 192, 3, 6, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m16_n128_d256_s3")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m16_n128_d256_s3(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m16_n128_d256_s3");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 256, 4, 3, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m16_n128_d256_s3")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m16_n128_d256_s3(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m16_n128_d256_s3");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 16, 4, 2, 4, 256, 4, 3, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m32_n64_d256_s5")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m32_n64_d256_s5(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m32_n64_d256_s5");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 32, 8, 1, 2, 256, 4, 5, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m32_n64_d256_s5")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m32_n64_d256_s5(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m32_n64_d256_s5");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 32, 8, 1, 2, 256, 4, 5, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m16_n128_d64_s6_e4m3")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m16_n128_d64_s6_e4m3(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m16_n128_d64_s6_e4m3");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, E4m3, 16, 4, 2, 4, 64, 1, 6, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m16_n128_d64_s6_e4m3")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m16_n128_d64_s6_e4m3(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m16_n128_d64_s6_e4m3");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, E4m3, 16, 4, 2, 4, 64, 1, 6, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m16_n128_d128_s6_e4m3")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m16_n128_d128_s6_e4m3(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m16_n128_d128_s6_e4m3");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, E4m3, 16, 4, 2, 4, 128, 2, 6, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m16_n128_d128_s6_e4m3")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m16_n128_d128_s6_e4m3(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m16_n128_d128_s6_e4m3");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, E4m3, 16, 4, 2, 4, 128, 2, 6, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m16_n64_d128_s12_e4m3")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m16_n64_d128_s12_e4m3(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m16_n64_d128_s12_e4m3");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, E4m3, 16, 4, 1, 2, 128, 2, 12, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m16_n64_d128_s12_e4m3")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m16_n64_d128_s12_e4m3(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m16_n64_d128_s12_e4m3");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, E4m3, 16, 4, 1, 2, 128, 2, 12, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m32_n64_d128_s10_e4m3")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m32_n64_d128_s10_e4m3(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m32_n64_d128_s10_e4m3");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, E4m3, 32, 8, 1, 2, 128, 2, 10, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m32_n64_d128_s10_e4m3")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m32_n64_d128_s10_e4m3(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m32_n64_d128_s10_e4m3");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, E4m3, 32, 8, 1, 2, 128, 2, 10, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m64_n64_d128_s20_e4m3")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m64_n64_d128_s20_e4m3(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m64_n64_d128_s20_e4m3");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, E4m3, 64, 16, 1, 2, 128, 2, 20, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m64_n64_d128_s20_e4m3")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m64_n64_d128_s20_e4m3(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m64_n64_d128_s20_e4m3");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, E4m3, 64, 16, 1, 2, 128, 2, 20, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m16_n64_d256_s5_e4m3")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m16_n64_d256_s5_e4m3(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m16_n64_d256_s5_e4m3");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, E4m3, 16, 4, 1, 2, 256, 4, 5, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m16_n64_d256_s5_e4m3")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m16_n64_d256_s5_e4m3(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m16_n64_d256_s5_e4m3");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, E4m3, 16, 4, 1, 2, 256, 4, 5, false>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m16_n128_d64_s6_adds_up")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m16_n128_d64_s6_adds_up(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m16_n128_d64_s6_adds_up");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 64, 1, 6, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m16_n128_d64_s6_adds_up")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m16_n128_d64_s6_adds_up(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m16_n128_d64_s6_adds_up");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 16, 4, 2, 4, 64, 1, 6, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m32_n128_d64_s5_adds_up")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m32_n128_d64_s5_adds_up(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m32_n128_d64_s5_adds_up");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 32, 8, 2, 4, 64, 1, 5, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m32_n128_d64_s5_adds_up")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m32_n128_d64_s5_adds_up(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m32_n128_d64_s5_adds_up");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 32, 8, 2, 4, 64, 1, 5, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m16_n128_d128_s3_adds_up")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m16_n128_d128_s3_adds_up(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m16_n128_d128_s3_adds_up");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 128, 2, 3, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m16_n128_d128_s3_adds_up")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m16_n128_d128_s3_adds_up(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m16_n128_d128_s3_adds_up");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 16, 4, 2, 4, 128, 2, 3, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m32_n128_d128_s5_adds_up")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m32_n128_d128_s5_adds_up(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m32_n128_d128_s5_adds_up");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 32, 8, 2, 4, 128, 2, 5, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m32_n128_d128_s5_adds_up")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m32_n128_d128_s5_adds_up(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m32_n128_d128_s5_adds_up");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 32, 8, 2, 4, 128, 2, 5, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m16_n128_d192_s4_adds_up")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m16_n128_d192_s4_adds_up(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m16_n128_d192_s4_adds_up");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 192, 3, 4, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m16_n128_d192_s4_adds_up")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m16_n128_d192_s4_adds_up(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m16_n128_d192_s4_adds_up");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 16, 4, 2, 4, 192, 3, 4, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m16_n128_d256_s3_adds_up")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m16_n128_d256_s3_adds_up(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m16_n128_d256_s3_adds_up");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 256, 4, 3, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m16_n128_d256_s3_adds_up")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m16_n128_d256_s3_adds_up(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m16_n128_d256_s3_adds_up");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 16, 4, 2, 4, 256, 4, 3, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m16_n128_d64_s6_e4m3_adds_up")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m16_n128_d64_s6_e4m3_adds_up(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m16_n128_d64_s6_e4m3_adds_up");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, E4m3, 16, 4, 2, 4, 64, 1, 6, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m16_n128_d64_s6_e4m3_adds_up")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m16_n128_d64_s6_e4m3_adds_up(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m16_n128_d64_s6_e4m3_adds_up");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, E4m3, 16, 4, 2, 4, 64, 1, 6, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_f16_m16_n64_d128_s12_e4m3_adds_up")]
    unsafe extern "ptx-kernel" fn decode_sm90_f16_m16_n64_d128_s12_e4m3_adds_up(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_f16_m16_n64_d128_s12_e4m3_adds_up");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, E4m3, 16, 4, 1, 2, 128, 2, 12, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_sm90_bf16_m16_n64_d128_s12_e4m3_adds_up")]
    unsafe extern "ptx-kernel" fn decode_sm90_bf16_m16_n64_d128_s12_e4m3_adds_up(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("decode_sm90_bf16_m16_n64_d128_s12_e4m3_adds_up");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, E4m3, 16, 4, 1, 2, 128, 2, 12, true>>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "decode_combine_sm90_f16")]
    unsafe extern "ptx-kernel" fn decode_combine_sm90_f16(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { combine::combine_dependent::<F16>(&params) }
    }

    #[unsafe(export_name = "decode_combine_sm90_bf16")]
    unsafe extern "ptx-kernel" fn decode_combine_sm90_bf16(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { combine::combine_dependent::<Bf16>(&params) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::attention::combine;
    use crate::attention::decode_sm90;
    use crate::element::Bf16;
    use crate::element::E4m3;
    use crate::element::F16;
    use crate::entries::Run;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("decode_sm90_f16_m16_n128_d64_s6", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 64, 1, 6, false>>)),
        ("decode_sm90_bf16_m16_n128_d64_s6", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 16, 4, 2, 4, 64, 1, 6, false>>)),
        ("decode_sm90_f16_m32_n128_d64_s5", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 32, 8, 2, 4, 64, 1, 5, false>>)),
        ("decode_sm90_bf16_m32_n128_d64_s5", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 32, 8, 2, 4, 64, 1, 5, false>>)),
        ("decode_sm90_f16_m64_n128_d64_s9", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 64, 16, 2, 4, 64, 1, 9, false>>)),
        ("decode_sm90_bf16_m64_n128_d64_s9", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 64, 16, 2, 4, 64, 1, 9, false>>)),
        ("decode_sm90_f16_m16_n128_d128_s3", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 128, 2, 3, false>>)),
        ("decode_sm90_bf16_m16_n128_d128_s3", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 16, 4, 2, 4, 128, 2, 3, false>>)),
        ("decode_sm90_f16_m32_n128_d128_s5", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 32, 8, 2, 4, 128, 2, 5, false>>)),
        ("decode_sm90_bf16_m32_n128_d128_s5", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 32, 8, 2, 4, 128, 2, 5, false>>)),
        ("decode_sm90_f16_m64_n64_d128_s10", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 64, 16, 1, 2, 128, 2, 10, false>>)),
        ("decode_sm90_bf16_m64_n64_d128_s10", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 64, 16, 1, 2, 128, 2, 10, false>>)),
        ("decode_sm90_f16_m16_n128_d192_s4", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 192, 3, 4, false>>)),
        ("decode_sm90_bf16_m16_n128_d192_s4", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 16, 4, 2, 4, 192, 3, 4, false>>)),
        ("decode_sm90_f16_m64_n64_d192_s6", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 64, 16, 1, 2, 192, 3, 6, false>>)),
        ("decode_sm90_bf16_m64_n64_d192_s6", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 64, 16, 1, 2, 192, 3, 6, false>>)),
        ("decode_sm90_f16_m16_n128_d256_s3", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 256, 4, 3, false>>)),
        ("decode_sm90_bf16_m16_n128_d256_s3", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 16, 4, 2, 4, 256, 4, 3, false>>)),
        ("decode_sm90_f16_m32_n64_d256_s5", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 32, 8, 1, 2, 256, 4, 5, false>>)),
        ("decode_sm90_bf16_m32_n64_d256_s5", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 32, 8, 1, 2, 256, 4, 5, false>>)),
        ("decode_sm90_f16_m16_n128_d64_s6_e4m3", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, E4m3, 16, 4, 2, 4, 64, 1, 6, false>>)),
        ("decode_sm90_bf16_m16_n128_d64_s6_e4m3", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, E4m3, 16, 4, 2, 4, 64, 1, 6, false>>)),
        ("decode_sm90_f16_m16_n128_d128_s6_e4m3", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, E4m3, 16, 4, 2, 4, 128, 2, 6, false>>)),
        ("decode_sm90_bf16_m16_n128_d128_s6_e4m3", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, E4m3, 16, 4, 2, 4, 128, 2, 6, false>>)),
        ("decode_sm90_f16_m16_n64_d128_s12_e4m3", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, E4m3, 16, 4, 1, 2, 128, 2, 12, false>>)),
        ("decode_sm90_bf16_m16_n64_d128_s12_e4m3", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, E4m3, 16, 4, 1, 2, 128, 2, 12, false>>)),
        ("decode_sm90_f16_m32_n64_d128_s10_e4m3", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, E4m3, 32, 8, 1, 2, 128, 2, 10, false>>)),
        ("decode_sm90_bf16_m32_n64_d128_s10_e4m3", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, E4m3, 32, 8, 1, 2, 128, 2, 10, false>>)),
        ("decode_sm90_f16_m64_n64_d128_s20_e4m3", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, E4m3, 64, 16, 1, 2, 128, 2, 20, false>>)),
        ("decode_sm90_bf16_m64_n64_d128_s20_e4m3", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, E4m3, 64, 16, 1, 2, 128, 2, 20, false>>)),
        ("decode_sm90_f16_m16_n64_d256_s5_e4m3", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, E4m3, 16, 4, 1, 2, 256, 4, 5, false>>)),
        ("decode_sm90_bf16_m16_n64_d256_s5_e4m3", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, E4m3, 16, 4, 1, 2, 256, 4, 5, false>>)),
        ("decode_sm90_f16_m16_n128_d64_s6_adds_up", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 64, 1, 6, true>>)),
        ("decode_sm90_bf16_m16_n128_d64_s6_adds_up", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 16, 4, 2, 4, 64, 1, 6, true>>)),
        ("decode_sm90_f16_m32_n128_d64_s5_adds_up", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 32, 8, 2, 4, 64, 1, 5, true>>)),
        ("decode_sm90_bf16_m32_n128_d64_s5_adds_up", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 32, 8, 2, 4, 64, 1, 5, true>>)),
        ("decode_sm90_f16_m16_n128_d128_s3_adds_up", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 128, 2, 3, true>>)),
        ("decode_sm90_bf16_m16_n128_d128_s3_adds_up", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 16, 4, 2, 4, 128, 2, 3, true>>)),
        ("decode_sm90_f16_m32_n128_d128_s5_adds_up", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 32, 8, 2, 4, 128, 2, 5, true>>)),
        ("decode_sm90_bf16_m32_n128_d128_s5_adds_up", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 32, 8, 2, 4, 128, 2, 5, true>>)),
        ("decode_sm90_f16_m16_n128_d192_s4_adds_up", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 192, 3, 4, true>>)),
        ("decode_sm90_bf16_m16_n128_d192_s4_adds_up", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 16, 4, 2, 4, 192, 3, 4, true>>)),
        ("decode_sm90_f16_m16_n128_d256_s3_adds_up", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, F16, 16, 4, 2, 4, 256, 4, 3, true>>)),
        ("decode_sm90_bf16_m16_n128_d256_s3_adds_up", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, Bf16, 16, 4, 2, 4, 256, 4, 3, true>>)),
        ("decode_sm90_f16_m16_n128_d64_s6_e4m3_adds_up", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, E4m3, 16, 4, 2, 4, 64, 1, 6, true>>)),
        ("decode_sm90_bf16_m16_n128_d64_s6_e4m3_adds_up", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, E4m3, 16, 4, 2, 4, 64, 1, 6, true>>)),
        ("decode_sm90_f16_m16_n64_d128_s12_e4m3_adds_up", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<F16, E4m3, 16, 4, 1, 2, 128, 2, 12, true>>)),
        ("decode_sm90_bf16_m16_n64_d128_s12_e4m3_adds_up", Run::MappedDecode(decode_sm90::decode_sm90::<decode_sm90::DecodeSm90Tile<Bf16, E4m3, 16, 4, 1, 2, 128, 2, 12, true>>)),
        ("decode_combine_sm90_f16", Run::Decode(combine::combine_dependent::<F16>)),
        ("decode_combine_sm90_bf16", Run::Decode(combine::combine_dependent::<Bf16>)),
    ];
}
