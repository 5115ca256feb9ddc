//! Built variants: from the device build, or from a folder that was carried here.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use fa_kernels::shipped::Resources;
use fa_kernels::variant::Variant;
use serde::{Deserialize, Serialize};

use super::space::Space;
use crate::json;
use crate::session::REVISION;

/// Version of the folder's layout.
const SCHEMA: u32 = 2;

/// The name of the list in the folder.
const INDEX: &str = "index.json";

/// What built the variants, and from what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tools {
    /// SHA-256 over the sources of the kernels.
    pub source_sha256: String,
    /// The device compiler and its LLVM.
    pub compiler: String,
    /// The version of ptxas.
    pub ptxas: String,
}

/// A variant's PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The text, a complete module.
    pub ptx: String,
    /// Its SHA-256.
    pub sha256: String,
    /// ptxas's figures, per architecture.
    pub resources: Vec<Resources>,
}

/// Builds variants. The toolchain is the caller's, so that a machine without one runs what was built
/// elsewhere.
pub trait Builder {
    /// Builds each variant; `done` hears of each. The results are in the order of `variants`, an error for
    /// each that does not compile or that the gates refuse.
    ///
    /// # Errors
    /// When nothing can be built at all.
    fn build(&self, variants: &[Variant], done: &(dyn Fn() + Sync)) -> Result<(Tools, Vec<Result<Module>>)>;
}

/// The built variants of a sweep, by [`Variant::id`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Built {
    pub(crate) space: Space,
    pub(crate) tools: Tools,
    /// The revision of the builder.
    pub(crate) revision: String,
    pub(crate) variants: BTreeMap<String, Result<Module, String>>,
}

/// The list in the folder.
#[derive(Serialize, Deserialize)]
struct Index {
    schema: u32,
    revision: String,
    space: Space,
    tools: Tools,
    variants: BTreeMap<String, IndexRow>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum IndexRow {
    /// The file's name, its hash, and ptxas's figures.
    Built { file: String, sha256: String, resources: Vec<Resources> },
    /// Why there is no file.
    Failed(String),
}

impl Built {
    /// Builds `variants`.
    ///
    /// # Errors
    /// When nothing can be built at all.
    pub(crate) fn build(
        builder: &dyn Builder,
        space: Space,
        variants: &[Variant],
        done: &(dyn Fn() + Sync),
    ) -> Result<Self> {
        let (tools, results) = builder.build(variants, done)?;
        let results = results.into_iter().map(|result| result.map_err(|error| format!("{error:#}")));
        let variants = variants.iter().map(Variant::id).zip(results).collect();
        Ok(Self { space, tools, revision: REVISION.to_owned(), variants })
    }

    /// Writes the folder: a file of PTX for each variant, and the list, which is written last.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn save(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
        let mut variants = BTreeMap::new();
        for (id, result) in &self.variants {
            let row = match result {
                Ok(Module { ptx, sha256, resources }) => {
                    let file = format!("{id}.ptx");
                    let path = folder.join(&file);
                    fs::write(&path, ptx)
                        .with_context(|| format!("{}: cannot be written", path.display()))?;
                    IndexRow::Built { file, sha256: sha256.clone(), resources: resources.clone() }
                }
                Err(reason) => IndexRow::Failed(reason.clone()),
            };
            variants.insert(id.clone(), row);
        }
        let index = Index {
            schema: SCHEMA,
            revision: self.revision.clone(),
            space: self.space.clone(),
            tools: self.tools.clone(),
            variants,
        };
        json::write(&folder.join(INDEX), &index)
    }

    /// Reads a folder that [`Self::save`] wrote.
    ///
    /// # Errors
    /// When it is not such a folder.
    pub(crate) fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(INDEX);
        let text =
            fs::read_to_string(&path).with_context(|| format!("--built {}: no {INDEX}", folder.display()))?;
        let index: Index =
            serde_json::from_str(&text).with_context(|| format!("{} is not a sweep's", path.display()))?;
        if index.schema != SCHEMA {
            bail!("{} has schema {}, and this program reads {SCHEMA}", path.display(), index.schema);
        }
        let mut variants = BTreeMap::new();
        for (id, row) in index.variants {
            let result = match row {
                IndexRow::Failed(reason) => Err(reason),
                IndexRow::Built { file, sha256, resources } => {
                    let path = folder.join(file);
                    let ptx = fs::read_to_string(&path)
                        .with_context(|| format!("{}: cannot be read", path.display()))?;
                    Ok(Module { ptx, sha256, resources })
                }
            };
            variants.insert(id, result);
        }
        Ok(Self { space: index.space, tools: index.tools, revision: index.revision, variants })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture;

    #[test]
    fn a_folder_gives_back_what_was_built_and_what_was_not() {
        let folder = tempfile::tempdir().unwrap();
        let built = fixture::built();
        assert!(built.variants.values().any(Result::is_err), "one variant of the fixture does not build");
        built.save(folder.path()).unwrap();
        assert_eq!(Built::load(folder.path()).unwrap(), built);
    }

    #[test]
    fn a_folder_that_is_none_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let error = format!("{:#}", Built::load(folder.path()).unwrap_err());
        assert!(
            error.starts_with(&format!("--built {}: no index.json: ", folder.path().display())),
            "{error}"
        );
        fixture::built().save(folder.path()).unwrap();
        fs::remove_file(folder.path().join(format!("{}.ptx", fixture::FASTEST))).unwrap();
        assert!(format!("{:#}", Built::load(folder.path()).unwrap_err()).contains(".ptx: cannot be read"));
    }
}
