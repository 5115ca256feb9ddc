//! Defects that were there once, while all checks passed: they must not come back.

use super::{Defect, Family, defect, only};

pub(super) const FAMILIES: &[Family] = &[
    Family {
        file: "crates/host/src/launch.rs",
        entries: "forward_sm90",
        tests: &["hopper", "varlen"],
        defects: &[defect(
            "past_rows_of_o",
            "O whose rows end within 16 bytes leaves by boxes, which are stored in whole ones",
            "!problem.head_dim_v().is_multiple_of(CHUNK as usize)",
            "false",
        )],
    },
    Family {
        file: "crates/host/src/gemm/launch.rs",
        entries: "gemm_sm90",
        tests: &["gemm"],
        defects: &[defect(
            "past_rows_of_c",
            "C whose rows end within 16 bytes leaves by boxes, which are stored in whole ones",
            "matrices.c.columns / CHUNK * CHUNK",
            "matrices.c.columns",
        )],
    },
    Family {
        file: "crates/kernels/src/attention/forward_sm90/consumer/parts.rs",
        entries: "e4m3",
        tests: &["hopper_e4m3"],
        defects: &[
            Defect {
                also: &[
                    only(
                        "part.begin_rs::<T::Element>(a, b)",
                        "part.multiply_rs::<T::Element, false>(a, b, true)",
                    ),
                    only("math::fma(*o, rescale[j / 2 % 2], part[j])", "part[j]"),
                ],
                ..defect(
                    "e4m3_one_level",
                    "8-bit P times V is summed over all keys in the tensor cores, which cut what they add",
                    "A::ZERO",
                    "{ let (mut all, mut j) = (A::ZERO, 0); while j < A::LEN { all[j] = self.o[first as usize / 2 + j] * rescale[j / 2 % 2]; j += 1; } all }",
                )
            },
            defect(
                "part_rescale",
                "O is not brought to the new maximum in 8 bits",
                "math::fma(*o, rescale[j / 2 % 2], part[j])",
                "*o + part[j]",
            ),
            defect(
                "part_wait",
                "a part of O is added before its products are over",
                "unsafe { part.wait_group::<0>() };",
                "",
            ),
        ],
    },
];
