//! What is asked of attention beside its shapes, and what is validated of it.

use std::convert::Infallible;
use std::ops::Range;

use fa_kernels::params;

use crate::factor::{Factor, Factors};
use crate::forward::Dropout;
use crate::functions::Functions;
use crate::head_values::{HeadValues, Heads};
use crate::operation::Tensor;
use crate::{DType, Error, Result};

/// The largest softcap. A GPU takes scores below 2⁻¹²⁶ softcaps for 0, which is no more than 2⁻²⁶ then.
pub const MAX_SOFTCAP: f32 = 1e30;

/// The largest magnitude of softmax_scale and of a tensor's factor, 2⁶⁴: what they multiply stays within
/// fp32.
pub(crate) const MAX_SCALE: f32 = 18_446_744_073_709_551_616.0;

/// What is computed, beside the shapes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Query i sees key j only if j ≤ i + Sk − Sq: the mask is aligned bottom-right, as
    /// FlashAttention-2 (2.1 and later) defines it.
    pub causal: bool,
    /// Factor on Q·Kᵀ before the softmax; 1/√head_dim when absent.
    pub softmax_scale: Option<f32>,
    /// Sliding window (left, right): query i sees key j only if
    /// i + Sk − Sq − left ≤ j ≤ i + Sk − Sq + right. `None` is no limit; with `causal`, right is 0.
    pub window: (Option<usize>, Option<usize>),
    /// Bends scaled scores s to softcap · tanh(s / softcap), before the mask; 0 is off.
    pub softcap: f32,
    /// ALiBi (Press et al. 2022, arXiv:2108.12409): fp32 slopes `[H]` or `[B, H]`, contiguous. The scaled
    /// scores of query i and key j get −slope · |i + Sk − Sq − j| added, after the softcap.
    pub alibi_slopes: Option<Vec<f32>>,
    /// Attention sinks (gpt-oss; Xiao et al. 2023, arXiv:2309.17453): fp32 `[H]` or `[B, H]`, contiguous.
    /// Each row of a head has one more score, this one as it is, whose weight is multiplied with nothing: it
    /// joins the row's sum and its log-sum-exp.
    pub sinks: Option<Vec<f32>>,
    /// Of lists whose values the device alone has, how many there are, in place of the values above: H or
    /// B·H. Runs on host tensors refuse them.
    pub on_device: PerHead<usize>,
    /// Factors that tensors in e4m3 were divided by before they were rounded, so that they fill its range; 1
    /// when absent.
    pub descale: Option<Descale>,
    /// Drops weights of the softmax at random: the fused kernels of the forward pass do in types of 16 bits
    /// and more, and all kernels of the backward pass.
    pub dropout: Option<Dropout>,
    /// Functions of scores that the program brings along, in place of softcap and ALiBi. The backward pass
    /// has none.
    pub functions: Option<Functions>,
}

/// What the elements of 8-bit tensors stand for: their value times their tensor's factor, or that of their
/// key/value head (`q_descale`, `k_descale` and `v_descale` of FlashAttention-3).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Descale {
    /// Of Q; query heads have that of the key/value head that they read.
    pub q: Factor,
    /// Of K.
    pub k: Factor,
    /// Of V.
    pub v: Factor,
}

/// What there is of each list with a value for each head: its values, or the address on the device of the
/// same values, which is needed where the problem has the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerHead<T> {
    /// Of [`Options::alibi_slopes`].
    pub alibi_slopes: Option<T>,
    /// Of [`Options::sinks`].
    pub sinks: Option<T>,
}

impl<T> Default for PerHead<T> {
    /// No list.
    fn default() -> Self {
        Self { alibi_slopes: None, sinks: None }
    }
}

impl<T> PerHead<T> {
    /// What `of` makes of each list, which has a name.
    ///
    /// # Errors
    /// The first error of `of`.
    pub fn try_map<'s, U, E>(
        &'s self,
        mut of: impl FnMut(&'static str, &'s T) -> Result<U, E>,
    ) -> Result<PerHead<U>, E> {
        let mut list = |name, list: &'s Option<T>| list.as_ref().map(|list| of(name, list)).transpose();
        Ok(PerHead {
            alibi_slopes: list("alibi_slopes", &self.alibi_slopes)?,
            sinks: list("sinks", &self.sinks)?,
        })
    }
}

