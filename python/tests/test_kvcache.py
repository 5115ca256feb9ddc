"""Decoding with numpy caches."""

import numpy as np
import pytest
from plain import attention, close, tensors

import flash_attention_rs as fa


def expected(q, k, v, lens, causal=True):
    parts = [attention(q[[b]], k[[b], :n], v[[b], :n], causal=causal) for b, n in enumerate(lens)]
    return tuple(np.concatenate(part) for part in zip(*parts))


@pytest.mark.parametrize("rows", [1, 4])
def test_each_sequence_has_its_length(rows):
    q, k, v = tensors((3, rows, 8, 32), 2, keys=50)
    lens = np.array([50, 7, 21], np.int32)
    o, lse = fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=lens, causal=True, return_softmax_lse=True)
    want, want_lse = expected(q, k, v, lens)
    close(o, want)
    close(lse, want_lse)
    close(fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=20, causal=True), expected(q, k, v, [20] * 3)[0])
    close(fa.flash_attn_with_kvcache(q, k, v), attention(q, k, v)[0])


def test_pages_and_appended_keys():
    q, k, v = tensors((2, 1, 4, 16), 2, keys=32)
    pages = [np.zeros((9, 8, 2, 16), np.float32) for _ in range(2)]
    table = np.array([[7, 0, 3, 5], [1, 8, 2, 4]], np.int32)
    for cache, values in zip(pages, (k, v)):
        for b in range(2):
            cache[table[b]] = values[b].reshape(4, 8, 2, 16)
            cache[table[b, 1], 4:] = 99  # behind 12 keys
    new = [np.stack([x[b, 12:14] for b in range(2)]) for x in (k, v)]
    lens = np.array([12, 12], np.int32)
    o = fa.flash_attn_with_kvcache(q, *pages, *new, cache_seqlens=lens, block_table=table, causal=True)
    close(o, expected(q, k, v, [14, 14])[0])
    assert (pages[0][table[1, 1], 5] == k[1, 13]).all()


def test_appends_to_a_contiguous_cache():
    q, k, v = tensors((2, 2, 4, 16), 2, keys=20)
    caches = [x.copy() for x in (k, v)]
    for cache in caches:
        cache[0, 10:], cache[1, 3:] = np.nan, np.nan
    new = [np.stack((x[0, 10:12], x[1, 3:5])) for x in (k, v)]
    lens = np.array([10, 3], np.int32)
    o = fa.flash_attn_with_kvcache(q, *caches, *new, cache_seqlens=lens, causal=True)
    close(o, expected(q, k, v, [12, 5])[0])


def test_rows_of_the_cache_by_index():
    q, k, v = tensors((2, 1, 4, 16), 2, keys=20)
    big = [np.concatenate((np.full_like(x, np.nan), x[::-1])) for x in (k, v)]
    o = fa.flash_attn_with_kvcache(q, *big, cache_seqlens=np.array([20, 9], np.int32), cache_batch_idx=[3, 2])
    close(o, expected(q, k, v, [20, 9])[0])


@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize("paged", [False, True])
def test_windows_and_changed_scores(rows, paged):
    q, k, v = tensors((2, rows, 4, 16), 2, keys=40)
    v = v[..., :9]
    lens, slopes = [30, 17], np.array([0.5, -0.25, 0.0, 1.0], np.float32)
    options = {"window": (5, 2), "softcap": 1.5, "alibi": slopes}
    want = [attention(q[[b]], k[[b], :n], v[[b], :n], **options) for b, n in enumerate(lens)]
    caches, table = (k, v), None
    if paged:
        caches = [x.reshape(10, 8, *x.shape[2:]) for x in caches]
        table = np.arange(10, dtype=np.int32).reshape(2, 5)
    o, lse = fa.flash_attn_with_kvcache(
        q,
        *caches,
        cache_seqlens=np.array(lens, np.int32),
        block_table=table,
        window_size=(5, 2),
        softcap=1.5,
        alibi_slopes=slopes,
        return_softmax_lse=True,
    )
    for found, expected in zip((o, lse), map(np.concatenate, zip(*want))):
        close(found, expected)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"cache_seqlens": 41}, ValueError, "cache_seqlens is 41; a sequence has room for 40 keys"),
        ({"cache_seqlens": np.array([1, 41], np.int32)}, ValueError, "room for 40 keys"),
        (
            {"block_table": np.array([[0], [2]], np.int32)},
            ValueError,
            r"block_table\[1\]\[0\] is 2; there are 2 pages",
        ),
        ({"cache_seqlens": 39, "append": True}, ValueError, "room for 40 keys, 2 of them new"),
        (
            {"cache_seqlens": np.array([-1, 3], np.int32), "append": True},
            ValueError,
            r"cache_seqlens is \[-1, 3\]",
        ),
        ({"append": True}, ValueError, "k is given without cache_seqlens"),
        ({"cache_leftpad": 1}, NotImplementedError, "cache_leftpad"),
        ({"rotary_cos": np.ones((40, 4))}, ValueError, "rotary_cos is given without k"),
        (
            {"cache_seqlens": 3, "append": True, "rotary_cos": np.ones((40, 4))},
            ValueError,
            "rotary_cos and rotary_sin are given together, and one of them is None",
        ),
        (
            {
                "cache_seqlens": 3,
                "append": True,
                "rotary_cos": np.ones((40, 9)),
                "rotary_sin": np.ones((40, 9)),
            },
            ValueError,
            "rotary_cos: R is 18; the limit is head_dim = 16",
        ),
        (
            {
                "cache_seqlens": 3,
                "append": True,
                "rotary_cos": np.ones((39, 4)),
                "rotary_sin": np.ones((39, 4)),
            },
            ValueError,
            "rotary_cos has 39 rows; a sequence has room for 40 keys",
        ),
    ],
)
def test_refusals(options, error, message):
    q, k, v = tensors((2, 1, 4, 16), 2, keys=40)
    if options.pop("append", False):
        options = {"k": k[:, :2], "v": v[:, :2], **options}
    with pytest.raises(error, match=message):
        fa.flash_attn_with_kvcache(q, k, v, **options)
