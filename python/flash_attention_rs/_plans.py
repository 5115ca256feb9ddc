"""Plans, kept by shapes, strides, type, options and device."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, Optional

from . import _native

KEPT = 4096

#: Of all calls: see `set_batch_invariant`.
batch_invariant = False


def set_batch_invariant(enabled: bool = True) -> None:
    """Whether forward passes give a sequence the same bits whatever else is in its batch, from now on.

    By itself, packed or padded, and among sequences of any lengths: tiles and parts of keys are then chosen
    whatever the batch, which may take longer. Rows start at multiples of 16 bytes: head_dims are multiples of
    8 in types of 16 bits. Dropout draws by sequence.
    """
    global batch_invariant
    batch_invariant = bool(enabled)


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
    #: As the slopes.
    sinks: Optional[tuple[float, ...]] = None
    sinks_len: Optional[int] = None
    #: Probability, seed and offset.
    dropout: Optional[tuple[float, int, int]] = None
    #: Of a packed batch: sequences, and the most rows of one in Q and in K.
    varlen: Optional[tuple[int, int, int]] = None
    #: Whether sequences use as many of their keys as a list says.
    has_seqused_k: bool = False
    #: Whether a sequence gets the same bits in any batch.
    batch_invariant: bool = False

    @property
    def come_again(self) -> bool:
        """Whether other calls are likely to have the same: no seed, nor values that are trained."""
        return self.dropout is None and self.sinks is None


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
    if not settings.come_again:
        return _native.Forward(device, dtype, views, settings)
    return _forward(device, dtype, views, settings)


def backward(
    device: int | None, dtype: str, views: tuple[View, ...], settings: Settings, gradients: tuple[View, ...]
) -> _native.Backward:
    """The plan for dO, dQ, dK and dV of the forward plan with the same arguments."""
    if not settings.come_again:
        return _native.Backward(_native.Forward(device, dtype, views, settings), gradients)
    return _backward(device, dtype, views, settings, gradients)


def check_empty(dtype: str, shapes: tuple[tuple[int, ...], ...], settings: Settings) -> None:
    """Refuses what would be refused of tensors that are not empty; `shapes`: of Q, K, V and O."""
    views = []
    for shape in shapes:
        b, s, h, d = (max(size, 1) for size in ((1, *shape) if len(shape) == 3 else shape))
        views.append(((b, s, h, d), (s * h * d, h * d, d, 1)))
    settings = settings._replace(alibi_slopes=None, alibi_len=None, sinks=None, sinks_len=None)
    settings = settings._replace(varlen=None, has_seqused_k=False)
    _native.Forward(None, dtype, views, settings)


@lru_cache(maxsize=KEPT)
def decode(
    device: int | None,
    dtype: str,
    views: tuple[View, ...],
    settings: Settings,
    max_pages: int | None,
    num_splits: int | None,
    descales: tuple[Any, Any] | None = None,
    packed: tuple[int, int] | None = None,
    latent: bool = False,
) -> _native.Decode:
    """The plan for queries against a cache; `descales`: factors of K and V in e4m3, `packed`: sequences and
    the most rows of one, where they lie behind one another, `latent`: whether V is the first columns of K.
    """
    return _native.Decode(device, dtype, views, settings, max_pages, num_splits, descales, packed, latent)


@lru_cache(maxsize=KEPT)
def append(
    device: int,
    dtype: str,
    views: tuple[View, ...],
    max_pages: int | None,
    rotary: tuple[int, int, bool] | None,
    queries: tuple[View, View, bool] | None,
) -> _native.Append:
    """The plan for new keys and values into a cache, and for queries that are rotated with them."""
    return _native.Append(device, dtype, views, max_pages, rotary, queries)


def batched(shape: tuple[int, ...], strides: tuple[int, ...], by_heads: bool = False) -> View:
    """The view as [B, S, H, D]; packed sequences are a batch of one, and `by_heads` is [B, H, S, D]."""
    if by_heads:
        (b, h, s, d), (of_b, of_h, of_s, of_d) = shape, strides
        return (b, s, h, d), (of_b, of_s, of_h, of_d)
    if len(shape) == 4:
        return tuple(shape), tuple(strides)
    return (1, *shape), (shape[0] * strides[0], *strides)
