"""numpy arrays, and what comes by DLPack, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import _checks, _plans
from ._plans import Settings

NAMES = {"float16": "f16", "float32": "f32", "bfloat16": "bf16"}

Array = np.ndarray


def tensor(value: Any, name: str = "q") -> Array:
    """The argument as an array, without a copy."""
    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "__dlpack__"):
        raise ValueError(f"{name} is a {type(value).__name__}; a tensor is needed")
    kind, _ = value.__dlpack_device__()
    if kind != 1:
        raise ValueError(
            f"{name} is on DLPack device {kind}; without torch, tensors on the CPU (1) are taken"
        )
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError) as error:
        raise ValueError(f"{name} is a {type(value).__name__} that numpy does not take: {error}") from error


def _listed(name: str, values: Any) -> Array:
    """A list, or what comes by DLPack, as an array."""
    return tensor(values, name) if hasattr(values, "__dlpack__") else np.asarray(values)


def name_of(dtype: np.dtype) -> str:
    """The library's name of a type."""
    if dtype.name not in NAMES or not dtype.isnative:
        raise ValueError(f"dtype is {dtype}; one of {', '.join(NAMES)} is needed")
    return NAMES[dtype.name]


def _is_taken(array: Array) -> bool:
    """Whether strides are some that the library takes."""
    size = array.itemsize
    whole = all(stride >= 0 and stride % size == 0 for stride in array.strides)
    return bool(whole and array.flags.aligned and (array.shape[-1] == 1 or array.strides[-1] == size))


def _rows(array: Array) -> Array:
    """The array, or a copy where its strides are none that the library takes."""
    return array if _is_taken(array) else np.ascontiguousarray(array)


