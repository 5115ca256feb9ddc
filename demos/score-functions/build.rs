//! Compiles the functions into kernels.

use fa_ptx_builder::functions::{Functions, build_script};

fn main() {
    let functions = Functions {
        name: "",
        file: "src/functions.rs",
        module: "crate::functions",
        score_mod: None,
        mask_mod: None,
        dtypes: &["bf16"],
        head_dims: &[64, 128],
    };
    build_script(&[
        Functions {
            name: "bias_in_documents",
            score_mod: Some("RelativeBias"),
            mask_mod: Some("Documents"),
            ..functions
        },
        Functions { name: "documents", mask_mod: Some("Documents"), ..functions },
        Functions { name: "strided", mask_mod: Some("Strided"), ..functions },
        Functions { name: "shift", score_mod: Some("Shift"), ..functions },
    ]);
}
