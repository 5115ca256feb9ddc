//! Rust source of entry points: what `entries/generated/` holds, and what a sweep builds.
//!
//! On the device an entry is a function of its own, on the host a line of a table of native functions.

extern crate alloc;

use alloc::collections::BTreeSet;
use alloc::{format, string::String, vec::Vec};

use super::{Config, Kernel, Storage, Variant};
use crate::attention::forward_sm90;
use crate::entries::{Algorithm, GemmAlgorithm, variants};

/// A file below `entries/generated/`, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// Its name, as in `forward_sm80.rs`.
    pub file: String,
    /// What it holds.
    pub text: String,
}

/// The files of all lists: one for each family, since the compiler builds the modules of a crate beside each
/// other.
pub fn generated() -> Vec<Generated> {
    let mut families: Vec<&str> = Vec::new();
    for variant in variants() {
        let family = variant.kernel.family();
        if !families.contains(&family) {
            families.push(family);
        }
    }
    families
        .into_iter()
        .map(|family| Generated { file: format!("{family}.rs"), text: text(family) })
        .collect()
}

fn text(family: &str) -> String {
    let listed: Vec<Variant> = variants().filter(|variant| variant.kernel.family() == family).collect();
    let native: String = listed.iter().map(Variant::native).collect();
    let imports = imports(&listed, Variant::native_imports);
    format!(
        "// Written by `cargo xtask kernels` from the lists of entries.\n\n\
         #[cfg(target_arch = \"nvptx64\")]\nmod device {{\n{}}}\n\n\
         #[cfg(all(feature = \"sim\", not(any(target_arch = \"nvptx64\", test))))]\n\
         pub(in crate::entries) mod native {{\n{}\n    pub(in crate::entries) const RUN: &[(&str, Run)] = &[\n{}    ];\n}}\n",
        indented(&device(&listed)),
        indented(&imports),
        indented(&indented(&native)),
    )
}

/// The entry points of `variants`, with what they import.
fn device(variants: &[Variant]) -> String {
    let entries: Vec<String> = variants.iter().map(Variant::device).collect();
    format!("{}\n{}", imports(variants, Variant::device_imports), entries.join("\n"))
}

fn indented(text: &str) -> String {
    let line = |line: &str| if line.is_empty() { String::from("\n") } else { format!("    {line}\n") };
    text.lines().map(line).collect()
}

fn imports(variants: &[Variant], of: impl Fn(&Variant) -> Vec<&'static str>) -> String {
    let paths: BTreeSet<&str> = variants.iter().flat_map(of).collect();
    paths.into_iter().map(|path| format!("use crate::{path};\n")).collect()
}

/// How an entry takes its parameters.
struct Signature {
    /// The type of the parameters.
    params: &'static str,
    /// That of the tensor maps in front of them, and what to import for it.
    maps: Option<(&'static str, &'static str)>,
    /// The variant of [`Run`](crate::entries::Run).
    run: &'static str,
}

const fn signature(params: &'static str, run: &'static str) -> Signature {
    Signature { params, maps: None, run }
}

/// The types that a kernel with functions of scores is compiled with, as paths of Rust.
#[derive(Clone, Copy, Debug)]
pub struct Functions<'a> {
    /// What the names of entries end with.
    pub name: &'a str,
    /// A [`ScoreMod`](crate::functions::ScoreMod).
    pub score_mod: &'a str,
    /// A [`MaskMod`](crate::functions::MaskMod).
    pub mask_mod: &'a str,
}

impl Variant {
    /// The same tile with functions of a program's own in place of softcap and ALiBi; `None` of a kernel that
    /// takes none.
    #[must_use]
    pub fn modified(self) -> Option<Self> {
        let algorithm = match self.kernel {
            Kernel::Attention(Algorithm::ForwardSm80ScoreMod) => Algorithm::ForwardSm80Modified,
            Kernel::Attention(Algorithm::ForwardSm90ScoreMod) => Algorithm::ForwardSm90Modified,
            _ => return None,
        };
        let is_narrow = matches!(self.dtype, Storage::F16 | Storage::Bf16);
        is_narrow.then_some(Self { kernel: Kernel::Attention(algorithm), ..self })
    }

    /// [`Self::name`] of a [modified](Self::modified) one.
    pub fn name_with(&self, functions: &Functions<'_>) -> String {
        format!("{}_{}", self.name(), functions.name)
    }