/// What changes scores, and what they are multiplied with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scores {
    /// Factor on Q·Kᵀ as it is stored, but for those of heads.
    pub(crate) softmax_scale: f32,
    /// 0 for none.
    pub(crate) softcap: f32,
    /// Factor on V as it is stored, but for those of heads.
    pub(crate) v_descale: f32,
    /// Factors of Q, K and V, where there are some.
    factors: Option<[Factors; 3]>,
    per_head: PerHead<HeadValues>,
}

impl Scores {
    /// Validates the options that are its own, for tensors of head_dim D in `dtype` and so many heads.
    ///
    /// # Errors
    /// As [`Problem::new`](crate::Problem::new).
    pub(crate) fn new(
        options: &Options,
        dtype: DType,
        head_dim: usize,
        (heads, kv_heads): (Heads, usize),
    ) -> Result<Self> {
        let softmax_scale = options.softmax_scale.unwrap_or(1.0 / (head_dim as f32).sqrt());
        check_scale(softmax_scale)?;
        let factors = factors(dtype, options.descale.as_ref(), Heads { heads: kv_heads, ..heads })?;
        let [q, k, v_descale] = factors.as_ref().map_or([1.0; 3], |of| of.each_ref().map(Factors::tensor));
        let softmax_scale = softmax_scale * (q * k);
        check_scale(softmax_scale)?;
        let softcap = options.softcap;
        check_softcap(softcap, softmax_scale)?;
        let Options { alibi_slopes, sinks, on_device, .. } = options;
        let of =
            |name, values: &Option<Vec<f32>>, len| HeadValues::of_list(name, values.as_deref(), len, heads);
        let per_head = PerHead {
            alibi_slopes: of("alibi_slopes", alibi_slopes, on_device.alibi_slopes)?,
            sinks: of("sinks", sinks, on_device.sinks)?,
        };
        let scores = Self { softmax_scale, softcap, v_descale, factors, per_head };
        for index in 0..scores.factors_on_host() {
            let scale = scores.softmax_scale_of(index / kv_heads, index % kv_heads);
            check_scale(scale)?;
            check_softcap(softcap, scale)?;
        }
        Ok(scores)
    }

    /// Key/value heads that have factors of their own, all of which the host has. One list serves any batch.
    fn factors_on_host(&self) -> usize {
        let Some(of) = &self.factors else { return 0 };
        let on_host = of.iter().all(|factors| factors.check_on_host().is_ok());
        if on_host { of.iter().map(Factors::heads).max().unwrap_or(0) } else { 0 }
    }

    /// Factor on Q·Kᵀ as it is stored, of a sequence's key/value head.
    #[inline]
    pub(crate) fn softmax_scale_of(&self, batch: usize, kv_head: usize) -> f32 {
        let [q, k, _] = self.factors_of(batch, kv_head);
        self.softmax_scale * q * k
    }

    /// Factor on V as it is stored, of a sequence's key/value head.
    #[inline]
    pub(crate) fn v_descale_of(&self, batch: usize, kv_head: usize) -> f32 {
        let [_, _, v] = self.factors_of(batch, kv_head);
        self.v_descale * v
    }

    /// What a head's own factors are.
    fn factors_of(&self, batch: usize, kv_head: usize) -> [f32; 3] {
        let of = |factors: &Factors| {
            if factors.is_per_head() { factors.of(batch, kv_head) } else { 1.0 }
        };
        self.factors.as_ref().map_or([1.0; 3], |factors| factors.each_ref().map(of))
    }

    /// The rows of a table of tensors for the factors of heads.
    ///
    /// # Errors
    /// When the device alone has them, and the error of `place`.
    pub(crate) fn place_factors<'t>(
        &'t self,
        place: &mut dyn FnMut(Tensor<'t>) -> Result<u64>,
    ) -> Result<[Option<u64>; 3]> {
        match &self.factors {
            None => Ok([None; 3]),
            Some([q, k, v]) => Ok([q.place(place)?, k.place(place)?, v.place(place)?]),
        }
    }

    /// Factors as kernels take them, beside softmax_scale.
    ///
    /// # Errors
    /// When the address of a list was left out.
    pub(crate) fn factor_params(&self, addresses: [Option<u64>; 3]) -> Result<[params::Descale; 3]> {
        let mut descale = [params::Descale::default(); 3];
        if let Some(factors) = &self.factors {
            for ((descale, factors), address) in descale.iter_mut().zip(factors).zip(addresses) {
                descale.per_head = factors.params(address)?.per_head;
            }
        }
        descale[2].tensor = self.v_descale;
        Ok(descale)
    }

    /// Whether anything but a factor and the mask lies between Q·Kᵀ and the softmax.
    pub(crate) const fn changes_scores(&self) -> bool {
        self.softcap != 0.0 || self.per_head.alibi_slopes.is_some()
    }

