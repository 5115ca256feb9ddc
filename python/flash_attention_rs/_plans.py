"""Plans, kept by shapes, strides, type, options and device."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Optional

from . import _native

KEPT = 4096

View = tuple[tuple[int, ...], tuple[int, ...]]
Window = tuple[Optional[int], Optional[int]]


class Settings(NamedTuple):
    """What is computed, beside the shapes."""

    causal: bool
    softmax_scale: float
    window: Window
    softcap: float
    #: Values, on the CPU.
    alibi_slopes: Optional[tuple[float, ...]] = None
    #: How many there are, on a GPU.
    alibi_len: Optional[int] = None
    #: Probability, seed and offset.
    dropout: Optional[tuple[float, int, int]] = None
    #: Of a packed batch: sequences, and the most rows of one in Q and in K.
    varlen: Optional[tuple[int, int, int]] = None


@lru_cache(maxsize=KEPT)
def _forward(device: int | None, dtype: str, views: tuple[View, ...], settings: Settings) -> _native.Forward:
    return _native.Forward(device, dtype, views, settings)


@lru_cache(maxsize=KEPT)
def _backward(
    device: int | None, dtype: str, views: tuple[View, ...], settings: Settings, gradients: tuple[View, ...]
) -> _native.Backward:
    return _native.Backward(_forward(device, dtype, views, settings), gradients)


def forward(device: int | None, dtype: str, views: tuple[View, ...], settings: Settings) -> _native.Forward:
    """The plan for Q, K, V and O."""
    if settings.dropout is not None:  # the seed is part of it, and does not come again
        return _native.Forward(device, dtype, views, settings)
    return _forward(device, dtype, views, settings)


def backward(
    device: int | None, dtype: str, views: tuple[View, ...], settings: Settings, gradients: tuple[View, ...]
) -> _native.Backward:
    """The plan for dO, dQ, dK and dV of the forward plan with the same arguments."""
    if settings.dropout is not None:
        return _native.Backward(_native.Forward(device, dtype, views, settings), gradients)
    return _backward(device, dtype, views, settings, gradients)


@lru_cache(maxsize=KEPT)
def decode(
    device: int | None,
    dtype: str,
    views: tuple[View, ...],
    causal: bool,
    softmax_scale: float,
    max_pages: int | None,
    num_splits: int | None,
) -> _native.Decode:
    """The plan for few queries against a cache."""
    return _native.Decode(device, dtype, views, causal, softmax_scale, max_pages, num_splits)


def clear() -> None:
    """Forgets all plans."""
    for cache in (_forward, _backward, decode):
        cache.cache_clear()


def batched(shape: tuple[int, ...], strides: tuple[int, ...]) -> View:
    """The view with four axes; packed sequences are a batch of one."""
    if len(shape) == 4:
        return tuple(shape), tuple(strides)
    return (1, *shape), (shape[0] * strides[0], *strides)
