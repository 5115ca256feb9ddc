// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::attention::standard;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::params::AttentionParams;

    #[unsafe(export_name = "standard_scores_f32")]
    unsafe extern "ptx-kernel" fn standard_scores_f32(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { standard::scores::<f32>(&params) }
    }

    #[unsafe(export_name = "standard_softmax_f32")]
    unsafe extern "ptx-kernel" fn standard_softmax_f32(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { standard::softmax::<f32>(&params) }
    }

    #[unsafe(export_name = "standard_values_f32")]
    unsafe extern "ptx-kernel" fn standard_values_f32(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { standard::values::<f32>(&params) }
    }

    #[unsafe(export_name = "standard_scores_f16")]
    unsafe extern "ptx-kernel" fn standard_scores_f16(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { standard::scores::<F16>(&params) }
    }

    #[unsafe(export_name = "standard_softmax_f16")]
    unsafe extern "ptx-kernel" fn standard_softmax_f16(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { standard::softmax::<F16>(&params) }
    }

    #[unsafe(export_name = "standard_values_f16")]
    unsafe extern "ptx-kernel" fn standard_values_f16(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { standard::values::<F16>(&params) }
    }

    #[unsafe(export_name = "standard_scores_bf16")]
    unsafe extern "ptx-kernel" fn standard_scores_bf16(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { standard::scores::<Bf16>(&params) }
    }

    #[unsafe(export_name = "standard_softmax_bf16")]
    unsafe extern "ptx-kernel" fn standard_softmax_bf16(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { standard::softmax::<Bf16>(&params) }
    }

    #[unsafe(export_name = "standard_values_bf16")]
    unsafe extern "ptx-kernel" fn standard_values_bf16(params: AttentionParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { standard::values::<Bf16>(&params) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::attention::standard;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::entries::Run;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("standard_scores_f32", Run::Attention(standard::scores::<f32>)),
        ("standard_softmax_f32", Run::Attention(standard::softmax::<f32>)),
        ("standard_values_f32", Run::Attention(standard::values::<f32>)),
        ("standard_scores_f16", Run::Attention(standard::scores::<F16>)),
        ("standard_softmax_f16", Run::Attention(standard::softmax::<F16>)),
        ("standard_values_f16", Run::Attention(standard::values::<F16>)),
        ("standard_scores_bf16", Run::Attention(standard::scores::<Bf16>)),
        ("standard_softmax_bf16", Run::Attention(standard::softmax::<Bf16>)),
        ("standard_values_bf16", Run::Attention(standard::values::<Bf16>)),
    ];
}
