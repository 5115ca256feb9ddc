"""torch tensors on CUDA and the CPU: the ops `flash_attention_rs::forward`, `backward` and `decode`."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import _checks, _plans
from ._plans import Settings

NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}

#: Arguments that the forward and the backward op have in common, behind their tensors.
_OPTIONS = (
    "Tensor? alibi_slopes, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? rng_state, "
    "SymInt max_seqlen_q, SymInt max_seqlen_k, float softmax_scale, bool causal, int window_left, "
    "int window_right, float softcap, float dropout_p"
)

#: The handle without a Python object around it, where torch has this.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

_library = torch.library.Library("flash_attention_rs", "DEF")
_library.define(
    f"forward(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    f"backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, {_OPTIONS}) "
    "-> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "decode(Tensor q, Tensor k, Tensor v, Tensor? seqused, Tensor? page_table, float softmax_scale, "
    "bool causal, int num_splits) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def tensor(value: Any, name: str = "q") -> Tensor:
    """The argument."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} is a {type(value).__name__}, but q is a torch.Tensor")
    return value


def name_of(dtype: torch.dtype) -> str:
    """The library's name of a type."""
    name = NAMES.get(dtype)
    if name is None:
        raise ValueError(f"dtype is {dtype}; one of {', '.join(map(str, NAMES))} is needed")
    return name


def _rows(t: Tensor) -> Tensor:
    """A tensor whose rows are contiguous."""
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


def _like(t: Tensor) -> Tensor:
    """A gradient, in the order of its tensor's axes where that is dense."""
    like = torch.empty_like(t)
    return like if like.stride(-1) == 1 else torch.empty(t.shape, dtype=t.dtype, device=t.device)


def _output(q: Tensor, head_dim: int) -> Tensor:
    """O, its heads outside its rows where those of Q are."""
    if q.dim() == 4 and q.stride(1) < q.stride(2):
        batch, rows, heads, _ = q.shape
        return q.new_empty((batch, heads, rows, head_dim)).transpose(1, 2)
    return q.new_empty((*q.shape[:-1], head_dim))


def _lse(q: Tensor) -> Tensor:
    """[B, H, Sq], or of a packed batch [H, total_q]."""
    if q.dim() == 3:
        return q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)


def _view(t: Tensor) -> _plans.View:
    return _plans.batched(t.shape, t.stride())


def _address(t: Optional[Tensor]) -> int:
    return 0 if t is None else t.data_ptr()


def _place(q: Tensor, *tensors: Optional[Tensor]) -> Optional[int]:
    """The GPU that the tensors are on, or None for the CPU."""
    device = q.device
    for t in tensors:
        if t is not None and t.device != device:
            raise ValueError(f"a tensor is on {t.device}, but q is on {device}")
    if device.type not in ("cuda", "cpu"):
        raise ValueError(f"q is on {device}; cuda and cpu are taken")
    return device.index if device.type == "cuda" else None


def _workspace(plan: Any, q: Tensor) -> Optional[Tensor]:
    size = plan.workspace_bytes
    return torch.empty(size, dtype=torch.uint8, device=q.device) if size else None


def _current_stream(index: int) -> int:
    return torch.cuda.current_stream(index).cuda_stream if _raw_stream is None else _raw_stream(index)


def _enqueue(plan: Any, index: int, *addresses: Any) -> None:
    """Launches on the GPU's current stream, and leaves the current device as it is."""
    stream = _current_stream(index)
    if torch.cuda.current_device() == index:
        plan.enqueue(*addresses, stream)
    else:
        with torch.cuda.device(index):
            plan.enqueue(*addresses, stream)


