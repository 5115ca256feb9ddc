"""What flash_attn_with_kvcache refuses leaves the cache as it was, and what it takes for lengths."""

import numpy as np
import pytest
from plain import close, tensors

import flash_attention_rs as fa

ROOM, NEW = 40, 2
Q, K_CACHE, V_CACHE = tensors((2, 1, 4, 16), 2, keys=ROOM)
K, V = (x[:, :NEW] for x in tensors((2, NEW, 4, 16), 2, seed=1)[1:])
INT32 = np.int32
PAGES = {"block_table": np.array([[0, 1], [2, 3]], INT32)}
TABLES = np.ones((ROOM, 4), np.float32)
MANY = np.repeat(Q, 17, 1)


@pytest.fixture(params=["numpy", "torch"])
def convert(request):
    """An array as a tensor of either half, which shares no memory; other things as they are."""
    make = np.array
    if request.param == "torch":
        make = pytest.importorskip("torch").tensor
    return lambda x: make(x) if isinstance(x, np.ndarray) else x


def called(convert, changes):
    """What a call raises, and whether it changed a cache."""
    given = {"q": Q, "k_cache": K_CACHE, "v_cache": V_CACHE, "k": K, "v": V, "cache_seqlens": 3, **changes}
    if "block_table" in given:
        given.update({name: given[name].reshape(4, 20, 2, 16) for name in ("k_cache", "v_cache")})
    given = {name: convert(value) for name, value in given.items()}
    before = [given[name].tolist() for name in ("k_cache", "v_cache")]
    with pytest.raises((ValueError, NotImplementedError)) as raised:
        fa.flash_attn_with_kvcache(**given)
    return str(raised.value), [given[name].tolist() for name in ("k_cache", "v_cache")] != before


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"k": K[:1], "v": V[:1]}, "k: shape is (1, 2, 2, 16); [2, 2, 2, 16] is needed"),
        ({"k": K[:, :, :1], "v": V[:, :, :1]}, "k: shape is (2, 2, 1, 16)"),
        ({"k": K[..., :1]}, "k: shape is (2, 2, 2, 1)"),
        ({"k": K[0], "v": V[0]}, "k has 3 axes; 4 are needed"),
        ({"v": V[..., :1]}, "v: shape is (2, 2, 2, 1)"),
        ({"v": V[:, :1]}, "v: shape is (2, 1, 2, 16)"),
        ({"k": K.astype(np.float16)}, "k holds"),
        ({"v": V.astype(np.float16)}, "v holds"),
        ({"k": [1.0]}, "k is a list"),
        ({"k": None}, "k and v are written together, and one of them is None"),
        ({"v": None}, "k and v are written together, and one of them is None"),
        ({"q": Q[:, :, :3]}, "kv_heads is 2, which does not divide heads = 3"),
        ({"q": Q[..., :8]}, "head_dim is"),
        ({"q": Q.astype(np.float16)}, "k_cache holds"),
        ({"q": Q[:1]}, "k_cache: batch is 2, but q has 1"),
        ({"v_cache": V_CACHE[:, :30]}, "v_cache: shape is (2, 30, 2, 16), but k_cache has (2, 40, 2, 16)"),
        ({"softmax_scale": float("nan")}, "softmax_scale is NaN"),
        ({"softmax_scale": float("nan"), "softcap": 1.0}, "softmax_scale is NaN"),
        ({"softcap": -1.0}, "softcap is -1"),
        ({"alibi_slopes": np.ones(3, np.float32)}, "alibi_slopes: shape is (3,)"),
        ({"cache_seqlens": np.array([3, 4], INT32), "q": MANY, "softcap": -1.0}, "softcap is -1"),
        ({**PAGES, "q": MANY, "softmax_scale": float("nan")}, "softmax_scale is NaN"),
        ({"cache_seqlens": np.array([[3], [4]], INT32)}, "cache_seqlens: shape is (2, 1); [2] is needed"),
        ({"cache_seqlens": [3]}, "cache_seqlens: shape is (1,); [2] is needed"),
        (
            {"cache_seqlens": [3, 39]},
            "is [3, 39]; a sequence has room for 40 keys, 2 of them new",
        ),
        ({"cache_seqlens": np.array([3.9, 4.0])}, "cache_seqlens holds"),
        ({"cache_seqlens": 3.9}, "cache_seqlens holds"),
        ({"cache_seqlens": np.array([3, 2**32 + 3])}, "numbers of 32 bits are needed"),
        ({"cache_batch_idx": [0, 2]}, "cache_batch_idx[1] is 2; there are 2 rows"),
        ({"cache_batch_idx": [0]}, "cache_batch_idx: shape is (1,); [2] is needed"),
        ({"block_table": np.array([[0, 1]], INT32)}, "block_table: shape is (1, 2); [2, 2] is needed"),
        ({"block_table": np.array([0, 1], INT32)}, "block_table: shape is (2,); [2, pages] is needed"),
        (
            {"block_table": np.array([[0, -1], [2, -1]], INT32), "cache_seqlens": 19},
            "table[0][1] is -1",
        ),
        ({"block_table": np.array([[0, -1], [4, -1]], INT32)}, "block_table[1][0] is 4; there are 4 pages"),
        ({"rotary_sin": TABLES}, "rotary_cos and rotary_sin are given together"),
        (
            {"q": MANY[:, :5], "causal": True, "rotary_cos": TABLES, "rotary_sin": TABLES},
            "has 40 rows; a sequence has room for 40 keys, and queries reach 3 positions behind them",
        ),
    ],
)
def test_nothing_is_written(convert, changes, message):
    found, is_written = called(convert, changes)
    assert message in found and not is_written


