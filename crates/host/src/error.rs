//! What can go wrong, each with the argument, its value and the limit.

use crate::{BackendKind, DType};

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong. Each message is one line, except a compiler's or simulator's log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor has an axis of length 0.
    #[error("{tensor}: axis {axis} has length 0; at least 1 is needed")]
    EmptyAxis {
        /// q, k, v or o.
        tensor: &'static str,
        /// batch, seqlen, heads or head_dim.
        axis: &'static str,
    },
    /// An axis of one tensor does not match the same axis of another.
    #[error("{tensor}: {axis} is {value}, but {other} has {expected}")]
    ShapeMismatch {
        /// The tensor that does not match.
        tensor: &'static str,
        /// The axis in question.
        axis: &'static str,
        /// Its length.
        value: usize,
        /// The tensor that it is compared with.
        other: &'static str,
        /// The length that it should have.
        expected: usize,
    },
    /// head_dim is 0 or beyond what the kernels hold.
    #[error("{tensor}head_dim is {value}; kernels take 1 to {limit}")]
    HeadDim {
        /// Empty, or `v: ` where it is that of V and O.
        tensor: &'static str,
        /// The head_dim asked for.
        value: usize,
        /// The largest supported one.
        limit: usize,
    },
    /// A sequence is longer than row indices reach.
    #[error("{tensor}: seqlen is {value}; the limit is {limit}")]
    SeqLen {
        /// q or k.
        tensor: &'static str,
        /// The length asked for.
        value: usize,
        /// The longest supported one.
        limit: usize,
    },
    /// A packed batch has lse contiguous alone.
    #[error("lse of a packed batch has no strides; it is contiguous, [H, total_q]")]
    PackedLse,
    /// An operation takes lse contiguous alone.
    #[error("{operation} takes no lse with strides; it is contiguous, [B, H, Sq]")]
    LseStrides {
        /// The operation, or its kernel.
        operation: &'static str,
    },
    /// A sequence is too short to be cut for so many ranks.
    #[error("a sequence of {rows} rows cannot be cut for {world} ranks; at least {needed} are needed")]
    ContextRows {
        /// Rows of the sequence.
        rows: usize,
        /// Number of ranks.
        world: usize,
        /// The fewest rows.
        needed: usize,
    },
    /// NCCL cannot be loaded.
    #[error("NCCL cannot be loaded: {reason}; PyTorch's wheels have one, and FA_NCCL names a file")]
    NoNccl {
        /// What was looked for, and why it did not open.
        reason: String,
    },
    /// NCCL is too old for a function.
    #[error("NCCL has no function {function}; {found}")]
    NcclFunction {
        /// The function.
        function: &'static str,
        /// The file, and its version.
        found: String,
    },
    /// A call of NCCL failed.
    #[error("{function} failed with {code}: {description}")]
    Nccl {
        /// The function.
        function: &'static str,
        /// The `ncclResult_t`.
        code: i32,
        /// NCCL's words.
        description: String,
    },
    /// Another rank is gone, so that there is no result.
    #[error("rank {rank} {cause} ({after:.1?} after ranks had met)")]
    Peer {
        /// The rank.
        rank: usize,
        /// Why.
        cause: crate::distributed::PeerCause,
        /// When that was noticed, after ranks had met.
        after: std::time::Duration,
    },
    /// A problem that is not computed by several ranks together.
    #[error("context parallelism: {reason}")]
    Context {
        /// What is not taken, with its value.
        reason: String,
    },
    /// Query heads do not divide into groups that share a key/value head.
    #[error("kv_heads is {kv_heads}, which does not divide heads = {heads}")]
    KvHeads {
        /// Number of query heads.
        heads: usize,
        /// Number of key/value heads.
        kv_heads: usize,
    },
    /// The last dimension of a tensor is not contiguous.
    #[error("{tensor}: stride of head_dim is {stride}; rows must be contiguous (stride 1)")]
    NonContiguousRow {
        /// q, k, v or o.
        tensor: &'static str,
        /// The stride found.
        stride: usize,
    },
    /// Two elements of an output would share an address.
    #[error(
        "{tensor}: stride {stride} of axis {axis} overlaps its neighbours; an output needs at least {reach}"
    )]
    OverlappingOutput {
        /// The output tensor.
        tensor: &'static str,
        /// The axis whose stride is too small.
        axis: &'static str,
        /// Its stride.
        stride: usize,
        /// The least stride that keeps elements apart.
        reach: usize,
    },
    /// A stride leads out of the address space.
    #[error("{tensor}: axis {axis} of length {size} with stride {stride} exceeds the address space")]
    AddressSpace {
        /// q, k, v or o.
        tensor: &'static str,
        /// The axis in question.
        axis: &'static str,
        /// Its length.
        size: usize,
        /// Its stride.
        stride: usize,
    },
    /// A merge has no parts, or more than its kernel takes.
    #[error("{value} parts are to be merged; 1 to {limit} is possible")]
    MergeParts {
        /// Parts given.
        value: usize,
        /// The most possible.
        limit: usize,
    },
    /// A buffer is shorter than its view.
    #[error("{tensor}: buffer has {len} elements; its shape and strides reach {needed}")]
    BufferTooSmall {
        /// q, k, v, o or lse.
        tensor: &'static str,
        /// Elements in the buffer.
        len: usize,
        /// Elements that the view spans.
        needed: usize,
    },
    /// The scale is not a number that scores can be multiplied by.
    #[error("softmax_scale is {value}; a number of at most {limit:e} in magnitude is needed")]
    SoftmaxScale {
        /// The scale asked for, with the factors of Q and K.
        value: f32,
        /// The largest possible.
        limit: f32,
    },
    /// The softcap is negative or not a number that scores can be divided by.
    #[error("softcap is {value:?}; 0 (off) or {least:e} to {limit:e} is needed")]
    Softcap {
        /// The softcap asked for.
        value: f32,
        /// The least possible: a smaller one is 0 to a GPU.
        least: f32,
        /// The largest possible.
        limit: f32,
    },
    /// Scores divided by the softcap would be 0 to a GPU, or infinite.
    #[error(
        "softcap is {value}; softmax_scale = {scale:e} divided by it is outside of fp32's normal numbers"
    )]
    SoftcapRatio {
        /// The softcap asked for.
        value: f32,
        /// The scale.
        scale: f32,
    },
    /// The probability of dropout is not one, or drops everything.
    #[error("dropout probability is {value}; 0 to below 1 is needed")]
    Dropout {
        /// The probability asked for.
        value: f32,
    },
    /// Decode was asked to drop weights.
    #[error("dropout probability is {value}; decode drops no weights")]
    DecodeDropout {
        /// The probability asked for.
        value: f32,
    },
    /// A factor of a tensor in e4m3 is not a positive number that a GPU can multiply with.
    #[error("{name}: element {index} is {value:?}; {least:e} to {limit:e} is needed")]
    Factor {
        /// The list, or the factor of all heads.
        name: &'static str,
        /// Which one.
        index: usize,
        /// Its value.
        value: f32,
        /// The least possible: a smaller one is 0 to a GPU.
        least: f32,
        /// The largest possible.
        limit: f32,
    },
    /// K or V is in another type than the problem's cache.
    #[error("{tensor} is in {given}; the problem's cache is in {expected}")]
    CacheType {
        /// K or V.
        tensor: &'static str,
        /// Its type.
        given: DType,
        /// The problem's.
        expected: DType,
    },
    /// A tensor in e4m3, or of packed queries over a cache, starts where tensor maps cannot, and no other
    /// kernel takes it.
    #[error(
        "{tensor} is at address {address:#x}; in e4m3, or with packed queries over a cache, a multiple of 16 is \
         needed"
    )]
    UnalignedTensor {
        /// Q, K or V.
        tensor: &'static str,
        /// Where it starts.
        address: u64,
    },
    /// Factors for a type whose range needs none.
    #[error("descale is for e4m3, not {dtype}")]
    DescaleType {
        /// Storage type of the problem.
        dtype: DType,
    },
    /// A list has not as many values as there are heads.
    #[error(
        "{name} has {len} elements; {heads} (one per head) or {all} (one per sequence and head) are needed"
    )]
    HeadValues {
        /// The list.
        name: &'static str,
        /// Values given.
        len: usize,
        /// Heads.
        heads: usize,
        /// Heads of all sequences.
        all: usize,
    },
    /// A head's value is not a finite number.
    #[error("{name}: element {index} is {value}; a finite number is needed")]
    HeadValue {
        /// The list.
        name: &'static str,
        /// Which one.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// A gradient of sinks is asked for where there are none.
    #[error("dsinks: the problem has no sinks, and so no gradient of them")]
    NoSinks,
    /// There are not as many offsets of queries as of keys, or too few.
    #[error(
        "cu_seqlens_q has {q} offsets and cu_seqlens_k {k}; both need one more than there are sequences, at least 2"
    )]
    CuSeqlensLen {
        /// Offsets of queries.
        q: usize,
        /// Offsets of keys.
        k: usize,
    },
    /// An offset of a packed batch is not where one can be.
    #[error("cu_seqlens_{tensor}: offset {index} is {value}; {limit}")]
    CuSeqlens {
        /// q or k.
        tensor: &'static str,
        /// Which offset.
        index: usize,
        /// Its value.
        value: u32,
        /// What does not hold.
        limit: String,
    },
    /// A run on host tensors has no offsets of its packed batch.
    #[error("the device alone has cu_seqlens of this plan; Plan::with_cu_seqlens gives them to a run")]
    CuSeqlensOnDevice,
    /// A run on host tensors has no values of a list.
    #[error("{name}: the device alone has the values of this plan, and a run on host tensors needs them")]
    HeadValuesOnDevice {
        /// Which list.
        name: &'static str,
    },
    /// A map of blocks cannot be made as asked.
    #[error("block map: {reason}")]
    BlockMap {
        /// Why not, with value and limit.
        reason: String,
    },
    /// Functions of scores cannot be taken as asked.
    #[error("functions {name}: {reason}")]
    Functions {
        /// What they are called.
        name: &'static str,
        /// Why not, with value and limit.
        reason: String,
    },
    /// A list is given twice.
    #[error("{name}: values are given, and as many that the device has; one of them is needed")]
    HeadValuesTwice {
        /// Which list.
        name: &'static str,
    },
    /// Offsets are given to a plan that takes none.
    #[error("the plan takes no cu_seqlens: its problem is not of Problem::varlen_on_device")]
    CuSeqlensPlanned,
    /// A packed tensor has a batch axis.
    #[error("q: batch is {batch}; a packed batch lies in one, with its sequences behind one another")]
    PackedBatch {
        /// Its length.
        batch: usize,
    },
    /// The problem has a tensor whose address was left out.
    #[error("{tensor}: no address was given, but the problem has it")]
    MissingAddress {
        /// The tensor.
        tensor: &'static str,
    },
    /// The workspace was left out, or starts where no copies for tensor maps can.
    #[error("workspace is at address {address:#x}; the plan needs {bytes} bytes at a multiple of 16")]
    Workspace {
        /// The address given; 0 where none was.
        address: u64,
        /// [`Plan::workspace_bytes`](crate::Plan::workspace_bytes).
        bytes: u64,
    },
    /// The buffers' element type is not the problem's.
    #[error("buffers hold {given}, but the problem was made for {expected}")]
    DTypeMismatch {
        /// Type of the buffers.
        given: DType,
        /// Type of the problem.
        expected: DType,
    },
    /// A tensor is of another type than the others, or than the result has.
    #[error("{tensor} holds {dtype}; {expected} was expected")]
    TensorDType {
        /// Which tensor.
        tensor: &'static str,
        /// Its type.
        dtype: DType,
        /// The type that it has to have.
        expected: DType,
    },
    /// A tensor is not where the GPU can use it.
    #[error("{tensor}: address {address:#x} {reason}")]
    Address {
        /// Which tensor.
        tensor: &'static str,
        /// Where it begins.
        address: u64,
        /// What is wrong with that.
        reason: String,
    },
    /// A plan is run on a device that it was not made for.
    #[error("the plan was made for {planned}, and this is {device}")]
    OtherDevice {
        /// The device that it was made for.
        planned: String,
        /// The device that was to run it.
        device: String,
    },
    /// A kernel was not built for this storage type.
    #[error("kernel {kernel} has no {dtype} entry; it has {available}")]
    UnsupportedDType {
        /// The kernel asked for.
        kernel: &'static str,
        /// The type asked for.
        dtype: DType,
        /// The types that it has.
        available: String,
    },
    /// A tile does not fit the device's shared memory.
    #[error(
        "BLOCK_M = {block_m}, BLOCK_N = {block_n} at head_dim {head_dim} needs {needed} bytes of shared memory; \
         {device} has {available} per block"
    )]
    TileTooLarge {
        /// Rows of Q in the tile.
        block_m: usize,
        /// Rows of K and V in the tile.
        block_n: usize,
        /// The head_dim that the tile is for.
        head_dim: usize,
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: usize,
        /// The device's name.
        device: String,
    },
    /// No kernel was built with this tile.
    #[error(
        "BLOCK_M = {block_m}, BLOCK_N = {block_n} is not built for {kernel} at head_dim {head_dim}; built: {available}"
    )]
    NoSuchTile {
        /// The kernel asked for.
        kernel: &'static str,
        /// BLOCK_M asked for, or `any`.
        block_m: String,
        /// BLOCK_N asked for, or `any`.
        block_n: String,
        /// The head_dim that the tile is for.
        head_dim: usize,
        /// The tiles that exist, as `MxN`.
        available: String,
    },
    /// An entry that was given does not take the problem, or has no code for the backend.
    #[error("entry {entry} cannot be run: {reason}")]
    UnfitEntry {
        /// The entry.
        entry: &'static str,
        /// Why not.
        reason: String,
    },
    /// A kernel that was asked for does not take the problem.
    #[error("kernel {kernel} cannot be run: {reason}")]
    UnfitKernel {
        /// The kernel asked for.
        kernel: &'static str,
        /// Why not.
        reason: String,
    },
    /// No matrix multiplication was built with this tile, or none that fits.
    #[error(
        "{tile} is not built for {kernel}, or not in the {shared} bytes of shared memory that {device} has per \
         block; built: {available}"
    )]
    NoSuchGemmTile {
        /// The kernel asked for.
        kernel: &'static str,
        /// BLOCK_M and BLOCK_N asked for.
        tile: String,
        /// The tiles that exist, as `MxN`.
        available: String,
        /// The device's name.
        device: String,
        /// Bytes of shared memory that it has per block.
        shared: usize,
    },
    /// A kernel's tile cannot be chosen.
    #[error("{tile} was asked for, and {kernel} has no tile to choose")]
    FixedTile {
        /// The kernel.
        kernel: &'static str,
        /// BLOCK_M and BLOCK_N asked for.
        tile: String,
    },
    /// A matrix is larger than element counts reach.
    #[error("{tensor}: {what} is {value}; the limit is {limit}")]
    Extent {
        /// a, b or c.
        tensor: &'static str,
        /// Rows, columns or the leading dimension.
        what: &'static str,
        /// The extent asked for.
        value: usize,
        /// The largest supported one.
        limit: usize,
    },
    /// A leading dimension is shorter than a row, or a column, of its matrix.
    #[error("{tensor}: the leading dimension is {value}; at least {needed} is needed")]
    LeadingDimension {
        /// a, b or c.
        tensor: &'static str,
        /// The leading dimension asked for.
        value: usize,
        /// The elements of a row, or a column.
        needed: usize,
    },
    /// A kernel does not run on this backend.
    #[error("kernel {kernel} does not run on backend {backend}; it has {available}")]
    KernelNotOnBackend {
        /// The kernel asked for.
        kernel: &'static str,
        /// The backend in use.
        backend: &'static str,
        /// The kernels that the backend has.
        available: String,
    },
    /// A kernel needs a newer device.
    #[error("kernel {kernel} needs {needed}; {device} is sm_{found}")]
    KernelNeedsDevice {
        /// The kernel asked for.
        kernel: &'static str,
        /// The PTX target that the device would have to run.
        needed: fa_kernels::entries::Target,
        /// The device's name.
        device: String,
        /// The device's compute capability.
        found: u32,
    },
    /// The number of splits is not one that the kernel takes.
    #[error("num_splits is {value}; 1 to {limit} are possible here")]
    NumSplits {
        /// The number asked for.
        value: usize,
        /// The largest possible.
        limit: usize,
    },
    /// No entry of that name takes the problem.
    #[error("entry {name} is not built, or not for {dtype} at head_dim {head_dim}")]
    NoSuchEntry {
        /// The name asked for.
        name: String,
        /// The problem's storage type.
        dtype: DType,
        /// The problem's head_dim.
        head_dim: usize,
    },
    /// A page table where K and V are contiguous, or none where they are pages.
    #[error(
        "page_table is {}",
        if *.paged { "missing: K and V are pages" } else { "given, but K and V are contiguous" }
    )]
    PageTablePresence {
        /// Whether K and V are pages.
        paged: bool,
    },
    /// A tree mask where queries are no tree, or none where they are.
    #[error(
        "tree_mask is {}",
        if *.has_tree { "missing: queries are a tree" } else { "given, but queries are no tree" }
    )]
    TreeMaskPresence {
        /// Whether queries are a tree.
        has_tree: bool,
    },
    /// A tree of queries has another mask, or distances between its tokens.
    #[error("{name} is given beside tree_mask, which says what queries see; one of them is possible")]
    TreeMaskBeside {
        /// What else.
        name: &'static str,
    },
    /// V is not the first columns of K, where both are one tensor of latents.
    #[error("v: its layout is not that of the first {head_dim_v} columns of k, which latents have as values")]
    LatentValues {
        /// Columns of V.
        head_dim_v: usize,
    },
    /// Something that latents do not go with.
    #[error("{name} is given beside latent, which does not take it")]
    LatentBeside {
        /// What else.
        name: &'static str,
    },
    /// An entry of the page table names no page.
    #[error("page_table[{batch}][{index}] is {value}; there are {pages} pages")]
    PageIndex {
        /// The sequence.
        batch: usize,
        /// Which of its entries.
        index: usize,
        /// The page that it names.
        value: i32,
        /// Number of pages.
        pages: usize,
    },
    /// A sequence uses more keys than there is room for, or fewer than none.
    #[error("seqused_k[{batch}] is {value}; a sequence has room for {limit} keys")]
    SeqUsed {
        /// The sequence.
        batch: usize,
        /// Its number of keys.
        value: i32,
        /// Keys that it has room for.
        limit: usize,
    },
    /// New keys have no room behind those of a sequence, or it has fewer than none.
    #[error("seqused_k[{batch}] is {value}; a sequence has room for {limit} keys before {new} new ones")]
    SeqUsedBefore {
        /// The sequence.
        batch: usize,
        /// Its number of keys.
        value: i32,
        /// Keys that it may have.
        limit: usize,
        /// New ones.
        new: usize,
    },
    /// A rotary embedding turns no columns, one that has no second, or more than there are.
    #[error("rotary: dim is {value}; an even number of 2 to head_dim = {limit} is needed")]
    RotaryDim {
        /// Columns asked for.
        value: usize,
        /// Columns that there are.
        limit: usize,
    },
    /// Tables of a rotary embedding end before the last position.
    #[error("rotary: the tables have {value} rows; keys and queries have {needed} positions")]
    RotaryRows {
        /// Rows that they have.
        value: usize,
        /// Rows that they need.
        needed: usize,
    },
    /// A run on host tensors does not know how many keys its sequences use.
    #[error("the device alone has seqused_k of this plan; Plan::with_seqused_k gives it to a run")]
    SeqUsedOnDevice,
    /// Numbers of used keys are given to a plan that takes none.
    #[error("the plan takes no seqused_k: its problem has none")]
    SeqUsedPlanned,
    /// The grid would be larger than a launch allows.
    #[error("the launch needs {blocks} blocks; the limit is {limit}")]
    GridTooLarge {
        /// Blocks needed.
        blocks: u128,
        /// Blocks allowed.
        limit: u32,
    },
    /// The problem does not fit the device's memory.
    #[error("{what} needs {needed} bytes; {device} has {available} bytes free")]
    OutOfMemory {
        /// What was to be allocated.
        what: &'static str,
        /// Bytes needed.
        needed: u128,
        /// Bytes free.
        available: u128,
        /// The device's name.
        device: String,
    },
    /// No CUDA device can be used.
    #[error("no CUDA device: {reason}")]
    NoCudaDevice {
        /// Why not.
        reason: String,
    },
    /// The driver cannot take the shipped PTX.
    #[error("NVIDIA driver is too old: it supports CUDA {found}, the kernels need CUDA {needed} or later")]
    DriverTooOld {
        /// The CUDA version that the driver supports.
        found: String,
        /// The least version needed.
        needed: String,
    },
    /// The device is older than the shipped PTX's target.
    #[error("{device} has compute capability {found}; the kernels need {needed} or later")]
    DeviceTooOld {
        /// The device's name.
        device: String,
        /// Its compute capability.
        found: String,
        /// The least one needed.
        needed: String,
    },
    /// The driver lacks a function that newer ones have.
    #[error("NVIDIA driver has no function {function}; it supports {found}")]
    NoDriverFunction {
        /// The function, as the driver's library would export it.
        function: &'static str,
        /// What the driver supports, such as `CUDA 11.4`.
        found: String,
    },
    /// A driver call failed.
    #[error("{call} failed with {code}: {name} ({description})")]
    Cuda {
        /// The driver function, with what it was called for.
        call: String,
        /// The `CUresult` that it returned.
        code: u32,
        /// The driver's name of the error, or that it has none.
        name: String,
        /// The driver's description of it, or that it has none.
        description: String,
    },
    /// The driver's compiler refused an entry.
    #[error("the driver could not compile {entry}: {name}\n{log}")]
    Jit {
        /// The PTX entry.
        entry: String,
        /// The driver's name of the error, with its code.
        name: String,
        /// The compiler's log.
        log: String,
    },
    /// The shipped kernels are damaged: the build of this crate is broken.
    #[error("shipped kernels are unusable: {reason}")]
    Shipped {
        /// What does not hold.
        reason: String,
    },
    /// The kernels of an operation were left out of the build.
    #[error("{entry}: this program was built without it; flash-attention's feature `{features}` has it")]
    KernelLeftOut {
        /// The PTX entry.
        entry: String,
        /// The features that ship it, each by itself.
        features: String,
    },
    /// The backend was left out of the build.
    #[error(
        "backend {backend}: this program was built without it; flash-attention's feature `{backend}` has it"
    )]
    NotBuilt {
        /// The backend, whose name is its feature's.
        backend: BackendKind,
    },
    /// No backend was asked for, and the build has neither of those that are tried then.
    #[error(
        "backend: this program was built without any; flash-attention's features `cuda` and `cpu` have one"
    )]
    NoBackend,
    /// The simulator stopped the kernel.
    #[error("simulator: {reason}")]
    Simulator {
        /// What it found, with who did what where.
        reason: String,
    },
}

impl Error {
    /// Whether the caller's arguments are at fault, rather than the machine or the kernels.
    pub const fn is_usage(&self) -> bool {
        !matches!(
            self,
            Self::OutOfMemory { .. }
                | Self::NoCudaDevice { .. }
                | Self::DriverTooOld { .. }
                | Self::DeviceTooOld { .. }
                | Self::NoDriverFunction { .. }
                | Self::Cuda { .. }
                | Self::Jit { .. }
                | Self::Shipped { .. }
                | Self::KernelLeftOut { .. }
                | Self::NotBuilt { .. }
                | Self::NoBackend
                | Self::NoNccl { .. }
                | Self::NcclFunction { .. }
                | Self::Nccl { .. }
                | Self::Peer { .. }
                | Self::Simulator { .. }
        )
    }
}
