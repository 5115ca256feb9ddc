"""The forward pass on the CPU against attention by its definition."""

import numpy as np
import pytest
from plain import attention, close, tensors

import flash_attention_rs as fa
from flash_attention_rs import _plans


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 2e-5), (np.float16, 4e-3)])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_grouped_heads(dtype, tolerance, kv_heads):
    q, k, v = tensors((2, 70, 4, 24), kv_heads, dtype=dtype)
    o, lse, nothing = fa.flash_attn_func(q, k, v, return_attn_probs=True)
    expected, expected_lse = attention(q, k, v)
    assert o.dtype == dtype and lse.dtype == np.float32 and nothing is None
    close(o, expected, tolerance)
    close(lse, expected_lse, tolerance)


@pytest.mark.parametrize("rows, keys", [(5, 90), (90, 5), (33, 33), (1, 40)])
def test_causal_is_aligned_bottom_right(rows, keys):
    q, k, v = tensors((2, rows, 3, 17), keys=keys)
    o, lse, _ = fa.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    expected, expected_lse = attention(q, k, v, causal=True)
    close(o, expected)
    close(lse, expected_lse)


@pytest.mark.parametrize("window", [(7, 0), (0, 9), (20, 20), (3, -1), (-1, 3)])
@pytest.mark.parametrize("causal", [False, True])
def test_windows(window, causal):
    q, k, v = tensors((1, 60, 2, 16), keys=75)
    o = fa.flash_attn_func(q, k, v, window_size=window, causal=causal)
    close(o, attention(q, k, v, window=window, causal=causal)[0])


def test_scale_and_softcap():
    q, k, v = tensors((1, 40, 2, 16))
    o = fa.flash_attn_func(q, k, v, softmax_scale=0.7, softcap=2.5)
    close(o, attention(q, k, v, scale=0.7, softcap=2.5)[0])


