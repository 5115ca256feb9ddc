//! A problem as plain data: what a failure line prints, what is made smaller, and what replays it.
//!
//! Strides follow from gaps, so that a smaller size or gap leaves a valid problem. Every field has the
//! simplest value as its default, and only what differs from that is written.

use flash_attention::DType;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::place::{MatrixPlace, Place, Spoil};

/// One problem of an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(clippy::large_enum_variant, reason = "a thread holds one, and takes it apart by its variants")]
pub(super) enum Case {
    Forward(Attention),
    Backward(Backward),
    Decode(Decode),
    Gemm(Gemm),
}

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Forward,
    Backward,
    Decode,
    Gemm,
}

impl Operation {
    pub(crate) const ALL: [Self; 4] = [Self::Forward, Self::Backward, Self::Decode, Self::Gemm];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Decode => "decode",
            Self::Gemm => "gemm",
        }
    }
}

/// What elements are drawn from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Data {
    /// N(0, 1).
    #[default]
    Normal,
    /// N(1, 1/16): sums do not cancel.
    MeanOne,
    /// Near the end of the type's range, as far as results stay finite.
    Huge,
    /// One number everywhere.
    Equal,
}

/// The most values of a list that are made: a problem with more heads is refused for having too few.
const MOST_VALUES: usize = 1 << 16;

/// A list with a value for each head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum HeadList {
    #[default]
    Off,
    /// [H].
    Heads,
    /// [B, H].
    All,
}

impl HeadList {
    /// How many values it has, of so many sequences.
    pub(super) fn len(self, heads: usize, sequences: usize) -> Option<usize> {
        let len = match self {
            Self::Off => return None,
            Self::Heads => heads,
            Self::All => heads.saturating_mul(sequences),
        };
        Some(len.min(MOST_VALUES))
    }
}

/// Functions of scores that a program brings along.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Brought {
    #[default]
    Off,
    Shift,
    Documents,
    BiasInDocuments,
    Strided,
}

impl Brought {
    /// All that bring some.
    pub(super) const ALL: [Self; 4] = [Self::Shift, Self::Documents, Self::BiasInDocuments, Self::Strided];
}

/// A forward problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Attention {
    #[serde(with = "dtype_name")]
    pub(super) dtype: DType,
    pub(super) batch: usize,
    pub(super) kv_heads: usize,
    /// Query heads of each key/value head.
    pub(super) group: usize,
    pub(super) seq: usize,
    pub(super) kv_seq: usize,
    pub(super) head_dim: usize,
    /// As `head_dim` where absent.
    pub(super) head_dim_v: Option<usize>,
    /// Rows of queries and keys of each sequence of a packed batch; `batch`, `seq` and `kv_seq` count if
    /// there are none.
    pub(super) sequences: Vec<[usize; 2]>,
    /// Rows of queries and keys behind the last sequence of a packed batch.
    pub(super) tail: [usize; 2],
    /// Rows between the longest sequence and the bound of a plan that does not know the offsets of a packed
    /// batch, or the keys that are used; absent where it does.
    pub(super) slack: Option<usize>,
    /// Keys that each sequence uses; all of them if there is no number.
    pub(super) used: Vec<usize>,
    pub(super) q: Place,
    pub(super) k: Place,
    pub(super) v: Place,
    pub(super) o: Place,
    pub(super) causal: bool,
    pub(super) window: [Option<usize>; 2],
    /// softmax_scale, before the factor that `Huge` data bring.
    pub(super) scale: Option<f32>,
    pub(super) softcap: f32,
    pub(super) alibi: HeadList,
    pub(super) sinks: HeadList,
    /// In place of softcap and ALiBi, not on a GPU.
    pub(super) functions: Brought,
    /// Probability.
    pub(super) dropout: f32,
    pub(super) descale: Option<[f32; 3]>,
    /// Of key/value heads, which the factors are multiplied with.
    pub(super) descale_of: HeadList,
    pub(super) no_lse: bool,
    /// Of Q and K.
    pub(super) scores: Data,
    /// Of V.
    pub(super) values: Data,
    /// A kernel or an entry; empty for the planner's choice.
    pub(super) run: String,
    /// BLOCK_M and BLOCK_N; 0 for the planner's choice.
    pub(super) block: [usize; 2],
    /// Whether the planner's choice does not depend on the batch.
    pub(super) batch_invariant: bool,
    /// Names the elements.
    pub(super) seed: Seed,
    /// Thread order of the simulator.
    pub(super) schedule: u64,
    /// Raw values that a layout gets at last.
    pub(super) spoil: Vec<Spoil>,
}

