//! One backward problem: validated once here, trusted by everything after.

use crate::{Element, Error, Problem, Result, TensorLayout};

/// Shapes and strides of the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradientLayouts {
    /// Gradient of the output, dO: [B, Sq, H, Dv].
    pub dout: TensorLayout,
    /// Gradient of the queries, [B, Sq, H, D].
    pub dq: TensorLayout,
    /// Gradient of the keys, [B, Sk, Hkv, D]: summed over the query heads of each group.
    pub dk: TensorLayout,
    /// Gradient of the values, [B, Sk, Hkv, Dv]: summed as that of the keys.
    pub dv: TensorLayout,
}

/// A validated backward problem: dQ, dK and dV of a forward [`Problem`] for a given dO, and where lse is used
/// too, as in merged attention, for a given dlse.
///
/// With P = exp(S − lse), where S are the scores of the forward pass, and delta = rowsum(dO ∘ O) − dlse:
/// dV = Pᵀ·dO, dS = P ∘ (dO·Vᵀ − delta), dQ = softmax_scale·dS·K, dK = softmax_scale·dSᵀ·Q
/// (arXiv:2307.08691, section 2.3), dS taken through the softcap where there is one. P is recomputed from O's
/// inputs and lse, and never stored. All tensors but lse and dlse have the forward problem's storage type. A
/// row that sees no key has gradients 0, whatever its dlse is, as a key that no row sees.
///
/// A sink s gets dsink = −Σ exp(s − lse)·delta over the rows of its head, in fp32. A row that sees no key
/// adds its dlse.
///
/// ```
/// use flash_attention::backward::{BackwardProblem, GradientLayouts};
/// use flash_attention::{DType, Options, Problem, TensorLayout, Tensors};
///
/// let layout = TensorLayout::bshd(1, 100, 2, 64);
/// let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
/// let forward = Problem::new(tensors, DType::F32, Options::default())?;
/// let transposed = TensorLayout::bhsd(1, 100, 2, 64); // gradients may lie in any way
/// let layouts = GradientLayouts { dout: layout, dq: transposed, dk: layout, dv: layout };
/// let problem = BackwardProblem::new(forward, layouts)?;
/// assert_eq!(problem.flops(), 2.5 * problem.forward().flops());
/// # Ok::<(), flash_attention::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct BackwardProblem {
    forward: Problem,
    layouts: GradientLayouts,
    part: BackwardPart,
}

/// What of a backward pass a problem computes.
///
/// Gradients of queries and those of keys come from different rows of the other side. So a device that has
/// some rows of a sequence computes both apart, over all rows that its own meet, from delta that is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BackwardPart {
    /// All gradients.
    #[default]
    All,
    /// delta = rowsum(dO ∘ O) − dlse alone, fp32 in the order of lse.
    Delta,
    /// dQ alone, from delta.
    Queries,
    /// dK and dV alone, from delta.
    Keys,
}

impl BackwardPart {
    /// Whether it makes delta, of O.
    pub(super) const fn reads_o(self) -> bool {
        matches!(self, Self::All | Self::Delta)
    }

    /// Whether it writes dQ.
    pub(super) const fn has_queries(self) -> bool {
        matches!(self, Self::All | Self::Queries)
    }

    /// Whether it writes dK and dV.
    pub(super) const fn has_keys(self) -> bool {
        matches!(self, Self::All | Self::Keys)
    }
}

/// Host tensors that a backward pass reads.
#[derive(Clone, Copy, Debug)]
pub struct BackwardInputs<'a, T> {
    /// Queries.
    pub q: &'a [T],
    /// Keys.
    pub k: &'a [T],
    /// Values.
    pub v: &'a [T],
    /// Output of the forward pass. delta is made from it as it is stored (Dao 2023, arXiv:2307.08691,
    /// Algorithm 2, line 4). So dQ has an error of softmax_scale · rowsum(dO ∘ rounding of O) times the mean
    /// of the keys.
    pub o: &'a [T],
    /// Log-sum-exp of the forward pass, as [`Problem`] has it.
    pub lse: &'a [f32],
    /// Gradient of the output.
    pub dout: &'a [T],
    /// Gradient of the log-sum-exp, in its order, where anything but O depends on it.
    pub dlse: Option<&'a [f32]>,
    /// delta, in the order of lse, of a [`BackwardPart`] that reads it in place of O and dlse.
    pub delta: Option<&'a [f32]>,
}

