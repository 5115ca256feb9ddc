//! Kernels with functions of scores that another crate brings along: what its `build.rs` calls.
//!
//! The functions are a file of that crate, compiled twice: natively as a module of it, and here into the
//! kernels. The same compiler and the same gates as for what ships decide whether a kernel may run.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use fa_kernels::config::{Limits, Sm90Config};
use fa_kernels::entries::{Algorithm, variants};
use fa_kernels::variant::{self, Config, Kernel, Storage, Variant};

use crate::parallel;
use crate::spec::EntrySpec;
use crate::toolchain::{self, Toolchain};
use crate::variant::{Cores, Unit};
use crate::workspace::Workspace;

/// Names the folder where a device toolchain is unpacked, where that is not the checkout's own.
pub const TOOLCHAIN: &str = "FA_DEVICE_TOOLCHAIN";

/// A score function and a mask function that kernels are built with.
#[derive(Clone, Copy, Debug)]
pub struct Functions<'a> {
    /// What they are called together, in lower case: the static that [`Self::build`] writes has this name in
    /// upper case.
    pub name: &'a str,
    /// The file that they stand in, from the crate's root on. It may use `core` and `fa_kernels`, and
    /// compiles without `std`.
    pub file: &'a str,
    /// The same file as a module of the crate, as in `crate::functions`.
    pub module: &'a str,
    /// The type in it that is a `ScoreMod`, if there is one.
    pub score_mod: Option<&'a str>,
    /// The type in it that is a `MaskMod`, if there is one.
    pub mask_mod: Option<&'a str>,
    /// Storage types: `f16`, `bf16`.
    pub dtypes: &'a [&'a str],
    /// The head_dims, each of which gets the tiles that hold it.
    pub head_dims: &'a [u32],
}

