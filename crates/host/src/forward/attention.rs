//! Attention in one call, over host slices or device pointers.

#[cfg(feature = "cuda")]
use super::Addresses;
use super::{DeviceTensor, Dropout, HostTensor, Outputs, Results, TensorView};
#[cfg(feature = "cuda")]
use crate::cuda::{Cuda, Stream};
use crate::{
    Backend, DType, Device, Element, Error, Options, Plan, Problem, Request, Result, TensorLayout, Tensors,
};

/// O = softmax(Q·Kᵀ / √D) · V, to be changed by the methods of [`Attention`], and run by
/// [`Attention::run`] or, of tensors on a GPU, [`Attention::enqueue`].
///
/// `q` is [B, Sq, H, D], `k` [B, Sk, Hkv, D] and `v` [B, Sk, Hkv, Dv] in any order of axes and with any
/// strides whose rows are contiguous; Hkv divides H.
///
/// ```
/// use flash_attention::{Backend, HostTensor, attention};
///
/// let backend = Backend::open(None)?; // a GPU if there is one, else the CPU
/// let values = vec![0.5_f32; 100 * 2 * 64];
/// let q = HostTensor::bshd(&values, [1, 100, 2, 64]); // batch, seqlen, heads, head_dim
/// let found = attention(&q, &q, &q).causal().run(&backend)?;
/// assert!((found.o[0] - 0.5).abs() < 1e-6);
/// # Ok::<(), flash_attention::Error>(())
/// ```
pub fn attention<V: TensorView>(q: &V, k: &V, v: &V) -> Attention<V> {
    Attention { q: *q, k: *k, v: *v, o: None, options: Options::default(), request: Request::default() }
}

/// What [`attention`] computes; a setting that is not named stays off.
#[derive(Clone, Debug)]
#[must_use = "it computes nothing until it is run"]
pub struct Attention<V> {
    q: V,
    k: V,
    v: V,
    o: Option<TensorLayout>,
    options: Options,
    request: Request,
}

impl<V: TensorView> Attention<V> {
    /// Query i sees key j only if j ≤ i + Sk − Sq.
    pub fn causal(mut self) -> Self {
        self.options.causal = true;
        self
    }

    /// Query i sees key j only if i + Sk − Sq − left ≤ j ≤ i + Sk − Sq + right.
    pub fn window(mut self, left: Option<usize>, right: Option<usize>) -> Self {
        self.options.window = (left, right);
        self
    }

    /// Factor on Q·Kᵀ before the softmax, in place of 1/√D.
    pub fn softmax_scale(mut self, scale: f32) -> Self {
        self.options.softmax_scale = Some(scale);
        self
    }

    /// Bends scaled scores s to softcap · tanh(s / softcap).
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.options.softcap = softcap;
        self
    }

    /// ALiBi with these slopes, `[H]` or `[B, H]`.
    pub fn alibi(mut self, slopes: Vec<f32>) -> Self {
        self.options.alibi_slopes = Some(slopes);
        self
    }

    /// Attention sinks, `[H]` or `[B, H]`: each row of a head has one more score, which has no value.
    pub fn sinks(mut self, sinks: Vec<f32>) -> Self {
        self.options.sinks = Some(sinks);
        self
    }

    /// Drops weights of the softmax at random.
    pub const fn dropout(mut self, dropout: Dropout) -> Self {
        self.options.dropout = Some(dropout);
        self
    }

    /// All of [`Options`] at once, in place of what was set before.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Kernel and tile, where they are not the planner's to choose.
    pub const fn request(mut self, request: Request) -> Self {
        self.request = request;
        self
    }

    /// Where O lies in its memory: [B, Sq, H, Dv] or any other view of that shape.
    pub const fn output(mut self, layout: TensorLayout) -> Self {
        self.o = Some(layout);
        self
    }

    /// The problem that this is.
    ///
    /// # Errors
    /// As [`Problem::new`], and when the tensors differ in type, or one is longer than its memory.
    pub fn problem(&self) -> Result<Problem> {
        let dtype = self.q.dtype();
        for (tensor, view) in [("k", &self.k), ("v", &self.v)] {
            check_dtype(tensor, view.dtype(), dtype)?;
        }
        let tensors =
            Tensors { q: self.q.layout(), k: self.k.layout(), v: self.v.layout(), o: self.output_layout() };
        let problem = Problem::new(tensors, dtype, self.options.clone())?;
        for (tensor, view) in [("q", &self.q), ("k", &self.k), ("v", &self.v)] {
            check_len(tensor, view)?;
        }
        Ok(problem)
    }

    /// The plan of it for a device: for callers who run it more than once, with [`Backend::run`] or
    /// [`Cuda::enqueue`].
    ///
    /// # Errors
    /// As [`Self::problem`] and [`Plan::new`].
    pub fn plan(&self, device: &Device) -> Result<Plan> {
        Plan::new(&self.problem()?, device, &self.request)
    }

    /// Where O lies: as asked, else contiguous with sequence and heads in the order that Q has them.
    fn output_layout(&self) -> TensorLayout {
        let (q, head_dim_v) = (self.q.layout(), self.v.layout().head_dim);
        let contiguous = if q.stride_head > q.stride_seq { TensorLayout::bhsd } else { TensorLayout::bshd };
        self.o.unwrap_or_else(|| contiguous(q.batch, q.seqlen, q.heads, head_dim_v))
    }
}