def _view(array: Array) -> _plans.View:
    """What the library sees of `_rows`."""
    if not _is_taken(array):
        array = np.empty(array.shape, array.dtype)
    return _plans.batched(array.shape, tuple(stride // array.itemsize for stride in array.strides))


def _output(q: Array, heads_first: bool, head_dim: int) -> Array:
    """O, its heads outside its rows where those of Q are. What no sequence has stays 0."""
    shape = (*q.shape[:-1], head_dim)
    if heads_first:
        batch, rows, heads, _ = shape
        return np.zeros((batch, heads, rows, head_dim), q.dtype).transpose(0, 2, 1, 3)
    return np.zeros(shape, q.dtype)


def _offsets(cu_seqlens: Array) -> list[int]:
    offsets = _listed("cu_seqlens", cu_seqlens)
    if offsets.size == 0:
        raise ValueError("cu_seqlens is empty; [B + 1] offsets are needed, the first of them 0")
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu":
        raise ValueError(f"cu_seqlens: {offsets.ndim} axes of {offsets.dtype}; integers [B + 1] are needed")
    if offsets.min() < 0:
        raise ValueError(f"cu_seqlens: the least offset is {offsets.min()}; 0 or more is needed")
    return offsets.tolist()


def _used(seqused_k: Any, batch: int) -> list[int]:
    used = integers("seqused_k", seqused_k)
    if used.shape != (batch,):
        raise ValueError(f"seqused_k: shape is {used.shape}; {(batch,)} is needed")
    return used.tolist()


def _per_head(name: str, values: Any, batch: int, heads: int) -> Array | None:
    if values is None:
        return None
    values = np.ascontiguousarray(_listed(name, values), np.float32)
    _checks.per_head(name, values, batch, heads)
    return values


def _values(array: Array | None) -> tuple[float, ...] | None:
    return None if array is None else tuple(array.ravel().tolist())


def _settings(
    q: Array, softmax_scale: float | None, causal: bool, window: tuple[int, int], softcap: float
) -> Settings:
    """What is computed, beside the shapes and lists."""
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    sides = (_checks.no_limit(window[0]), _checks.no_limit(window[1]))
    return Settings(bool(causal), scale, sides, float(softcap), batch_invariant=_plans.batch_invariant)


class Call:
    """A checked call: arrays, their plan's key, and lengths."""

    def __init__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        softmax_scale: float | None,
        causal: bool,
        window: tuple[int, int],
        softcap: float,
        alibi_slopes: Any = None,
        sinks: Any = None,
        cu_seqlens: tuple[Any, Any] | None = None,
        max_seqlens: tuple[int, int] | None = None,
        seqused_k: Any = None,
        dropout: tuple[float, int, int] | None = None,
    ):
        q, k, v = tensor(q, "q"), tensor(k, "k"), tensor(v, "v")
        self.dtype = _checks.qkv(q, k, v, 4 if cu_seqlens is None else 3, name_of)
        _checks.shapes(q, k, v)
        _checks.head_dim(q)
        self.heads_first = q.ndim == 4 and q.strides[1] < q.strides[2]
        self.q, self.k, self.v = q, k, v
        self.cu_seqlens: tuple[list[int], list[int]] | None = None
        varlen = None
        if cu_seqlens is not None:
            in_q, in_k = map(_offsets, cu_seqlens)
            if len(in_q) != len(in_k):
                raise ValueError(f"cu_seqlens_q has {len(in_q)} offsets and cu_seqlens_k {len(in_k)}")
            max_q, max_k = max_seqlens or (q.shape[0], k.shape[0])
            self.cu_seqlens, varlen = (in_q, in_k), (len(in_q) - 1, int(max_q), int(max_k))
        batch = q.shape[0] if varlen is None else varlen[0]
        self.seqused_k = None if seqused_k is None else _used(seqused_k, batch)
        alibi_slopes, self.sinks = (
            _per_head(name, values, batch, q.shape[-2])
            for name, values in (("alibi_slopes", alibi_slopes), ("sinks", sinks))
        )
        self.settings = _settings(q, softmax_scale, causal, window, softcap)._replace(
            alibi_slopes=_values(alibi_slopes),
            sinks=_values(self.sinks),
            dropout=dropout,
            varlen=varlen,
            has_seqused_k=seqused_k is not None,
        )

    @property
    def lse_shape(self) -> tuple[int, ...]:
        """[B, H, Sq], or of a packed batch [H, total_q]."""
        if self.q.ndim == 3:
            return (self.q.shape[1], self.q.shape[0])
        return (self.q.shape[0], self.q.shape[2], self.q.shape[1])

    @property
    def is_empty(self) -> bool:
        """Whether no row sees a key."""
        return self.q.size == 0 or self.k.size == 0 or self.v.size == 0

    def forward(self, before: Callable[[], None] | None = None) -> tuple[Array, Array]:
        """O and lse."""
        o = _output(self.q, self.heads_first, self.v.shape[-1])
        lse = np.full(self.lse_shape, -np.inf, np.float32)
        plan = None
        if self.is_empty:
            _plans.check_empty(self.dtype, (self.q.shape, self.k.shape, self.v.shape, o.shape), self.settings)
            self._fill_with_sinks(lse)
        else:
            views = tuple(map(_view, (self.q, self.k, self.v, o)))
            plan = _plans.forward(None, self.dtype, views, self.settings)
        if before is not None:
            before()
        if plan is not None:
            q, k, v = _rows(self.q), _rows(self.k), _rows(self.v)
            at = [array.ctypes.data for array in (q, k, v, o, lse)]
            plan.run(at, self.cu_seqlens, self.seqused_k)
        return o, lse

    def _fill_with_sinks(self, lse: Array) -> None:
        """What lse is where no row sees a key."""
        if self.sinks is None or self.sinks.size == 0:
            return
        values = self.sinks[..., None]
        if self.cu_seqlens is not None and self.sinks.ndim == 2:
            sequence = np.searchsorted(self.cu_seqlens[0][1:-1], np.arange(lse.shape[1]), side="right")
            values = self.sinks[sequence].T
        lse[...] = values


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    alibi_slopes: Any = None,
    sinks: Any = None,
    cu_seqlens: tuple[Any, Any] | None = None,
    max_seqlens: tuple[int, int] | None = None,
    seqused_k: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    needs_lse: bool = True,
    casts: bool = True,
    before: Callable[[], None] | None = None,
) -> tuple[Array, Array]:
    """O and lse of dense ([B, S, H, D]) or packed ([total, H, D]) sequences.

    `before` is called once nothing can be refused any more.
    """
    del needs_lse, casts  # lse costs little, and nothing casts arrays
    _checks.dropout(dropout_p)
    dropout = (float(dropout_p), int(np.random.randint(2**62, dtype=np.int64)), 0) if dropout_p else None
    return Call(
        q,
        k,
        v,
        softmax_scale=softmax_scale,
        causal=causal,
        window=window,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        cu_seqlens=cu_seqlens,
        max_seqlens=max_seqlens,
        seqused_k=seqused_k,
        dropout=dropout,
    ).forward(before)


def decodes(q: Array) -> bool:
    """Whether decode takes the type of q."""
    del q
    return True


def is_e4m3(array: Array) -> bool:
    """Whether an array holds e4m3, which numpy has not."""
    del array
    return False


def reads_pages(q: Array, k: Array, v: Array) -> bool:
    """Whether any number of queries reads pages where they lie."""
    del q, k, v
    return False


def is_inference(*tensors: Any) -> bool:
    """Whether no tensor needs a gradient."""
    del tensors
    return True


