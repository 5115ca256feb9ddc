// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::attention::forward_sm80;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::params::AttentionParams;

    #[unsafe(export_name = "forward_sm80_f16_m128_n48_d32_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n48_d32_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 48, 32, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n48_d32_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n48_d32_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 48, 32, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d48_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d48_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 64, 48, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d48_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d48_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 64, 48, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d64_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d64_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 64, 64, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d64_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d64_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 64, 64, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d80_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d80_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 64, 80, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d80_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d80_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 64, 80, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d96_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d96_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 64, 96, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d96_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d96_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 64, 96, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n48_d112_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n48_d112_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 48, 112, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n48_d112_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n48_d112_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 48, 112, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n48_d128_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n48_d128_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 48, 128, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n48_d128_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n48_d128_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 48, 128, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n32_d144_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n32_d144_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 32, 144, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n32_d144_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n32_d144_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 32, 144, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d160_w8")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d160_w8(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 160, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d160_w8")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d160_w8(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 160, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n16_d176_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n16_d176_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 16, 176, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n16_d176_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n16_d176_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 16, 176, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d192_w8")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d192_w8(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 192, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d192_w8")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d192_w8(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 192, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m64_n32_d192_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m64_n32_d192_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 2, 32, 192, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m64_n32_d192_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m64_n32_d192_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 2, 32, 192, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d208_w8")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d208_w8(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 208, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d208_w8")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d208_w8(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 208, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m64_n32_d208_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m64_n32_d208_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 2, 32, 208, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m64_n32_d208_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m64_n32_d208_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 2, 32, 208, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d224_w8")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d224_w8(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 224, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d224_w8")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d224_w8(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 224, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m64_n32_d224_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m64_n32_d224_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 2, 32, 224, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m64_n32_d224_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m64_n32_d224_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 2, 32, 224, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d256_w8")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d256_w8(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 256, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d256_w8")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d256_w8(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 256, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m64_n32_d256_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m64_n32_d256_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 2, 32, 256, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m64_n32_d256_w4")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m64_n32_d256_w4(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 2, 32, 256, false, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d32_w4_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d32_w4_score_mod(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 64, 32, true, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d32_w4_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d32_w4_score_mod(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 64, 32, true, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d64_w4_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d64_w4_score_mod(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 64, 64, true, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d64_w4_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d64_w4_score_mod(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 64, 64, true, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d96_w4_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d96_w4_score_mod(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 64, 96, true, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d96_w4_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d96_w4_score_mod(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 64, 96, true, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n32_d128_w4_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n32_d128_w4_score_mod(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 32, 128, true, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n32_d128_w4_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n32_d128_w4_score_mod(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 32, 128, true, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d144_w8_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d144_w8_score_mod(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 144, true, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d144_w8_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d144_w8_score_mod(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 144, true, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d160_w8_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d160_w8_score_mod(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 160, true, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d160_w8_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d160_w8_score_mod(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 160, true, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d192_w8_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d192_w8_score_mod(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 192, true, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d192_w8_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d192_w8_score_mod(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 192, true, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n32_d256_w8_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n32_d256_w8_score_mod(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 32, 256, true, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n32_d256_w8_score_mod")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n32_d256_w8_score_mod(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 32, 256, true, false>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d64_w4_dropout")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d64_w4_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 64, 64, true, true>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d64_w4_dropout")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d64_w4_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 64, 64, true, true>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d128_w8_dropout")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d128_w8_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 128, true, true>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d128_w8_dropout")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d128_w8_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 128, true, true>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n64_d192_w8_dropout")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n64_d192_w8_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 192, true, true>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n64_d192_w8_dropout")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n64_d192_w8_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 192, true, true>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_f16_m128_n32_d256_w8_dropout")]
    unsafe extern "ptx-kernel" fn forward_sm80_f16_m128_n32_d256_w8_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 32, 256, true, true>>(&params) }
    }

    #[unsafe(export_name = "forward_sm80_bf16_m128_n32_d256_w8_dropout")]
    unsafe extern "ptx-kernel" fn forward_sm80_bf16_m128_n32_d256_w8_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 32, 256, true, true>>(&params) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::attention::forward_sm80;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::entries::Run;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("forward_sm80_f16_m128_n48_d32_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 48, 32, false, false>>)),
        ("forward_sm80_bf16_m128_n48_d32_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 48, 32, false, false>>)),
        ("forward_sm80_f16_m128_n64_d48_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 64, 48, false, false>>)),
        ("forward_sm80_bf16_m128_n64_d48_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 64, 48, false, false>>)),
        ("forward_sm80_f16_m128_n64_d64_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 64, 64, false, false>>)),
        ("forward_sm80_bf16_m128_n64_d64_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 64, 64, false, false>>)),
        ("forward_sm80_f16_m128_n64_d80_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 64, 80, false, false>>)),
        ("forward_sm80_bf16_m128_n64_d80_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 64, 80, false, false>>)),
        ("forward_sm80_f16_m128_n64_d96_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 64, 96, false, false>>)),
        ("forward_sm80_bf16_m128_n64_d96_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 64, 96, false, false>>)),
        ("forward_sm80_f16_m128_n48_d112_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 48, 112, false, false>>)),
        ("forward_sm80_bf16_m128_n48_d112_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 48, 112, false, false>>)),
        ("forward_sm80_f16_m128_n48_d128_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 48, 128, false, false>>)),
        ("forward_sm80_bf16_m128_n48_d128_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 48, 128, false, false>>)),
        ("forward_sm80_f16_m128_n32_d144_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 32, 144, false, false>>)),
        ("forward_sm80_bf16_m128_n32_d144_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 32, 144, false, false>>)),
        ("forward_sm80_f16_m128_n64_d160_w8", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 160, false, false>>)),
        ("forward_sm80_bf16_m128_n64_d160_w8", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 160, false, false>>)),
        ("forward_sm80_f16_m128_n16_d176_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 16, 176, false, false>>)),
        ("forward_sm80_bf16_m128_n16_d176_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 16, 176, false, false>>)),
        ("forward_sm80_f16_m128_n64_d192_w8", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 192, false, false>>)),
        ("forward_sm80_bf16_m128_n64_d192_w8", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 192, false, false>>)),
        ("forward_sm80_f16_m64_n32_d192_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 2, 32, 192, false, false>>)),
        ("forward_sm80_bf16_m64_n32_d192_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 2, 32, 192, false, false>>)),
        ("forward_sm80_f16_m128_n64_d208_w8", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 208, false, false>>)),
        ("forward_sm80_bf16_m128_n64_d208_w8", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 208, false, false>>)),
        ("forward_sm80_f16_m64_n32_d208_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 2, 32, 208, false, false>>)),
        ("forward_sm80_bf16_m64_n32_d208_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 2, 32, 208, false, false>>)),
        ("forward_sm80_f16_m128_n64_d224_w8", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 224, false, false>>)),
        ("forward_sm80_bf16_m128_n64_d224_w8", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 224, false, false>>)),
        ("forward_sm80_f16_m64_n32_d224_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 2, 32, 224, false, false>>)),
        ("forward_sm80_bf16_m64_n32_d224_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 2, 32, 224, false, false>>)),
        ("forward_sm80_f16_m128_n64_d256_w8", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 256, false, false>>)),
        ("forward_sm80_bf16_m128_n64_d256_w8", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 256, false, false>>)),
        ("forward_sm80_f16_m64_n32_d256_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 2, 32, 256, false, false>>)),
        ("forward_sm80_bf16_m64_n32_d256_w4", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 2, 32, 256, false, false>>)),
        ("forward_sm80_f16_m128_n64_d32_w4_score_mod", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 64, 32, true, false>>)),
        ("forward_sm80_bf16_m128_n64_d32_w4_score_mod", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 64, 32, true, false>>)),
        ("forward_sm80_f16_m128_n64_d64_w4_score_mod", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 64, 64, true, false>>)),
        ("forward_sm80_bf16_m128_n64_d64_w4_score_mod", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 64, 64, true, false>>)),
        ("forward_sm80_f16_m128_n64_d96_w4_score_mod", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 64, 96, true, false>>)),
        ("forward_sm80_bf16_m128_n64_d96_w4_score_mod", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 64, 96, true, false>>)),
        ("forward_sm80_f16_m128_n32_d128_w4_score_mod", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 32, 128, true, false>>)),
        ("forward_sm80_bf16_m128_n32_d128_w4_score_mod", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 32, 128, true, false>>)),
        ("forward_sm80_f16_m128_n64_d144_w8_score_mod", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 144, true, false>>)),
        ("forward_sm80_bf16_m128_n64_d144_w8_score_mod", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 144, true, false>>)),
        ("forward_sm80_f16_m128_n64_d160_w8_score_mod", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 160, true, false>>)),
        ("forward_sm80_bf16_m128_n64_d160_w8_score_mod", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 160, true, false>>)),
        ("forward_sm80_f16_m128_n64_d192_w8_score_mod", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 192, true, false>>)),
        ("forward_sm80_bf16_m128_n64_d192_w8_score_mod", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 192, true, false>>)),
        ("forward_sm80_f16_m128_n32_d256_w8_score_mod", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 32, 256, true, false>>)),
        ("forward_sm80_bf16_m128_n32_d256_w8_score_mod", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 32, 256, true, false>>)),
        ("forward_sm80_f16_m128_n64_d64_w4_dropout", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 4, 4, 64, 64, true, true>>)),
        ("forward_sm80_bf16_m128_n64_d64_w4_dropout", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 4, 4, 64, 64, true, true>>)),
        ("forward_sm80_f16_m128_n64_d128_w8_dropout", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 128, true, true>>)),
        ("forward_sm80_bf16_m128_n64_d128_w8_dropout", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 128, true, true>>)),
        ("forward_sm80_f16_m128_n64_d192_w8_dropout", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 64, 192, true, true>>)),
        ("forward_sm80_bf16_m128_n64_d192_w8_dropout", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 64, 192, true, true>>)),
        ("forward_sm80_f16_m128_n32_d256_w8_dropout", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<F16, 8, 2, 32, 256, true, true>>)),
        ("forward_sm80_bf16_m128_n32_d256_w8_dropout", Run::Attention(forward_sm80::forward_sm80::<forward_sm80::Sm80Tile<Bf16, 8, 2, 32, 256, true, true>>)),
    ];
}
