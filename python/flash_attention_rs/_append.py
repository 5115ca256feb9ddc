"""Appending to a cache on a GPU: keys, values and rotary embeddings in one launch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Optional

from torch import Tensor

from . import _launch, _plans
from ._launch import address, index_of, rows_of
from ._ops import is_eager

#: The most columns of a head.
_MAX_HEAD_DIM = 768


def append(
    q: Tensor, cache: Any, new: tuple[Tensor, Tensor], start: Tensor, rotary: Any, in_order: bool
) -> Optional[tuple[Tensor, Callable[[], None]]]:
    """Queries, which are rotated once `new` is in the cache, and what puts it there.

    None where tensor operations do it: on the CPU, under a compiler, in tensors without elements, in rows
    that are not contiguous, and with tables of another type than the cache.
    """
    tables: tuple[Any, ...] = () if rotary is None else (rotary.cos, rotary.sin)
    caches = (cache.k, cache.v)
    tensors = (q, *new, *caches, *tables)
    if not (q.is_cuda and is_eager(*tensors) and q.dtype in _launch.NAMES):
        return None
    if any(t.numel() == 0 or t.dtype != q.dtype for t in tensors):
        return None
    if any(rows_of(t) is not t for t in caches) or max(t.shape[-1] for t in new) > _MAX_HEAD_DIM:
        return None
    k, v = map(rows_of, new)
    turned = embedding = queries = None
    if rotary is not None:
        q = rows_of(q)
        turned = q.new_empty(q.shape)
        tables = tuple(t.contiguous() for t in tables)
        rows, half = tables[0].shape
        embedding, queries = (2 * half, rows, rotary.interleaved), (_view(q), _view(turned), in_order)
    views = tuple(map(_view, (k, v, *caches)))
    pages = None if cache.table is None else cache.table.shape[1]
    index = index_of(q)
    plan = _plans.append(index, _launch.NAMES[q.dtype], views, pages, embedding, queries)
    given = (k, v, *caches, start, cache.table, *(tables or (None, None)))
    given = (*given, None if turned is None else q, turned)
    return q if turned is None else turned, partial(_enqueue, plan, index, given)


def _view(t: Tensor) -> _plans.View:
    return tuple(t.shape), t.stride()


def _enqueue(plan: Any, index: int, given: tuple[Optional[Tensor], ...]) -> None:
    """Launches over tensors that live until then."""
    at = tuple(map(address, given))
    _launch.on_stream(index, lambda stream: plan.enqueue(at, stream))
