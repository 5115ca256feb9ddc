"""What both kinds of tensors are checked for, before addresses are taken."""

from __future__ import annotations

from typing import Any

#: No sequence is longer.
_MAX_SEQLEN = 2**31 - 1


def no_limit(size: int) -> int | None:
    """A side of a window: -1 is no limit, and neither is a side that no sequence reaches."""
    return int(size) if 0 <= size <= _MAX_SEQLEN else None


def rank(name: str, tensor: Any, axes: int) -> None:
    """Refuses another number of axes."""
    if tensor.ndim != axes:
        order = "[B, S, H, D]" if axes == 4 else "[total, H, D]"
        raise ValueError(f"{name} has {tensor.ndim} axes; {axes} are needed, {order}")


def head_dim(q: Any) -> None:
    """Refuses rows without elements, which have no default scale."""
    if q.shape[-1] == 0:
        raise ValueError("q: head_dim is 0; at least 1 is needed")


def per_head(name: str, values: Any, batch: int, heads: int) -> None:
    """Refuses what is no value for each head, or for each head of each sequence."""
    shape, needed = tuple(values.shape), ((heads,), (batch, heads))
    if shape not in needed:
        raise ValueError(f"{name}: shape is {shape}; {needed[0]} or {needed[1]} is needed, [H] or [B, H]")


def qkv(q: Any, k: Any, v: Any, axes: int, dtype_name: Any) -> str:
    """Checks ranks and types; the library checks shapes. Returns the type's name there."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        rank(name, tensor, axes)
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name} holds {tensor.dtype}, but q holds {q.dtype}")
    return dtype_name(q.dtype)


def dropout(probability: float) -> None:
    """Refuses what is no probability of dropping a weight."""
    if not 0.0 <= probability < 1.0:
        raise ValueError(f"dropout_p is {probability}; 0 to below 1 is needed")


def shapes(q: Any, k: Any, v: Any) -> None:
    """Checks what an empty tensor needs, of which the library never hears."""
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"v: shape is {tuple(v.shape)}, but k has {tuple(k.shape)}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"k: head_dim is {k.shape[-1]}, but q has {q.shape[-1]}")
    if q.ndim == 4 and q.shape[0] != k.shape[0]:
        raise ValueError(f"k: batch is {k.shape[0]}, but q has {q.shape[0]}")


def int32_list(name: str, tensor: Any, shape: tuple[int, ...], int32: Any, is_contiguous: bool) -> None:
    """Checks a list whose address a kernel gets."""
    if tensor.dtype != int32:
        raise ValueError(f"{name} holds {tensor.dtype}; int32 is needed")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: shape is {tuple(tensor.shape)}; {shape} is needed")
    if not is_contiguous:
        raise ValueError(f"{name} is not contiguous")
