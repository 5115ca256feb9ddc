//! Functions of scores that a program brings along: FlexAttention's `score_mod` and `mask_mod` in Rust,
//! compiled ahead into the kernels by its `build.rs` (`fa_ptx_builder::Functions`).
//!
//! ```
//! use fa_kernels::functions::{MaskMod, Position};
//! use fa_kernels::params::FunctionData;
//!
//! /// A query sees the keys of its own document; tensor 0 has the document of each row.
//! #[derive(Clone, Copy)]
//! pub struct Documents;
//!
//! impl MaskMod for Documents {
//!     #[inline(always)]
//!     fn sees(data: &FunctionData, at: Position) -> bool {
//!         data.i32(0, at.query) == data.i32(0, at.key)
//!     }
//! }
//! ```

mod block_map;

use std::sync::Arc;

use fa_kernels::entries::{Entry, Tile};
use fa_kernels::functions::{MaskMod, Position, Score, ScoreMod};
use fa_kernels::params::{FunctionData, MAX_FUNCTION_TENSORS, MAX_FUNCTION_VALUES};

use crate::operation::{Data, Tensor};
use crate::options::Options;
use crate::{DType, Error, Result};

#[doc(hidden)]
pub use crate::__native_entry as native;
pub use block_map::BlockMap;

/// The native code of an entry, for the simulator.
#[cfg(feature = "sim")]
#[doc(hidden)]
#[macro_export]
macro_rules! __native_entry {
    ($run:expr) => {
        Some($run)
    };
}

/// The native code of an entry, which no simulator was built for.
#[cfg(not(feature = "sim"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __native_entry {
    ($run:expr) => {
        None
    };
}

/// What functions are on the host: the CPU and the reference call them.
#[derive(Clone, Copy, Debug)]
pub struct Native {
    score: Option<fn(&FunctionData, Score, Position) -> f32>,
    sees: Option<fn(&FunctionData, Position) -> bool>,
}

impl Native {
    /// Those of two types.
    pub const fn of<S: ScoreMod, M: MaskMod>() -> Self {
        Self {
            score: if S::CHANGES { Some(S::score) } else { None },
            sees: if M::MASKS { Some(M::sees) } else { None },
        }
    }
}

/// Functions with the kernels that they were compiled into; `fa_ptx_builder::Functions` writes it as a
/// static.
#[derive(Debug)]
pub struct Built {
    /// What they are called together.
    pub name: &'static str,
    /// Their native code.
    pub functions: Native,
    /// The kernels.
    pub entries: &'static [Entry],
}

/// Functions of a problem's scores, in place of softcap and ALiBi, with what they read.
///
/// The mask function hides keys beside causal mask and window. What lies outside of those and of
/// [`MaskMod::bounds`], and what [`MaskMod::block`] says is not seen, is not computed on a GPU; the CPU and
/// the reference ask [`MaskMod::sees`] alone.
#[derive(Clone, Debug)]
pub struct Functions {
    /// The functions and their kernels.
    pub built: &'static Built,
    /// Tensors that they read, up to [`MAX_FUNCTION_TENSORS`].
    pub tensors: Vec<FunctionTensor>,
    /// Values that they read, by their bits, up to [`MAX_FUNCTION_VALUES`].
    pub values: Vec<u32>,
}

impl PartialEq for Functions {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.built, other.built) && self.tensors == other.tensors && self.values == other.values
    }
}

/// A tensor that functions read: contiguous elements of 4 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FunctionTensor {
    /// Its elements, by their bits.
    Host(Arc<[u32]>),
    /// As many elements, which the device alone has: [`Addresses::functions`](crate::forward::Addresses) says
    /// where.
    OnDevice(usize),
    /// A map of blocks, whose shape is the problem's.
    BlockMap(BlockMap),
}

impl From<BlockMap> for FunctionTensor {
    fn from(map: BlockMap) -> Self {
        Self::BlockMap(map)
    }
}

impl From<&[u32]> for FunctionTensor {
    fn from(elements: &[u32]) -> Self {
        Self::Host(elements.into())
    }
}

impl From<&[i32]> for FunctionTensor {
    fn from(elements: &[i32]) -> Self {
        Self::Host(elements.iter().map(|element| element.cast_unsigned()).collect())
    }
}

impl From<&[f32]> for FunctionTensor {
    fn from(elements: &[f32]) -> Self {
        Self::Host(elements.iter().map(|element| element.to_bits()).collect())
    }
}

impl FunctionTensor {
    /// Elements that the host has.
    fn on_host(&self) -> Option<&[u32]> {
        match self {
            Self::Host(elements) => Some(elements),
            Self::BlockMap(map) => Some(map.words()),
            Self::OnDevice(_) => None,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::OnDevice(len) => *len,
            Self::Host(elements) => elements.len(),
            Self::BlockMap(map) => map.words().len(),
        }
    }
}

/// Names of tensors in messages.
const NAMES: [&str; MAX_FUNCTION_TENSORS] =
    ["function tensor 0", "function tensor 1", "function tensor 2", "function tensor 3"];