/// All that a `build.rs` does: builds each of `all`, or ends with what is wrong as errors of cargo.
pub fn build_script(all: &[Functions<'_>]) {
    let mut failed = false;
    for functions in all {
        if let Err(error) = functions.build() {
            failed = true;
            for line in format!("{}: {error:#}", functions.name).lines() {
                println!("cargo::error={line}");
            }
        }
    }
    if failed {
        std::process::exit(1);
    }
}

/// An entry that was built.
struct Built {
    variant: Variant,
    spec: EntrySpec,
    cubin: bool,
}

impl Functions<'_> {
    /// From a `build.rs`: builds the kernels, and writes `$OUT_DIR/<name>.rs`, which declares them as a
    /// static of type `flash_attention::functions::Built`; the crate includes it at its root.
    ///
    /// Where the gates refuse a tile, for functions need registers, one with fewer keys takes its place.
    /// Where they refuse that too it is left out, with a warning of cargo, as long as another of its kernel,
    /// type and head_dim is left.
    ///
    /// # Errors
    /// When an argument is not as said, no device toolchain is found, the functions do not compile, or the
    /// gates refuse all tiles: then with what they have against each.
    pub fn build(&self) -> Result<()> {
        let variable = |name: &str| {
            env::var_os(name).with_context(|| format!("{name} is not set: this is for a build.rs"))
        };
        let (root, out) =
            (PathBuf::from(variable("CARGO_MANIFEST_DIR")?), PathBuf::from(variable("OUT_DIR")?));
        let file = root.join(self.file);
        println!("cargo::rerun-if-changed={}", file.display());
        println!("cargo::rerun-if-env-changed={TOOLCHAIN}");
        let workspace = Workspace::of_builder();
        println!("cargo::rerun-if-changed={}", workspace.kernel_sources().display());
        let refused = self.build_in(&workspace, &file, &out)?;
        refused.iter().for_each(|line| println!("cargo::warning={line}"));
        Ok(())
    }

    /// [`Self::build`] of the functions in `file`, into `out`; gives what the gates refused.
    ///
    /// # Errors
    /// As [`Self::build`].
    pub fn build_in(&self, workspace: &Workspace, file: &Path, out: &Path) -> Result<Vec<String>> {
        self.check(file)?;
        // The compiler runs with paths of its own.
        let absolute = |path: &Path| {
            std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))
        };
        let (file, out) = (&absolute(file)?, &absolute(out)?);
        let wanted = self.variants()?;
        let toolchain = toolchain::search(&workspace.device())?.choose(None)?;
        let _lock = workspace.lock_device()?;
        let cores = Cores::of(workspace, &toolchain, &wanted)?;
        let built = parallel::map(&wanted, |variant| {
            self.build_widest(*variant, |variant| {
                self.build_one(workspace, &toolchain, &cores, variant, file, out)
            })
        })?;
        let (built, refused) = self.sorted(&wanted, built)?;
        let path = out.join(format!("{}.rs", self.name));
        fs::write(&path, self.text(&built)).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(refused)
    }

    fn check(&self, file: &Path) -> Result<()> {
        let mut characters = self.name.chars();
        let starts = characters.next().is_some_and(|first| first.is_ascii_lowercase());
        if !starts || !characters.all(|c| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit()) {
            bail!("name: `{}` is no name of lower-case letters, digits and underscores", self.name);
        }
        if self.score_mod.is_none() && self.mask_mod.is_none() {
            bail!("{}: neither a score_mod nor a mask_mod is named", self.name);
        }
        if !file.is_file() {
            bail!("file: there is no {}", file.display());
        }
        Ok(())
    }

    /// The tiles to build: those of entries that change scores, of the smallest HEAD_DIM that holds each
    /// head_dim.
    fn variants(&self) -> Result<Vec<Variant>> {
        let mut wanted: Vec<Variant> = Vec::new();
        for &dtype in self.dtypes {
            let storage = Storage::named(dtype).filter(|of| matches!(of, Storage::F16 | Storage::Bf16));
            let Some(storage) = storage else { bail!("dtypes: `{dtype}` is none of f16, bf16") };
            for &head_dim in self.head_dims {
                for algorithm in [Algorithm::ForwardSm90Modified, Algorithm::ForwardSm80Modified] {
                    let all = || {
                        let modified = variants().filter_map(Variant::modified);
                        modified.filter(move |of| {
                            of.kernel == Kernel::Attention(algorithm) && of.dtype == storage
                        })
                    };
                    let holds = |of: &Variant| of.tile().head_dim >= head_dim;
                    let Some(columns) = all().filter(holds).map(|of| of.tile().head_dim).min() else {
                        let limit = all().map(|of| of.tile().head_dim).max().unwrap_or(0);
                        bail!("head_dims: {head_dim} is above {limit}");
                    };
                    wanted.extend(all().filter(|of| of.tile().head_dim == columns));
                }
            }
        }
        let mut distinct = Vec::new();
        wanted.into_iter().for_each(|of| {
            if !distinct.contains(&of) {
                distinct.push(of)
            }
        });
        if distinct.is_empty() {
            bail!("{}: no dtypes or no head_dims are named", self.name);
        }
        Ok(distinct)
    }

    /// How the kernel and its source call the functions.
    fn paths<'p>(&'p self, score_mod: &'p str, mask_mod: &'p str) -> variant::Functions<'p> {
        variant::Functions { name: self.name, score_mod, mask_mod }
    }

    /// The tile, or the one with the most keys below it that can be built: functions need registers.
    fn build_widest(&self, variant: Variant, build: impl Fn(&Variant) -> Result<Built>) -> Result<Built> {
        let refused = match build(&variant) {
            Ok(built) => return Ok(built),
            Err(error) => error,
        };
        let narrower = std::iter::successors(narrower(&variant), narrower).take(NARROWER);
        narrower.map(|variant| build(&variant)).find_map(Result::ok).ok_or(refused)
    }

    fn build_one(
        &self,
        workspace: &Workspace,
        toolchain: &Toolchain,
        cores: &Cores,
        variant: &Variant,
        file: &Path,
        out: &Path,
    ) -> Result<Built> {
        let path = |name: Option<&str>| name.map_or(UNCHANGED.to_owned(), |name| format!("own::{name}"));
        let (score_mod, mask_mod) = (path(self.score_mod), path(self.mask_mod));
        let functions = self.paths(&score_mod, &mask_mod);
        let spec = EntrySpec {
            name: variant.name_with(&functions),
            barriers: variant.barriers_with(self.mask_mod.is_some()),
            shared_bytes: variant.shared_bytes_with(self.mask_mod.is_some()),
            ..EntrySpec::from(variant)
        };
        let limit = Limits::of(90).shared_per_block;
        if matches!(variant.config, Config::Sm90(_)) && spec.shared_bytes > limit {
            bail!("{}: {} bytes of shared memory; a block has {limit}", spec.name, spec.shared_bytes);
        }
        let source = format!(
            "#[path = {:?}]\nmod own;\n{}",
            file.display().to_string(),
            variant.source_with(&functions)
        );
        let folder = out.join(&spec.name);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let unit = Unit { spec: &spec, source: &source, folder: &folder };
        let (ptx, assembled) = unit.build(workspace, toolchain, cores.core(variant.kernel.target()))?;
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
        };
        write("entry.ptx", ptx.as_bytes())?;
        let cubin = assembled.into_iter().find_map(|one| one.cubin);
        if let Some(cubin) = &cubin {
            write("entry.cubin", cubin)?;
        }
        Ok(Built { variant: *variant, spec, cubin: cubin.is_some() })
    }

    /// What was built, and what was refused where something was built in its place.
    fn sorted(&self, wanted: &[Variant], built: Vec<Result<Built>>) -> Result<(Vec<Built>, Vec<String>)> {
        let key = |of: &Variant| (of.kernel.stem(), of.dtype.name(), of.tile().head_dim);
        let mut groups: BTreeMap<_, (Vec<Built>, Vec<String>)> = BTreeMap::new();
        for (variant, built) in wanted.iter().zip(built) {
            let (done, refused) = groups.entry(key(variant)).or_default();
            match built {
                Ok(built) => done.push(built),
                Err(error) => refused.push(format!("{}: {}: {error:#}", self.name, variant.name())),
            }
        }
        if let Some((_, (_, refused))) = groups.iter().find(|(_, (done, _))| done.is_empty()) {
            bail!("no tile can be built:\n  {}", refused.join("\n  "));
        }
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        for (_, (of_group, refused_of_group)) in groups {
            done.extend(of_group);
            refused.extend(refused_of_group);
        }
        Ok((done, refused))
    }

    /// The static, as the crate includes it.
    fn text(&self, built: &[Built]) -> String {
        let path = |name: Option<&str>| {
            name.map_or(format!("::{UNCHANGED}"), |name| format!("{}::{name}", self.module))
        };
        let (score_mod, mask_mod) = (path(self.score_mod), path(self.mask_mod));
        let functions = self.paths(&score_mod, &mask_mod);
        let mut entries = String::new();
        for Built { variant, spec, cubin } in built {
            let tile = variant.tile();
            let Kernel::Attention(algorithm) = variant.kernel else { continue };
            let file = |name: &str| format!("concat!(env!(\"OUT_DIR\"), \"/{}/{name}\")", spec.name);
            let cubin =
                if *cubin { format!("Some(include_bytes!({}))", file("entry.cubin")) } else { "None".into() };
            // Writing to a string cannot fail.
            let _ = write!(
                entries,
                "        ::fa_kernels::entries::Entry {{\n            \
                 name: {:?},\n            algorithm: ::fa_kernels::entries::Algorithm::{algorithm:?},\n            \
                 dtype: {:?},\n            tile: ::fa_kernels::entries::{tile:?},\n            \
                 target: ::fa_kernels::entries::Target::{:?},\n            threads: {},\n            \
                 min_blocks: {},\n            shared_bytes: {},\n            barriers: {},\n            \
                 begins_early: {},\n            run: ::flash_attention::functions::native!({}),\n            \
                 image: Some(::fa_kernels::entries::Image {{ ptx: include_str!({}), cubin: {cubin} }}),\n        }},\n",
                spec.name,
                spec.dtype,
                variant.kernel.target(),
                spec.threads,
                spec.min_blocks,
                spec.shared_bytes,
                spec.barriers,
                spec.begins_early,
                variant.native_with(&functions, "::fa_kernels"),
                file("entry.ptx"),
            );
        }
        format!(
            "/// Kernels with {}, written by its `build.rs`.\n\
             pub static {}: ::flash_attention::functions::Built = ::flash_attention::functions::Built {{\n    \
             name: {:?},\n    functions: ::flash_attention::functions::Native::of::<{score_mod}, {mask_mod}>(),\n    \
             entries: &[\n{entries}    ],\n}};\n",
            describe(self.score_mod, self.mask_mod),
            self.name.to_uppercase(),
            self.name,
        )
    }
}

/// How many narrower tiles are tried.
const NARROWER: usize = 3;

/// The tile with the next smaller number of keys; `None` of a kernel whose tiles have the number listed.
fn narrower(variant: &Variant) -> Option<Variant> {
    let Config::Sm90(config) = variant.config else { return None };
    let config = Sm90Config { block_n: config.block_n.checked_sub(16)?, ..config };
    let variant = Variant { config: Config::Sm90(config), ..*variant };
    variant.check(&Limits::of(90)).is_ok().then_some(variant)
}

/// No function, by its path.
const UNCHANGED: &str = "fa_kernels::functions::Unchanged";

fn describe(score_mod: Option<&str>, mask_mod: Option<&str>) -> String {
    let names: Vec<String> =
        [score_mod, mask_mod].into_iter().flatten().map(|name| format!("`{name}`")).collect();
    names.join(" and ")
}

#[cfg(test)]
#[path = "functions_tests.rs"]
mod tests;
