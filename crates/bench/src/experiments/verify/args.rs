//! What `verify` is asked for.

use flash_attention::gemm::GemmKernel;
use flash_attention::{BackendKind, Kernel};

use crate::args::{BackendArgs, ReportArgs, at_least_one, named};

/// Arguments of `verify`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Thread orders in which the simulator runs each case; the first 8 differ in kind, the rest by chance
    #[arg(long, default_value_t = 8, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) schedules: u64,
    /// Times that each case is run, with the same bits each time [default: 3; sim: 1]
    #[arg(long, value_name = "COUNT", value_parser = at_least_one)]
    repeats: Option<usize>,
    /// The only kernel to verify
    #[arg(long, value_parser = named(&AnyKernel::ALL, AnyKernel::name))]
    pub(super) kernel: Option<AnyKernel>,
    /// Only entries with this text in their name
    #[arg(long, value_name = "TEXT")]
    pub(super) entry: Option<String>,
    /// Only the simulator's small cases, on any backend: for tools under which a kernel is slow
    #[arg(long)]
    small: bool,
    /// Only one entry of each kernel and storage size: all kernels in little time
    #[arg(long)]
    pub(super) families: bool,
    #[command(flatten)]
    pub(super) backend: BackendArgs,
    #[command(flatten)]
    pub(super) report: ReportArgs,
}

/// How large the cases are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sizes {
    /// A few tiles, which the simulator can run.
    Small,
    /// Many tiles too.
    Full,
}

impl Args {
    /// How often each case is run on a backend: a schedule of the simulator gives the same run by
    /// construction.
    pub(super) fn repeats(&self, backend: BackendKind) -> usize {
        self.repeats.unwrap_or(if backend == BackendKind::Sim { 1 } else { 3 })
    }

    /// How large the cases are on a backend.
    pub(super) fn sizes(&self, backend: BackendKind) -> Sizes {
        if self.small || backend == BackendKind::Sim { Sizes::Small } else { Sizes::Full }
    }
}

/// A kernel of attention or of matrix multiplication.
#[derive(Clone, Copy, Debug)]
pub(super) enum AnyKernel {
    Attention(Kernel),
    Gemm(GemmKernel),
}

impl AnyKernel {
    pub(super) const ALL: [Self; Kernel::ALL.len() + GemmKernel::ALL.len()] = {
        let mut all = [Self::Gemm(GemmKernel::ALL[0]); _];
        let mut index = 0;
        while index < Kernel::ALL.len() {
            all[index] = Self::Attention(Kernel::ALL[index]);
            index += 1;
        }
        while index < all.len() {
            all[index] = Self::Gemm(GemmKernel::ALL[index - Kernel::ALL.len()]);
            index += 1;
        }
        all
    };

    /// Whether it is this kernel of attention.
    pub(super) fn is_of(self, kernel: Option<Kernel>) -> bool {
        matches!(self, Self::Attention(attention) if Some(attention) == kernel)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Attention(kernel) => kernel.name(),
            Self::Gemm(kernel) => kernel.name(),
        }
    }

    /// The names of those that a backend has.
    pub(super) fn of_backend(backend: BackendKind) -> impl Iterator<Item = &'static str> {
        let gemm = GemmKernel::of_backend(backend).iter().map(|kernel| kernel.name());
        Kernel::of_backend(backend).iter().map(|kernel| kernel.name()).chain(gemm)
    }
}
