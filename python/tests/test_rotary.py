"""Rotary embeddings of queries and of keys that are appended to a cache."""

import numpy as np
import pytest
from plain import attention, close, rotated, tensors

import flash_attention_rs as fa

HALVES = ["numpy", "torch"]
ROOM, NEW, DIM = 24, 3, 16
#: Keys that the sequences have had.
USED = [10, 3]


@pytest.fixture(params=HALVES)
def convert(request):
    """An array as a tensor of either half, in float16 on a GPU where there is one."""
    if request.param == "numpy":
        return np.array
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        return torch.tensor
    single = np.dtype(np.float32)
    return lambda x: torch.tensor(x, device="cuda", dtype=torch.float16 if x.dtype == single else None)


def expected(q, caches, new, angles, interleaved, causal, window):
    """O of each sequence; queries of one that sees all keys are at one position."""
    results = []
    for b, used in enumerate(USED):
        at = np.arange(used, used + NEW)
        q_at = at if causal or window != (-1, -1) else np.full(NEW, used)
        k = np.concatenate((caches[0][b, :used], rotated(new[0][b], angles[at], interleaved)))
        v = np.concatenate((caches[1][b, :used], new[1][b]))
        results.append(
            attention(
                rotated(q[b], angles[q_at], interleaved)[None], k[None], v[None], causal=causal, window=window
            )[0][0]
        )
    return np.stack(results)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [8, DIM])
@pytest.mark.parametrize("paged", [False, True])
def test_rotary(convert, interleaved, causal, width, paged):
    q, k, v = tensors((2, NEW, 4, DIM), 2, keys=ROOM)
    new = tensors((2, NEW, 4, DIM), 2, seed=1)[1:]
    angles = np.arange(ROOM)[:, None] / 100.0 ** (2 * np.arange(width // 2)[None] / width)
    want = expected(q, (k, v), new, angles, interleaved, causal, (-1, -1))
    caches, options = [convert(x) for x in (k, v)], {}
    if paged:
        caches = [x.reshape(6, 8, 2, DIM) for x in caches]
        options["block_table"] = convert(np.arange(6, dtype=np.int32).reshape(2, 3))
    before = convert(q)
    o = fa.flash_attn_with_kvcache(
        before,
        *caches,
        *map(convert, new),
        rotary_cos=convert(np.cos(angles).astype(np.float32)),
        rotary_sin=convert(np.sin(angles).astype(np.float32)),
        cache_seqlens=convert(np.array(USED, np.int32)),
        causal=causal,
        rotary_interleaved=interleaved,
        **options,
    )
    tolerance = 2e-5 if "float32" in str(o.dtype) else 2e-2
    close(np.asarray(o.tolist()), want, tolerance)
    assert before.tolist() == convert(q).tolist()
    kept = np.asarray(caches[0].tolist()).reshape(2, ROOM, 2, DIM)
    close(kept[1, 3:6], rotated(new[0][1], angles[3:6], interleaved), tolerance)


def test_a_window_has_queries_in_order(convert, monkeypatch):
    monkeypatch.setattr(f"{__name__}.USED", [7, 7])
    q, k, v = tensors((2, NEW, 4, DIM), 2, keys=ROOM)
    new = tensors((2, NEW, 4, DIM), 2, seed=1)[1:]
    angles = np.arange(ROOM)[:, None] / 100.0 ** (2 * np.arange(4)[None] / 8)
    o = fa.flash_attn_with_kvcache(
        *map(convert, (q, k, v, *new)),
        *(convert(f(angles).astype(np.float32)) for f in (np.cos, np.sin)),
        cache_seqlens=7,
        window_size=(4, -1),
    )
    tolerance = 2e-5 if "float32" in str(o.dtype) else 2e-2
    close(np.asarray(o.tolist()), expected(q, (k, v), new, angles, True, False, (4, -1)), tolerance)
