"""torch tensors on CUDA and the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor

from . import _append, _checks, _launch, _passes
from ._ops import Attention, is_eager, refuse_tangents

_NO_WINDOW = (-1, -1)


def tensor(value: Any, name: str = "q") -> Tensor:
    """The argument."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} is a {type(value).__name__}, but q is a torch.Tensor")
    return value


#: Cheaper than the question for one device.
_is_any_autocast_enabled = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def autocast(device: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors in the type that autocast asks of attention, as PyTorch's own function has them."""
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    cast = (t.is_floating_point() and t.dtype != torch.float64 for t in tensors)
    return tuple(t.to(dtype) if is_cast else t for t, is_cast in zip(tensors, cast))


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alibi_slopes: Optional[Tensor] = None,
    sinks: Optional[Tensor] = None,
    cu_seqlens: Optional[tuple[Tensor, Tensor]] = None,
    max_seqlens: Optional[tuple[int, int]] = None,
    seqused_k: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    needs_lse: bool = True,
    casts: bool = True,
    before: Optional[Callable[[], None]] = None,
) -> tuple[Tensor, Optional[Tensor]]:
    """O and lse of dense ([B, S, H, D]) or packed ([total, H, D]) sequences; lse may be left out.

    `casts`: whether autocast has its way; `before`: called once nothing can be refused any more.
    """
    eager = is_eager(q, k, v)
    if not eager:
        tensor(k, "k"), tensor(v, "v")
    if casts and _is_any_autocast_enabled():
        q, k, v = autocast("cuda" if q.is_cuda else "cpu", q, k, v)
    rng = cu_q = cu_k = None
    max_q = max_k = 0
    if dropout_p != 0.0:
        _checks.dropout(dropout_p)
        # The seed is of torch's generator on the CPU, so that no call waits for a GPU.
        rng = torch.randint(2**62, (1,))
    if cu_seqlens is not None and max_seqlens is not None:
        cu_q, cu_k = tensor(cu_seqlens[0], "cu_seqlens_q"), tensor(cu_seqlens[1], "cu_seqlens_k")
        max_q, max_k = max_seqlens
    if seqused_k is not None:
        tensor(seqused_k, "seqused_k")
    if alibi_slopes is not None:
        tensor(alibi_slopes, "alibi_slopes")
    if sinks is not None:
        tensor(sinks, "sinks")
    # Plans are looked up by these: a tensor's hash is its identity, not its value.
    scale = None if softmax_scale is None else float(softmax_scale)
    causal, softcap = bool(causal), float(softcap)
    left, right = window if window == _NO_WINDOW else map(int, window)
    if not eager:
        refuse_tangents(q, k, v, alibi_slopes, sinks)
        if before is not None:
            before()
        op, lists = torch.ops.flash_attention_rs.forward, (alibi_slopes, sinks, cu_q, cu_k, seqused_k, rng)
        return op(q, k, v, *lists, max_q, max_k, scale, causal, left, right, softcap, dropout_p)
    if torch.is_grad_enabled() and (
        q.requires_grad or k.requires_grad or v.requires_grad or (sinks is not None and sinks.requires_grad)
    ):
        lists = (alibi_slopes, sinks, cu_q, cu_k, seqused_k, rng)
        numbers = (max_q, max_k, scale, causal, left, right, softcap, dropout_p)
        return Attention.apply(q, k, v, sinks, (lists, numbers))
    # fmt: off
    return _passes.forward(
        q, k, v, alibi_slopes, sinks, cu_q, cu_k, seqused_k, rng, max_q, max_k, scale, causal, left,
        right, softcap, dropout_p, needs_lse, before,
    )
    # fmt: on


def decodes(q: Tensor) -> bool:
    """Whether decode takes the type of q: on a GPU those of 16 bits."""
    return not (q.is_cuda and q.dtype == torch.float32)


def is_e4m3(t: Tensor) -> bool:
    """Whether a tensor holds e4m3, as a cache may."""
    return _launch.is_e4m3(t)