impl Default for Attention {
    fn default() -> Self {
        Self {
            dtype: DType::F32,
            batch: 1,
            kv_heads: 1,
            group: 1,
            seq: 1,
            kv_seq: 1,
            head_dim: 1,
            head_dim_v: None,
            sequences: Vec::new(),
            tail: [0; 2],
            slack: None,
            used: Vec::new(),
            q: Place::default(),
            k: Place::default(),
            v: Place::default(),
            o: Place::default(),
            causal: false,
            window: [None; 2],
            scale: None,
            softcap: 0.0,
            alibi: HeadList::Off,
            sinks: HeadList::Off,
            functions: Brought::Off,
            dropout: 0.0,
            descale: None,
            descale_of: HeadList::Off,
            no_lse: false,
            scores: Data::Normal,
            values: Data::Normal,
            run: String::new(),
            block: [0; 2],
            batch_invariant: false,
            seed: Seed(0),
            schedule: 0,
            spoil: Vec::new(),
        }
    }
}

/// A backward problem.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Backward {
    pub(super) forward: Attention,
    pub(super) dout: Place,
    pub(super) dq: Place,
    pub(super) dk: Place,
    pub(super) dv: Place,
    pub(super) dlse: bool,
    /// Whether the gradient of sinks is not asked for.
    pub(super) no_dsinks: bool,
    /// A kernel or an entry; empty for the planner's choice.
    pub(super) run: String,
    /// Bytes of dS that may be stored; 0 for the planner's choice.
    pub(super) limit: u64,
    /// Queries of a head of which dS is stored at a time; 0 for the planner's choice.
    pub(super) unit_rows: usize,
    /// Multiprocessors that are left to others.
    pub(super) sm_margin: u32,
}

/// A decode problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Decode {
    #[serde(with = "dtype_name")]
    pub(super) dtype: DType,
    pub(super) kv_heads: usize,
    pub(super) group: usize,
    pub(super) seq: usize,
    /// Queries of each sequence that are packed; none where each has `seq`.
    pub(super) queries: Vec<usize>,
    /// Whether the device alone has their offsets.
    pub(super) on_device: bool,
    pub(super) head_dim: usize,
    /// As `head_dim` where absent.
    pub(super) head_dim_v: Option<usize>,
    /// Keys of each sequence.
    pub(super) used: Vec<usize>,
    /// Whether all sequences have the most keys, so that no lengths are given.
    pub(super) full: bool,
    /// Keys behind the longest sequence of a contiguous cache.
    pub(super) spare_keys: usize,
    /// Keys of a page; 0 for a contiguous cache.
    pub(super) page_size: usize,
    /// Pages that no sequence has.
    pub(super) spare_pages: usize,
    /// Entries of the page table behind those of the longest sequence.
    pub(super) spare_entries: usize,
    pub(super) q: Place,
    pub(super) k: Place,
    pub(super) v: Place,
    pub(super) o: Place,
    pub(super) causal: bool,
    /// Whether queries are a tree, of branches drawn by chance.
    pub(super) tree: bool,
    pub(super) window: [Option<usize>; 2],
    pub(super) scale: Option<f32>,
    pub(super) softcap: f32,
    pub(super) alibi: HeadList,
    pub(super) sinks: HeadList,
    /// Whether K and V are in e4m3.
    pub(super) e4m3_cache: bool,
    /// Whether V is the first columns of K.
    pub(super) latent: bool,
    /// Factors of K and V of each key/value head; off for one of all.
    pub(super) k_descale: HeadList,
    pub(super) v_descale: HeadList,
    pub(super) no_lse: bool,
    pub(super) scores: Data,
    pub(super) values: Data,
    /// 0 for the planner's choice.
    pub(super) splits: usize,
    /// Whether the planner's splits are of one length.
    pub(super) batch_invariant: bool,
    /// Whether by the kernel of GPUs before Hopper.
    pub(super) older: bool,
    /// Empty for the planner's choice.
    pub(super) entry: String,
    pub(super) seed: Seed,
    pub(super) schedule: u64,
    pub(super) spoil: Vec<Spoil>,
}

impl Default for Decode {
    fn default() -> Self {
        Self {
            dtype: DType::F32,
            kv_heads: 1,
            group: 1,
            seq: 1,
            queries: Vec::new(),
            on_device: false,
            head_dim: 1,
            head_dim_v: None,
            used: vec![1],
            full: false,
            spare_keys: 0,
            page_size: 0,
            spare_pages: 0,
            spare_entries: 0,
            q: Place::default(),
            k: Place::default(),
            v: Place::default(),
            o: Place::default(),
            causal: false,
            tree: false,
            window: [None; 2],
            scale: None,
            softcap: 0.0,
            alibi: HeadList::Off,
            sinks: HeadList::Off,
            e4m3_cache: false,
            latent: false,
            k_descale: HeadList::Off,
            v_descale: HeadList::Off,
            no_lse: false,
            scores: Data::Normal,
            values: Data::Normal,
            splits: 0,
            batch_invariant: false,
            older: false,
            entry: String::new(),
            seed: Seed(0),
            schedule: 0,
            spoil: Vec::new(),
        }
    }
}

