"""Attention by its definition, in float64."""

import numpy as np


def attention(q, k, v, *, scale=None, causal=False, window=(-1, -1), softcap=0.0, alibi=None, sinks=None):
    """O and lse of [B, S, H, D]."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    batch, rows, heads, dim = q.shape
    keys, group = k.shape[1], heads // k.shape[2]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    scores = np.einsum("bihd,bjhd->bhij", q, k) * (dim**-0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    distance = np.arange(keys)[None] - (np.arange(rows)[:, None] + keys - rows)
    if alibi is not None:
        slopes = np.broadcast_to(np.asarray(alibi, np.float64), (batch, heads))
        scores = scores - slopes[..., None, None] * np.abs(distance)
    left, right = window
    right = 0 if causal else right
    seen = np.ones((rows, keys), bool)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    scores = np.where(seen, scores, -np.inf)
    with np.errstate(divide="ignore"):
        most = scores.max(-1, keepdims=True, initial=-100.0)
        weights = np.exp(scores - most)
        total = weights.sum(-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(np.asarray(sinks, np.float64)[..., None, None] - most)
        lse = (np.log(total) + most)[..., 0]
    o = np.einsum("bhij,bjhd->bihd", weights / np.where(total == 0, 1, total), v)
    return o, np.where(total[..., 0] == 0, -np.inf, lse)


def rotated(x, angles, interleaved):
    """x, [S, H, D], whose pairs of the first elements are turned as complex numbers; `angles`: [S, R / 2]."""
    x = np.array(x, np.float64)
    width = 2 * angles.shape[1]
    if interleaved:
        first, second = range(0, width, 2), range(1, width, 2)
    else:
        first, second = range(width // 2), range(width // 2, width)
    turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)[:, None]
    x[..., first], x[..., second] = turned.real, turned.imag
    return x


def tensors(shape, kv_heads=None, keys=None, dtype=np.float32, seed=0):
    """Random Q, K and V for [B, S, H, D]."""
    rng = np.random.default_rng(seed)
    batch, rows, heads, dim = shape
    kv = (batch, keys or rows, kv_heads or heads, dim)
    return tuple(rng.standard_normal(s).astype(dtype) for s in (shape, kv, kv))


def close(found, expected, tolerance=2e-5):
    """Asserts that no element is farther away, and that both are infinite in the same places."""
    found = np.asarray(found, np.float64)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    infinite = np.isinf(expected)
    assert (found[infinite] == expected[infinite]).all()
    worst = np.abs(found[~infinite] - expected[~infinite]).max(initial=0.0)
    assert worst < tolerance, worst
