//! The storage type of a cache, and what its elements are multiplied by where that is e4m3.

use float8::F8E4M3;

use crate::factor::{Factor, Factors};
use crate::head_values::Heads;
use crate::operation::Tensor;
use crate::{DType, Element, Error, Result, TensorLayout};

/// A cache in e4m3, with Q and O in a type of their own: what K and V were divided by before they were
/// rounded, so that they fill its range.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct E4m3Cache {
    /// Of K.
    pub k_descale: Factor,
    /// Of V.
    pub v_descale: Factor,
}

/// K or V on the host.
#[derive(Clone, Copy, Debug)]
pub enum CacheData<'a, T> {
    /// In the type of Q.
    Same(&'a [T]),
    /// In e4m3, of a problem with an [`E4m3Cache`].
    E4m3(&'a [F8E4M3]),
}

impl<'a, T> From<&'a [T]> for CacheData<'a, T> {
    fn from(data: &'a [T]) -> Self {
        Self::Same(data)
    }
}

impl<'a, T, const N: usize> From<&'a [T; N]> for CacheData<'a, T> {
    fn from(data: &'a [T; N]) -> Self {
        Self::Same(data)
    }
}

impl<'a, T> From<&'a Vec<T>> for CacheData<'a, T> {
    fn from(data: &'a Vec<T>) -> Self {
        Self::Same(data)
    }
}

impl<'a, T: Element> CacheData<'a, T> {
    /// Its storage type.
    pub const fn dtype(&self) -> DType {
        match self {
            Self::Same(_) => T::DTYPE,
            Self::E4m3(_) => DType::E4m3,
        }
    }

    /// Elements `first` to before `first + count`, exact in the type of Q.
    pub(super) fn row(&self, first: usize, count: usize) -> impl Iterator<Item = T> + 'a {
        let (same, e4m3): (&[T], &[F8E4M3]) = match *self {
            Self::Same(data) => (&data[first..][..count], &[]),
            Self::E4m3(data) => (&[], &data[first..][..count]),
        };
        same.iter().copied().chain(e4m3.iter().map(|&value| T::from_f32(Element::to_f32(value))))
    }

    /// It as a row of the table of tensors of a problem whose cache is of type `expected`.
    pub(super) fn tensor(
        self,
        name: &'static str,
        layout: TensorLayout,
        expected: DType,
    ) -> Result<Tensor<'a>> {
        let given = self.dtype();
        if given != expected {
            return Err(Error::CacheType { tensor: name, given, expected });
        }
        Ok(match self {
            Self::Same(data) => Tensor::input(name, data, layout),
            Self::E4m3(data) => Tensor::input(name, data, layout),
        })
    }
}

/// The factors of an [`E4m3Cache`], validated.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Descales {
    pub(super) k: Factors,
    pub(super) v: Factors,
}

impl Descales {
    /// Of so many sequences and key/value heads.
    ///
    /// # Errors
    /// When there are not as many factors as heads, and when one is not positive or too large.
    pub(super) fn new(cache: &E4m3Cache, heads: Heads) -> Result<Self> {
        Ok(Self {
            k: Factors::new("k_descale", &cache.k_descale, heads)?,
            v: Factors::new("v_descale", &cache.v_descale, heads)?,
        })
    }

    /// Those of a sequence's head.
    pub(super) fn of(&self, batch: usize, kv_head: usize) -> [f32; 2] {
        [self.k.of(batch, kv_head), self.v.of(batch, kv_head)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{DecodeInputs, DecodeOptions, DecodeProblem, DecodeRequest};
    use crate::forward::Outputs;
    use crate::{Plan, Tensors};

    fn problem(k_descale: Factor, v_descale: Factor) -> Result<DecodeProblem> {
        let (q, k) = (TensorLayout::bshd(2, 1, 6, 16), TensorLayout::bshd(2, 40, 3, 16));
        let e4m3_cache = Some(E4m3Cache { k_descale, v_descale });
        let options = DecodeOptions { e4m3_cache, ..DecodeOptions::default() };
        DecodeProblem::new(Tensors { q, k, v: k, o: q }, DType::F32, options)
    }

    #[test]
    fn factors_are_positive_and_one_for_each_head() {
        let message = |k, v| problem(k, v).unwrap_err().to_string();
        let one = Factor::default;
        let range = "1.1754944e-38 to 1.8446744e19 is needed";
        let lengths = "3 (one per head) or 6 (one per sequence and head) are needed";
        assert_eq!(message(Factor::Tensor(0.0), one()), format!("k_descale: element 0 is 0.0; {range}"));
        assert_eq!(
            message(one(), Factor::Heads(vec![1.0, 2.0, -1.0])),
            format!("v_descale: element 2 is -1.0; {range}")
        );
        assert_eq!(
            message(one(), Factor::Heads(vec![f32::NAN; 6])),
            format!("v_descale: element 0 is NaN; {range}")
        );
        assert_eq!(
            message(Factor::Heads(vec![1.0; 2]), one()),
            format!("k_descale has 2 elements; {lengths}")
        );
        assert_eq!(message(one(), Factor::OnDevice(12)), format!("v_descale has 12 elements; {lengths}"));
        assert!(problem(Factor::Heads(vec![1.0; 6]), Factor::OnDevice(3)).is_ok());
    }

    #[test]
    fn k_and_v_are_of_the_type_of_the_problem_and_factors_on_the_host() {
        let run = |problem: &DecodeProblem, k, v| {
            let plan = Plan::new(problem, &crate::cpu::backend::device(), &DecodeRequest::default()).unwrap();
            let (mut o, q) = ([0.0_f32; 192], [0.0; 192]);
            let inputs = DecodeInputs::new(&q, k, v);
            plan.check(plan.device(), inputs, &mut Outputs { o: &mut o, lse: None }).unwrap_err().to_string()
        };
        let (rounded, same) = (vec![F8E4M3::default(); 3840], vec![0.0_f32; 3840]);
        let (e4m3, f32) = (CacheData::E4m3(&rounded), CacheData::Same(&same[..]));
        let of = problem(Factor::default(), Factor::OnDevice(3)).unwrap();
        assert_eq!(run(&of, e4m3, e4m3), Error::HeadValuesOnDevice { name: "v_descale" }.to_string());
        let of = problem(Factor::default(), Factor::default()).unwrap();
        assert_eq!(run(&of, e4m3, f32), "v is in f32; the problem's cache is in e4m3");
        assert_eq!(of.cache_bytes(&DecodeInputs::new(&same, e4m3, e4m3)), 7680);
    }
}
