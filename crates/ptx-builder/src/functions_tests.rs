#![allow(clippy::unwrap_used)]

use super::*;

const FUNCTIONS: Functions<'static> = Functions {
    name: "documents",
    file: "src/functions.rs",
    module: "crate::functions",
    score_mod: None,
    mask_mod: Some("Documents"),
    dtypes: &["f16"],
    head_dims: &[64],
};

/// The file that is compiled does not matter where nothing is.
fn refused(functions: &Functions<'_>, file: &Path) -> String {
    let error = functions.check(file).and_then(|()| functions.variants().map(drop)).unwrap_err();
    error.to_string()
}

#[test]
fn each_refusal_names_argument_value_and_limit() {
    let here = Path::new(file!())
        .file_name()
        .map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name));
    let here = here.unwrap();
    FUNCTIONS.check(&here).unwrap();
    for name in ["", "Documents", "2d", "a-b"] {
        assert_eq!(
            refused(&Functions { name, ..FUNCTIONS }, &here),
            format!("name: `{name}` is no name of lower-case letters, digits and underscores")
        );
    }
    assert_eq!(
        refused(&Functions { mask_mod: None, ..FUNCTIONS }, &here),
        "documents: neither a score_mod nor a mask_mod is named"
    );
    assert_eq!(refused(&FUNCTIONS, Path::new("/none.rs")), "file: there is no /none.rs");
    assert_eq!(
        refused(&Functions { dtypes: &["e4m3"], ..FUNCTIONS }, &here),
        "dtypes: `e4m3` is none of f16, bf16"
    );
    assert_eq!(refused(&Functions { head_dims: &[257], ..FUNCTIONS }, &here), "head_dims: 257 is above 256");
    assert_eq!(
        refused(&Functions { head_dims: &[], ..FUNCTIONS }, &here),
        "documents: no dtypes or no head_dims are named"
    );
}

#[test]
fn a_head_dim_gets_the_tiles_that_hold_it_once() {
    let names = |head_dims| -> Vec<String> {
        let functions = Functions { head_dims, ..FUNCTIONS };
        functions.variants().unwrap().iter().map(Variant::name).collect()
    };
    let of_64 = names(&[64]);
    assert!(of_64.iter().any(|name| name.starts_with("forward_sm90_f16_m192")), "{of_64:?}");
    assert!(of_64.iter().any(|name| name.starts_with("forward_sm80_f16")), "{of_64:?}");
    assert!(of_64.iter().all(|name| name.contains("_d64")), "{of_64:?}");
    assert_eq!(names(&[33, 64, 50]), of_64);
}

/// A tile that is refused gives way to narrower ones, which have a name and shared memory of their own.
#[test]
fn what_spills_gets_fewer_keys() {
    let variants = FUNCTIONS.variants().unwrap();
    let hopper = variants.iter().find(|variant| variant.name().contains("m192_n128_d64")).unwrap();
    let spill = || anyhow::anyhow!("it spills");
    let built = |below: u32| {
        FUNCTIONS.build_widest(*hopper, |variant| {
            let spec = EntrySpec::from(variant);
            if variant.tile().block_n < below {
                Ok(Built { variant: *variant, spec, cubin: false })
            } else {
                Err(spill())
            }
        })
    };
    assert_eq!(built(128).unwrap().spec.name, "forward_sm90_f16_m192_n112_d64");
    assert_eq!(built(90).unwrap().spec.name, "forward_sm90_f16_m192_n80_d64");
    assert_eq!(built(80).err().unwrap().to_string(), "it spills");
    // The other kernel's tiles are as they are listed.
    let other = variants.iter().find(|variant| variant.name().contains("sm80")).unwrap();
    assert!(narrower(other).is_none());
}

#[test]
fn a_group_without_a_tile_is_an_error_and_else_a_warning() {
    let variants = FUNCTIONS.variants().unwrap();
    let built = |refuses: fn(&Variant) -> bool| {
        let one = |variant: &Variant| {
            let spec = EntrySpec::from(variant);
            if refuses(variant) {
                bail!("it spills")
            }
            Ok(Built { variant: *variant, spec, cubin: false })
        };
        FUNCTIONS.sorted(&variants, variants.iter().map(one).collect())
    };
    let (done, refused) = built(|variant| variant.name().contains("n128")).unwrap();
    assert_eq!(done.len() + refused.len(), variants.len());
    assert_eq!(refused, ["documents: forward_sm90_f16_m192_n128_d64: it spills"]);
    let error = built(|variant| variant.name().contains("sm80")).err().unwrap().to_string();
    assert!(error.starts_with("no tile can be built:\n  documents: forward_sm80_f16"), "{error}");
}

#[test]
fn the_static_names_what_was_built() {
    let variant = FUNCTIONS.variants().unwrap()[0];
    let spec = EntrySpec { name: "an_entry".to_owned(), ..EntrySpec::from(&variant) };
    let text = FUNCTIONS.text(&[Built { variant, spec, cubin: true }]);
    for part in [
        "pub static DOCUMENTS: ::flash_attention::functions::Built",
        "Native::of::<::fa_kernels::functions::Unchanged, crate::functions::Documents>()",
        "name: \"an_entry\"",
        "algorithm: ::fa_kernels::entries::Algorithm::ForwardSm90Modified",
        "include_bytes!(concat!(env!(\"OUT_DIR\"), \"/an_entry/entry.cubin\"))",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}
