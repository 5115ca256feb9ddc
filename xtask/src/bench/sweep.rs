//! `cargo xtask bench sweep`: the device build for the sweep of `fa-bench`.

use anyhow::Result;
use fa_bench::sweep::{Args, Builder, Module, Tools};
use fa_kernels::variant::Variant;
use fa_ptx_builder::{Workspace, archive, source, toolchain, variant};

pub(super) fn run(args: &Args, workspace: &Workspace) -> Result<bool> {
    fa_bench::sweep::run(args, &DeviceBuild(workspace), &super::results(workspace))
}

/// Builds with the toolchain that `cargo xtask kernels` would use.
struct DeviceBuild<'a>(&'a Workspace);

impl Builder for DeviceBuild<'_> {
    fn build(&self, variants: &[Variant], done: &(dyn Fn() + Sync)) -> Result<(Tools, Vec<Result<Module>>)> {
        let Self(workspace) = self;
        let manifest = archive::read_manifest(&workspace.shipped()).ok();
        let chosen = toolchain::search(&workspace.device())?.choose(manifest.as_ref())?;
        let results = variant::build(workspace, &chosen, variants, done)?;
        let modules = results.into_iter().map(|result| {
            let built = result?;
            let sha256 = source::hash_bytes(built.ptx.as_bytes());
            Ok(Module { ptx: built.ptx, sha256, resources: built.resources })
        });
        let tools = Tools {
            source_sha256: source::hash(&workspace.kernel_sources())?,
            compiler: chosen.compiler.version,
            ptxas: chosen.ptxas.version,
        };
        Ok((tools, modules.collect()))
    }
}
