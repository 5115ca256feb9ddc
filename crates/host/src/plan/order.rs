//! In which order the built tiles of a kernel are tried: as measured on this device, else as listed.

use fa_kernels::entries::Entry;
use fa_kernels::variant::Kernel;

/// The built tiles of one kernel as a sweep measured them on one device. `tuned.rs` is made of these.
#[derive(Debug)]
pub(crate) struct Tuned {
    /// The device's name, as its driver gives it.
    pub(crate) device: &'static str,
    /// The kernel.
    pub(crate) kernel: Kernel,
    /// Its storage type.
    pub(crate) dtype: &'static str,
    /// HEAD_DIM; 0 of a product.
    pub(crate) head_dim: u32,
    /// With the causal mask, or without.
    pub(crate) causal: bool,
    /// Names of the entries, the fastest first.
    pub(crate) entries: &'static [&'static str],
}

/// What a row of the table is looked up by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    pub(crate) device: &'a str,
    pub(crate) kernel: Kernel,
    pub(crate) dtype: &'a str,
    pub(crate) head_dim: u32,
    pub(crate) causal: bool,
}

impl<'a> Key<'a> {
    /// That of an entry of attention; kernels that are swept without masks have rows without one alone.
    pub(crate) const fn of(entry: &Entry, causal: bool, device: &'a str) -> Self {
        let kernel = Kernel::Attention(entry.algorithm);
        Self { device, kernel, dtype: entry.dtype, head_dim: entry.tile.head_dim, causal }
    }
}

/// Sorts `built`, entries of one kernel, type and HEAD_DIM, by what `table` says of the device, and says
/// whether it says something. Entries that were not measured keep their order behind those that were.
pub(crate) fn as_measured<A, T>(built: &mut [&'static Entry<A, T>], key: &Key<'_>, table: &[Tuned]) -> bool {
    let is_for = |tuned: &&Tuned| {
        (tuned.device, tuned.kernel, tuned.dtype, tuned.head_dim, tuned.causal)
            == (key.device, key.kernel, key.dtype, key.head_dim, key.causal)
            && built.iter().any(|entry| tuned.entries.contains(&entry.name))
    };
    let Some(tuned) = table.iter().find(is_for) else { return false };
    built
        .sort_by_key(|entry| tuned.entries.iter().position(|&name| name == entry.name).unwrap_or(usize::MAX));
    true
}

/// As [`as_measured`], and says what the first one is.
pub(crate) fn fastest_first<A, T>(
    built: &mut [&'static Entry<A, T>],
    key: &Key<'_>,
    table: &[Tuned],
) -> String {
    let device = key.device;
    if as_measured(built, key, table) {
        return format!("the fastest tile measured on {device}");
    }
    let of_kernel = table.iter().filter(|tuned| tuned.kernel == key.kernel);
    let mut devices: Vec<_> = of_kernel.map(|tuned| tuned.device).collect();
    devices.sort_unstable();
    devices.dedup();
    match &devices[..] {
        [] => "the first tile listed, the fastest where the list was made,".to_owned(),
        tuned if tuned.contains(&device) => {
            "not among the sweeps of this device: the first tile listed".to_owned()
        }
        tuned => format!("tuned on {}; for {device} the first tile listed", tuned.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fa_kernels::entries::{Algorithm, entries, gemm_entries};

    const DEVICE: &str = "NVIDIA Test";

    fn built() -> Vec<&'static Entry> {
        entries()
            .filter(|entry| {
                entry.algorithm == Algorithm::ForwardSimt
                    && entry.dtype == "f32"
                    && entry.tile.head_dim == 128
            })
            .collect()
    }

    /// The listed order is 64x64, 64x32, 32x32.
    const TABLE: &[Tuned] = &[Tuned {
        device: DEVICE,
        kernel: Kernel::Attention(Algorithm::ForwardSimt),
        dtype: "f32",
        head_dim: 128,
        causal: true,
        entries: &["forward_simt_f32_m32_n32_d128", "an entry of the past", "forward_simt_f32_m64_n64_d128"],
    }];

    fn names(causal: bool, device: &str, table: &[Tuned]) -> (Vec<(u32, u32)>, String) {
        let mut built = built();
        let key = Key::of(built[0], causal, device);
        let why = fastest_first(&mut built, &key, table);
        (built.iter().map(|entry| (entry.tile.block_m, entry.tile.block_n)).collect(), why)
    }

    const LISTED: [(u32, u32); 3] = [(64, 64), (64, 32), (32, 32)];

    #[test]
    fn the_order_is_that_of_the_sweep_on_the_device_that_it_measured() {
        let (order, why) = names(true, DEVICE, TABLE);
        assert_eq!(order, [(32, 32), (64, 64), (64, 32)]);
        assert_eq!(why, "the fastest tile measured on NVIDIA Test");
    }

    #[test]
    fn elsewhere_it_is_that_of_the_list_and_says_so() {
        assert_eq!(
            names(true, "NVIDIA Other", TABLE),
            (LISTED.to_vec(), "tuned on NVIDIA Test; for NVIDIA Other the first tile listed".to_owned())
        );
        assert_eq!(
            names(false, DEVICE, TABLE),
            (LISTED.to_vec(), "not among the sweeps of this device: the first tile listed".to_owned())
        );
        assert_eq!(
            names(true, DEVICE, &[]),
            (LISTED.to_vec(), "the first tile listed, the fastest where the list was made,".to_owned())
        );
    }

    #[test]
    fn the_committed_table_names_entries_that_are_built() {
        for tuned in super::super::tuned::TUNED {
            for name in tuned.entries {
                let mut built =
                    entries().map(|entry| entry.name).chain(gemm_entries().map(|entry| entry.name));
                assert!(built.any(|built| built == *name), "{name}: run `cargo xtask bench tune`");
            }
        }
    }
}
