"""The kernel that appends to a cache, beside operations on tensors, on a GPU."""

import pytest

import flash_attention_rs as fa

torch = pytest.importorskip("torch")
from flash_attention_rs import _append, _kvcache, _torch  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

ROOM, HEADS, KV_HEADS, DIM = 48, 8, 2, 64
USED = [30, 0, 7]
TYPES = [torch.float16, torch.bfloat16, torch.float32]


def random(*shape, dtype):
    return torch.randn(shape, device="cuda").to(dtype)


def tables(rows, width, dtype):
    angles = torch.arange(rows)[:, None] / 100.0 ** (torch.arange(width // 2)[None] * 2 / width)
    return {
        name: f(angles).to("cuda", dtype)
        for name, f in (("rotary_cos", torch.cos), ("rotary_sin", torch.sin))
    }


def caches(kind, dtype):
    """Keys and values in the order of a kind, and what says which are whose."""
    if kind == "contiguous":
        return [random(3, ROOM, KV_HEADS, DIM, dtype=dtype) for _ in "kv"], {}
    if kind == "heads outside":
        return [random(3, KV_HEADS, ROOM, DIM, dtype=dtype).transpose(1, 2) for _ in "kv"], {}
    if kind == "rows":
        index = torch.tensor([4, 0, 2], dtype=torch.int32, device="cuda")
        return [random(5, ROOM, KV_HEADS, DIM, dtype=dtype) for _ in "kv"], {"cache_batch_idx": index}
    size = {"pages of 16": 16, "pages of 1": 1, "pages, heads outside": 16}[kind]
    count = 3 * ROOM // size
    table = torch.randperm(count + 2, device="cuda")[:count].to(torch.int32).reshape(3, -1)
    if kind == "pages, heads outside":
        pages = [random(count + 2, KV_HEADS, size, DIM, dtype=dtype).transpose(1, 2) for _ in "kv"]
    else:
        pages = [random(count + 2, size, KV_HEADS, DIM, dtype=dtype) for _ in "kv"]
    return pages, {"block_table": table}


KINDS = ["contiguous", "heads outside", "rows", "pages of 16", "pages of 1", "pages, heads outside"]


def both(monkeypatch, q, cache, new, **options):
    """O and the cache by the kernel, and by operations on tensors."""
    results = []
    for by_kernel in (True, False):
        written = [t.clone(memory_format=torch.preserve_format) for t in cache]
        with monkeypatch.context() as patch:
            if by_kernel:
                patch.setattr(_kvcache, "_by_operations", None)
            else:
                patch.setattr(_torch, "append", lambda *_: None)
            o = fa.flash_attn_with_kvcache(q, *written, *new, **options)
        results.append((o, *written))
    return results


def tolerance(dtype):
    return {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_copies_bits(monkeypatch, kind, dtype):
    cache, where = caches(kind, dtype)
    q, *new = (random(3, 3, heads, DIM, dtype=dtype) for heads in (HEADS, KV_HEADS, KV_HEADS))
    lens = torch.tensor(USED, dtype=torch.int32, device="cuda")
    kernel, plain = both(monkeypatch, q, cache, new, cache_seqlens=lens, causal=True, **where)
    for found, expected in zip(kernel, plain):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    "width, rows, causal", [(DIM, 1, True), (DIM, 5, False), (24, 5, True), (DIM, 40, True)]
)
def test_rotates(monkeypatch, kind, dtype, interleaved, width, rows, causal):
    cache, where = caches(kind, dtype)
    q = random(3, rows, HEADS, DIM, dtype=dtype)
    new = [random(3, min(rows, 18), KV_HEADS, DIM, dtype=dtype) for _ in "kv"]
    lens = torch.tensor(USED, dtype=torch.int32, device="cuda")
    options = {"cache_seqlens": lens, "causal": causal, "rotary_interleaved": interleaved, **where}
    before = q.clone()
    found = both(monkeypatch, q, cache, new, **options, **tables(ROOM + 40, width, dtype))
    assert torch.equal(q, before)
    (o, k, v), (plain_o, plain_k, plain_v) = found
    assert torch.equal(v, plain_v)
    assert (k.float() - plain_k.float()).abs().max() <= tolerance(dtype) * 4
    assert (o.float() - plain_o.float()).abs().max() <= tolerance(dtype) * 4
    changed = (k != cache[0]).flatten(2).any(-1).sum()
    assert changed == 3 * new[0].shape[1]


def test_a_graph_is_replayed_with_other_lengths():
    cache, where = caches("pages of 16", torch.float16)
    q, *new = (random(3, 1, heads, DIM, dtype=torch.float16) for heads in (HEADS, KV_HEADS, KV_HEADS))
    lens = torch.tensor(USED, dtype=torch.int32, device="cuda")
    options = {"cache_seqlens": lens, "causal": True, **where, **tables(ROOM, DIM, torch.float16)}

    def call():
        return fa.flash_attn_with_kvcache(q, *cache, *new, **options)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = call()
    lens += 1
    for t in (q, *new):
        t.normal_()
    graph.replay()
    replayed = [t.clone() for t in (o, *cache)]
    for found, expected in zip(replayed, (call(), *cache)):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("lens", [[-5, 2**31 - 1, 47], [-(2**31), 1 << 20, 48]])
def test_wrong_lengths_write_nothing_outside(lens):
    """Lengths on a GPU are the caller's promise."""
    cache, where = caches("pages of 16", torch.float16)
    q, *new = (random(3, 4, heads, DIM, dtype=torch.float16) for heads in (HEADS, KV_HEADS, KV_HEADS))
    guarded = torch.full((3, cache[0].numel()), 7.0, device="cuda", dtype=torch.float16)
    pages = guarded[1].view(cache[0].shape)
    used = torch.tensor(lens, dtype=torch.int32, device="cuda")
    fa.flash_attn_with_kvcache(q, pages, pages.clone(), *new, cache_seqlens=used, **where)
    assert (guarded[0] == 7).all() and (guarded[2] == 7).all()
    room = [max(0, min(4, ROOM - used)) if used >= 0 else max(0, 4 + used) for used in lens]
    assert (pages != 7).flatten(2).any(-1).sum() == sum(room)


@pytest.mark.parametrize("change", ["tables", "columns"])
def test_what_the_kernel_does_not_take_is_done_by_operations(change):
    cache, _ = caches("contiguous", torch.float16)
    q, *new = (random(3, 1, heads, DIM, dtype=torch.float16) for heads in (HEADS, KV_HEADS, KV_HEADS))
    rotary = _kvcache.Rotary(*tables(ROOM, DIM, torch.float16).values(), True)
    start = torch.tensor(USED, dtype=torch.int32, device="cuda")
    taken = _kvcache.Cache(*cache, None, start, ROOM)
    assert _append.append(q, taken, tuple(new), start, rotary, True) is not None
    if change == "tables":
        rotary = rotary._replace(cos=rotary.cos.float(), sin=rotary.sin.float())
    else:
        taken = taken._replace(k=cache[0].transpose(1, 3).contiguous().transpose(1, 3))
    assert _append.append(q, taken, tuple(new), start, rotary, True) is None
