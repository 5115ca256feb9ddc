//! What cargo says of the workspace's packages.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fa_ptx_builder::Workspace;
use serde::Deserialize;

/// The packages of a workspace.
#[derive(Deserialize)]
pub(super) struct Metadata {
    packages: Vec<Package>,
    pub(super) target_directory: PathBuf,
}

#[derive(Clone, Deserialize)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    /// Registries that it may go to: none of them if the list is empty, any if there is no list.
    publish: Option<Vec<String>>,
    dependencies: Vec<Dependency>,
    metadata: Option<serde_json::Value>,
}

#[derive(Clone, Deserialize)]
struct Dependency {
    name: String,
    req: String,
    /// `dev` or `build`; none of an ordinary one.
    kind: Option<String>,
    /// Of packages of the checkout.
    path: Option<PathBuf>,
}

impl Metadata {
    /// Of the workspace in a folder of the checkout.
    pub(super) fn read(workspace: &Workspace, folder: &str) -> Result<Self> {
        let manifest = Path::new(folder).join("Cargo.toml");
        let manifest = manifest.to_string_lossy();
        let arguments = ["metadata", "--no-deps", "--format-version", "1", "--manifest-path", &manifest];
        let json = super::output(workspace, &mut super::cargo(workspace, &arguments))?;
        serde_json::from_str(&json).with_context(|| format!("what cargo says of {manifest} is damaged"))
    }

    /// The version that all packages should have.
    pub(super) fn version(&self) -> &str {
        self.packages.first().map_or("", |package| &package.version)
    }

    /// What has another version, or asks for one of a package of the checkout; a phrase each.
    pub(super) fn other_versions(&self, version: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        for package in &self.packages {
            if package.version != version {
                wrong.push(format!("{} is {}, not {version}", package.name, package.version));
            }
            // Without a version cargo leaves a dependency of tests out of the package.
            let own = package.dependencies.iter().filter(|other| other.path.is_some() && other.req != "*");
            for other in own.filter(|other| other.req != format!("^{version}")) {
                wrong.push(format!("{} asks for {} {}, not {version}", package.name, other.name, other.req));
            }
        }
        wrong
    }

    /// The packages that go to the registry, those first that others depend on.
    pub(super) fn published(&self) -> Vec<&Package> {
        let mut left: Vec<&Package> = self.packages.iter().filter(|package| package.is_published()).collect();
        let mut ordered: Vec<&Package> = Vec::with_capacity(left.len());
        while !left.is_empty() {
            let is_ready = |package: &&Package| !left.iter().any(|other| package.depends_on(other));
            // Cargo allows no circle; if there were one, the rest would come as it is.
            let (ready, rest): (Vec<_>, Vec<_>) = left.iter().copied().partition(is_ready);
            ordered.extend(if ready.is_empty() { &rest } else { &ready });
            left = if ready.is_empty() { Vec::new() } else { rest };
        }
        ordered
    }
}

impl Package {
    fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }

    fn depends_on(&self, other: &Self) -> bool {
        let ordinary =
            self.dependencies.iter().filter(|dependency| dependency.kind.as_deref() != Some("dev"));
        ordinary.into_iter().any(|dependency| dependency.name == other.name)
    }

    /// The features that docs.rs builds it with, beside the default ones.
    pub(super) fn documented_features(&self) -> Vec<&str> {
        let features =
            self.metadata.as_ref().and_then(|metadata| metadata["docs"]["rs"]["features"].as_array());
        features.into_iter().flatten().filter_map(|feature| feature.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"target_directory": "/t", "packages": [
        {"name": "a", "version": "0.2.0", "publish": null,
         "metadata": {"docs": {"rs": {"features": ["x", "y"]}}},
         "dependencies": [{"name": "b", "req": "^0.2.0", "kind": null, "path": "/b"},
                          {"name": "a", "req": "*", "kind": "dev", "path": "/a"},
                          {"name": "serde", "req": "^1.0", "kind": null}]},
        {"name": "tool", "version": "0.2.0", "publish": [], "metadata": null,
         "dependencies": [{"name": "a", "req": "^0.1.0", "kind": null, "path": "/a"}]},
        {"name": "b", "version": "0.2.0", "publish": null, "metadata": null,
         "dependencies": [{"name": "a", "req": "*", "kind": "dev", "path": "/a"}]}]}"#;

    fn metadata() -> Metadata {
        serde_json::from_str(JSON).unwrap()
    }

    #[test]
    fn dependencies_are_published_first_and_tools_never() {
        let metadata = metadata();
        let names: Vec<&str> = metadata.published().iter().map(|package| &*package.name).collect();
        assert_eq!(names, ["b", "a"]);
    }

    #[test]
    fn each_other_version_is_named() {
        assert_eq!(metadata().other_versions("0.2.0"), ["tool asks for a ^0.1.0, not 0.2.0"]);
        let mut metadata = metadata();
        metadata.packages[2].version = "0.1.0".to_owned();
        assert_eq!(metadata.other_versions("0.2.0").last().unwrap(), "b is 0.1.0, not 0.2.0");
    }

    #[test]
    fn features_are_those_of_docs_rs() {
        let metadata = metadata();
        assert_eq!(metadata.packages[0].documented_features(), ["x", "y"]);
        assert!(metadata.packages[2].documented_features().is_empty());
    }
}