class _Options:
    """The options of an op as a plan's settings, checked."""

    def __init__(self, q: Tensor, place: Optional[int], options: tuple[Any, ...]):
        (alibi, cu_q, cu_k, rng, max_q, max_k, scale, causal, left, right, softcap, dropout_p) = options
        self.alibi = alibi
        self.offsets = (cu_q, cu_k)
        values = count = dropout = varlen = None
        if alibi is not None:
            if alibi.dtype != torch.float32 or not alibi.is_contiguous():
                raise ValueError(
                    f"alibi_slopes: {alibi.dtype}, strides {alibi.stride()}; contiguous float32 is needed"
                )
            if place is None:
                values = tuple(alibi.flatten().tolist())
            else:
                count = alibi.numel()
        if cu_q is not None:
            for name, offsets in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
                _checks.int32_list(name, offsets, (cu_q.numel(),), torch.int32, offsets.is_contiguous())
            varlen = (cu_q.numel() - 1, max_q, max_k)
        if rng is not None:
            dropout = (dropout_p, int(rng[0]), 0)
        window = (_checks.no_limit(left), _checks.no_limit(right))
        self.settings = Settings(causal, scale, window, softcap, values, count, dropout, varlen)

    def on_host(self) -> Optional[tuple[list[int], list[int]]]:
        """The offsets of a packed batch, for the CPU."""
        q, k = self.offsets
        if q is None:
            return None
        offsets = (q.tolist(), k.tolist())
        for name, values in zip("qk", offsets):
            if values and min(values) < 0:
                raise ValueError(f"cu_seqlens_{name}: the least offset is {min(values)}; 0 or more is needed")
        return offsets