/// Host tensors that a backward pass writes; elements that the views do not reach keep their values.
#[derive(Debug)]
pub struct BackwardOutputs<'a, T> {
    /// Gradient of the queries.
    pub dq: &'a mut [T],
    /// Gradient of the keys.
    pub dk: &'a mut [T],
    /// Gradient of the values.
    pub dv: &'a mut [T],
    /// Gradient of the sinks, `[H]` or `[B, H]` as they are, of a problem that has some.
    pub dsinks: Option<&'a mut [f32]>,
    /// delta, in the order of lse, of [`BackwardPart::Delta`].
    pub delta: Option<&'a mut [f32]>,
}

/// The gradients of a call, in buffers of the library's, as long as their views reach.
#[derive(Clone, Debug)]
pub struct BackwardResults<T> {
    /// Gradient of the queries.
    pub dq: Vec<T>,
    /// Gradient of the keys.
    pub dk: Vec<T>,
    /// Gradient of the values.
    pub dv: Vec<T>,
    /// Gradient of the sinks, where the problem has some.
    pub dsinks: Option<Vec<f32>>,
}

impl BackwardProblem {
    /// The same problem with offsets that a run has.
    ///
    /// # Errors
    /// As [`Problem::varlen`], when it is not of [`Problem::varlen_on_device`], and for offsets beyond its
    /// bounds.
    pub(crate) fn with_cu_seqlens(&self, q: &[u32], k: &[u32]) -> Result<Self> {
        Ok(Self { forward: self.forward.with_cu_seqlens(q, k)?, ..self.clone() })
    }

    /// The same problem with the used keys that a run has.
    ///
    /// # Errors
    /// As [`Problem::with_seqused_k`], and when its sequences use all keys.
    pub(crate) fn with_seqused_k(&self, seqused_k: &[i32]) -> Result<Self> {
        Ok(Self { forward: self.forward.with_seqused_k_of_run(seqused_k)?, ..self.clone() })
    }

    /// Validates the gradients' shapes and strides against the forward problem's.
    ///
    /// # Errors
    /// Names the tensor, the axis, its value and what it should be, when a shape differs from its tensor's;
    /// when a row is not contiguous, a stride leads out of the address space, or an output overlaps itself;
    /// and when scores have functions of the program's own.
    pub fn new(forward: Problem, layouts: GradientLayouts) -> Result<Self> {
        forward.dtype().check_as_result("backward")?;
        if forward.has_lse_strides() {
            return Err(Error::LseStrides { operation: "backward" });
        }
        if let Some(functions) = forward.functions() {
            let reason = "the backward pass has no derivative of them".to_owned();
            return Err(Error::Functions { name: functions.built.name, reason });
        }
        let tensors = forward.tensors();
        let pairs = [
            ("dout", &layouts.dout, "o", &tensors.o),
            ("dq", &layouts.dq, "q", &tensors.q),
            ("dk", &layouts.dk, "k", &tensors.k),
            ("dv", &layouts.dv, "v", &tensors.v),
        ];
        for (tensor, layout, other, of) in pairs {
            layout.check(tensor)?;
            let axes = [
                ("batch", layout.batch, of.batch),
                ("seqlen", layout.seqlen, of.seqlen),
                ("heads", layout.heads, of.heads),
                ("head_dim", layout.head_dim, of.head_dim),
            ];
            for (axis, value, expected) in axes {
                if value != expected {
                    return Err(Error::ShapeMismatch { tensor, axis, value, other, expected });
                }
            }
        }
        for (tensor, layout, ..) in &pairs[1..] {
            layout.check_disjoint(tensor)?;
        }
        Ok(Self { forward, layouts, part: BackwardPart::All })
    }

    /// A part of a backward pass, whose lse and delta may be views ([`Problem::with_lse_strides`]). Tensors
    /// that it neither reads nor writes are left out of a call. All of it is [`Self::new`].
    ///
    /// # Errors
    /// As [`Self::new`], and for sinks, whose gradient is a sum over all rows.
    pub fn part(forward: Problem, layouts: GradientLayouts, part: BackwardPart) -> Result<Self> {
        if part == BackwardPart::All {
            return Self::new(forward, layouts);
        }
        if forward.scores().per_head_lens().sinks.is_some() {
            let reason = "the gradient of sinks is a sum over all rows".to_owned();
            return Err(Error::Context { reason });
        }
        let contiguous = Self::new(forward.clone().without_lse_strides(), layouts)?;
        Ok(Self { forward, part, ..contiguous })
    }

