// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::attention::forward_simt;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::params::AttentionParams;

    #[unsafe(export_name = "forward_simt_f32_m64_n64_d32")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m64_n64_d32(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 64, 32, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m64_n64_d32")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m64_n64_d32(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 64, 32, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m64_n64_d32")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m64_n64_d32(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 64, 32, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m64_n32_d32")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m64_n32_d32(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 32, 32, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m64_n32_d32")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m64_n32_d32(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 32, 32, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m64_n32_d32")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m64_n32_d32(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 32, 32, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m64_n64_d64")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m64_n64_d64(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 64, 64, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m64_n64_d64")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m64_n64_d64(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 64, 64, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m64_n64_d64")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m64_n64_d64(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 64, 64, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m64_n32_d64")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m64_n32_d64(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 32, 64, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m64_n32_d64")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m64_n32_d64(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 32, 64, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m64_n32_d64")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m64_n32_d64(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 32, 64, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m32_n32_d64")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m32_n32_d64(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 32, 32, 64, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m32_n32_d64")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m32_n32_d64(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 32, 32, 64, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m32_n32_d64")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m32_n32_d64(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 32, 32, 64, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m64_n64_d96")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m64_n64_d96(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 64, 96, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m64_n64_d96")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m64_n64_d96(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 64, 96, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m64_n64_d96")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m64_n64_d96(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 64, 96, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m64_n32_d96")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m64_n32_d96(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 32, 96, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m64_n32_d96")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m64_n32_d96(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 32, 96, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m64_n32_d96")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m64_n32_d96(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 32, 96, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m64_n64_d128")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m64_n64_d128(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 64, 128, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m64_n64_d128")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m64_n64_d128(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 64, 128, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m64_n64_d128")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m64_n64_d128(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 64, 128, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m64_n32_d128")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m64_n32_d128(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 32, 128, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m64_n32_d128")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m64_n32_d128(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 32, 128, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m64_n32_d128")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m64_n32_d128(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 32, 128, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m32_n32_d128")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m32_n32_d128(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 32, 32, 128, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m32_n32_d128")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m32_n32_d128(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 32, 32, 128, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m32_n32_d128")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m32_n32_d128(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 32, 32, 128, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m64_n64_d160")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m64_n64_d160(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 64, 160, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m64_n64_d160")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m64_n64_d160(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 64, 160, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m64_n64_d160")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m64_n64_d160(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 64, 160, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m64_n32_d160")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m64_n32_d160(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 32, 160, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m64_n32_d160")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m64_n32_d160(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 32, 160, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m64_n32_d160")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m64_n32_d160(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 32, 160, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m32_n32_d160")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m32_n32_d160(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 32, 32, 160, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m32_n32_d160")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m32_n32_d160(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 32, 32, 160, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m32_n32_d160")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m32_n32_d160(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 32, 32, 160, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m64_n64_d192")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m64_n64_d192(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 64, 192, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m64_n64_d192")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m64_n64_d192(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 64, 192, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m64_n64_d192")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m64_n64_d192(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 64, 192, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m64_n32_d192")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m64_n32_d192(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 32, 192, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m64_n32_d192")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m64_n32_d192(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 32, 192, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m64_n32_d192")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m64_n32_d192(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 32, 192, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m32_n32_d192")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m32_n32_d192(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 32, 32, 192, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m32_n32_d192")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m32_n32_d192(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 32, 32, 192, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m32_n32_d192")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m32_n32_d192(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 32, 32, 192, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m64_n64_d256")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m64_n64_d256(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 64, 256, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m64_n64_d256")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m64_n64_d256(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 64, 256, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m64_n64_d256")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m64_n64_d256(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 64, 256, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m64_n32_d256")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m64_n32_d256(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 32, 256, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m64_n32_d256")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m64_n32_d256(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 32, 256, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m64_n32_d256")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m64_n32_d256(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 32, 256, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m32_n32_d256")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m32_n32_d256(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 32, 32, 256, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m32_n32_d256")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m32_n32_d256(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 32, 32, 256, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m32_n32_d256")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m32_n32_d256(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 32, 32, 256, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m32_n16_d256")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m32_n16_d256(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 32, 16, 256, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m32_n16_d256")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m32_n16_d256(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 32, 16, 256, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m32_n16_d256")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m32_n16_d256(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 32, 16, 256, false>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m64_n32_d64_dropout")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m64_n32_d64_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 32, 64, true>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m64_n32_d64_dropout")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m64_n32_d64_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 32, 64, true>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m64_n32_d64_dropout")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m64_n32_d64_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 32, 64, true>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m32_n32_d128_dropout")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m32_n32_d128_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 32, 32, 128, true>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m32_n32_d128_dropout")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m32_n32_d128_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 32, 32, 128, true>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m32_n32_d128_dropout")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m32_n32_d128_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 32, 32, 128, true>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f32_m32_n16_d256_dropout")]
    unsafe extern "ptx-kernel" fn forward_simt_f32_m32_n16_d256_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<f32, 32, 16, 256, true>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_f16_m32_n16_d256_dropout")]
    unsafe extern "ptx-kernel" fn forward_simt_f16_m32_n16_d256_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<F16, 32, 16, 256, true>>(&params) }
    }

    #[unsafe(export_name = "forward_simt_bf16_m32_n16_d256_dropout")]
    unsafe extern "ptx-kernel" fn forward_simt_bf16_m32_n16_d256_dropout(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 32, 16, 256, true>>(&params) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::attention::forward_simt;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::entries::Run;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("forward_simt_f32_m64_n64_d32", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 64, 32, false>>)),
        ("forward_simt_f16_m64_n64_d32", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 64, 32, false>>)),
        ("forward_simt_bf16_m64_n64_d32", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 64, 32, false>>)),
        ("forward_simt_f32_m64_n32_d32", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 32, 32, false>>)),
        ("forward_simt_f16_m64_n32_d32", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 32, 32, false>>)),
        ("forward_simt_bf16_m64_n32_d32", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 32, 32, false>>)),
        ("forward_simt_f32_m64_n64_d64", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 64, 64, false>>)),
        ("forward_simt_f16_m64_n64_d64", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 64, 64, false>>)),
        ("forward_simt_bf16_m64_n64_d64", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 64, 64, false>>)),
        ("forward_simt_f32_m64_n32_d64", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 32, 64, false>>)),
        ("forward_simt_f16_m64_n32_d64", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 32, 64, false>>)),
        ("forward_simt_bf16_m64_n32_d64", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 32, 64, false>>)),
        ("forward_simt_f32_m32_n32_d64", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 32, 32, 64, false>>)),
        ("forward_simt_f16_m32_n32_d64", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 32, 32, 64, false>>)),
        ("forward_simt_bf16_m32_n32_d64", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 32, 32, 64, false>>)),
        ("forward_simt_f32_m64_n64_d96", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 64, 96, false>>)),
        ("forward_simt_f16_m64_n64_d96", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 64, 96, false>>)),
        ("forward_simt_bf16_m64_n64_d96", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 64, 96, false>>)),
        ("forward_simt_f32_m64_n32_d96", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 32, 96, false>>)),
        ("forward_simt_f16_m64_n32_d96", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 32, 96, false>>)),
        ("forward_simt_bf16_m64_n32_d96", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 32, 96, false>>)),
        ("forward_simt_f32_m64_n64_d128", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 64, 128, false>>)),
        ("forward_simt_f16_m64_n64_d128", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 64, 128, false>>)),
        ("forward_simt_bf16_m64_n64_d128", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 64, 128, false>>)),
        ("forward_simt_f32_m64_n32_d128", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 32, 128, false>>)),
        ("forward_simt_f16_m64_n32_d128", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 32, 128, false>>)),
        ("forward_simt_bf16_m64_n32_d128", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 32, 128, false>>)),
        ("forward_simt_f32_m32_n32_d128", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 32, 32, 128, false>>)),
        ("forward_simt_f16_m32_n32_d128", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 32, 32, 128, false>>)),
        ("forward_simt_bf16_m32_n32_d128", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 32, 32, 128, false>>)),
        ("forward_simt_f32_m64_n64_d160", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 64, 160, false>>)),
        ("forward_simt_f16_m64_n64_d160", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 64, 160, false>>)),
        ("forward_simt_bf16_m64_n64_d160", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 64, 160, false>>)),
        ("forward_simt_f32_m64_n32_d160", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 32, 160, false>>)),
        ("forward_simt_f16_m64_n32_d160", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 32, 160, false>>)),
        ("forward_simt_bf16_m64_n32_d160", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 32, 160, false>>)),
        ("forward_simt_f32_m32_n32_d160", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 32, 32, 160, false>>)),
        ("forward_simt_f16_m32_n32_d160", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 32, 32, 160, false>>)),
        ("forward_simt_bf16_m32_n32_d160", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 32, 32, 160, false>>)),
        ("forward_simt_f32_m64_n64_d192", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 64, 192, false>>)),
        ("forward_simt_f16_m64_n64_d192", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 64, 192, false>>)),
        ("forward_simt_bf16_m64_n64_d192", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 64, 192, false>>)),
        ("forward_simt_f32_m64_n32_d192", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 32, 192, false>>)),
        ("forward_simt_f16_m64_n32_d192", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 32, 192, false>>)),
        ("forward_simt_bf16_m64_n32_d192", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 32, 192, false>>)),
        ("forward_simt_f32_m32_n32_d192", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 32, 32, 192, false>>)),
        ("forward_simt_f16_m32_n32_d192", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 32, 32, 192, false>>)),
        ("forward_simt_bf16_m32_n32_d192", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 32, 32, 192, false>>)),
        ("forward_simt_f32_m64_n64_d256", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 64, 256, false>>)),
        ("forward_simt_f16_m64_n64_d256", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 64, 256, false>>)),
        ("forward_simt_bf16_m64_n64_d256", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 64, 256, false>>)),
        ("forward_simt_f32_m64_n32_d256", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 32, 256, false>>)),
        ("forward_simt_f16_m64_n32_d256", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 32, 256, false>>)),
        ("forward_simt_bf16_m64_n32_d256", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 32, 256, false>>)),
        ("forward_simt_f32_m32_n32_d256", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 32, 32, 256, false>>)),
        ("forward_simt_f16_m32_n32_d256", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 32, 32, 256, false>>)),
        ("forward_simt_bf16_m32_n32_d256", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 32, 32, 256, false>>)),
        ("forward_simt_f32_m32_n16_d256", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 32, 16, 256, false>>)),
        ("forward_simt_f16_m32_n16_d256", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 32, 16, 256, false>>)),
        ("forward_simt_bf16_m32_n16_d256", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 32, 16, 256, false>>)),
        ("forward_simt_f32_m64_n32_d64_dropout", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 64, 32, 64, true>>)),
        ("forward_simt_f16_m64_n32_d64_dropout", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 64, 32, 64, true>>)),
        ("forward_simt_bf16_m64_n32_d64_dropout", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 64, 32, 64, true>>)),
        ("forward_simt_f32_m32_n32_d128_dropout", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 32, 32, 128, true>>)),
        ("forward_simt_f16_m32_n32_d128_dropout", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 32, 32, 128, true>>)),
        ("forward_simt_bf16_m32_n32_d128_dropout", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 32, 32, 128, true>>)),
        ("forward_simt_f32_m32_n16_d256_dropout", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<f32, 32, 16, 256, true>>)),
        ("forward_simt_f16_m32_n16_d256_dropout", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<F16, 32, 16, 256, true>>)),
        ("forward_simt_bf16_m32_n16_d256_dropout", Run::Attention(forward_simt::forward_simt::<forward_simt::SimtTile<Bf16, 32, 16, 256, true>>)),
    ];
}
