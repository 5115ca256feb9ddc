//! The forward pass as an [`Operation`].

use fa_kernels::entries::{Algorithm, Entry, Params, Tile};
use fa_kernels::ptx::tma;

use super::{Addresses, Outputs, Results};
use crate::decode::without_merging;
use crate::launch::{place_cu_seqlens, place_seqused_k};
use crate::operation::{Choice, Launch, Operation, Tensor, sealed};
use crate::plan::LaunchDetails;
use crate::tensor_map::TensorMap;
use crate::{DType, Device, Element, Kernel, Plan, Problem, Request, Result, launch, plan};

impl sealed::Sealed for Problem {}

impl Operation for Problem {
    type Request = Request;
    type Kernel = Kernel;
    type Algorithm = Algorithm;
    type Tile = Tile;
    type Details = LaunchDetails;
    type Addresses = Addresses;
    /// Q, K and V.
    type Inputs<'a, T: Element> = (&'a [T], &'a [T], &'a [T]);
    type Outputs<'a, T: Element> = Outputs<'a, T>;
    type Results<T: Element> = Results<T>;

    fn dtype(&self) -> DType {
        self.dtype()
    }

    fn choose(&self, device: &Device, request: &Request) -> Result<Choice<Self>> {
        plan::plan(self, device, request)
    }

    fn choose_entry(&self, device: &Device, entry: &'static Entry) -> Result<Choice<Self>> {
        plan::plan_entry(self, device, entry)
    }

    fn tensors<'t, 'i: 't, T: Element>(
        plan: &'t Plan,
        (q, k, v): Self::Inputs<'i, T>,
        outputs: &'t mut Outputs<'_, T>,
        place: &mut dyn FnMut(Tensor<'t>) -> Result<u64>,
    ) -> Result<Addresses> {
        let problem = plan.problem();
        let layouts = problem.tensors();
        let lse = outputs.lse.as_deref_mut();
        let keeps = problem.leaves_queries();
        Ok(Addresses {
            q: place(Tensor::input("q", q, layouts.q))?,
            k: place(Tensor::input("k", k, layouts.k))?,
            v: place(Tensor::input("v", v, layouts.v))?,
            o: place(Tensor::written("o", &mut *outputs.o, layouts.o, keeps))?,
            lse: lse
                .map(|lse| place(Tensor::written("lse", lse, problem.lse_layout(), keeps)))
                .transpose()?,
            workspace: place(Tensor::workspace(workspace(plan.kernel()), plan.workspace_bytes()))?,
            per_head: problem.scores().place(place)?,
            descale: problem.scores().place_factors(place)?,
            functions: problem
                .functions()
                .map_or(Ok(Default::default()), |functions| functions.place(place))?,
            cu_seqlens: place_cu_seqlens(problem, place)?,
            seqused_k: place_seqused_k(problem, place)?,
        })
    }

    fn is_aligned(plan: &Plan, addresses: &Addresses) -> bool {
        addresses.are_mapped(plan.launches())
    }

    fn needed<'a>(launches: &'a [Launch], addresses: &Addresses) -> &'a [Launch] {
        without_merging(launches, |details| details.splits, addresses.seqused_k)
    }

    fn params(
        plan: &Plan,
        launch: &Launch,
        addresses: &Addresses,
        encode: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
    ) -> Result<Params> {
        launch::params(plan.problem(), launch, addresses, encode)
    }

    #[cfg(feature = "cpu")]
    fn run_on_cpu<T: Element>(
        plan: &Plan,
        (q, k, v): Self::Inputs<'_, T>,
        Outputs { o, lse }: &mut Outputs<'_, T>,
    ) -> Result<u64> {
        use crate::cpu;
        let (problem, lse) = (plan.problem(), lse.as_deref_mut());
        let stats = match plan.tile() {
            None => cpu::standard(problem, q, k, v, o, lse)?,
            Some((block_m, block_n)) => {
                let config = cpu::backend::config(Some(block_m), Some(block_n));
                cpu::forward_with(problem, config, q, k, v, o, lse)?
            }
        };
        Ok(stats.extra_bytes as u64)
    }

    fn results<T: Element>(&self, device: &Device) -> Result<Results<T>> {
        Results::new(self, device)
    }

    fn outputs<T: Element>(results: &mut Results<T>) -> Outputs<'_, T> {
        results.outputs()
    }
}

impl Plan {
    /// The same launches with the offsets of a packed batch, for a run on host tensors.
    ///
    /// # Errors
    /// When the problem is not of [`Problem::varlen_on_device`], and as [`Problem::varlen`] and for offsets
    /// beyond its bounds.
    pub fn with_cu_seqlens(&self, cu_seqlens_q: &[u32], cu_seqlens_k: &[u32]) -> Result<Self> {
        Ok(self.with_problem(self.problem().with_cu_seqlens(cu_seqlens_q, cu_seqlens_k)?))
    }

    /// The same launches with the keys that each sequence uses, int32 `[B]`, for a run on host tensors; of a
    /// packed batch behind [`Self::with_cu_seqlens`].
    ///
    /// # Errors
    /// When the problem's sequences use all keys, and as [`Problem::with_seqused_k`].
    pub fn with_seqused_k(&self, seqused_k: &[i32]) -> Result<Self> {
        Ok(self.with_problem(self.problem().with_seqused_k_of_run(seqused_k)?))
    }
}

/// What a kernel's workspace holds.
const fn workspace(kernel: Kernel) -> &'static str {
    match kernel {
        Kernel::ForwardSm90 => "the copies of Q, K and V",
        Kernel::Decode => "the splits' results",
        _ => "the score matrix",
    }
}

impl Plan {
    /// What the workspace holds.
    pub fn workspace(&self) -> &'static str {
        workspace(self.kernel())
    }

    /// The relative error of scores between Q·Kᵀ and the softmax: the storage type's where they pass through
    /// device memory, that of the device's tanh where a softcap goes through it, fp32's elsewhere. It bounds
    /// how accurate `lse` can be.
    pub fn score_roundoff(&self) -> f64 {
        score_roundoff(self.launches(), self.problem())
    }
}

/// Relative error of `tanh.approx.f32`. The PTX ISA promises 2⁻¹¹; on an H200 it is 1.12e-5 at most, found by
/// trying all numbers.
const TANH_ROUNDOFF: f64 = 1.0 / 65_536.0;

/// [`Plan::score_roundoff`] of what launches kernels of attention.
pub(crate) fn score_roundoff<O>(launches: &[Launch<O>], problem: &Problem) -> f64
where
    O: Operation<Algorithm = Algorithm>,
{
    let runs =
        |algorithms: &[Algorithm]| launches.iter().any(|launch| algorithms.contains(&launch.entry.algorithm));
    let with_tanh =
        [Algorithm::ForwardSm90ScoreMod, Algorithm::ForwardSm90CachedScoreMod, Algorithm::ForwardSm90Dropout];
    if runs(&[Algorithm::StandardScores]) {
        problem.dtype().roundoff()
    } else if problem.softcap() != 0.0 && runs(&with_tanh) {
        TANH_ROUNDOFF
    } else {
        DType::F32.roundoff()
    }
}