    /// What of the backward pass it computes.
    pub const fn computes(&self) -> BackwardPart {
        self.part
    }

    /// The gradients of `forward` in the layouts of the tensors that they belong to.
    ///
    /// # Errors
    /// As [`Self::new`]: when K or V repeat elements, which their gradients cannot.
    pub fn like(forward: Problem) -> Result<Self> {
        let tensors = *forward.tensors();
        let layouts = GradientLayouts { dout: tensors.o, dq: tensors.q, dk: tensors.k, dv: tensors.v };
        Self::new(forward, layouts)
    }

    /// The forward problem.
    pub const fn forward(&self) -> &Problem {
        &self.forward
    }

    /// Shapes and strides of the gradients.
    pub const fn layouts(&self) -> &GradientLayouts {
        &self.layouts
    }

    /// Multiplications and additions of the five matrix products, by FlashAttention's convention 2.5 times
    /// the forward pass's; a kernel that recomputes more does not count it. Of a part, those of its products:
    /// three for dQ, and four for dK and dV.
    pub fn flops(&self) -> f64 {
        let passes = match self.part {
            BackwardPart::All => 2.5,
            BackwardPart::Delta => 0.0,
            BackwardPart::Queries => 1.5,
            BackwardPart::Keys => 2.0,
        };
        passes * self.forward.flops()
    }

    /// How many sinks have a gradient.
    ///
    /// # Errors
    /// When there are none.
    pub(crate) fn sinks(&self) -> Result<usize> {
        self.forward.scores().per_head_lens().sinks.ok_or(Error::NoSinks)
    }

    /// Checks that buffers hold what the views reach.
    pub(crate) fn check<T: Element>(
        &self,
        inputs: &BackwardInputs<'_, T>,
        outputs: &BackwardOutputs<'_, T>,
    ) -> Result<()> {
        self.check_inputs(inputs)?;
        let GradientLayouts { dq, dk, dv, .. } = &self.layouts;
        if let Some(dsinks) = &outputs.dsinks {
            check_lengths([("dsinks", dsinks.len(), self.sinks()?)])?;
        }
        check_lengths([
            ("dq", outputs.dq.len(), dq.span()),
            ("dk", outputs.dk.len(), dk.span()),
            ("dv", outputs.dv.len(), dv.span()),
        ])
    }

    /// [`Self::check`] of what is read.
    pub(crate) fn check_inputs<T: Element>(&self, inputs: &BackwardInputs<'_, T>) -> Result<()> {
        let BackwardInputs { q, k, v, o, lse, dout, dlse, delta: _ } = inputs;
        self.forward.check_buffers::<T>(q.len(), k.len(), v.len(), o.len(), Some(lse.len()))?;
        let lse_len = self.forward.lse_len();
        let dlse = dlse.map_or(lse_len, <[f32]>::len);
        check_lengths([("dout", dout.len(), self.layouts.dout.span()), ("dlse", dlse, lse_len)])
    }
}