def reads_pages(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether any number of queries reads pages where they lie: as tensor maps of Hopper describe them."""
    if not q.is_cuda or q.dtype == torch.float32 or torch.cuda.get_device_capability(q.device)[0] != 9:
        return False
    if k.shape[1] % 8 != 0:
        return False
    return all(
        t.stride(-1) == 1 and t.data_ptr() % 16 == 0 and all(s % 8 == 0 for s in t.stride()[:-1])
        for t in (q, k, v)
    )


def is_inference(*tensors: Any) -> bool:
    """Whether no tensor needs a gradient, and autocast leaves all as they are."""
    has_gradients = torch.is_grad_enabled() and any(t.requires_grad for t in tensors if isinstance(t, Tensor))
    return not (has_gradients or _is_any_autocast_enabled())


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    seqused: Optional[Tensor],
    page_table: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    softmax_scale: float,
    causal: bool,
    window: tuple[int, int],
    softcap: float,
    needs_lse: bool,
    sinks: Optional[Tensor] = None,
    num_splits: int = 0,
    descales: tuple[Any, Any] = (None, None),
    offsets: Optional[Tensor] = None,
    max_seqlen_q: int = 0,
    latent: bool = False,
    before: Optional[Callable[[], None]] = None,
) -> tuple[Tensor, Optional[Tensor]]:
    """O and lse of queries against a cache, which is pages where there is a page table.

    `descales`: what K and V in e4m3 are multiplied by, a number or float32 [Hkv] or [B, Hkv]. `offsets`:
    where the queries of each sequence begin that lie behind one another, of at most `max_seqlen_q` each.
    `latent`: V is the first columns of K, and a view of it.
    """
    for name, values in (("alibi_slopes", alibi_slopes), ("sinks", sinks)):
        if values is not None:
            tensor(values, name)
    scale, causal, softcap = float(softmax_scale), bool(causal), float(softcap)
    left, right = map(int, window)
    # fmt: off
    if is_eager(q, k, v):
        return _passes.decode(
            q, k, v, seqused, page_table, alibi_slopes, sinks, scale, causal, left, right, softcap,
            num_splits, *descales, offsets, max_seqlen_q, latent, needs_lse, before,
        )
    refuse_tangents(q, k, v, alibi_slopes, sinks)
    if before is not None:
        before()
    return torch.ops.flash_attention_rs.decode(
        q, k, v, seqused, page_table, alibi_slopes, sinks, scale, causal, left, right, softcap, num_splits,
        *(d if d is None or isinstance(d, Tensor) else q.new_full((k.shape[2],), d, dtype=torch.float32)
          for d in descales),
        offsets, max_seqlen_q, latent,
    )
    # fmt: on


append = _append.append


def unbound(qkv: Tensor) -> tuple[Tensor, ...]:
    """Views of what axis 2 holds, whose gradients are stacked in one copy."""
    return qkv.unbind(2)


def swapped(t: Tensor) -> Tensor:
    """Axes 1 and 2 swapped, as a view."""
    return t.transpose(1, 2)


def arange(length: int, like: Tensor) -> Tensor:
    """0, 1, ... as indices."""
    return torch.arange(length, device=like.device)


def integers(name: str, values: Any) -> Tensor:
    """A contiguous int32 tensor of integers, where they lie."""
    given = torch.as_tensor(values)
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise ValueError(f"{name} holds {given.dtype}; integers are needed")
    whole = given.to(torch.int32).contiguous()
    if whole.dtype != given.dtype and is_on_host(given) and not torch.equal(whole.to(given.dtype), given):
        raise ValueError(f"{name} is {given.tolist()}; numbers of 32 bits are needed")
    return whole


def beside(values: Tensor, like: Tensor) -> Tensor:
    """Values on the device of another tensor."""
    return values.to(like.device)


def filled(value: int, length: int, like: Tensor) -> Tensor:
    """int32 [length] on the device of another tensor."""
    return torch.full((length,), value, dtype=torch.int32, device=like.device)


def repeated(value: Tensor, length: int) -> Tensor:
    """[length] of a tensor of one value."""
    return value.expand(length).contiguous()


def taken(pages: Tensor, table: Tensor, into: Optional[Tensor] = None) -> Tensor:
    """The pages of a table one after the other, the nearest where there is none; `into` memory, if given."""
    return torch.index_select(pages, 0, table.flatten().clamp(0, pages.shape[0] - 1), out=into)


def empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Memory for elements of the type of another tensor."""
    return like.new_empty(shape)


def check_forward_only(q: Tensor, names: tuple[str, ...], tensors: tuple[Tensor, ...]) -> None:
    """Refuses tensors on another device than q, or with a gradient, which nothing would give."""
    index, has_gradients = q.get_device(), torch.is_grad_enabled()
    for name, t in zip(names, tensors):
        if t.get_device() != index:
            raise ValueError(f"{name} is on {t.device}, but q is on {q.device}")
        if has_gradients and t.requires_grad:
            raise ValueError(f"{name} requires a gradient, but a cache has none; call under torch.no_grad()")


def check_written(name: str, t: Tensor) -> None:
    """Refuses a tensor whose elements share memory."""
    if any(stride == 0 and size > 1 for size, stride in zip(t.shape, t.stride())):
        raise ValueError(f"{name} is expanded, with strides {t.stride()}; its rows cannot be written")


def indices(values: Tensor) -> Tensor:
    """For indexing."""
    return values.long()


def single(values: Tensor) -> Tensor:
    """In float32."""
    return values.float()


def copied(t: Tensor) -> Tensor:
    """A contiguous copy."""
    return t.clone(memory_format=torch.contiguous_format)


def is_on_host(values: Tensor) -> bool:
    """Whether values can be looked at without waiting for a GPU."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()
