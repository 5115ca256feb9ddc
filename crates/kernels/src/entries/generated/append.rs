// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::attention::append;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::params::AppendParams;

    #[unsafe(export_name = "append_f32")]
    unsafe extern "ptx-kernel" fn append_f32(params: AppendParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { append::append::<f32>(&params) }
    }

    #[unsafe(export_name = "append_f16")]
    unsafe extern "ptx-kernel" fn append_f16(params: AppendParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { append::append::<F16>(&params) }
    }

    #[unsafe(export_name = "append_bf16")]
    unsafe extern "ptx-kernel" fn append_bf16(params: AppendParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { append::append::<Bf16>(&params) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::attention::append;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::entries::Run;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("append_f32", Run::Append(append::append::<f32>)),
        ("append_f16", Run::Append(append::append::<F16>)),
        ("append_bf16", Run::Append(append::append::<Bf16>)),
    ];
}