def _forward(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    dtype = _checks.qkv(q, k, v, 3 if options[1] is not None else 4, name_of)
    place = _place(q, k, v, *options[:3])
    o, lse = _output(q, v.shape[-1]), _lse(q)
    if o.numel() == 0 or k.numel() == 0:
        _checks.shapes(q, k, v)
        return o.zero_(), lse.fill_(float("-inf"))
    call = _Options(q, place, options)
    q, k, v = _rows(q), _rows(k), _rows(v)
    plan = _plans.forward(place, dtype, (_view(q), _view(k), _view(v), _view(o)), call.settings)
    at = [q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr()]
    if place is None:
        plan.run(at, call.on_host())
    else:
        workspace = _workspace(plan, q)
        at += [_address(t) for t in (workspace, call.alibi, *call.offsets)]
        _enqueue(plan, place, at)
    return o, lse


def _backward(
    dout: Tensor,
    dlse: Optional[Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = _checks.qkv(q, k, v, 3 if options[1] is not None else 4, name_of)
    place = _place(q, k, v, o, lse, dout, dlse, *options[:3])
    dq, dk, dv = _like(q), _like(k), _like(v)
    if o.numel() == 0 or k.numel() == 0:
        return dq.zero_(), dk.zero_(), dv.zero_()
    for name, t in (("o", o), ("dout", dout)):
        if t.dtype != q.dtype:
            raise ValueError(f"{name} holds {t.dtype}, but q holds {q.dtype}")
    expected = _lse_shape(q)
    for name, rows in (("lse", lse), ("dlse", dlse)):
        if rows is not None and (rows.dtype != torch.float32 or tuple(rows.shape) != expected):
            raise ValueError(f"{name}: {rows.dtype} {tuple(rows.shape)}; torch.float32 {expected} is needed")
    call = _Options(q, place, options)
    if options[1] is not None:  # rows of no sequence are not written
        dq.zero_(), dk.zero_(), dv.zero_()
    q, k, v, o, dout, lse = _rows(q), _rows(k), _rows(v), _rows(o), _rows(dout), lse.contiguous()
    dlse_rows = None if dlse is None else dlse.contiguous()
    views = (_view(q), _view(k), _view(v), _view(o))
    gradients = (_view(dout), _view(dq), _view(dk), _view(dv))
    plan = _plans.backward(place, dtype, views, call.settings, gradients)
    at = [t.data_ptr() for t in (q, k, v, o, lse)]
    written = [*(t.data_ptr() for t in (dout, dq, dk, dv)), _address(dlse_rows)]
    if place is None:
        plan.run(at, written, call.on_host())
    else:
        workspace = _workspace(plan, q)
        at += [_address(t) for t in (workspace, call.alibi, *call.offsets)]
        _enqueue(plan, place, at, written)
    return dq, dk, dv


def _lse_shape(q: Tensor) -> tuple[int, ...]:
    return (q.shape[1], q.shape[0]) if q.dim() == 3 else (q.shape[0], q.shape[2], q.shape[1])


def _decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seqused: Optional[Tensor],
    page_table: Optional[Tensor],
    softmax_scale: float,
    causal: bool,
    num_splits: int,
) -> tuple[Tensor, Tensor]:
    dtype = _checks.qkv(q, k, v, 4, name_of)
    place = _place(q, k, v, seqused, page_table)
    o, lse = _output(q, v.shape[-1]), _lse(q)
    if o.numel() == 0 or k.numel() == 0:
        return o.zero_(), lse.fill_(float("-inf"))
    if seqused is not None:
        _checks.int32_list("cache_seqlens", seqused, (q.shape[0],), torch.int32, seqused.is_contiguous())
    pages = None
    if page_table is not None:
        pages = page_table.shape[-1]
        _checks.int32_list(
            "block_table", page_table, (q.shape[0], pages), torch.int32, page_table.is_contiguous()
        )
    q, k, v = _rows(q), _rows(k), _rows(v)
    views = (_view(q), _view(k), _view(v), _view(o))
    splits = num_splits if num_splits > 0 and place is not None else None
    plan = _plans.decode(place, dtype, views, causal, softmax_scale, pages, splits)
    at = [t.data_ptr() for t in (q, k, v, o, lse)]
    if place is None:
        plan.run([*at, _address(seqused), _address(page_table)])
    else:
        workspace = _workspace(plan, q)
        _enqueue(plan, place, [*at, *map(_address, (workspace, seqused, page_table))])
    return o, lse


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *_options: Any) -> tuple[Tensor, Tensor]:
    return _output(q, v.shape[-1]), _lse(q)


def _backward_fake(_dout: Any, _dlse: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return _like(q), _like(k), _like(v)


def _decode_fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _output(q, v.shape[-1]), _lse(q)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, alibi, cu_q, cu_k, rng, *ctx.options = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output, alibi, cu_q, cu_k, rng)


def _gradient(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    none = (None,) * 12
    if dout is None and dlse is None:
        return (None, None, None, *none)
    q, k, v, o, lse, *lists = ctx.saved_tensors
    dout = torch.zeros_like(o) if dout is None else dout
    grads = torch.ops.flash_attention_rs.backward(dout, dlse, q, k, v, o, lse, *lists, *ctx.options)
    return (*grads, *none)


for _name, _function, _fake in (
    ("forward", _forward, _forward_fake),
    ("backward", _backward, _backward_fake),
    ("decode", _decode, _decode_fake),
):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"flash_attention_rs::{_name}", _fake, lib=_library)

torch.library.register_autograd(
    "flash_attention_rs::forward", _gradient, setup_context=_setup_context, lib=_library
)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alibi_slopes: Optional[Tensor] = None,
    cu_seqlens: Optional[tuple[Tensor, Tensor]] = None,
    max_seqlens: Optional[tuple[int, int]] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """O and lse of dense ([B, S, H, D]) or packed ([total, H, D]) sequences."""
    k, v = tensor(k, "k"), tensor(v, "v")
    _checks.dropout(dropout_p)
    cu_q, cu_k = (None, None) if cu_seqlens is None else cu_seqlens
    max_q, max_k = (0, 0) if max_seqlens is None else max_seqlens
    # The seed is of torch's generator on the CPU, so that no call waits for a GPU.
    rng = torch.randint(2**62, (1,)) if dropout_p > 0.0 else None
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    left, right = window
    return torch.ops.flash_attention_rs.forward(
        q, k, v, alibi_slopes, cu_q, cu_k, rng, max_q, max_k, scale, causal, left, right, softcap, dropout_p
    )


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    seqused: Optional[Tensor],
    page_table: Optional[Tensor],
    softmax_scale: float,
    causal: bool,
    num_splits: int,
) -> tuple[Tensor, Tensor]:
    """O and lse of few queries against a cache, which is pages where there is a page table."""
    return torch.ops.flash_attention_rs.decode(
        q, k, v, seqused, page_table, softmax_scale, causal, num_splits
    )


def unbound(qkv: Tensor) -> tuple[Tensor, ...]:
    """Views of what axis 2 holds, whose gradients are stacked in one copy."""
    return qkv.unbind(2)


def swapped(t: Tensor) -> Tensor:
    """Axes 1 and 2 swapped, as a view."""
    return t.transpose(1, 2)


def arange(length: int, like: Tensor) -> Tensor:
    """0, 1, ... as indices."""
    return torch.arange(length, device=like.device)


def integers(values: Any, like: Tensor) -> Tensor:
    """A contiguous int32 tensor on the device of another."""
    return torch.as_tensor(values, dtype=torch.int32, device=like.device).contiguous()


def indices(values: Tensor) -> Tensor:
    """For indexing."""
    return values.long()


def is_on_host(values: Tensor) -> bool:
    """Whether values can be looked at without waiting for a GPU."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()