impl<T: Element> Attention<HostTensor<'_, T>> {
    /// Computes O and lse, with copies where the device has a memory of its own.
    ///
    /// O is [B, Sq, H, Dv], contiguous with sequence and heads in the order that Q has them, unless
    /// [`Self::output`] says otherwise.
    ///
    /// # Errors
    /// When the tensors do not fit one another or their memory, no kernel of the backend takes the problem,
    /// the memory for it cannot be had, or the device fails.
    pub fn run(self, backend: &Backend) -> Result<Results<T>> {
        let plan = self.plan(backend.device())?;
        let mut results = Results::new(plan.problem(), backend.device())?;
        let Results { o, lse } = &mut results;
        let inputs = (self.q.values, self.k.values, self.v.values);
        backend.run(&plan, inputs, Outputs { o, lse: Some(lse) })?;
        Ok(results)
    }
}

impl Attention<DeviceTensor> {
    /// Plans, and enqueues the launches on `stream`; O is there once the stream gets so far.
    ///
    /// It allocates nothing on the device and synchronises nothing. A call that is made often keeps its
    /// [`Self::plan`] and enqueues that, which also gives `lse`, and problems that need a workspace.
    ///
    /// # Errors
    /// When the tensors do not fit one another or their memory, one lies elsewhere than on this GPU, the plan
    /// needs a workspace, or the driver refuses a kernel or a launch.
    ///
    /// # Safety
    /// The tensors are device memory of the primary context as long as they say, aligned to their element
    /// type. They and `stream` stay alive until the launches are over, nothing else writes the tensors
    /// meanwhile, and O does not overlap the others.
    #[cfg(feature = "cuda")]
    pub unsafe fn enqueue(self, cuda: &Cuda, o: &DeviceTensor, stream: Stream) -> Result<()> {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|tensor| tensor.address);
        let plan = self.plan_into(cuda.device(), o)?;
        for (tensor, address) in [("q", q), ("k", k), ("v", v), ("o", o.address)] {
            cuda.check_address(tensor, address)?;
        }
        let addresses = Addresses { q, k, v, o: o.address, ..Addresses::default() };
        // SAFETY: the caller vouches for the memory and the stream; it is as long as the views reach.
        unsafe { cuda.enqueue(&plan, &addresses, stream) }
    }

    /// The plan of a call that writes `o`, with all checked that needs no GPU.
    fn plan_into(self, device: &Device, o: &DeviceTensor) -> Result<Plan> {
        for (tensor, view) in [("q", &self.q), ("k", &self.k), ("v", &self.v), ("o", o)] {
            if !view.address.is_multiple_of(view.dtype.bytes() as u64) {
                let reason = format!("is no multiple of {}, the bytes of an element", view.dtype.bytes());
                return Err(Error::Address { tensor, address: view.address, reason });
            }
        }
        check_dtype("o", o.dtype, self.q.dtype.output())?;
        let plan = self.output(o.layout).plan(device)?;
        check_len("o", o)?;
        match plan.workspace_bytes() {
            0 => Ok(plan),
            bytes => Err(Error::Workspace { address: 0, bytes }),
        }
    }
}

fn check_dtype(tensor: &'static str, dtype: DType, expected: DType) -> Result<()> {
    if dtype == expected {
        return Ok(());
    }
    Err(Error::TensorDType { tensor, dtype, expected })
}

