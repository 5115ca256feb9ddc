//! Lists with a value for each head.

use std::sync::Arc;

use fa_kernels::params;

use crate::{Error, Result};

/// How many heads there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    /// Sequences.
    pub(crate) batch: usize,
    /// Heads of each.
    pub(crate) heads: usize,
}

/// A value for each head, of all sequences alike or of each its own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HeadValues {
    /// None where the device alone has them.
    pub(crate) values: Arc<[f32]>,
    pub(crate) len: usize,
    /// Values from one sequence to the next; 0 where all have the same.
    batch_stride: usize,
}

impl HeadValues {
    /// A list of these values, or of so many that the device has, if there is one.
    pub(crate) fn of_list(
        name: &'static str,
        values: Option<&[f32]>,
        on_device: Option<usize>,
        heads: Heads,
    ) -> Result<Option<Self>> {
        match (values, on_device) {
            (Some(_), Some(_)) => Err(Error::HeadValuesTwice { name }),
            (Some(values), None) => Self::new(name, values, heads).map(Some),
            (None, Some(len)) => Self::with_len(name, len, heads).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Of so many values that the device alone has.
    ///
    /// # Errors
    /// When there is neither one for each head nor one for each sequence and head.
    pub(crate) fn with_len(name: &'static str, len: usize, Heads { batch, heads }: Heads) -> Result<Self> {
        let all = batch.saturating_mul(heads);
        if len != heads && len != all {
            return Err(Error::HeadValues { name, len, heads, all });
        }
        let batch_stride = if len > heads { heads } else { 0 };
        Ok(Self { values: Arc::default(), len, batch_stride })
    }

    fn new(name: &'static str, values: &[f32], heads: Heads) -> Result<Self> {
        let list = Self::of_values(name, values, heads)?;
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            return Err(Error::HeadValue { name, index, value: values[index] });
        }
        Ok(list)
    }

    /// These values, which the caller has checked.
    pub(crate) fn of_values(name: &'static str, values: &[f32], heads: Heads) -> Result<Self> {
        Ok(Self { values: Arc::from(values), ..Self::with_len(name, values.len(), heads)? })
    }

    pub(crate) fn of(&self, batch: usize, head: usize) -> f32 {
        self.values[batch * self.batch_stride + head]
    }

    /// Refuses a list whose values the device alone has.
    pub(crate) fn check_on_host(&self, name: &'static str) -> Result<()> {
        if self.values.is_empty() { Err(Error::HeadValuesOnDevice { name }) } else { Ok(()) }
    }

    /// A list as kernels take it.
    ///
    /// # Errors
    /// When there is one, and its address was left out.
    pub(crate) fn params(
        list: Option<&Self>,
        tensor: &'static str,
        address: Option<u64>,
    ) -> Result<params::HeadValues> {
        let Some(list) = list else { return Ok(params::HeadValues::default()) };
        let address = address.ok_or(Error::MissingAddress { tensor })?;
        Ok(params::HeadValues { address, batch_stride: list.batch_stride as u64 })
    }
}
