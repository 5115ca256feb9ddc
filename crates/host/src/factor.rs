//! What the elements of tensors in 8 bits are multiplied by.

use fa_kernels::params;

use crate::head_values::{HeadValues, Heads};
use crate::operation::Tensor;
use crate::options::MAX_SCALE;
use crate::{Error, Result};

/// What the elements of a tensor in e4m3 are multiplied by, from 2⁻¹²⁶ to 2⁶⁴: what they were divided by
/// before they were rounded, so that they fill its range.
#[derive(Clone, Debug, PartialEq)]
pub enum Factor {
    /// All of them.
    Tensor(f32),
    /// Those of each key/value head: `[Hkv]` or `[B, Hkv]`, contiguous.
    Heads(Vec<f32>),
    /// As [`Self::Heads`], fp32 values that the device alone has, and how many. Runs on host tensors refuse
    /// them.
    OnDevice(usize),
}

impl Default for Factor {
    /// Elements are what they stand for.
    fn default() -> Self {
        Self::Tensor(1.0)
    }
}

impl From<f32> for Factor {
    fn from(value: f32) -> Self {
        Self::Tensor(value)
    }
}

/// The factors of a tensor, validated.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Factors {
    name: &'static str,
    /// Of all heads, where there is no list.
    tensor: f32,
    list: Option<HeadValues>,
}

impl Factors {
    /// Of so many sequences and key/value heads.
    ///
    /// # Errors
    /// When there are not as many factors as heads, and when one is not positive or too large.
    pub(crate) fn new(name: &'static str, descale: &Factor, heads: Heads) -> Result<Self> {
        let list = match descale {
            Factor::Tensor(value) => {
                check(name, 0, *value)?;
                return Ok(Self { name, tensor: *value, list: None });
            }
            Factor::Heads(values) => HeadValues::of_values(name, values, heads)?,
            Factor::OnDevice(len) => HeadValues::with_len(name, *len, heads)?,
        };
        list.values.iter().enumerate().try_for_each(|(index, &value)| check(name, index, value))?;
        Ok(Self { name, tensor: 1.0, list: Some(list) })
    }

    /// Whether heads have factors of their own.
    pub(crate) const fn is_per_head(&self) -> bool {
        self.list.is_some()
    }

    /// Heads that the list names: those of one sequence or of all; 0 without a list.
    pub(crate) fn heads(&self) -> usize {
        self.list.as_ref().map_or(0, |list| list.len)
    }

    /// That of a sequence's head.
    pub(crate) fn of(&self, batch: usize, kv_head: usize) -> f32 {
        self.list.as_ref().map_or(self.tensor, |list| list.of(batch, kv_head))
    }

    /// That of all heads; 1 where they have their own.
    pub(crate) const fn tensor(&self) -> f32 {
        self.tensor
    }

    /// Refuses a list that the device alone has.
    pub(crate) fn check_on_host(&self) -> Result<()> {
        self.list.as_ref().map_or(Ok(()), |list| list.check_on_host(self.name))
    }

    /// The row of the table of tensors for the list, if there is one.
    ///
    /// # Errors
    /// When the device alone has the values, and the error of `place`.
    pub(crate) fn place<'t>(
        &'t self,
        place: &mut dyn FnMut(Tensor<'t>) -> Result<u64>,
    ) -> Result<Option<u64>> {
        let Some(list) = &self.list else { return Ok(None) };
        self.check_on_host()?;
        place(Tensor::list(self.name, &list.values, list.len)).map(Some)
    }

    /// As kernels take it.
    ///
    /// # Errors
    /// When the address of a list was left out.
    pub(crate) fn params(&self, address: Option<u64>) -> Result<params::Descale> {
        let per_head = HeadValues::params(self.list.as_ref(), self.name, address)?;
        Ok(params::Descale { per_head, tensor: self.tensor })
    }
}

/// Checks a factor.
fn check(name: &'static str, index: usize, value: f32) -> Result<()> {
    // A subnormal one is 0 to a GPU.
    if value.is_normal() && (0.0..=MAX_SCALE).contains(&value) {
        return Ok(());
    }
    Err(Error::Factor { name, index, value, least: f32::MIN_POSITIVE, limit: MAX_SCALE })
}
