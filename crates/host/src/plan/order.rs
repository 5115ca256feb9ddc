//! In which order the built tiles of a kernel are tried: as measured on this device, else as listed.

use fa_kernels::entries::{Algorithm, Entry};

/// The built tiles of one kernel as a sweep measured them on one device. `tuned.rs` is made of these.
#[derive(Debug)]
pub(super) struct Tuned {
    /// The device's name, as its driver gives it.
    pub(super) device: &'static str,
    /// The kernel.
    pub(super) algorithm: Algorithm,
    /// Its storage type.
    pub(super) dtype: &'static str,
    /// HEAD_DIM.
    pub(super) head_dim: u32,
    /// With the causal mask, or without.
    pub(super) causal: bool,
    /// Names of the entries, the fastest first.
    pub(super) entries: &'static [&'static str],
}

/// Sorts `built`, entries of one kernel, type and HEAD_DIM, by what `table` says of the device, and says
/// what the first one is. Entries that were not measured keep their order behind those that were.
pub(super) fn fastest_first(
    mut built: Vec<&'static Entry>,
    causal: bool,
    device: &str,
    table: &[Tuned],
) -> (Vec<&'static Entry>, String) {
    let is_for = |tuned: &&Tuned, entry: &Entry| {
        tuned.device == device
            && tuned.causal == causal
            && tuned.algorithm == entry.algorithm
            && tuned.dtype == entry.dtype
            && tuned.head_dim == entry.tile.head_dim
    };
    let measured = built.first().and_then(|entry| table.iter().find(|tuned| is_for(tuned, entry)));
    if let Some(tuned) = measured {
        let place =
            |entry: &&Entry| tuned.entries.iter().position(|&name| name == entry.name).unwrap_or(usize::MAX);
        built.sort_by_key(place);
        return (built, format!("the fastest tile measured on {device}"));
    }
    let mut devices: Vec<_> = table.iter().map(|tuned| tuned.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let why = match &devices[..] {
        [] => "the first tile listed, the fastest where the list was made,".to_owned(),
        tuned if tuned.contains(&device) => {
            "not among the sweeps of this device: the first tile listed".to_owned()
        }
        tuned => format!("tuned on {}; for {device} the first tile listed", tuned.join(", ")),
    };
    (built, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fa_kernels::entries::entries;

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
        algorithm: Algorithm::ForwardSimt,
        dtype: "f32",
        head_dim: 128,
        causal: true,
        entries: &["forward_simt_f32_m32_n32_d128", "an entry of the past", "forward_simt_f32_m64_n64_d128"],
    }];

    fn names(causal: bool, device: &str, table: &[Tuned]) -> (Vec<(u32, u32)>, String) {
        let (ordered, why) = fastest_first(built(), causal, device, table);
        (ordered.iter().map(|entry| (entry.tile.block_m, entry.tile.block_n)).collect(), why)
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
                assert!(entries().any(|entry| entry.name == *name), "{name}: run `cargo xtask bench tune`");
            }
        }
    }
}
