"""What is done to a K/V cache and to new tokens before attention, by plain operations on tensors."""

from __future__ import annotations

from typing import Any


def append(half: Any, caches: tuple[Any, Any], new: tuple[Any, Any], used: Any, table: Any) -> None:
    """Writes new keys and values behind those that are used."""
    batch, length = new[0].shape[:2]
    sequence = half.arange(batch, used)[:, None]
    position = positions(half, used, length)
    page_size = caches[0].shape[1]
    for cache, values in zip(caches, new):
        if table is None:
            cache[sequence, position] = values
        else:
            cache[half.indices(table)[sequence, position // page_size], position % page_size] = values


def positions(half: Any, used: Any, length: int) -> Any:
    """[B, length]: those of tokens behind the ones that are used."""
    return half.indices(used)[:, None] + half.arange(length, used)[None]


def check_rotary(cos: Any, sin: Any, head_dim: int, room: int) -> None:
    """Refuses tables that do not fit the head_dim, or end before the cache."""
    if sin is None or cos.ndim != 2 or tuple(cos.shape) != tuple(sin.shape):
        found = "None" if sin is None else f"of shape {tuple(sin.shape)}"
        raise ValueError(
            f"rotary_cos is of shape {tuple(cos.shape)} and rotary_sin {found}; both are [rows, R / 2]"
        )
    if 2 * cos.shape[1] > head_dim:
        raise ValueError(f"rotary_cos: R is {2 * cos.shape[1]}; the limit is head_dim = {head_dim}")
    if cos.shape[0] < room:
        raise ValueError(f"rotary_cos has {cos.shape[0]} rows; a sequence has room for {room} keys")


def rotated(half: Any, x: Any, tables: tuple[Any, Any], position: Any, interleaved: bool) -> Any:
    """A copy of x, [B, S, H, D], whose first R of D are turned by angles of a position, [B, S] or [B, 1].

    `tables`: cosines and sines, [rows, R / 2]. Computed in float32.
    """
    cos, sin = (half.single(table[position])[:, :, None] for table in tables)
    width = 2 * tables[0].shape[1]
    if interleaved:
        first, second = slice(0, width, 2), slice(1, width, 2)
    else:
        first, second = slice(0, width // 2), slice(width // 2, width)
    a, b = half.single(x[..., first]), half.single(x[..., second])
    result = half.copied(x)
    result[..., first], result[..., second] = a * cos - b * sin, a * sin + b * cos
    return result
