"""Plans of torch tensors, what a call allocates, and how it is launched."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor, empty, empty_like, empty_strided

from . import _checks, _plans

NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}

#: The GPU of a tensor; -1 is the CPU.
index_of = Tensor.get_device

# torch's own functions around these cost more than a launch.
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
    lambda index: torch.cuda.current_stream(index).cuda_stream
)

#: Offsets of a packed batch, and how many keys each sequence uses.
Lengths = tuple[Optional[tuple[list[int], list[int]]], Optional[list[int]]]


def name_of(dtype: torch.dtype) -> str:
    """The library's name of a type."""
    name = NAMES.get(dtype)
    if name is None:
        raise ValueError(f"dtype is {dtype}; one of {', '.join(map(str, NAMES))} is needed")
    return name


def output(q: Tensor, head_dim: int, by_heads: bool = False) -> Tensor:
    """Memory for O, its heads outside its rows where those of Q are."""
    if q.dim() == 3:
        return q.new_empty((*q.shape[:-1], head_dim))
    batch, second, third, _ = q.shape
    swapped = q.stride(1) <= q.stride(2) if by_heads else q.stride(1) < q.stride(2)
    if swapped:
        return q.new_empty((batch, third, second, head_dim)).transpose(1, 2)
    return q.new_empty((batch, second, third, head_dim))


def lse_like(q: Tensor, by_heads: bool = False) -> Tensor:
    """Memory for the log-sum-exp, [B, H, Sq], or of a packed batch [H, total_q]."""
    if q.dim() == 3:
        return q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)
    heads, rows = (1, 2) if by_heads else (2, 1)
    return q.new_empty((q.shape[0], q.shape[heads], q.shape[rows]), dtype=torch.float32)


def gradient_like(t: Tensor) -> Tensor:
    """Memory for a gradient, in the order of its tensor's axes where that is dense."""
    # Rows of one element leave the order of axes open, and devices choose it differently.
    if t.shape[-1] != 1:
        gradient = empty_like(t)
        if gradient.stride(-1) == 1:
            return gradient
    return empty(t.shape, dtype=t.dtype, device=t.device)


def rows_of(t: Tensor) -> Tensor:
    """The tensor, or a copy where its rows are not contiguous."""
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


def without_memory(t: Tensor) -> Tensor:
    """Shape, strides and type of a tensor, from which those of others follow."""
    return empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")


def sequence_of_row(cu_q: Tensor, rows: int) -> Tensor:
    """The sequence of each row of a packed batch; rows behind the last are taken for its own."""
    row = torch.arange(rows, device=cu_q.device)
    return torch.bucketize(row, cu_q[1:-1], right=True)


def lse_of_sinks(sinks: Tensor, cu_q: Optional[Tensor], rows: int) -> Tensor:
    """What lse is where no row sees a key; broadcasts to it."""
    if cu_q is None or sinks.dim() == 1:
        return sinks[..., None]
    return sinks[sequence_of_row(cu_q, rows)].t()


def gradient_of_sinks(sinks: Tensor, dlse: Optional[Tensor], cu_q: Optional[Tensor]) -> Tensor:
    """The gradient where no row sees a key, which is that of lse alone."""
    if dlse is None:
        return torch.zeros_like(sinks)
    if cu_q is not None and sinks.dim() == 2:
        sequences = torch.arange(sinks.shape[0], device=sinks.device)
        of_sequence = sequence_of_row(cu_q, dlse.shape[1])[:, None] == sequences
        return (dlse @ of_sequence.to(dlse.dtype)).t().contiguous()
    dsinks = dlse.sum(-1)
    return dsinks.sum(0) if dsinks.dim() > sinks.dim() else dsinks


class Plan:
    """A plan, and what is allocated for a call."""

    __slots__ = ("native", "workspace_bytes", "copies", "o", "o_is_like_q", "lse")

    def __init__(self, q: Tensor, head_dim: int, by_heads: bool = False):
        q = without_memory(q)
        o = output(q, head_dim, by_heads)
        #: None where no row sees a key.
        self.native: Any = None
        self.workspace_bytes = 0
        #: Whether rows of an input are not contiguous, so that it is copied.
        self.copies = False
        #: Shape and strides.
        self.o = (tuple(o.shape), o.stride())
        self.o_is_like_q = (tuple(q.shape), q.stride()) == self.o
        self.lse = tuple(lse_like(q, by_heads).shape)

    def take(self, native: Any, inputs: tuple[Tensor, ...]) -> None:
        """What is launched for these tensors."""
        self.native, self.workspace_bytes = native, native.workspace_bytes
        self.copies = any(t.stride(-1) != 1 and t.shape[-1] != 1 for t in inputs)

    def workspace(self, q: Tensor) -> Tensor:
        """Memory of a launch, which the allocator gives to others only behind it in the stream."""
        return empty(self.workspace_bytes, dtype=torch.uint8, device=q.device)

    def outputs(self, q: Tensor, needs_lse: bool) -> tuple[Tensor, Optional[Tensor]]:
        """O and lse; nothing but memory where something is launched for them."""
        if self.o_is_like_q:
            o = empty_like(q)
        else:
            o = empty_strided(*self.o, dtype=q.dtype, device=q.device)
        lse = empty(self.lse, dtype=torch.float32, device=q.device) if needs_lse else None
        if self.native is None:
            o.zero_()
            if lse is not None:
                lse.fill_(float("-inf"))
        return o, lse