    /// [`Self::barriers`] of a [modified](Self::modified) one.
    pub const fn barriers_with(&self, has_mask_mod: bool) -> u32 {
        match self.config {
            Config::Sm90(config) if has_mask_mod => forward_sm90::masked_barriers(config),
            _ => self.barriers(),
        }
    }

    /// Bytes of shared memory of a [modified](Self::modified) one.
    pub const fn shared_bytes_with(&self, has_mask_mod: bool) -> u32 {
        match self.config {
            Config::Sm90(config) if has_mask_mod => forward_sm90::masked_shared_bytes(config),
            config => config.shared_needed() as u32,
        }
    }

    /// [`Self::source`] of a [modified](Self::modified) one.
    pub fn source_with(&self, functions: &Functions<'_>) -> String {
        let (name, path) = (self.name_with(functions), self.path_with(functions));
        format!("{}\n{}", imports(&[*self], Self::device_imports), self.device_of(&name, &path))
    }

    /// The native code of a [modified](Self::modified) one, as an expression of Rust where this crate is
    /// called `root`.
    pub fn native_with(&self, functions: &Functions<'_>, root: &str) -> String {
        let imports: String =
            self.kernel_imports().into_iter().map(|path| format!("use {root}::{path}; ")).collect();
        format!(
            "{{ {imports}{root}::entries::Run::{}({}) }}",
            self.signature().run,
            self.path_with(functions)
        )
    }

    /// [`Self::path`] of a [modified](Self::modified) one.
    fn path_with(&self, functions: &Functions<'_>) -> String {
        let Functions { score_mod, mask_mod, .. } = functions;
        let path = self.path();
        let (kernel, tile) = path.split_once("::<").unwrap_or((&path, ""));
        let module = kernel.split_once("::").map_or(kernel, |(module, _)| module);
        let tile = tile.strip_suffix('>').unwrap_or(tile);
        format!("{kernel}::<{module}::Modified<{tile}, {score_mod}, {mask_mod}>>")
    }

    /// The entry point of this variant alone, as a device build takes it in place of the lists.
    pub fn source(&self) -> String {
        device(&[*self])
    }

    fn signature(&self) -> Signature {
        match self.kernel {
            Kernel::Attention(algorithm) => match algorithm {
                _ if algorithm.is_persistent() => Signature {
                    params: "PersistentParams",
                    maps: Some(("AttentionMaps", "params::AttentionMaps")),
                    run: "Persistent",
                },
                Algorithm::Decode | Algorithm::DecodeCombine | Algorithm::DecodeCombineSm90 => {
                    signature("DecodeParams", "Decode")
                }
                Algorithm::Merge => signature("MergeParams", "Merge"),
                Algorithm::DecodeSm90
                | Algorithm::DecodeSm90AddsUp
                | Algorithm::DecodeSm90E4m3
                | Algorithm::DecodeSm90E4m3AddsUp
                | Algorithm::MlaSm90 => Signature {
                    params: "DecodeParams",
                    maps: Some(("[TensorMap; 2]", "ptx::tma::TensorMap")),
                    run: "MappedDecode",
                },
                Algorithm::Append => signature("AppendParams", "Append"),
                Algorithm::Pack | Algorithm::Transpose => signature("PackParams", "Pack"),
                Algorithm::Widen => signature("WidenParams", "Widen"),
                Algorithm::TileSchedule => signature("ScheduleParams", "Schedule"),
                Algorithm::BackwardDelta
                | Algorithm::BackwardSinks
                | Algorithm::BackwardKeys
                | Algorithm::BackwardQueries
                | Algorithm::BackwardKeysDropout
                | Algorithm::BackwardQueriesDropout
                | Algorithm::BackwardKeysSm80
                | Algorithm::BackwardQueriesSm80
                | Algorithm::BackwardKeysDsSm80
                | Algorithm::BackwardDqSm80
                | Algorithm::BackwardKeysSm80ScoreMod
                | Algorithm::BackwardQueriesSm80ScoreMod => signature("BackwardParams", "Backward"),
                Algorithm::BackwardKeysSm90
                | Algorithm::BackwardKeysDsSm90
                | Algorithm::BackwardKeysDqSm90
                | Algorithm::BackwardKeysDqSm90ScoreMod
                | Algorithm::BackwardKeysDsSm90ScoreMod
                | Algorithm::BackwardQueriesSm90 => Signature {
                    params: "BackwardParams",
                    maps: Some(("[TensorMap; 5]", "ptx::tma::TensorMap")),
                    run: "MappedBackward",
                },
                _ => signature("AttentionParams", "Attention"),
            },
            Kernel::Gemm(GemmAlgorithm::GemmSm90) => Signature {
                params: "GemmParams",
                maps: Some(("[TensorMap; 3]", "ptx::tma::TensorMap")),
                run: "MappedGemm",
            },
            Kernel::Gemm(_) => signature("GemmParams", "Gemm"),
        }
    }