/// A matrix multiplication.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Gemm {
    #[serde(with = "dtype_name")]
    pub(super) dtype: DType,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: MatrixPlace,
    pub(super) b: MatrixPlace,
    pub(super) c: MatrixPlace,
    pub(super) data: Data,
    /// A kernel; empty for the planner's choice.
    pub(super) run: String,
    /// BLOCK_M and BLOCK_N; 0 for the planner's choice.
    pub(super) block: [usize; 2],
    pub(super) realign: bool,
    pub(super) seed: Seed,
    pub(super) schedule: u64,
    pub(super) spoil: Vec<Spoil>,
}

impl Default for Gemm {
    fn default() -> Self {
        Self {
            dtype: DType::F32,
            m: 1,
            n: 1,
            k: 1,
            a: MatrixPlace::default(),
            b: MatrixPlace::default(),
            c: MatrixPlace::default(),
            data: Data::Normal,
            run: String::new(),
            block: [0; 2],
            realign: false,
            seed: Seed(0),
            schedule: 0,
            spoil: Vec::new(),
        }
    }
}

/// Names random elements. A string in the text, which is either there or not: other seeds are not smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seed(pub(super) u64);

impl Serialize for Seed {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_string())
    }
}

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

mod dtype_name {
    use flash_attention::DType;
    use serde::Deserialize as _;

    pub(super) fn serialize<S: serde::Serializer>(dtype: &DType, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(dtype.name())
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<DType, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = DType::ALL.into_iter().find(|dtype| dtype.name() == name);
        found.ok_or_else(|| {
            serde::de::Error::custom(format!("dtype is {name}; f32, f16, bf16 or e4m3 is needed"))
        })
    }
}

impl Case {
    pub(super) const fn operation(&self) -> Operation {
        match self {
            Self::Forward(_) => Operation::Forward,
            Self::Backward(_) => Operation::Backward,
            Self::Decode(_) => Operation::Decode,
            Self::Gemm(_) => Operation::Gemm,
        }
    }

    /// The simplest problem of the operation.
    fn simplest(&self) -> Self {
        match self {
            Self::Forward(_) => Self::Forward(Attention::default()),
            Self::Backward(_) => Self::Backward(Backward::default()),
            Self::Decode(_) => Self::Decode(Decode::default()),
            Self::Gemm(_) => Self::Gemm(Gemm::default()),
        }
    }

    /// What differs from the simplest problem of the operation.
    ///
    /// # Errors
    /// When a number is none that JSON has.
    pub(super) fn to_value(&self) -> serde_json::Result<Value> {
        let mut value = serde_json::to_value(self)?;
        without(&mut value, &serde_json::to_value(self.simplest())?);
        Ok(value)
    }

    /// One line that [`Self::parse`] reads.
    pub(super) fn text(&self) -> String {
        self.to_value().map_or_else(|error| error.to_string(), |value| value.to_string())
    }

    /// Reads what [`Self::text`] wrote.
    ///
    /// # Errors
    /// When it is not a problem.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }
}

/// Leaves out what is as in `default`; of the outermost object, which names the operation, nothing.
fn without(value: &mut Value, default: &Value) {
    let (Value::Object(fields), Value::Object(defaults)) = (value, default) else { return };
    for (key, field) in fields {
        if let Some(default) = defaults.get(key) {
            strip(field, default);
        }
    }
}

fn strip(value: &mut Value, default: &Value) {
    let (Value::Object(fields), Value::Object(defaults)) = (value, default) else { return };
    fields.retain(|key, field| {
        let Some(default) = defaults.get(key) else { return true };
        strip(field, default);
        let is_empty = field.as_object().is_some_and(serde_json::Map::is_empty);
        field != default && !(is_empty && default.is_object())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_what_differs_and_comes_back() {
        let mut case = Attention { seq: 7, seed: Seed(u64::MAX), ..Attention::default() };
        case.o.gaps[1] = 3;
        let cases = [
            Case::Forward(case.clone()),
            Case::Backward(Backward { forward: case, ..Backward::default() }),
            Case::Gemm(Gemm { dtype: DType::Bf16, ..Gemm::default() }),
            Case::Decode(Decode::default()),
        ];
        assert_eq!(
            cases[0].text(),
            r#"{"forward":{"o":{"gaps":[0,3,0]},"seed":"18446744073709551615","seq":7}}"#
        );
        assert_eq!(cases[2].text(), r#"{"gemm":{"dtype":"bf16"}}"#);
        assert_eq!(cases[3].text(), r#"{"decode":{}}"#);
        for case in cases {
            assert_eq!(Case::parse(&case.text()).unwrap(), case);
        }
    }

    #[test]
    fn what_is_no_problem_is_refused_in_a_line() {
        for text in
            ["", "{}", r#"{"forward":{"seq":-1}}"#, r#"{"forward":{"dtype":"f8"}}"#, r#"{"gemm":{"x":1}}"#]
        {
            let error = Case::parse(text).unwrap_err();
            assert!(!error.is_empty() && !error.contains('\n'), "{error}");
        }
    }
}