def decode(
    q: Any,
    k: Any,
    v: Any,
    *,
    seqused: Array | None,
    page_table: Array | None,
    alibi_slopes: Any,
    softmax_scale: float,
    causal: bool,
    window: tuple[int, int],
    softcap: float,
    needs_lse: bool,
    sinks: Any = None,
    num_splits: int = 0,
    descales: tuple[Any, Any] = (None, None),
    latent: bool = False,
    before: Callable[[], None] | None = None,
) -> tuple[Array, Array]:
    """O and lse of few queries against a cache, which is pages where there is a page table.

    `latent`: V is the first columns of K, and a view of it.
    """
    del num_splits, needs_lse, descales  # no array is in e4m3, the CPU has no parts, and lse costs little
    dtype = _checks.qkv(q, k, v, 4, name_of)
    o = _output(q, q.strides[1] < q.strides[2], v.shape[-1])
    batch, rows, heads, _ = q.shape
    lse = np.full((batch, heads, rows), -np.inf, np.float32)
    for name, values, shape in (
        ("cache_seqlens", seqused, (batch,)),
        ("block_table", page_table, (batch, -1 if page_table is None else page_table.shape[-1])),
    ):
        if values is not None:
            _checks.int32_list(name, values, shape, np.int32, values.flags.c_contiguous)
    settings = _settings(q, softmax_scale, causal, window, softcap)
    alibi_slopes, sinks = (
        _per_head(name, values, batch, heads)
        for name, values in (("alibi_slopes", alibi_slopes), ("sinks", sinks))
    )
    settings = settings._replace(alibi_slopes=_values(alibi_slopes), sinks=_values(sinks))
    pages = None if page_table is None else page_table.shape[1]
    plan = None
    if o.size and k.size:
        views = tuple(map(_view, (q, k, v, o)))
        plan = _plans.decode(None, dtype, views, settings, pages, None, latent=latent)
    if before is not None:
        before()
    if plan is None:
        if sinks is not None:
            lse[...] = sinks[..., None]
        return o, lse
    q, k, v = _rows(q), _rows(k), _rows(v)
    lists = [0 if values is None else values.ctypes.data for values in (seqused, page_table)]
    plan.run([*(array.ctypes.data for array in (q, k, v, o, lse)), *lists])
    return o, lse


def append(*_: Any) -> None:
    """Nothing: arrays are written by operations on arrays."""


def unbound(qkv: Array) -> tuple[Array, ...]:
    """Views of what axis 2 holds."""
    return tuple(qkv[:, :, index] for index in range(qkv.shape[2]))


def swapped(array: Array) -> Array:
    """Axes 1 and 2 swapped, as a view."""
    return array.swapaxes(1, 2)


def arange(length: int, like: Array) -> Array:
    """0, 1, ... as indices."""
    return np.arange(length)


def integers(name: str, values: Any) -> Array:
    """A contiguous int32 array of integers."""
    given = _listed(name, values)
    if given.size and given.dtype.kind not in "iu":
        raise ValueError(f"{name} holds {given.dtype}; integers are needed")
    whole = given.astype(np.int32)
    if not np.array_equal(whole, given):
        raise ValueError(f"{name} is {given.tolist()}; numbers of 32 bits are needed")
    return whole


def beside(values: Array, like: Array) -> Array:
    """Values on the device of another array."""
    return values


def filled(value: int, length: int, like: Array) -> Array:
    """int32 [length]."""
    return np.full(length, value, np.int32)


def taken(pages: Array, table: Array, into: Array | None = None) -> Array:
    """The pages of a table one after the other, the nearest where there is none; `into` memory, if given."""
    return np.take(pages, table.ravel(), axis=0, out=into, mode="clip")


def empty(shape: tuple[int, ...], like: Array) -> Array:
    """Memory for elements of the type of another array."""
    return np.empty(shape, like.dtype)


def check_forward_only(q: Array, names: tuple[str, ...], arrays: tuple[Array, ...]) -> None:
    """All arrays are on the CPU, and have no gradient."""


def check_written(name: str, array: Array) -> None:
    """Refuses an array that may not be written, or whose elements share memory."""
    if not array.flags.writeable:
        raise ValueError(f"{name} is read-only; new rows are written to it")
    if array.size and any(stride == 0 and size > 1 for size, stride in zip(array.shape, array.strides)):
        raise ValueError(f"{name} is expanded, with strides {array.strides}; its rows cannot be written")


def indices(values: Array) -> Array:
    """For indexing."""
    return values.astype(np.int64)


def single(values: Array) -> Array:
    """In float32."""
    return values.astype(np.float32)


def copied(array: Array) -> Array:
    """A contiguous copy."""
    return array.copy(order="C")


def is_on_host(values: Array) -> bool:
    """Whether values can be looked at without waiting for a GPU."""
    return True
