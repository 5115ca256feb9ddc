//! A cache as it lies in memory, and which kernels take it.

use fa_kernels::entries::{Algorithm, Entry};

use super::{DecodeKernel, DecodeProblem, that_adds_up};
use crate::plan::{built_for, unmapped, unmapped_in_e4m3, unsupported_dtype};
use crate::{DType, Error, Problem, Result, TensorLayout};

/// The most packed rows that `decode_sm90` takes in one tile.
const MOST_PACKED_ROWS: usize = 64;

/// How K and V are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// In the type of Q.
    Same,
    /// In e4m3, and Q is not.
    E4m3,
    /// The same, with a factor of K for each head.
    E4m3ByHead,
    /// As one tensor, in the type of Q.
    Latents,
}

impl Stored {
    /// Every one.
    pub(super) const ALL: [Self; 4] = [Self::Same, Self::E4m3, Self::E4m3ByHead, Self::Latents];

    pub(super) const fn is_e4m3(self) -> bool {
        matches!(self, Self::E4m3 | Self::E4m3ByHead)
    }

    /// How, in words, where Q is of type `dtype`.
    pub(super) fn name(self, dtype: DType) -> String {
        match self {
            Self::Same => format!("in {dtype}"),
            Self::E4m3 | Self::E4m3ByHead => format!("in {}", DType::E4m3),
            Self::Latents => "of latents".to_owned(),
        }
    }

    /// Which kernels take it.
    const fn takers(self) -> &'static str {
        match self {
            Self::Same => "decode, decode_sm90 and forward_sm90 do",
            Self::E4m3 | Self::E4m3ByHead => "decode_sm90 and forward_sm90 do",
            Self::Latents => "mla_sm90 does",
        }
    }

    /// Whether `decode`, which takes rows that start anywhere, takes them too.
    pub(super) const fn is_taken_by_decode(self) -> bool {
        matches!(self, Self::Same)
    }
}

/// A problem with its keys as they lie in memory.
pub(crate) struct Cache<'a> {
    pub(super) problem: &'a Problem,
    k: &'a TensorLayout,
    v: &'a TensorLayout,
    /// Rows of a page; `None` where keys are contiguous.
    page_size: Option<usize>,
    pub(super) stored: Stored,
    /// Whether queries are a tree.
    pub(super) tree: bool,
}

impl<'a> Cache<'a> {
    pub(super) fn of(problem: &'a DecodeProblem) -> Self {
        let page_size = problem.page_size();
        let stored = match (problem.is_latent(), problem.descales()) {
            (true, _) => Stored::Latents,
            (false, Some(descales)) if descales.k.is_per_head() => Stored::E4m3ByHead,
            (false, Some(_)) => Stored::E4m3,
            (false, None) => Stored::Same,
        };
        let (k, v, tree) = (problem.k(), problem.v(), problem.has_tree_mask());
        Self { problem: problem.dense(), k, v, page_size, stored, tree }
    }

    /// Of the forward pass.
    pub(crate) fn contiguous(problem: &'a Problem) -> Self {
        let tensors = problem.tensors();
        Self { problem, k: &tensors.k, v: &tensors.v, page_size: None, stored: Stored::Same, tree: false }
    }

    /// The kernel of Hopper for it.
    pub(super) fn suited(&self) -> DecodeKernel {
        match (self.stored, self.problem.packed_rows()) {
            (Stored::Latents, _) => DecodeKernel::MlaSm90,
            _ if self.tree => DecodeKernel::DecodeSm90,
            (_, 0..=MOST_PACKED_ROWS) if !self.problem.is_packed() => DecodeKernel::DecodeSm90,
            _ => DecodeKernel::ForwardSm90,
        }
    }

    /// What of its scores the kernel does not compute, if anything.
    pub(super) fn unscored(&self, kernel: DecodeKernel) -> Option<String> {
        let changes = self.problem.changes_scores() || self.problem.softmax_scale() <= 0.0;
        (kernel == DecodeKernel::MlaSm90 && changes)
            .then(|| "it takes no softcap, ALiBi, or softmax_scale that is not positive".to_owned())
    }

    /// Why no tensor maps describe what the kernel copies by them, if so.
    pub(super) fn unmapped(&self, kernel: DecodeKernel) -> Option<String> {
        let of_cache = |(name, layout)| match self.stored {
            Stored::E4m3 | Stored::E4m3ByHead => unmapped_in_e4m3(name, layout),
            Stored::Same | Stored::Latents => unmapped(name, layout),
        };
        let copies_pages = !(self.stored.is_e4m3() && kernel == DecodeKernel::ForwardSm90);
        let page_size = self.page_size.filter(|size| copies_pages && !size.is_multiple_of(8));
        let queries = || match kernel {
            DecodeKernel::ForwardSm90 => unmapped("q", &self.problem.tensors().q),
            _ => None,
        };
        page_size
            .map(|size| format!("pages have {size} rows, and copies take multiples of 8"))
            .or_else(|| [("k", self.k), ("v", self.v)].into_iter().find_map(of_cache))
            .or_else(queries)
    }

    /// The kernel's entries for it in its problem's type.
    ///
    /// # Errors
    /// When the kernel takes no such cache.
    pub(super) fn built(&self, kernel: DecodeKernel) -> Result<Built> {
        let algorithm = kernel.algorithm(self.problem, self.stored).ok_or_else(|| {
            let (stored, takers) = (self.stored.name(self.problem.dtype()), self.stored.takers());
            let reason = format!("it takes no cache {stored}; {takers}");
            Error::UnfitKernel { kernel: kernel.name(), reason }
        })?;
        Ok(Built { kernel, algorithm, dtype: self.problem.dtype() })
    }
}

/// The entries of a kernel for a type of cache and of Q.
pub(super) struct Built {
    kernel: DecodeKernel,
    algorithm: Algorithm,
    dtype: DType,
}

impl Built {
    /// Those whose blocks have one split, and behind them those whose blocks can have several.
    pub(super) fn entries(&self) -> impl Iterator<Item = &'static Entry> + use<> {
        let Self { algorithm, dtype, .. } = *self;
        let algorithms = [Some(algorithm), that_adds_up(algorithm)].into_iter().flatten();
        algorithms.flat_map(move |algorithm| built_for(algorithm, dtype))
    }

    /// That there is none.
    pub(super) fn missing(&self) -> Error {
        unsupported_dtype(self.kernel.name(), self.algorithm, self.dtype)
    }
}
