//! Which tiles a sweep tries: all combinations of what was asked for, each feasible or rejected with a
//! reason.

use fa_kernels::config::{Infeasible, Limits};
use fa_kernels::variant::{Axes, Config, Kernel, Layout, Sizes, Storage, Variant};
use flash_attention::DType;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::family::Family;
use crate::failure::usage;

/// What is swept over; an axis that the family does not have is empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Space {
    pub(crate) kernel: Family,
    #[serde(serialize_with = "dtype_name", deserialize_with = "dtype_named")]
    pub(crate) dtype: DType,
    pub(crate) block_m: Vec<u32>,
    pub(crate) block_n: Vec<u32>,
    pub(crate) warps: Vec<u32>,
    pub(crate) stages: Vec<u32>,
    pub(crate) min_blocks: Vec<u32>,
    pub(crate) head_dims: Vec<usize>,
    #[serde(serialize_with = "operands_names", deserialize_with = "operands_named")]
    pub(crate) operands: Vec<Layout>,
}

/// What tells the problems of a sweep apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// Elements of a row; 0 of a product.
    pub(crate) head_dim: usize,
    /// How the operands of a product lie.
    pub(crate) operands: Option<Layout>,
}

/// A tile, the problems that it is measured with, and whether it can be built and launched at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) variant: Variant,
    pub(crate) points: Vec<Point>,
    pub(crate) verdict: Result<(), Infeasible>,
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.operands {
            Some(layout) => f.pad(layout.name()),
            None => write!(f, "{}", self.head_dim),
        }
    }
}

impl Space {
    /// What was asked for, else what the family has to try.
    ///
    /// # Errors
    /// When something was asked for of an axis that the family does not have.
    pub(crate) fn new(asked: Self) -> anyhow::Result<Self> {
        let Axes { columns, block_n, warps, stages, min_blocks, layout } = asked.kernel.axes();
        let (kernel, tried) = (asked.kernel, asked.kernel.tried());
        Ok(Self {
            kernel,
            dtype: asked.dtype,
            block_m: axis(kernel, ("block-m", true), asked.block_m, tried.block_m)?,
            block_n: axis(kernel, ("block-n", block_n), asked.block_n, tried.block_n)?,
            warps: axis(kernel, ("warps", warps), asked.warps, tried.warps)?,
            stages: axis(kernel, ("stages", stages), asked.stages, tried.stages)?,
            min_blocks: axis(kernel, ("min-blocks", min_blocks), asked.min_blocks, &[1, 2])?,
            head_dims: axis(kernel, ("dim", columns > 0), asked.head_dims, tried.head_dims)?,
            operands: axis(kernel, ("operands", layout), asked.operands, &Layout::ALL[..1])?,
        })
    }

    /// The problems, each once.
    pub(crate) fn points(&self) -> Vec<Point> {
        let mut head_dims = self.head_dims.clone();
        head_dims.sort_unstable();
        head_dims.dedup();
        let of_head_dim = head_dims.into_iter().map(|head_dim| Point { head_dim, operands: None });
        let wanted = Layout::ALL.into_iter().filter(|layout| self.operands.contains(layout));
        of_head_dim.chain(wanted.map(Point::of)).collect()
    }