def test_expanded_and_read_only_caches_are_not_written():
    expanded = np.lib.stride_tricks.as_strided(K_CACHE.copy(), K_CACHE.shape, (0, *K_CACHE.strides[1:]))
    with pytest.raises(ValueError, match="k_cache is expanded"):
        fa.flash_attn_with_kvcache(Q, expanded, V_CACHE.copy(), K, V, cache_seqlens=3)
    fixed = V_CACHE.copy()
    fixed.flags.writeable = False
    cache = K_CACHE.copy()
    with pytest.raises(ValueError, match="v_cache is read-only"):
        fa.flash_attn_with_kvcache(Q, cache, fixed, K, V, cache_seqlens=3)
    assert np.array_equal(cache, K_CACHE)
    torch = pytest.importorskip("torch")
    expanded = torch.tensor(K_CACHE[:1]).expand(2, -1, -1, -1)
    rest = map(torch.tensor, (V_CACHE, K, V))
    with pytest.raises(ValueError, match="k_cache is expanded"):
        fa.flash_attn_with_kvcache(torch.tensor(Q), expanded, *rest, cache_seqlens=3)


@pytest.mark.parametrize("lengths", [np.int64(3), np.array(3), np.array([3, 3]), [3, 3], (3, 3)])
def test_lengths(convert, lengths):
    results = []
    for given in (3, lengths):
        caches, new = ([convert(x) for x in pair] for pair in ((K_CACHE, V_CACHE), (K, V)))
        o = fa.flash_attn_with_kvcache(convert(Q), *caches, *new, cache_seqlens=convert(given))
        results.append([o.tolist(), *(cache.tolist() for cache in caches)])
    assert results[0] == results[1]


@pytest.mark.parametrize("lengths", [np.int64(3), np.array(3)])
def test_one_length_may_have_a_window(convert, lengths):
    tensors = [convert(x) for x in (Q, K_CACHE, V_CACHE)]
    want = fa.flash_attn_with_kvcache(*tensors, cache_seqlens=3, window_size=(1, 0))
    found = fa.flash_attn_with_kvcache(*tensors, cache_seqlens=convert(lengths), window_size=(1, 0))
    assert found.tolist() == want.tolist()


def test_entries_behind_the_keys_are_not_read(convert):
    pages = [convert(x.reshape(4, 20, 2, 16)) for x in (K_CACHE, V_CACHE)]
    table = np.array([[0, -1], [2, 99]], INT32)
    found = fa.flash_attn_with_kvcache(convert(Q), *pages, cache_seqlens=20, block_table=convert(table))
    want = fa.flash_attn_with_kvcache(Q, K_CACHE, V_CACHE, cache_seqlens=20)
    close(np.asarray(found.tolist()), want.astype(np.float64))


def test_empty_batches_queries_and_caches(convert):
    none = [convert(x[:0]) for x in (Q, K_CACHE, V_CACHE, K, V)]
    o = fa.flash_attn_with_kvcache(*none, cache_seqlens=convert(np.zeros(0, INT32)))
    assert tuple(o.shape) == (0, 1, 4, 16)
    cache = convert(K_CACHE)
    no_rows = convert(Q[:, :0])
    assert tuple(fa.flash_attn_with_kvcache(no_rows, cache, cache).shape) == (2, 0, 4, 16)
    o, lse = fa.flash_attn_with_kvcache(convert(Q), cache[:, :0], cache[:, :0], return_softmax_lse=True)
    assert not o.any() and np.isneginf(np.asarray(lse.tolist())).all()


def test_gradients_and_autocast():
    torch = pytest.importorskip("torch")
    q, k_cache, v_cache, k, v = map(torch.tensor, (Q, K_CACHE, V_CACHE, K, V))
    for options in ({}, {"window_size": (3, 0)}):
        k.requires_grad_()
        with pytest.raises(ValueError, match="k requires a gradient, but a cache has none"):
            fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=3, **options)
        assert torch.equal(k_cache, torch.tensor(K_CACHE))
        with torch.no_grad():
            fa.flash_attn_with_kvcache(q, k_cache.clone(), v_cache, k, v, cache_seqlens=3, **options)
        k.requires_grad_(False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            o = fa.flash_attn_with_kvcache(q, k_cache.clone(), v_cache, k, v, cache_seqlens=3, **options)
        assert o.dtype == q.dtype