@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_alibi(shape):
    q, k, v = tensors((2, 40, 4, 16), 2, keys=50)
    slopes = np.linspace(0.1, 0.9, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    o = fa.flash_attn_func(q, k, v, alibi_slopes=slopes, causal=True)
    close(o, attention(q, k, v, alibi=slopes, causal=True)[0])


@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_sinks(shape):
    q, k, v = tensors((2, 40, 4, 16), 2, keys=50)
    sinks = np.linspace(-1, 3, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    o, lse, _ = fa.flash_attn_func(q, k, v, causal=True, sinks=sinks, return_attn_probs=True)
    want, want_lse = attention(q, k, v, causal=True, sinks=sinks)
    close(o, want)
    close(lse, want_lse)
    if len(shape) == 1:
        cu = np.array([0, 40], np.int32), np.array([0, 50], np.int32)
        o = fa.flash_attn_varlen_func(q[0], k[0], v[0], *cu, 40, 50, causal=True, sinks=sinks)
        close(o, want[0])


def test_packed_sequences_may_be_empty():
    lens_q, lens_k = [5, 0, 33, 7], [9, 4, 33, 0]
    cu_q, cu_k = (np.cumsum([0, *lens]).astype(np.int32) for lens in (lens_q, lens_k))
    q = tensors((1, cu_q[-1], 4, 16))[0][0]
    k, v = (x[0] for x in tensors((1, cu_k[-1], 2, 16), seed=1)[1:])
    o, lse, _ = fa.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, max(lens_q), max(lens_k), causal=True, return_attn_probs=True
    )
    assert o.shape == q.shape and lse.shape == (4, cu_q[-1])
    for b, (rows, keys) in enumerate(zip(lens_q, lens_k)):
        at_q, at_k = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        if keys == 0:
            assert not o[at_q].any() and np.isneginf(lse[:, at_q]).all()
        elif rows:
            expected, expected_lse = attention(q[None, at_q], k[None, at_k], v[None, at_k], causal=True)
            close(o[at_q], expected[0])
            close(lse[:, at_q], expected_lse[0])


def test_strided_views_are_read_where_they_lie():
    q, k, v = tensors((2, 40, 4, 16))
    expected = attention(q, k, v, causal=True)[0]
    by_heads = tuple(np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (q, k, v))
    o = fa.flash_attn_func(*by_heads, causal=True)
    close(o, expected)
    assert o.strides == by_heads[0].strides
    wide = np.full((2, 40, 4, 40), np.nan, np.float32)
    wide[..., 8:24] = q
    close(fa.flash_attn_func(wide[..., 8:24], k, v, causal=True), expected)
    backwards = np.ascontiguousarray(q[:, ::-1])[:, ::-1]
    close(fa.flash_attn_func(backwards, k, v, causal=True), expected)
    columns = np.ascontiguousarray(q.transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2)
    close(fa.flash_attn_func(columns, k, v, causal=True), expected)
    qkv = np.stack((q, k, v), axis=2)
    close(fa.flash_attn_qkvpacked_func(qkv, causal=True), expected)
    repeated = np.broadcast_to(k[:, :, :1], k.shape)
    close(fa.flash_attn_func(q, repeated, v), attention(q, repeated, v)[0])


def test_empty_tensors():
    q, k, v = tensors((2, 4, 2, 8))
    assert fa.flash_attn_func(q[:, :0], k, v).shape == (2, 0, 2, 8)
    o, lse, _ = fa.flash_attn_func(q, k[:, :0], v[:, :0], return_attn_probs=True)
    assert not o.any() and np.isneginf(lse).all()


class Other:
    """A tensor of which DLPack is all that is known."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack():
    q, k, v = tensors((1, 20, 2, 8))
    slopes, cu = np.array([0.2, 0.5], np.float32), np.array([0, 20], np.int32)
    want = attention(q, k, v, alibi=slopes, sinks=slopes)[0]
    options = {"alibi_slopes": Other(slopes), "sinks": Other(slopes)}
    close(fa.flash_attn_func(*map(Other, (q, k, v)), **options), want)
    packed = [Other(x[0]) for x in (q, k, v)]
    close(fa.flash_attn_varlen_func(*packed, Other(cu), Other(cu), 20, 20, **options), want[0])
    qkv = Other(np.stack((q, k, v), axis=2))
    close(fa.flash_attn_qkvpacked_func(qkv, alibi_slopes=slopes), attention(q, k, v, alibi=slopes)[0])
    by_heads = [Other(x.transpose(0, 2, 1, 3)) for x in (q, k, v)]
    o = fa.scaled_dot_product_attention(*by_heads)
    close(o.transpose(0, 2, 1, 3), attention(q, k, v)[0])
    lengths = Other(np.array([7], np.int32))
    o = fa.flash_attn_with_kvcache(Other(q[:, :1]), Other(k), Other(v), cache_seqlens=lengths)
    close(o, attention(q[:, :1], k[:, :7], v[:, :7])[0])


def test_dropout_keeps_the_mean():
    q, k, _ = tensors((1, 64, 4, 8))
    ones = np.ones_like(k)
    o = fa.flash_attn_func(q, k, ones, dropout_p=0.5)
    assert 0.9 < o.mean() < 1.1 and o.std() > 0.05


@pytest.mark.parametrize("rows, keys", [(30, 30), (20, 45), (45, 20)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_scaled_dot_product_attention_aligns_top_left(rows, keys, is_causal):
    q, k, v = tensors((2, rows, 4, 16), 2, keys=keys)
    by_heads = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    o = fa.scaled_dot_product_attention(*by_heads, is_causal=is_causal, enable_gqa=True)
    window = (-1, -1)
    if is_causal and rows < keys:
        k, v = k[:, :rows], v[:, :rows]
    if is_causal:
        window = (-1, max(rows - keys, 0))
    close(o.transpose(0, 2, 1, 3), attention(q, k, v, window=window)[0])


def test_a_sequence_has_the_same_bits_in_any_batch(monkeypatch):
    monkeypatch.setattr(_plans, "batch_invariant", False)
    fa.set_batch_invariant()
    lens = [137, 300, 5, 64]
    cu = np.cumsum([0, *lens], dtype=np.int32)
    q, k, v = (x[0] for x in tensors((1, sum(lens), 4, 32), 2))
    among = fa.flash_attn_varlen_func(q, k, v, cu, cu, max(lens), max(lens), causal=True, window_size=(50, 0))
    first = [x[None, : lens[0]] for x in (q, k, v)]
    alone = fa.flash_attn_func(*first, causal=True, window_size=(50, 0))
    assert np.array_equal(among[: lens[0]], alone[0])