    /// Every candidate, kernel by kernel and HEAD_DIM by HEAD_DIM.
    pub(crate) fn candidates(&self, limits: &Limits) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for &kernel in self.kernel.kernels() {
            for (head_dim, points) in self.buckets(self.kernel.axes().columns) {
                for sizes in self.sizes(head_dim) {
                    let Some(config) = Config::new(kernel, storage(self.dtype), sizes) else { continue };
                    let points = config.layout().map_or_else(|| points.clone(), |it| vec![Point::of(it)]);
                    let variants = self.budgets(kernel, config, limits).into_iter();
                    candidates.extend(variants.map(|(variant, verdict)| Candidate {
                        variant,
                        points: points.clone(),
                        verdict,
                    }));
                }
            }
        }
        candidates
    }

    /// All combinations of sizes with a HEAD_DIM.
    fn sizes(&self, head_dim: u32) -> Vec<Sizes> {
        let (block_m, block_n, warps, stages, layout) = (0, 0, 0, 0, Layout::ALL[0]);
        let mut all = vec![Sizes { block_m, block_n, head_dim, head_dim_v: head_dim, warps, stages, layout }];
        vary(&mut all, &self.block_m, |sizes, block_m| Sizes { block_m, ..sizes });
        vary(&mut all, &self.block_n, |sizes, block_n| Sizes { block_n, ..sizes });
        vary(&mut all, &self.warps, |sizes, warps| Sizes { warps, ..sizes });
        vary(&mut all, &self.stages, |sizes, stages| Sizes { stages, ..sizes });
        vary(&mut all, &self.operands, |sizes, layout| Sizes { layout, ..sizes });
        all
    }

    /// The HEAD_DIMs that hold the head_dims, with what each holds; one of 0 where a tile has none.
    fn buckets(&self, columns: u32) -> Vec<(u32, Vec<Point>)> {
        if columns == 0 {
            return vec![(0, Vec::new())];
        }
        let mut buckets: Vec<(u32, Vec<Point>)> = Vec::new();
        for &head_dim in &self.head_dims {
            let (tile, point) =
                ((head_dim as u32).next_multiple_of(columns), Point { head_dim, operands: None });
            match buckets.iter_mut().find(|(columns, _)| *columns == tile) {
                Some((_, held)) if held.contains(&point) => {}
                Some((_, held)) => held.push(point),
                None => buckets.push((tile, vec![point])),
            }
        }
        buckets
    }

    /// A tile with each register budget that makes a difference, the largest number of blocks first.
    fn budgets(
        &self,
        kernel: Kernel,
        config: Config,
        limits: &Limits,
    ) -> Vec<(Variant, Result<(), Infeasible>)> {
        let mut min_blocks = self.min_blocks.clone();
        if min_blocks.is_empty() {
            min_blocks.push(1);
        }
        min_blocks.sort_unstable_by(|a, b| b.cmp(a));
        min_blocks.dedup();
        let registers = |variant: &Variant| limits.registers(config.threads(), variant.min_blocks);
        let mut budgets: Vec<(Variant, Result<(), Infeasible>)> = Vec::new();
        for min_blocks in min_blocks {
            let variant = Variant { kernel, config, dtype: storage(self.dtype), min_blocks };
            let verdict = variant.check(limits);
            let repeats = |(other, said): &(Variant, Result<(), Infeasible>)| {
                *said == verdict && (verdict.is_err() || registers(other) == registers(&variant))
            };
            if !budgets.iter().any(repeats) {
                budgets.push((variant, verdict));
            }
        }
        budgets
    }
}

impl Point {
    const fn of(layout: Layout) -> Self {
        Self { head_dim: 0, operands: Some(layout) }
    }
}

/// What was asked for on an axis, else what is tried there.
fn axis<V: Copy>(
    kernel: Family,
    (name, is_there): (&str, bool),
    asked: Vec<V>,
    tried: &[V],
) -> anyhow::Result<Vec<V>> {
    match (is_there, asked.is_empty()) {
        (true, true) => Ok(tried.to_vec()),
        (false, false) => Err(usage(format!("--{name}: a tile of {kernel} has nothing there to choose"))),
        _ => Ok(asked),
    }
}

/// Each with each of `values`; as it was where there are none.
fn vary<V: Copy>(all: &mut Vec<Sizes>, values: &[V], set: fn(Sizes, V) -> Sizes) {
    if !values.is_empty() {
        *all = all.iter().flat_map(|&sizes| values.iter().map(move |&value| set(sizes, value))).collect();
    }
}

const fn storage(dtype: DType) -> Storage {
    match dtype {
        DType::F32 => Storage::F32,
        DType::F16 => Storage::F16,
        DType::Bf16 => Storage::Bf16,
        DType::E4m3 => Storage::E4m3,
    }
}

fn dtype_name<S: Serializer>(dtype: &DType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(dtype.name())
}

fn dtype_named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DType, D::Error> {
    let text = String::deserialize(deserializer)?;
    let found = DType::ALL.into_iter().find(|dtype| dtype.name() == text);
    found.ok_or_else(|| de::Error::custom(format!("no storage type {text}")))
}

fn operands_names<S: Serializer>(operands: &[Layout], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(operands.iter().map(|layout| layout.name()))
}

fn operands_named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Layout>, D::Error> {
    let named = |text: &String| {
        Layout::named(text).ok_or_else(|| de::Error::custom(format!("no order of operands {text}")))
    };
    Vec::<String>::deserialize(deserializer)?.iter().map(named).collect()
}

#[cfg(test)]
#[path = "space_tests.rs"]
mod tests;
