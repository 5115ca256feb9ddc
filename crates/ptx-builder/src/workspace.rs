//! Where things stand in a checkout.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A checkout of the repository.
#[derive(Clone, Debug)]
pub struct Workspace {
    root: PathBuf,
    /// Where device toolchains are, if not in the checkout.
    device: Option<PathBuf>,
}

impl Workspace {
    /// The checkout at `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), device: None }
    }

    /// The checkout that this builder was compiled from, with the toolchain that the environment names.
    pub(crate) fn of_builder() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
        let device = std::env::var_os(crate::functions::TOOLCHAIN).map(PathBuf::from);
        Self { root: root.unwrap_or(Path::new(".")).to_owned(), device }
    }

    /// Its root folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The sources of the kernels.
    pub fn kernel_sources(&self) -> PathBuf {
        self.root.join("crates/kernels/src")
    }

    /// The built kernels, which are committed.
    pub fn shipped(&self) -> PathBuf {
        self.root.join("crates/kernels/ptx")
    }

    /// Where a device toolchain is unpacked and device builds leave their files. It stands in the
    /// checkout even when cargo builds elsewhere, so that it is fetched once.
    pub fn device(&self) -> PathBuf {
        self.device.clone().unwrap_or_else(|| self.root.join("target/device-toolchain"))
    }

    /// Where variants that a sweep built are kept.
    pub fn sweep(&self) -> PathBuf {
        self.root.join("target/sweep")
    }

    /// Holds [`Self::device`] for this process until the returned file is dropped.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn lock_device(&self) -> Result<File> {
        let folder = self.device();
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let path = folder.join("lock");
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(file)
    }
}