    /// The entry point on the device. One that takes tensor maps, which stand in front of its parameters,
    /// gets their address too.
    fn device(&self) -> String {
        self.device_of(&self.name(), &self.path())
    }

    /// [`Self::device`] under a name, of a kernel with its parameters.
    fn device_of(&self, name: &str, kernel: &str) -> String {
        let Signature { params, maps, .. } = self.signature();
        let Some((maps, _)) = maps else {
            return format!(
                "#[unsafe(export_name = \"{name}\")]\n\
                 unsafe extern \"ptx-kernel\" fn {name}(params: {params}) {{\n    \
                 // SAFETY: the host launches an entry as its row of the list says.\n    \
                 unsafe {{ {kernel}(&params) }}\n}}\n"
            );
        };
        format!(
            "#[unsafe(export_name = \"{name}\")]\n\
             unsafe extern \"ptx-kernel\" fn {name}(mapped: Mapped<{maps}, {params}>) {{\n    \
             let maps = parameter_address!(\"{name}\");\n    \
             // SAFETY: the host launches an entry as its row of the list says.\n    \
             unsafe {{ {kernel}(&mapped.params, maps) }}\n}}\n"
        )
    }

    /// The line of the table on the host.
    fn native(&self) -> String {
        format!("(\"{}\", Run::{}({})),\n", self.name(), self.signature().run, self.path())
    }

    fn device_imports(&self) -> Vec<&'static str> {
        let mut imports = self.kernel_imports();
        let Signature { params, maps, .. } = self.signature();
        imports.push(match params {
            "PersistentParams" => "params::PersistentParams",
            "DecodeParams" => "params::DecodeParams",
            "AppendParams" => "params::AppendParams",
            "MergeParams" => "params::MergeParams",
            "PackParams" => "params::PackParams",
            "WidenParams" => "params::WidenParams",
            "ScheduleParams" => "params::ScheduleParams",
            "BackwardParams" => "params::BackwardParams",
            "GemmParams" => "params::GemmParams",
            _ => "params::AttentionParams",
        });
        if let Some((_, maps)) = maps {
            imports.extend([maps, "params::Mapped", "ptx::tma::parameter_address"]);
        }
        imports
    }

    fn native_imports(&self) -> Vec<&'static str> {
        let mut imports = self.kernel_imports();
        imports.push("entries::Run");
        imports
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_committed_entry_points_are_those_of_the_lists() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/entries/generated");
        let expected = generated();
        for Generated { file, text } in &expected {
            let committed = fs::read_to_string(folder.join(file)).unwrap_or_default();
            assert!(committed == *text, "{file} is not what the lists give: run `cargo xtask kernels`");
        }
        let files = fs::read_dir(&folder).expect("the folder is there");
        assert_eq!(
            files.count(),
            expected.len(),
            "a file of a family that is gone is in {}",
            folder.display()
        );
    }

    #[test]
    fn names_tell_all_entries_apart() {
        let names: BTreeSet<String> = variants().map(|variant| variant.name()).collect();
        assert_eq!(names.len(), variants().count());
    }

    #[test]
    fn a_variant_is_an_entry_point_of_its_own() {
        let variant = variants().find(|variant| variant.name() == "decode_f16_m16_d64_w4_s5");
        let source = variant.expect("it is listed").source();
        assert_eq!(
            source,
            "use crate::attention::decode;\nuse crate::element::F16;\nuse crate::params::DecodeParams;\n\n\
             #[unsafe(export_name = \"decode_f16_m16_d64_w4_s5\")]\n\
             unsafe extern \"ptx-kernel\" fn decode_f16_m16_d64_w4_s5(params: DecodeParams) {\n    \
             // SAFETY: the host launches an entry as its row of the list says.\n    \
             unsafe { decode::decode::<decode::DecodeTile<F16, 2, 64, 4, 4>>(&params) }\n}\n"
        );
    }
}
