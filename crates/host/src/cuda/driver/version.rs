//! CUDA versions of drivers, as 1000·major + 10·minor, and what they take.

use crate::{Error, Result};

/// Refuses a driver whose compiler does not know the PTX version (major, minor) of the shipped kernels.
pub(super) fn require(version: i32, ptx_isa: (u32, u32)) -> Result<()> {
    let needed = cuda_of_ptx(ptx_isa);
    if version < needed {
        return Err(Error::DriverTooOld { found: version_name(version), needed: version_name(needed) });
    }
    Ok(())
}

/// The first CUDA version whose driver takes a PTX version (PTX ISA, release notes).
fn cuda_of_ptx((major, minor): (u32, u32)) -> i32 {
    let (major, minor) = (major as i32, minor as i32);
    match major {
        ..=5 => 8000,
        6 => match minor {
            ..=2 => 9000 + 10 * minor,
            3 => 10_000,
            4 => 10_010,
            _ => 10_020,
        },
        // PTX 7.0 came with CUDA 11.0 and 8.0 with 12.0; from there on the minor versions run in step.
        _ => 1000 * (major + 4) + 10 * minor,
    }
}

/// 12040 as 12.4.
pub(in crate::cuda) fn version_name(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_versions_map_to_the_release_that_brought_them() {
        for (ptx, cuda) in
            [((6, 3), 10_000), ((6, 5), 10_020), ((7, 0), 11_000), ((8, 0), 12_000), ((8, 6), 12_060)]
        {
            assert_eq!(cuda_of_ptx(ptx), cuda);
        }
    }

    #[test]
    fn an_old_driver_is_refused_with_both_versions() {
        let error = require(9_020, (6, 3)).unwrap_err().to_string();
        assert_eq!(
            error,
            "NVIDIA driver is too old: it supports CUDA 9.2, the kernels need CUDA 10.0 or later"
        );
        assert!(require(12_080, (6, 3)).is_ok());
    }
}
