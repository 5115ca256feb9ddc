//! Matrix multiplication.

use super::{Family, defect, nth};

pub(super) const FAMILIES: &[Family] = &[
    Family {
        file: "crates/kernels/src/gemm/mod.rs",
        entries: "gemm",
        tests: &["gemm"],
        defects: &[defect(
            "gemm_group",
            "the last group of tiles counts as full",
            "(tiles_m - first).min(GROUP)",
            "GROUP",
        )],
    },
    Family {
        file: "crates/kernels/src/gemm/simt.rs",
        entries: "gemm_simt",
        tests: &["gemm"],
        defects: &[
            defect(
                "gemm_simt_tail",
                "one element past the end of K is read",
                "s < self.span && k < self.depth",
                "s < self.span && k <= self.depth",
            ),
            nth(
                "gemm_simt_barrier",
                "a stage is read before it is written",
                1,
                "barrier::sync(0, THREADS);",
                "",
            ),
            defect(
                "gemm_simt_column",
                "a column past the last is stored",
                "m < params.m && n < params.n",
                "m < params.m && n <= params.n",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/gemm/sm80.rs",
        entries: "gemm_sm80",
        tests: &["gemm"],
        defects: &[
            defect(
                "gemm_sm80_tail",
                "the last step of K, of which a part exists, does not come first",
                "if stage == 0 { steps - 1 } else { stage - 1 }",
                "stage",
            ),
            nth(
                "gemm_sm80_wait",
                "of three stages one too few is waited for",
                2,
                "cp_async::wait_for_oldest::<STAGES>();",
                "cp_async::wait_group::<2>();",
            ),
            nth(
                "gemm_sm80_barrier",
                "the next tile's copies overwrite what is still read",
                1,
                "barrier::sync(0, THREADS);",
                "",
            ),
        ],
    },
    Family {
        file: "crates/kernels/src/gemm/sm90.rs",
        entries: "gemm_sm90",
        tests: &["gemm"],
        defects: &[
            defect(
                "gemm_sm90_transposed",
                "B that runs along N is read as if it ran along K",
                "acc.multiply_ss::<T::Element, false, true>(a, b, accumulate)",
                "acc.multiply_ss::<T::Element, false, false>(a, b, accumulate)",
            ),
            defect(
                "gemm_sm90_early",
                "a stage is let go while products still read it",
                "acc.wait_group::<1>();",
                "",
            ),
            defect(
                "gemm_sm90_element",
                "one element past the end of a row is stored",
                "column + 1 < self.params.n",
                "column < self.params.n",
            ),
            defect(
                "gemm_sm90_fence",
                "C's rows are not fenced for the copies that take them",
                "fence::proxy_async();",
                "",
            ),
        ],
    },
];
