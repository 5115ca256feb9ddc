//! Functions of scores as a program brings them along: those of the demonstration, with kernels for the
//! simulator alone, which need no device compiler.

// The file that the demonstration compiles into its kernels.
#[path = "../../../../../demos/score-functions/src/functions.rs"]
mod brought;

use std::sync::LazyLock;

use fa_kernels::entries::Entry;
use fa_kernels::functions::Unchanged;
use flash_attention::functions::{BlockMap, Built, FunctionTensor, Functions, Native};

use self::brought::{Documents, RelativeBias, Shift, Strided};
use super::case::{Attention, Brought};
use super::draw::Draw;

/// The most elements of a tensor that is made: functions read zeros behind it.
const MOST_ELEMENTS: usize = 1 << 20;

/// How far a query and a key are apart that have a bias of their own.
const REACH: u32 = 20;

/// Functions with the tiles that the simulator runs of fp16 and head_dims up to 64.
macro_rules! built {
    ($name:ident, $score:ty, $mask:ty) => {
        static $name: LazyLock<Built> = LazyLock::new(|| {
            #[cfg(feature = "sim")]
            let entries = {
                use fa_kernels::attention::alignment::ByHeads;
                use fa_kernels::attention::forward_sm80::{self, Sm80Tile};
                use fa_kernels::attention::forward_sm90::{self, Sm90Tile};
                use fa_kernels::element::F16;
                use fa_kernels::entries::Run;
                type Hopper = Sm90Tile<F16, ByHeads, 192, 64, 64, 64, true, false>;
                type Ampere = Sm80Tile<F16, 4, 4, 64, 64, true, false>;
                let hopper = forward_sm90::forward_sm90::<forward_sm90::Modified<Hopper, $score, $mask>>;
                let ampere = forward_sm80::forward_sm80::<forward_sm80::Modified<Ampere, $score, $mask>>;
                let masks = <$mask as fa_kernels::functions::MaskMod>::MASKS;
                vec![
                    entry("forward_sm90_f16_m192_n64_d64", masks, Run::Persistent(hopper)),
                    entry("forward_sm80_f16_m128_n64_d64_w4", masks, Run::Attention(ampere)),
                ]
            };
            #[cfg(not(feature = "sim"))]
            let entries: Vec<Entry> = Vec::new();
            let functions = Native::of::<$score, $mask>();
            Built { name: stringify!($name), functions, entries: entries.leak() }
        });
    };
}

built!(SHIFT, Shift, Unchanged);
built!(DOCUMENTS, Unchanged, Documents);
built!(BIAS_IN_DOCUMENTS, RelativeBias, Documents);
built!(STRIDED, Unchanged, Strided);

/// The row of a listed tile with functions.
#[cfg(feature = "sim")]
fn entry(name: &str, has_mask_mod: bool, run: fa_kernels::entries::Run) -> Entry {
    let mut variants = fa_kernels::entries::variants().filter_map(|listed| listed.modified());
    let variant = variants.find(|variant| variant.name() == name).expect("the tile is listed");
    let row = variant.entry(name.to_owned().leak()).expect("it is attention");
    let (barriers, shared_bytes) =
        (variant.barriers_with(has_mask_mod), variant.shared_bytes_with(has_mask_mod));
    Entry { run: Some(run), barriers, shared_bytes, ..row }
}

impl Attention {
    /// The functions of its scores, with documents of up to 60 rows.
    pub(super) fn functions(&self, sequences: usize) -> Option<Functions> {
        let built: &'static Built = match self.functions {
            Brought::Off => return None,
            Brought::Shift => &SHIFT,
            Brought::Documents => &DOCUMENTS,
            Brought::BiasInDocuments => &BIAS_IN_DOCUMENTS,
            Brought::Strided => return self.strided(),
        };
        let longest = self.sequences.iter().flatten().copied().max();
        let rows = longest.unwrap_or(self.seq.max(self.kv_seq)).max(1);
        let made = if sequences.saturating_mul(rows) <= MOST_ELEMENTS { sequences } else { 0 };
        let mut draw = Draw::new(self.seed.0 ^ 0x5bd1_e995);
        let (mut documents, mut firsts, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..made {
            let (mut first, mut document) = (0, 0_i32);
            while first < rows {
                let end = rows.min(first + 1 + draw.below(60));
                documents.extend(std::iter::repeat_n(document, end - first));
                firsts.extend(std::iter::repeat_n(first as u32, end - first));
                ends.extend(std::iter::repeat_n(end as u32, end - first));
                (first, document) = (end, document + 1);
            }
        }
        let count = self.heads().saturating_mul(2 * REACH as usize + 1);
        let bias = |index: usize| ((index * 7919 % 64) as f32 - 32.0) / 16.0;
        let biases: Vec<f32> = (0..count.min(MOST_ELEMENTS)).map(bias).collect();
        let tensors: Vec<FunctionTensor> =
            vec![documents[..].into(), biases[..].into(), firsts[..].into(), ends[..].into()];
        Some(Functions { built, tensors, values: vec![rows as u32, REACH, 1.75_f32.to_bits()] })
    }
    /// A sparse mask with a map of blocks.
    fn strided(&self) -> Option<Functions> {
        let longest = |axis: usize, of_all: usize| {
            self.sequences.iter().map(|rows| rows[axis]).max().unwrap_or(of_all).max(1)
        };
        let rows = [longest(0, self.seq), longest(1, self.kv_seq)];
        let mut draw = Draw::new(self.seed.0 ^ 0x7feb_352d);
        let values = vec![1 + draw.below(5) as u32, draw.below(3) as u32];
        let functions = Functions { built: &STRIDED, tensors: Vec::new(), values };
        let block = [draw.pick(&[32, 64, 128]), draw.pick(&[32, 64, 128])];
        let map = BlockMap::of_mask(&functions, [1, 1], rows, block).ok()?;
        Some(Functions { tensors: vec![map.into()], ..functions })
    }
}