impl Functions {
    /// Those that `options` ask for, of tensors in `dtype` that scores scaled by `softmax_scale` are made of:
    /// of `[batch, heads]` and at most `[seqlen_q, seqlen_k]`.
    ///
    /// # Errors
    /// When there is also a softcap, ALiBi or dropout, the type has 8 bits, there are too many tensors or
    /// values, a tensor is too long, or a map of blocks has another shape; and where keys are masked alone,
    /// for a scale that is not positive.
    pub(crate) fn validated(
        options: &Options,
        (dtype, softmax_scale): (DType, f32),
        (heads, rows): ([usize; 2], [usize; 2]),
    ) -> Result<Option<Arc<Self>>> {
        let Some(functions) = &options.functions else { return Ok(None) };
        let Self { built, tensors, values } = functions;
        let refuse = |reason: String| Err(Error::Functions { name: built.name, reason });
        let alibi = options.alibi_slopes.is_some() || options.on_device.alibi_slopes.is_some();
        let others = [(options.softcap != 0.0, "softcap"), (alibi, "alibi_slopes")];
        let others = others.into_iter().chain([(options.dropout.is_some(), "dropout")]);
        if let Some((_, other)) = others.into_iter().find(|(is_there, _)| *is_there) {
            return refuse(format!("they take the place of {other}, which is given too"));
        }
        if dtype == DType::E4m3 {
            return refuse(format!("they are built for types of 16 bits and more, not for {dtype}"));
        }
        if built.functions.score.is_none() && softmax_scale <= 0.0 {
            return refuse(format!(
                "softmax_scale is {softmax_scale}; with a mask function alone it is positive"
            ));
        }
        if tensors.len() > MAX_FUNCTION_TENSORS {
            return refuse(format!(
                "{} tensors are given; at most {MAX_FUNCTION_TENSORS} are read",
                tensors.len()
            ));
        }
        if values.len() > MAX_FUNCTION_VALUES {
            return refuse(format!(
                "{} values are given; at most {MAX_FUNCTION_VALUES} are read",
                values.len()
            ));
        }
        for (tensor, name) in tensors.iter().zip(NAMES) {
            if u32::try_from(tensor.len()).is_err() {
                return refuse(format!("{name} has {} elements; at most {} can be", tensor.len(), u32::MAX));
            }
            if let FunctionTensor::BlockMap(map) = tensor
                && let Some(misfit) = map.misfit(heads, rows)
            {
                return refuse(format!("{name} is {misfit}"));
            }
        }
        Ok(Some(Arc::new(functions.clone())))
    }

    /// What a tile's steps cost as a share of all, as far as maps of blocks tell.
    pub(crate) fn share(&self, tile: &Tile) -> f64 {
        let maps = self.tensors.iter().filter_map(|tensor| match tensor {
            FunctionTensor::BlockMap(map) => Some(map.share(tile.block_m, tile.block_n)),
            FunctionTensor::Host(_) | FunctionTensor::OnDevice(_) => None,
        });
        maps.reduce(f64::min).unwrap_or(1.0)
    }

    /// The rows of a table of tensors for theirs.
    ///
    /// # Errors
    /// When the device alone has one, and the error of `place`.
    pub(crate) fn place<'t>(
        &'t self,
        place: &mut dyn FnMut(Tensor<'t>) -> Result<u64>,
    ) -> Result<[Option<u64>; MAX_FUNCTION_TENSORS]> {
        let mut addresses = [None; MAX_FUNCTION_TENSORS];
        for ((address, tensor), name) in addresses.iter_mut().zip(&self.tensors).zip(NAMES) {
            let elements = tensor.on_host().ok_or(Error::HeadValuesOnDevice { name })?;
            if !elements.is_empty() {
                *address = Some(place(Tensor::list(name, elements, elements.len()))?);
            }
        }
        Ok(addresses)
    }

    /// What they read, of tensors at these addresses.
    ///
    /// # Errors
    /// When the address of a tensor was left out.
    pub(crate) fn params(&self, addresses: &[Option<u64>; MAX_FUNCTION_TENSORS]) -> Result<FunctionData> {
        let mut tensors = [(0, 0); MAX_FUNCTION_TENSORS];
        for (((at, tensor), address), name) in tensors.iter_mut().zip(&self.tensors).zip(addresses).zip(NAMES)
        {
            if tensor.len() > 0 {
                *at = (address.ok_or(Error::MissingAddress { tensor: name })?, tensor.len() as u32);
            }
        }
        let mut values = [0; MAX_FUNCTION_VALUES];
        values.iter_mut().zip(&self.values).for_each(|(to, value)| *to = *value);
        // SAFETY: whoever launches kernels vouches for the tensors at its addresses.
        Ok(unsafe { FunctionData::new(tensors, values) })
    }

    /// Functions that the host calls, over tensors that it has.
    ///
    /// # Errors
    /// When the device alone has one.
    pub(crate) fn on_host(&self) -> Result<OnHost<'_>> {
        let addresses = self.place(&mut |tensor| match tensor.data {
            Data::Input(elements) => Ok(elements.as_ptr().expose_provenance() as u64),
            Data::Output(_) | Data::Updated(_) | Data::Workspace => Ok(0),
        })?;
        Ok(OnHost { functions: self, data: self.params(&addresses)? })
    }
}

/// Functions with tensors in host memory.
#[derive(Clone, Copy)]
pub(crate) struct OnHost<'a> {
    functions: &'a Functions,
    data: FunctionData,
}

impl OnHost<'_> {
    /// Whether the mask function shows a key to a query.
    fn sees(&self, at: Position) -> bool {
        self.functions.built.functions.sees.is_none_or(|sees| sees(&self.data, at))
    }

    /// What becomes of a scaled score; −∞ where the key is hidden.
    pub(crate) fn score(&self, scaled: f32, at: Position) -> f32 {
        if !self.sees(at) {
            return f32::NEG_INFINITY;
        }
        let Native { score, .. } = self.functions.built.functions;
        score.map_or(scaled, |score| score(&self.data, Score::new(scaled, 1.0), at))
    }
}
