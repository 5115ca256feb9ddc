//! What the elements of tensors in 8 bits are multiplied by.

use std::sync::Arc;

use fa_kernels::params;

use crate::operation::Tensor;
use crate::options::{Heads, MAX_SCALE, with_len};
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
    list: Option<List>,
}

#[derive(Clone, Debug, PartialEq)]
struct List {
    /// None where the device alone has them.
    values: Arc<[f32]>,
    /// Values from one sequence to the next; 0 where all have the same.
    batch_stride: usize,
}

impl Factors {
    /// Of so many sequences and key/value heads.
    ///
    /// # Errors
    /// When there are not as many factors as heads, and when one is not positive or too large.
    pub(crate) fn new(name: &'static str, descale: &Factor, heads: Heads) -> Result<Self> {
        let (values, len): (&[f32], _) = match descale {
            Factor::Tensor(value) => {
                check(name, 0, *value)?;
                return Ok(Self { name, tensor: *value, list: None });
            }
            Factor::Heads(values) => (values, values.len()),
            Factor::OnDevice(len) => (&[], *len),
        };
        let batch_stride = with_len(name, len, heads)?;
        values.iter().enumerate().try_for_each(|(index, &value)| check(name, index, value))?;
        Ok(Self { name, tensor: 1.0, list: Some(List { values: values.into(), batch_stride }) })
    }

    /// Whether heads have factors of their own.
    pub(crate) const fn is_per_head(&self) -> bool {
        self.list.is_some()
    }

    /// That of a sequence's head.
    pub(crate) fn of(&self, batch: usize, kv_head: usize) -> f32 {
        self.list.as_ref().map_or(self.tensor, |list| list.values[batch * list.batch_stride + kv_head])
    }

    /// That of all heads; 1 where they have their own.
    pub(crate) const fn tensor(&self) -> f32 {
        self.tensor
    }

    /// Refuses a list that the device alone has.
    pub(crate) fn check_on_host(&self) -> Result<()> {
        match &self.list {
            Some(list) if list.values.is_empty() => Err(Error::HeadValuesOnDevice { name: self.name }),
            _ => Ok(()),
        }
    }

    /// The row of the table of tensors for the list, if there is one.
    ///
    /// # Errors
    /// When the device alone has the values, and the error of `place`.
    pub(crate) fn place<'t>(
        &'t self,
        place: &mut dyn FnMut(Tensor<'t>) -> Result<u64>,
    ) -> Result<Option<u64>> {
        let Some(List { values, .. }) = &self.list else { return Ok(None) };
        self.check_on_host()?;
        place(Tensor::list(self.name, values, values.len())).map(Some)
    }

    /// As kernels take it.
    ///
    /// # Errors
    /// When the address of a list was left out.
    pub(crate) fn params(&self, address: Option<u64>) -> Result<params::Descale> {
        let per_head = match &self.list {
            None => params::HeadValues::default(),
            Some(list) => params::HeadValues {
                address: address.ok_or(Error::MissingAddress { tensor: self.name })?,
                batch_stride: list.batch_stride as u64,
            },
        };
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
