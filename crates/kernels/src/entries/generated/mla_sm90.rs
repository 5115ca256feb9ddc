// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::attention::mla_sm90;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::params::DecodeParams;
    use crate::params::Mapped;
    use crate::ptx::tma::TensorMap;
    use crate::ptx::tma::parameter_address;

    #[unsafe(export_name = "mla_sm90_f16")]
    unsafe extern "ptx-kernel" fn mla_sm90_f16(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("mla_sm90_f16");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { mla_sm90::mla_sm90::<F16>(&mapped.params, maps) }
    }

    #[unsafe(export_name = "mla_sm90_bf16")]
    unsafe extern "ptx-kernel" fn mla_sm90_bf16(mapped: Mapped<[TensorMap; 2], DecodeParams>) {
        let maps = parameter_address!("mla_sm90_bf16");
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { mla_sm90::mla_sm90::<Bf16>(&mapped.params, maps) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::attention::mla_sm90;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::entries::Run;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("mla_sm90_f16", Run::MappedDecode(mla_sm90::mla_sm90::<F16>)),
        ("mla_sm90_bf16", Run::MappedDecode(mla_sm90::mla_sm90::<Bf16>)),
    ];
}
