// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::attention::combine;
    use crate::attention::decode;
    use crate::attention::merge;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::params::DecodeParams;
    use crate::params::MergeParams;

    #[unsafe(export_name = "decode_f16_m16_d64_w4_s5")]
    unsafe extern "ptx-kernel" fn decode_f16_m16_d64_w4_s5(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<F16, 2, 64, 4, 4>>(&params) }
    }

    #[unsafe(export_name = "decode_bf16_m16_d64_w4_s5")]
    unsafe extern "ptx-kernel" fn decode_bf16_m16_d64_w4_s5(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<Bf16, 2, 64, 4, 4>>(&params) }
    }

    #[unsafe(export_name = "decode_f16_m32_d64_w4_s5")]
    unsafe extern "ptx-kernel" fn decode_f16_m32_d64_w4_s5(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<F16, 4, 64, 4, 4>>(&params) }
    }

    #[unsafe(export_name = "decode_bf16_m32_d64_w4_s5")]
    unsafe extern "ptx-kernel" fn decode_bf16_m32_d64_w4_s5(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<Bf16, 4, 64, 4, 4>>(&params) }
    }

    #[unsafe(export_name = "decode_f16_m64_d64_w4_s5")]
    unsafe extern "ptx-kernel" fn decode_f16_m64_d64_w4_s5(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<F16, 8, 64, 4, 4>>(&params) }
    }

    #[unsafe(export_name = "decode_bf16_m64_d64_w4_s5")]
    unsafe extern "ptx-kernel" fn decode_bf16_m64_d64_w4_s5(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<Bf16, 8, 64, 4, 4>>(&params) }
    }

    #[unsafe(export_name = "decode_f16_m16_d96_w4_s3")]
    unsafe extern "ptx-kernel" fn decode_f16_m16_d96_w4_s3(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<F16, 2, 96, 4, 2>>(&params) }
    }

    #[unsafe(export_name = "decode_bf16_m16_d96_w4_s3")]
    unsafe extern "ptx-kernel" fn decode_bf16_m16_d96_w4_s3(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<Bf16, 2, 96, 4, 2>>(&params) }
    }

    #[unsafe(export_name = "decode_f16_m32_d96_w4_s3")]
    unsafe extern "ptx-kernel" fn decode_f16_m32_d96_w4_s3(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<F16, 4, 96, 4, 2>>(&params) }
    }

    #[unsafe(export_name = "decode_bf16_m32_d96_w4_s3")]
    unsafe extern "ptx-kernel" fn decode_bf16_m32_d96_w4_s3(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<Bf16, 4, 96, 4, 2>>(&params) }
    }

    #[unsafe(export_name = "decode_f16_m16_d128_w4_s3")]
    unsafe extern "ptx-kernel" fn decode_f16_m16_d128_w4_s3(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<F16, 2, 128, 4, 2>>(&params) }
    }

    #[unsafe(export_name = "decode_bf16_m16_d128_w4_s3")]
    unsafe extern "ptx-kernel" fn decode_bf16_m16_d128_w4_s3(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<Bf16, 2, 128, 4, 2>>(&params) }
    }

    #[unsafe(export_name = "decode_f16_m16_d128_w4_s2")]
    unsafe extern "ptx-kernel" fn decode_f16_m16_d128_w4_s2(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<F16, 2, 128, 4, 1>>(&params) }
    }

    #[unsafe(export_name = "decode_bf16_m16_d128_w4_s2")]
    unsafe extern "ptx-kernel" fn decode_bf16_m16_d128_w4_s2(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<Bf16, 2, 128, 4, 1>>(&params) }
    }

    #[unsafe(export_name = "decode_f16_m32_d128_w4_s3")]
    unsafe extern "ptx-kernel" fn decode_f16_m32_d128_w4_s3(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<F16, 4, 128, 4, 2>>(&params) }
    }

    #[unsafe(export_name = "decode_bf16_m32_d128_w4_s3")]
    unsafe extern "ptx-kernel" fn decode_bf16_m32_d128_w4_s3(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<Bf16, 4, 128, 4, 2>>(&params) }
    }

    #[unsafe(export_name = "decode_f16_m16_d192_w4_s2")]
    unsafe extern "ptx-kernel" fn decode_f16_m16_d192_w4_s2(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<F16, 2, 192, 4, 1>>(&params) }
    }

    #[unsafe(export_name = "decode_bf16_m16_d192_w4_s2")]
    unsafe extern "ptx-kernel" fn decode_bf16_m16_d192_w4_s2(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<Bf16, 2, 192, 4, 1>>(&params) }
    }

    #[unsafe(export_name = "decode_f16_m16_d192_w2_s3")]
    unsafe extern "ptx-kernel" fn decode_f16_m16_d192_w2_s3(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<F16, 2, 192, 2, 2>>(&params) }
    }

    #[unsafe(export_name = "decode_bf16_m16_d192_w2_s3")]
    unsafe extern "ptx-kernel" fn decode_bf16_m16_d192_w2_s3(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<Bf16, 2, 192, 2, 2>>(&params) }
    }

    #[unsafe(export_name = "decode_f16_m16_d256_w2_s3")]
    unsafe extern "ptx-kernel" fn decode_f16_m16_d256_w2_s3(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<F16, 2, 256, 2, 2>>(&params) }
    }

    #[unsafe(export_name = "decode_bf16_m16_d256_w2_s3")]
    unsafe extern "ptx-kernel" fn decode_bf16_m16_d256_w2_s3(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<Bf16, 2, 256, 2, 2>>(&params) }
    }

    #[unsafe(export_name = "decode_f16_m16_d256_w2_s2")]
    unsafe extern "ptx-kernel" fn decode_f16_m16_d256_w2_s2(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<F16, 2, 256, 2, 1>>(&params) }
    }

    #[unsafe(export_name = "decode_bf16_m16_d256_w2_s2")]
    unsafe extern "ptx-kernel" fn decode_bf16_m16_d256_w2_s2(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { decode::decode::<decode::DecodeTile<Bf16, 2, 256, 2, 1>>(&params) }
    }

    #[unsafe(export_name = "decode_combine_f16")]
    unsafe extern "ptx-kernel" fn decode_combine_f16(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { combine::combine::<F16>(&params) }
    }

    #[unsafe(export_name = "decode_combine_bf16")]
    unsafe extern "ptx-kernel" fn decode_combine_bf16(params: DecodeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { combine::combine::<Bf16>(&params) }
    }

    #[unsafe(export_name = "merge_f32")]
    unsafe extern "ptx-kernel" fn merge_f32(params: MergeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { merge::merge::<f32>(&params) }
    }

    #[unsafe(export_name = "merge_f16")]
    unsafe extern "ptx-kernel" fn merge_f16(params: MergeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { merge::merge::<F16>(&params) }
    }

    #[unsafe(export_name = "merge_bf16")]
    unsafe extern "ptx-kernel" fn merge_bf16(params: MergeParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { merge::merge::<Bf16>(&params) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::attention::combine;
    use crate::attention::decode;
    use crate::attention::merge;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::entries::Run;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("decode_f16_m16_d64_w4_s5", Run::Decode(decode::decode::<decode::DecodeTile<F16, 2, 64, 4, 4>>)),
        ("decode_bf16_m16_d64_w4_s5", Run::Decode(decode::decode::<decode::DecodeTile<Bf16, 2, 64, 4, 4>>)),
        ("decode_f16_m32_d64_w4_s5", Run::Decode(decode::decode::<decode::DecodeTile<F16, 4, 64, 4, 4>>)),
        ("decode_bf16_m32_d64_w4_s5", Run::Decode(decode::decode::<decode::DecodeTile<Bf16, 4, 64, 4, 4>>)),
        ("decode_f16_m64_d64_w4_s5", Run::Decode(decode::decode::<decode::DecodeTile<F16, 8, 64, 4, 4>>)),
        ("decode_bf16_m64_d64_w4_s5", Run::Decode(decode::decode::<decode::DecodeTile<Bf16, 8, 64, 4, 4>>)),
        ("decode_f16_m16_d96_w4_s3", Run::Decode(decode::decode::<decode::DecodeTile<F16, 2, 96, 4, 2>>)),
        ("decode_bf16_m16_d96_w4_s3", Run::Decode(decode::decode::<decode::DecodeTile<Bf16, 2, 96, 4, 2>>)),
        ("decode_f16_m32_d96_w4_s3", Run::Decode(decode::decode::<decode::DecodeTile<F16, 4, 96, 4, 2>>)),
        ("decode_bf16_m32_d96_w4_s3", Run::Decode(decode::decode::<decode::DecodeTile<Bf16, 4, 96, 4, 2>>)),
        ("decode_f16_m16_d128_w4_s3", Run::Decode(decode::decode::<decode::DecodeTile<F16, 2, 128, 4, 2>>)),
        ("decode_bf16_m16_d128_w4_s3", Run::Decode(decode::decode::<decode::DecodeTile<Bf16, 2, 128, 4, 2>>)),
        ("decode_f16_m16_d128_w4_s2", Run::Decode(decode::decode::<decode::DecodeTile<F16, 2, 128, 4, 1>>)),
        ("decode_bf16_m16_d128_w4_s2", Run::Decode(decode::decode::<decode::DecodeTile<Bf16, 2, 128, 4, 1>>)),
        ("decode_f16_m32_d128_w4_s3", Run::Decode(decode::decode::<decode::DecodeTile<F16, 4, 128, 4, 2>>)),
        ("decode_bf16_m32_d128_w4_s3", Run::Decode(decode::decode::<decode::DecodeTile<Bf16, 4, 128, 4, 2>>)),
        ("decode_f16_m16_d192_w4_s2", Run::Decode(decode::decode::<decode::DecodeTile<F16, 2, 192, 4, 1>>)),
        ("decode_bf16_m16_d192_w4_s2", Run::Decode(decode::decode::<decode::DecodeTile<Bf16, 2, 192, 4, 1>>)),
        ("decode_f16_m16_d192_w2_s3", Run::Decode(decode::decode::<decode::DecodeTile<F16, 2, 192, 2, 2>>)),
        ("decode_bf16_m16_d192_w2_s3", Run::Decode(decode::decode::<decode::DecodeTile<Bf16, 2, 192, 2, 2>>)),
        ("decode_f16_m16_d256_w2_s3", Run::Decode(decode::decode::<decode::DecodeTile<F16, 2, 256, 2, 2>>)),
        ("decode_bf16_m16_d256_w2_s3", Run::Decode(decode::decode::<decode::DecodeTile<Bf16, 2, 256, 2, 2>>)),
        ("decode_f16_m16_d256_w2_s2", Run::Decode(decode::decode::<decode::DecodeTile<F16, 2, 256, 2, 1>>)),
        ("decode_bf16_m16_d256_w2_s2", Run::Decode(decode::decode::<decode::DecodeTile<Bf16, 2, 256, 2, 1>>)),
        ("decode_combine_f16", Run::Decode(combine::combine::<F16>)),
        ("decode_combine_bf16", Run::Decode(combine::combine::<Bf16>)),
        ("merge_f32", Run::Merge(merge::merge::<f32>)),
        ("merge_f16", Run::Merge(merge::merge::<F16>)),
        ("merge_bf16", Run::Merge(merge::merge::<Bf16>)),
    ];
}