class Kept(dict[tuple[Any, ...], Plan]):
    """Plans by shapes, strides, types, devices and options, which are looked up without a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def keep(self, key: tuple[Any, ...], plan: Plan) -> Plan:
        """Keeps a plan, and forgets the oldest of too many."""
        with self.lock:
            if len(self) >= _plans.KEPT:
                del self[next(iter(self))]
            self[key] = plan
        return plan


def view(t: Tensor, by_heads: bool = False) -> _plans.View:
    """A tensor as the library sees it, once its rows are contiguous."""
    rows = rows_of(without_memory(t))
    return _plans.batched(rows.shape, rows.stride(), by_heads)


def address(t: Optional[Tensor]) -> int:
    """Where a tensor lies; 0 is none."""
    return 0 if t is None else t.data_ptr()


def check_place(q: Tensor, *tensors: Optional[Tensor]) -> None:
    """Refuses tensors on different devices, and devices for which there are no plans."""
    for t in tensors:
        if t is not None and t.device != q.device:
            raise ValueError(f"a tensor is on {t.device}, but q is on {q.device}")
    if q.device.type not in ("cuda", "cpu"):
        raise ValueError(f"q is on {q.device}; cuda and cpu are taken")


def place(q: Tensor) -> Optional[int]:
    """The GPU of a plan, or None for the CPU."""
    index = index_of(q)
    return None if index < 0 else index


def enqueue(
    plan: Plan,
    q: Tensor,
    index: int,
    at: tuple[int, ...],
    lists: tuple[int, ...],
    *gradients: tuple[int, ...],
) -> None:
    """Launches on the GPU's current stream, and leaves the current device as it is."""
    workspace = plan.workspace(q) if plan.workspace_bytes else None
    at = (*at, address(workspace), *lists)
    on_stream(index, lambda stream: plan.native.enqueue(at, *gradients, stream))


def on_stream(index: int, launch: Callable[[int], None]) -> None:
    """Calls with the GPU's current stream, and leaves the current device as it is."""
    if _current_device() == index:
        launch(_current_stream(index))
    else:
        with torch.cuda.device(index):
            launch(_current_stream(index))


def _per_head(
    name: str, t: Optional[Tensor], on_gpu: bool, heads: tuple[int, int]
) -> tuple[Any, Optional[int]]:
    """The values of a list on the CPU, its length on a GPU; `heads`: batch and heads."""
    if t is None:
        return None, None
    _checks.per_head(name, t, *heads)
    if t.dtype != torch.float32 or not t.is_contiguous():
        raise ValueError(f"{name}: {t.dtype}, strides {t.stride()}; contiguous float32 is needed")
    return (None, t.numel()) if on_gpu else (tuple(t.flatten().tolist()), None)


def is_e4m3(t: Tensor) -> bool:
    """Whether a tensor holds e4m3, as a cache may."""
    return t.dtype == torch.float8_e4m3fn


def descale(name: str, given: Any, q: Tensor, kv_heads: int) -> tuple[Any, Optional[Tensor]]:
    """Factors of K or V in e4m3 as a plan has them, and those that lie on a GPU."""
    if not isinstance(given, Tensor):
        return 1.0 if given is None else float(given), None
    if index_of(given) != index_of(q):
        check_place(q, given)
    # Factors of all heads are often one that is expanded.
    given = given.contiguous()
    values, on_device = _per_head(name, given, index_of(q) >= 0, (q.shape[0], kv_heads))
    return (values, None) if on_device is None else (on_device, given)


def lists(
    q: Tensor,
    alibi: Optional[Tensor],
    sinks: Optional[Tensor],
    cu_q: Optional[Tensor],
    cu_k: Optional[Tensor],
    seqused: Optional[Tensor],
    rng: Optional[Tensor],
    max_seqlens: tuple[int, int],
    dropout_p: float,
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Checks the tensors beside Q, K and V; fields of the settings that follow from them, and addresses."""
    _checks.rank("q", q, 4 if cu_q is None else 3)
    index = index_of(q)
    for t in (alibi, sinks, cu_q, cu_k, seqused):
        if t is not None and index_of(t) != index:
            check_place(q, t)
    varlen = dropout = None
    batch = q.shape[0]
    if cu_q is not None and cu_k is not None:
        if cu_q.numel() == 0:
            raise ValueError("cu_seqlens_q is empty; [B + 1] offsets are needed, the first of them 0")
        for name, offsets in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
            _checks.int32_list(name, offsets, (cu_q.numel(),), torch.int32, offsets.is_contiguous())
        batch = cu_q.numel() - 1
        varlen = (batch, *max_seqlens)
    if seqused is not None:
        _checks.int32_list("seqused_k", seqused, (batch,), torch.int32, seqused.is_contiguous())
    if rng is not None:
        dropout = (dropout_p, int(rng[0]), 0)
    of = (index >= 0, (batch, q.shape[-2]))
    of_heads = (*_per_head("alibi_slopes", alibi, *of), *_per_head("sinks", sinks, *of))
    fields = (*of_heads, dropout, varlen, seqused is not None)
    return fields, (address(alibi), address(sinks), address(cu_q), address(cu_k), address(seqused))


def on_host(cu_q: Optional[Tensor], cu_k: Optional[Tensor], seqused: Optional[Tensor]) -> Lengths:
    """What sequences have of rows and use of keys, for the CPU."""
    used = None if seqused is None else seqused.tolist()
    if cu_q is None or cu_k is None:
        return None, used
    offsets = (cu_q.tolist(), cu_k.tolist())
    for name, values in zip("qk", offsets):
        if values and min(values) < 0:
            raise ValueError(f"cu_seqlens_{name}: the least offset is {min(values)}; 0 or more is needed")
    return offsets, used
