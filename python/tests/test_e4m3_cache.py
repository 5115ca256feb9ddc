"""flash_attn_with_kvcache on a cache in float8_e4m3fn."""

import numpy as np
import pytest

import flash_attention_rs as fa

torch = pytest.importorskip("torch")

B, ROOM, HEADS, KV_HEADS, D = 2, 48, 4, 2, 32
LENS = [48, 13]


def made(rows=1, dtype=torch.bfloat16):
    torch.manual_seed(7)
    q = torch.randn(B, rows, HEADS, D).to(dtype)
    k, v = (torch.randn(B, ROOM, KV_HEADS, D).to(torch.float8_e4m3fn) for _ in "kv")
    return q, k, v


def wide(cache, factors):
    """What a cache stands for, by query heads."""
    factors = torch.as_tensor(factors, dtype=torch.float32).expand(B, KV_HEADS)
    return (cache.float() * factors[:, None, :, None]).repeat_interleave(HEADS // KV_HEADS, 2)


def expected(q, k, v):
    parts = []
    for b, n in enumerate(LENS):
        scores = torch.einsum("shd,thd->hst", q[b].float(), k[b, :n]) * D**-0.5
        rows = q.shape[1]
        seen = torch.arange(n)[None] <= torch.arange(rows)[:, None] + n - rows
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        parts.append(torch.einsum("hst,thd->shd", weights, v[b, :n]))
    return torch.stack(parts)


FACTORS = {
    "none": (None, None),
    "numbers": (0.5, 3.0),
    "heads": (torch.tensor([0.5, 2.0]), torch.tensor([3.0, 0.25])),
    "all": (torch.tensor([[0.5, 2.0], [1.0, 0.25]]), torch.tensor([[3.0, 1.0], [0.5, 8.0]])),
    "expanded": (torch.tensor(0.5).expand(B, KV_HEADS), torch.tensor(2.0).expand(B, KV_HEADS)),
}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("factors", FACTORS)
def test_factors_are_those_of_the_cache(rows, paged, factors):
    q, k, v = made(rows)
    k_descale, v_descale = FACTORS[factors]
    want = expected(q, *(wide(x, 1.0 if f is None else f) for x, f in ((k, k_descale), (v, v_descale))))
    options = {"cache_seqlens": torch.tensor(LENS, dtype=torch.int32), "causal": True}
    if paged:
        k, v = (x.reshape(B * ROOM // 8, 8, KV_HEADS, D) for x in (k, v))
        options["block_table"] = torch.arange(B * ROOM // 8, dtype=torch.int32).reshape(B, -1)
    o = fa.flash_attn_with_kvcache(q, k, v, k_descale=k_descale, v_descale=v_descale, **options)
    assert o.dtype == torch.bfloat16
    torch.testing.assert_close(o.float(), want, rtol=2e-2, atol=2e-2 * want.abs().max().item())


@pytest.mark.parametrize(
    "change, message",
    [
        ({"k_descale": 0.0}, "k_descale: element 0 is 0.0"),
        ({"v_descale": torch.tensor([1.0, -2.0])}, "v_descale: element 1 is -2.0"),
        ({"k_descale": torch.ones(3)}, r"k_descale: shape is \(3,\); \(2,\) or \(2, 2\) is needed"),
        ({"k_descale": torch.ones(2).half()}, "k_descale: torch.float16"),
        ({"append": True}, "k is given, but k_cache holds torch.float8_e4m3fn"),
        ({"rows": 17}, "q has 17 rows of torch.bfloat16; on a cache in torch.float8_e4m3fn at most 16"),
        ({"half": "v"}, "v_cache holds torch.bfloat16, but k_cache holds torch.float8_e4m3fn"),
        ({"half": "kv", "k_descale": 2.0}, "k_descale is given, but k_cache holds torch.bfloat16"),
    ],
)
def test_refusals(change, message):
    change = dict(change)
    q, k, v = made(change.pop("rows", 1))
    half = change.pop("half", "")
    k, v = (x.to(q.dtype) if name in half else x for name, x in (("k", k), ("v", v)))
    if change.pop("append", False):
        change.update({"k": q[:, :, :KV_HEADS], "v": q[:, :, :KV_HEADS], "cache_seqlens": 3})
    with pytest.raises(ValueError, match=message):
        fa.flash_attn_with_kvcache(q, k, v, **change)


def test_numpy_has_no_such_type():
    q = np.ones((1, 1, 2, 16), np.float32)
    with pytest.raises(ValueError, match="v_descale is given, but k_cache holds float32"):
        fa.flash_attn_with_kvcache(q, q, q, v_descale=2.0)
