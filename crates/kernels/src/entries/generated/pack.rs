// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::attention::pack;
    use crate::attention::tile_schedule;
    use crate::attention::transpose;
    use crate::attention::widen;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::params::PackParams;
    use crate::params::ScheduleParams;
    use crate::params::WidenParams;

    #[unsafe(export_name = "pack")]
    unsafe extern "ptx-kernel" fn pack(params: PackParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { pack::pack(&params) }
    }

    #[unsafe(export_name = "transpose_b8")]
    unsafe extern "ptx-kernel" fn transpose_b8(params: PackParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { transpose::transpose(&params) }
    }

    #[unsafe(export_name = "widen_f16")]
    unsafe extern "ptx-kernel" fn widen_f16(params: WidenParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { widen::widen::<F16>(&params) }
    }

    #[unsafe(export_name = "widen_bf16")]
    unsafe extern "ptx-kernel" fn widen_bf16(params: WidenParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { widen::widen::<Bf16>(&params) }
    }

    #[unsafe(export_name = "tile_schedule")]
    unsafe extern "ptx-kernel" fn tile_schedule(params: ScheduleParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { tile_schedule::tile_schedule(&params) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::attention::pack;
    use crate::attention::tile_schedule;
    use crate::attention::transpose;
    use crate::attention::widen;
    use crate::element::Bf16;
    use crate::element::F16;
    use crate::entries::Run;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("pack", Run::Pack(pack::pack)),
        ("transpose_b8", Run::Pack(transpose::transpose)),
        ("widen_f16", Run::Widen(widen::widen::<F16>)),
        ("widen_bf16", Run::Widen(widen::widen::<Bf16>)),
        ("tile_schedule", Run::Schedule(tile_schedule::tile_schedule)),
    ];
}
