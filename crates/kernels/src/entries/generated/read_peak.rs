// Written by `cargo xtask kernels` from the lists of entries.

#[cfg(target_arch = "nvptx64")]
mod device {
    use crate::gemm::read;
    use crate::params::GemmParams;

    #[unsafe(export_name = "read_peak")]
    unsafe extern "ptx-kernel" fn read_peak(params: GemmParams) {
        // SAFETY: the host launches an entry as its row of the list says.
        unsafe { read::read_peak(&params) }
    }
}

#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(in crate::entries) mod native {
    use crate::entries::Run;
    use crate::gemm::read;

    pub(in crate::entries) const RUN: &[(&str, Run)] = &[
        ("read_peak", Run::Gemm(read::read_peak)),
    ];
}