fn check_lengths<const N: usize>(tensors: [(&'static str, usize, usize); N]) -> Result<()> {
    for (tensor, len, needed) in tensors {
        if len < needed {
            return Err(Error::BufferTooSmall { tensor, len, needed });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Options, Tensors};

    fn forward() -> Problem {
        let (q, kv) = (TensorLayout::bshd(2, 5, 4, 8), TensorLayout::bshd(2, 7, 2, 8));
        Problem::new(Tensors { q, k: kv, v: kv, o: q }, DType::F16, Options::default()).unwrap()
    }

    fn message(change: impl Fn(&mut GradientLayouts)) -> String {
        let mut layouts = *BackwardProblem::like(forward()).unwrap().layouts();
        change(&mut layouts);
        BackwardProblem::new(forward(), layouts).unwrap_err().to_string()
    }

    #[test]
    fn each_refusal_names_argument_value_and_limit() {
        assert_eq!(message(|layouts| layouts.dout.seqlen = 6), "dout: seqlen is 6, but o has 5");
        assert_eq!(message(|layouts| layouts.dk.heads = 4), "dk: heads is 4, but k has 2");
        assert_eq!(
            message(|layouts| layouts.dq.stride_dim = 2),
            "dq: stride of head_dim is 2; rows must be contiguous (stride 1)"
        );
        assert_eq!(
            message(|layouts| layouts.dv.stride_head = 0),
            "dv: stride 0 of axis heads overlaps its neighbours; an output needs at least 1"
        );
        let repeated = TensorLayout { stride_head: 0, ..forward().tensors().o };
        assert!(
            BackwardProblem::new(
                forward(),
                GradientLayouts { dout: repeated, ..*BackwardProblem::like(forward()).unwrap().layouts() }
            )
            .is_ok()
        );
    }

    /// Where lse is a view, all backends compute parts alone.
    #[test]
    fn all_of_a_pass_takes_no_view_of_lse() {
        let layouts = *BackwardProblem::like(forward()).unwrap().layouts();
        let strided = forward().with_lse_strides(80, 20).unwrap();
        let of = |part| BackwardProblem::part(strided.clone(), layouts, part);
        assert_eq!(of(BackwardPart::Keys).unwrap().forward().lse_strides(), [80, 20]);
        let error = of(BackwardPart::All).unwrap_err().to_string();
        assert_eq!(error, BackwardProblem::new(strided.clone(), layouts).unwrap_err().to_string());
    }

    #[test]
    fn buffers_hold_what_the_views_reach() {
        let problem = BackwardProblem::like(forward()).unwrap();
        let (half, lse) = ([half::f16::ZERO; 320], [0.0; 40]);
        let inputs = BackwardInputs {
            q: &half,
            k: &half[..224],
            v: &half[..224],
            o: &half,
            lse: &lse,
            dout: &half[..319],
            dlse: None,
            delta: None,
        };
        let message = |inputs: &BackwardInputs<'_, half::f16>, dv: usize| {
            let [mut dq, mut dk, mut dv] = [320, 224, dv].map(|len| vec![half::f16::ZERO; len]);
            let outputs =
                BackwardOutputs { dq: &mut dq, dk: &mut dk, dv: &mut dv, dsinks: None, delta: None };
            problem.check(inputs, &outputs).unwrap_err().to_string()
        };
        assert_eq!(message(&inputs, 224), "dout: buffer has 319 elements; its shape and strides reach 320");
        let inputs = BackwardInputs { dout: &half, ..inputs };
        assert_eq!(message(&inputs, 223), "dv: buffer has 223 elements; its shape and strides reach 224");
        let short = BackwardInputs { dlse: Some(&lse[1..]), ..inputs };
        assert_eq!(message(&short, 224), "dlse: buffer has 39 elements; its shape and strides reach 40");
        let inputs = BackwardInputs { lse: &lse[1..], ..inputs };
        assert_eq!(message(&inputs, 224), "lse: buffer has 39 elements; its shape and strides reach 40");
    }

    #[test]
    fn sinks_have_a_gradient_where_there_are_some() {
        let problem = |sinks: Option<usize>| {
            let options = Options { sinks: sinks.map(|len| vec![0.5; len]), ..Options::default() };
            let forward = Problem::new(*forward().tensors(), DType::F16, options).unwrap();
            BackwardProblem::like(forward).unwrap()
        };
        let (half, lse) = ([half::f16::ZERO; 320], [0.0; 40]);
        let inputs = BackwardInputs {
            q: &half,
            k: &half,
            v: &half,
            o: &half,
            lse: &lse,
            dout: &half,
            dlse: None,
            delta: None,
        };
        let check = |problem: &BackwardProblem, dsinks: usize| {
            let [mut dq, mut dk, mut dv] = [half; 3];
            let mut dsinks = vec![0.0; dsinks];
            let outputs = BackwardOutputs {
                dq: &mut dq,
                dk: &mut dk,
                dv: &mut dv,
                dsinks: Some(&mut dsinks),
                delta: None,
            };
            problem.check(&inputs, &outputs).map_err(|error| error.to_string())
        };
        assert_eq!(check(&problem(Some(4)), 4), Ok(()));
        assert_eq!(check(&problem(Some(8)), 8), Ok(()));
        let short = "dsinks: buffer has 7 elements; its shape and strides reach 8";
        assert_eq!(check(&problem(Some(8)), 7), Err(short.to_owned()));
        let none = "dsinks: the problem has no sinks, and so no gradient of them";
        assert_eq!(check(&problem(None), 4), Err(none.to_owned()));
    }
}