    /// Slope of a head; 0 without ALiBi.
    #[inline]
    pub(crate) fn alibi_slope(&self, batch: usize, head: usize) -> f32 {
        self.per_head.alibi_slopes.as_ref().map_or(0.0, |slopes| slopes.of(batch, head))
    }

    /// Sink of a head; −∞, which adds nothing, without sinks. Also the log-sum-exp of a row that sees no key.
    #[inline]
    pub(crate) fn sink(&self, batch: usize, head: usize) -> f32 {
        self.per_head.sinks.as_ref().map_or(f32::NEG_INFINITY, |sinks| sinks.of(batch, head))
    }

    /// The options of some heads of one sequence, for tensors that have no factors.
    pub(crate) fn options(&self, batch: usize, heads: &Range<usize>) -> Options {
        let list = |values: &Option<HeadValues>| {
            values.as_ref().map(|list| heads.clone().map(|head| list.of(batch, head)).collect())
        };
        Options {
            softmax_scale: Some(self.softmax_scale),
            softcap: self.softcap,
            alibi_slopes: list(&self.per_head.alibi_slopes),
            sinks: list(&self.per_head.sinks),
            ..Options::default()
        }
    }

    /// The lists that there are, those without values that the device alone has.
    pub(crate) fn per_head(&self) -> PerHead<&[f32]> {
        let Ok(lists) = self.per_head.try_map(|_, list| Ok::<_, Infallible>(&*list.values));
        lists
    }

    /// How many values the lists have.
    pub(crate) fn per_head_lens(&self) -> PerHead<usize> {
        let Ok(lens) = self.per_head.try_map(|_, list| Ok::<_, Infallible>(list.len));
        lens
    }

    /// Refuses lists whose values the device alone has.
    pub(crate) fn check_on_host(&self) -> Result<()> {
        self.factors.iter().flatten().try_for_each(Factors::check_on_host)?;
        self.per_head.try_map(|name, list| list.check_on_host(name)).map(drop)
    }

    /// The rows of a table of tensors for the lists.
    ///
    /// # Errors
    /// The error of `place`.
    pub(crate) fn place<'t>(
        &'t self,
        place: &mut dyn FnMut(Tensor<'t>) -> Result<u64>,
    ) -> Result<PerHead<u64>> {
        self.check_on_host()?;
        self.per_head().try_map(|name, values| place(Tensor::list(name, values, values.len())))
    }

    /// What each head has, as kernels take it.
    ///
    /// # Errors
    /// When an address that the problem needs was left out.
    pub(crate) fn params(&self, addresses: &PerHead<u64>) -> Result<params::PerHead> {
        let PerHead { alibi_slopes, sinks } = &self.per_head;
        Ok(params::PerHead {
            alibi_slopes: HeadValues::params(alibi_slopes.as_ref(), "alibi_slopes", addresses.alibi_slopes)?,
            sinks: HeadValues::params(sinks.as_ref(), "sinks", addresses.sinks)?,
        })
    }
}

/// Checks a factor on Q·Kᵀ.
fn check_scale(value: f32) -> Result<()> {
    if value.is_nan() || value.abs() > MAX_SCALE {
        return Err(Error::SoftmaxScale { value, limit: MAX_SCALE });
    }
    Ok(())
}

/// Checks that scores can be divided by a softcap, and multiplied by it again.
fn check_softcap(value: f32, scale: f32) -> Result<()> {
    if value == 0.0 {
        return Ok(());
    }
    // A subnormal one is 0 to a GPU, and would divide by it.
    if !(value.is_normal() && (0.0..=MAX_SOFTCAP).contains(&value)) {
        return Err(Error::Softcap { value, least: f32::MIN_POSITIVE, limit: MAX_SOFTCAP });
    }
    if scale != 0.0 && !(scale / value).is_normal() {
        return Err(Error::SoftcapRatio { value, scale });
    }
    Ok(())
}

/// The factors that `descale` gives tensors of type `dtype`, of so many key/value heads.
fn factors(dtype: DType, descale: Option<&Descale>, heads: Heads) -> Result<Option<[Factors; 3]>> {
    let Some(Descale { q, k, v }) = descale else { return Ok(None) };
    if dtype != DType::E4m3 {
        return Err(Error::DescaleType { dtype });
    }
    let of = |name, factor| Factors::new(name, factor, heads);
    Ok(Some([of("q_descale", q)?, of("k_descale", k)?, of("v_descale", v)?]))
}