/// Checks that a tensor's memory holds what its layout reaches, which [`Problem::new`] found to be a length.
fn check_len(tensor: &'static str, view: &impl TensorView) -> Result<()> {
    let (len, needed) = (view.available(), view.layout().span());
    if len >= needed {
        return Ok(());
    }
    Err(Error::BufferTooSmall { tensor, len, needed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Sim;

    const LAYOUT: TensorLayout = TensorLayout::bshd(1, 4, 2, 8);

    fn host(values: &[f32]) -> HostTensor<'_, f32> {
        HostTensor::new(values, LAYOUT)
    }

    #[test]
    fn o_lies_in_the_order_of_q() {
        let values = [0.0_f32; 64];
        let of = |q: HostTensor<'_, f32>| attention(&q, &q, &q).problem().unwrap().tensors().o;
        assert_eq!(of(HostTensor::bshd(&values, [1, 4, 2, 8])), LAYOUT);
        assert_eq!(of(HostTensor::bhsd(&values, [1, 2, 4, 8])), TensorLayout::bhsd(1, 4, 2, 8));
        let asked = attention(&host(&values), &host(&values), &host(&values));
        let asked = asked.output(TensorLayout::bhsd(1, 4, 2, 8)).problem().unwrap();
        assert_eq!(asked.tensors().o, TensorLayout::bhsd(1, 4, 2, 8));
    }

    #[test]
    fn settings_are_those_of_the_problem() {
        let values = [0.0_f32; 64];
        let q = host(&values);
        let dropout = Dropout { probability: 0.5, seed: 1, offset: 2 };
        let problem = attention(&q, &q, &q).window(Some(3), Some(1)).softmax_scale(0.5).softcap(20.0);
        let problem = problem.alibi(vec![0.5, 0.25]).dropout(dropout).problem().unwrap();
        let options = Options {
            window: (Some(3), Some(1)),
            softmax_scale: Some(0.5),
            softcap: 20.0,
            alibi_slopes: Some(vec![0.5, 0.25]),
            dropout: Some(dropout),
            ..Options::default()
        };
        let tensors = Tensors { q: LAYOUT, k: LAYOUT, v: LAYOUT, o: LAYOUT };
        assert_eq!(problem, Problem::new(tensors, DType::F32, options.clone()).unwrap());
        assert!(attention(&q, &q, &q).causal().problem().unwrap().causal());
        let at_once = attention(&q, &q, &q).options(options).problem().unwrap();
        assert_eq!(problem, at_once);
    }

    #[test]
    fn one_call_computes_what_a_plan_computes() {
        let values: Vec<f32> = (0..64).map(|index| (index * 7 % 11) as f32 / 11.0).collect();
        let q = host(&values);
        let backend = Backend::open(Some(crate::BackendKind::Cpu)).unwrap();
        let found = attention(&q, &q, &q).causal().run(&backend).unwrap();
        let plan = attention(&q, &q, &q).causal().plan(backend.device()).unwrap();
        let mut o = [0.0; 64];
        let outputs = Outputs { o: &mut o, lse: None };
        backend.run(&plan, (&values[..], &values[..], &values[..]), outputs).unwrap();
        assert_eq!((&found.o[..], found.lse.len()), (&o[..], 8));
        // The first row sees the first key alone.
        assert_eq!(found.o[..16], values[..16]);
    }

    #[test]
    fn each_refusal_names_argument_value_and_limit() {
        let values = [0.0_f32; 64];
        let (whole, short) = (host(&values), host(&values[1..]));
        let message = |q, k, v| attention(&q, &k, &v).problem().unwrap_err().to_string();
        assert_eq!(message(whole, whole, short), "v: buffer has 63 elements; its shape and strides reach 64");
        let wide = HostTensor::bshd(&values, [1, 4, 1, 16]);
        assert_eq!(message(whole, wide, wide), "k: head_dim is 16, but q has 8");
        let device = Sim::new(0).device().clone();
        let at = |address, len, dtype| DeviceTensor::new(address, len, dtype, LAYOUT);
        let refused = |k, o| {
            let q = at(64, 64, DType::F16);
            attention(&q, &k, &q).plan_into(&device, &o).unwrap_err().to_string()
        };
        let good = at(256, 64, DType::F16);
        assert_eq!(refused(at(256, 64, DType::Bf16), good), "k holds bf16; f16 was expected");
        assert_eq!(refused(good, at(256, 64, DType::F32)), "o holds f32; f16 was expected");
        assert_eq!(
            refused(at(257, 64, DType::F16), good),
            "k: address 0x101 is no multiple of 2, the bytes of an element"
        );
        assert_eq!(
            refused(good, at(256, 60, DType::F16)),
            "o: buffer has 60 elements; its shape and strides reach 64"
        );
        let copied = TensorLayout::bhsd(16, 4096, 16, 129);
        let copied = DeviceTensor::new(256, copied.span(), DType::F16, copied);
        let message = attention(&copied, &copied, &copied).causal().plan_into(&device, &copied).unwrap_err();
        assert!(message.to_string().starts_with("workspace is at address 0x0; the plan needs "), "{message}");
    }
}
