"""flash_mla_with_kvcache: keys whose first columns are their values."""

import numpy as np
import plain
import pytest

import flash_attention_rs as fa

B, HEADS, D, DV, PAGE, PAGES = 3, 5, 72, 64, 8, 4
LENS = [32, 11, 0]


def made(rows):
    rng = np.random.default_rng(3)
    q = rng.standard_normal((B, rows, HEADS, D), np.float32)
    pages = rng.standard_normal((B * PAGES + 2, PAGE, 1, D), np.float32)
    table = rng.permutation(len(pages))[: B * PAGES].reshape(B, PAGES).astype(np.int32)
    return q, pages, table


def expected(q, pages, table, causal, scale=None):
    """O and lse of each sequence by itself."""
    parts = []
    for b, n in enumerate(LENS):
        k = pages[table[b]].reshape(1, -1, 1, D)[:, :n]
        parts.append(plain.attention(q[b : b + 1], k, k[..., :DV], causal=causal, scale=scale))
    return (np.concatenate(part) for part in zip(*parts))


@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_arrays(rows, causal):
    q, pages, table = made(rows)
    o, lse = fa.flash_mla_with_kvcache(q, pages, table, LENS, DV, causal=causal)
    want_o, want_lse = expected(q, pages, table, causal)
    assert o.shape == (B, rows, HEADS, DV)
    plain.close(o, want_o)
    plain.close(lse, want_lse)


def test_a_scale_and_a_cache_without_pages():
    q, pages, table = made(2)
    cache = pages[table].reshape(B, -1, 1, D)
    o, lse = fa.flash_mla_with_kvcache(q, cache, None, LENS, DV, softmax_scale=0.3)
    want_o, want_lse = expected(q, pages, table, False, 0.3)
    plain.close(o, want_o)
    plain.close(lse, want_lse)


def test_tensors():
    torch = pytest.importorskip("torch")
    q, pages, table = made(1)
    lengths = torch.tensor(LENS, dtype=torch.int32)
    arguments = [torch.from_numpy(x) for x in (q, pages, table)]
    o, lse = fa.flash_mla_with_kvcache(*arguments, lengths, DV)
    want_o, want_lse = expected(q, pages, table, False)
    plain.close(o.numpy(), want_o)
    plain.close(lse.numpy(), want_lse)
    low = [x.to(torch.bfloat16) for x in arguments[:2]]
    rounded, _ = fa.flash_mla_with_kvcache(*low, arguments[2], lengths, DV)
    assert rounded.dtype == torch.bfloat16
    plain.close(rounded.float().numpy(), want_o, 5e-2)
    call = torch.compile(lambda *given: fa.flash_mla_with_kvcache(*given, lengths, DV), backend="eager")
    assert torch.equal(call(*arguments)[0], o)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"head_dim_v": 73}, "head_dim_v is 73; 1 to 72 columns of k_cache"),
        ({"head_dim_v": 0}, "head_dim_v is 0"),
        ({"block_table": np.full((B, PAGES), 99, np.int32)}, r"block_table\[0\]\[0\] is 99; there are 14"),
        ({"cache_seqlens": [33, 1, 1]}, "a sequence has room for 32 keys"),
        ({"columns": 600}, "head_dim is 600; kernels take 1 to 576"),
    ],
)
def test_refusals(change, message):
    q, pages, table = made(1)
    given = {"block_table": table, "cache_seqlens": LENS, "head_dim_v": DV, **change}
    if "columns" in given:
        width = given.pop("columns")
        q, pages = (np.zeros((*x.shape[:-1], width), np.float32) for x in (q, pages))
        given["head_dim_v"] = 512
    with pytest.raises(ValueError, match=message):
        fa.flash_mla_with_kvcache(q, pages, **given)
