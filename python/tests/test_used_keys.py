"""Sequences that use a part of their keys, and pages for the passes that take rows in order."""

import numpy as np
import pytest
from plain import attention, close, tensors

import flash_attention_rs as fa

INT32 = np.int32
#: Rows, keys, and keys that are used.
LENGTHS = ((5, 9, 9), (33, 40, 21), (7, 12, 0), (0, 6, 3))
CU_Q, CU_K = (np.cumsum([0, *(of[side] for of in LENGTHS)]).astype(INT32) for side in (0, 1))
USED = np.array([of[2] for of in LENGTHS], INT32)
MOST = (33, 40)


@pytest.fixture(params=["numpy", "cpu", "cuda"])
def convert(request):
    """An array as a tensor of either half."""
    if request.param == "numpy":
        return np.array
    torch = pytest.importorskip("torch")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return lambda x: torch.tensor(x, device=request.param)


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    torch = pytest.importorskip("torch")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return request.param


def packed():
    """Q, K and V of the sequences, NaN where no key is used."""
    q = tensors((1, CU_Q[-1], 4, 16))[0][0]
    k, v = (x[0] for x in tensors((1, CU_K[-1], 2, 16), seed=1)[1:])
    for x in (k, v):
        for b, used in enumerate(USED):
            x[CU_K[b] + used : CU_K[b + 1]] = np.nan
    return q, k, v


def by_parts(q, k, v, **options):
    """O and lse of each sequence by itself, from its used keys."""
    for b, used in enumerate(USED):
        rows, keys = slice(CU_Q[b], CU_Q[b + 1]), slice(CU_K[b], CU_K[b] + used)
        yield rows, *(x[0] for x in attention(q[None, rows], k[None, keys], v[None, keys], **options))


def host(x):
    return x if isinstance(x, np.ndarray) else x.detach().cpu().numpy()


@pytest.mark.parametrize("options", [{"causal": True}, {"window": (6, 2)}, {"softcap": 2.0, "sinks": True}])
def test_what_lies_behind_the_used_keys_does_not_matter(convert, options):
    q, k, v = packed()
    given = {("window_size" if name == "window" else name): value for name, value in options.items()}
    if "sinks" in options:
        options, given = ({**of, "sinks": np.float32([0.5, -1, 2, 0])} for of in (options, given))
        given["sinks"] = convert(given["sinks"])
    lists = [convert(x) for x in (q, k, v, CU_Q, CU_K)]
    o, lse, _ = fa.flash_attn_varlen_func(
        *lists, *MOST, seqused_k=convert(USED), return_attn_probs=True, **given
    )
    for rows, want, want_lse in by_parts(q, k, v, **options):
        close(host(o)[rows], want)
        close(host(lse)[:, rows], want_lse)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients(device, causal):
    import torch

    inputs = [torch.tensor(x, device=device, requires_grad=True) for x in packed()]
    lists = [torch.tensor(x, device=device) for x in (CU_Q, CU_K)]
    used = torch.tensor(USED, device=device)
    o = fa.flash_attn_varlen_func(*inputs, *lists, *MOST, causal=causal, seqused_k=used)
    weights = torch.randn_like(o)
    found = torch.autograd.grad(o, inputs, weights)
    want = [torch.zeros_like(x) for x in inputs]
    for b, count in enumerate(USED.tolist()):
        rows, keys = slice(CU_Q[b], CU_Q[b + 1]), slice(CU_K[b], CU_K[b] + count)
        parts = [x[at].detach().requires_grad_() for x, at in zip(inputs, (rows, keys, keys))]
        if count == 0 or rows.start == rows.stop:
            continue
        part = fa.flash_attn_func(*(x[None] for x in parts), causal=causal)[0]
        for into, at, gradient in zip(
            want, (rows, keys, keys), torch.autograd.grad(part, parts, weights[rows])
        ):
            into[at] = gradient
    for a, b in zip(found, want):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_opcheck_and_compile(device):
    import torch

    inputs = [torch.tensor(np.nan_to_num(x), device=device, requires_grad=True) for x in packed()]
    cu_q, cu_k, used = (torch.tensor(x, device=device) for x in (CU_Q, CU_K, USED))
    arguments = (*inputs, None, None, cu_q, cu_k, used, None, *MOST, 0.25, True, -1, -1, 0.0, 0.0)
    torch.library.opcheck(torch.ops.flash_attention_rs.forward.default, arguments)

    def step(*inputs):
        return fa.flash_attn_varlen_func(*inputs, cu_q, cu_k, *MOST, causal=True, seqused_k=used) * 2

    found, want = torch.compile(step, fullgraph=True, backend="aot_eager")(*inputs), step(*inputs)
    torch.testing.assert_close(found, want)
    for a, b in zip(torch.autograd.grad(found.sum(), inputs), torch.autograd.grad(want.sum(), inputs)):
        torch.testing.assert_close(a, b)


def paged(k, v, page=8):
    """Pages of what [B, S, H, D] hold, and their table; behind it and in the last page lies NaN."""
    batch, keys, heads, dim = k.shape
    count = -(-keys // page)
    table = np.random.default_rng(3).permutation(batch * count).reshape(batch, count).astype(INT32)
    pages = []
    for x in (k, v):
        padded = np.full((batch, count * page, heads, dim), np.nan, np.float32)
        padded[:, :keys] = x
        into = np.empty((batch * count, page, heads, dim), np.float32)
        into[table] = padded.reshape(batch, count, page, heads, dim)
        pages.append(into)
    return (*pages, np.concatenate((table, np.full((batch, 2), -1, INT32)), 1))


@pytest.mark.parametrize("by_offsets", [False, True])
def test_packed_queries_of_pages(convert, by_offsets):
    q, k, v = tensors((3, 20, 4, 16), 2, keys=37)
    used = np.array([37, 9, 16], INT32)
    *pages, table = paged(k, v)
    cu_q, cu_k = (np.cumsum([0, *of]).astype(INT32) for of in ([20] * 3, used))
    lengths = (
        {"cu_seqlens_k": convert(cu_k)} if by_offsets else {"cu_seqlens_k": None, "seqused_k": convert(used)}
    )
    o = fa.flash_attn_varlen_func(
        *(convert(x) for x in (q.reshape(60, 4, 16), *pages)),
        cu_seqlens_q=convert(cu_q),
        max_seqlen_q=20,
        max_seqlen_k=37,
        causal=True,
        block_table=convert(table),
        **lengths,
    )
    for b, count in enumerate(used):
        want, _ = attention(q[[b]], k[[b], :count], v[[b], :count], causal=True)
        close(host(o)[20 * b : 20 * b + 20], want[0])


def test_pages_have_gradients(device):
    import torch

    q, k, v = tensors((2, 10, 4, 16), 2, keys=24)
    *pages, table = (torch.tensor(x, device=device) for x in paged(k, v))
    q, *whole = (torch.tensor(x, device=device, requires_grad=True) for x in (q, k, v))
    pages = [x.requires_grad_() for x in pages]
    cu = torch.tensor([0, 10, 20], dtype=torch.int32, device=device)
    used = torch.tensor([24, 13], dtype=torch.int32, device=device)
    lists = (cu, None, 10, 24)
    o = fa.flash_attn_varlen_func(q.reshape(20, 4, 16), *pages, *lists, block_table=table, seqused_k=used)
    ends = torch.tensor([0, 24, 48], dtype=torch.int32, device=device)
    rows = (x.reshape(-1, *x.shape[2:]) for x in (q, *whole))
    want = fa.flash_attn_varlen_func(*rows, cu, ends, 10, 24, seqused_k=used)
    found = torch.autograd.grad(o.sum(), pages)
    for a, b in zip(found, torch.autograd.grad(want.sum(), whole)):
        torch.testing.assert_close(a[table[:, :3].long()].reshape(b.shape), b)


@pytest.mark.parametrize("is_paged", [False, True])
@pytest.mark.parametrize(
    "rows, options",
    [
        (17, {"causal": True}),
        (3, {"window": (5, 0)}),
        (2, {"softcap": 1.5}),
        (40, {"causal": True, "alibi": True}),
    ],
)
def test_caches_of_any_lengths_take_the_forward_pass(convert, rows, options, is_paged):
    q, k, v = tensors((3, rows, 4, 16), 2, keys=50)
    lens, new = np.array([48, 7, 21], INT32), [x.copy() for x in tensors((3, 2, 4, 16), 2, seed=5)[1:]]
    whole = [x.copy() for x in (k, v)]
    for cache, values, more in zip((k, v), whole, new):
        for b, n in enumerate(lens):
            values[b, n : n + 2], cache[b, n:] = more[b], np.nan
    caches, table = (k, v), {}
    if is_paged:
        *caches, pages = paged(k, v)
        table = {"block_table": convert(pages)}
    names = {"window": "window_size", "alibi": "alibi_slopes"}
    if "alibi" in options:
        options = {**options, "alibi": np.float32([0.5, 0.1, 1, 0.2])}
    given = {names.get(name, name): convert(x) if name == "alibi" else x for name, x in options.items()}
    o, lse = fa.flash_attn_with_kvcache(
        *(convert(x) for x in (q, *caches, *new)),
        cache_seqlens=convert(lens),
        return_softmax_lse=True,
        **table,
        **given,
    )
    for b, n in enumerate(lens + 2):
        want, want_lse = attention(q[[b]], *(x[[b], :n] for x in whole), **options)
        close(host(o)[[b]], want)
        close(host(lse)[[b]], want_lse)


def test_one_length_of_pages_copies_those_that_hold_it(convert):
    q, k, v = tensors((2, 20, 4, 16), 2, keys=30)
    *pages, table = paged(k, v)
    table[:, 2:] = -1
    lists = {"cache_seqlens": 13, "block_table": convert(table)}
    o = fa.flash_attn_with_kvcache(*(convert(x) for x in (q, *pages)), causal=True, **lists)
    close(host(o), attention(q, k[:, :13], v[:, :13], causal=True)[0])


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"seqused_k": USED[:3]}, r"seqused_k: shape is \(3,\); \(4,\) is needed"),
        ({"seqused_k": USED.astype(np.float32)}, "seqused_k holds"),
        (
            {"seqused_k": np.array([9, 41, 0, 3], INT32)},
            r"seqused_k\[1\] is 41; a sequence has room for 40 keys",
        ),
        (
            {"seqused_k": np.array([9, -1, 0, 3], INT32)},
            r"seqused_k\[1\] is -1; a sequence has room for 40 keys",
        ),
        ({"block_table": np.zeros((4, 2), INT32)}, "with block_table both are"),
        (
            {"block_table": np.zeros((3, 2), INT32), "pages": True},
            r"block_table: shape is \(3, 2\); \[4, 2\] is",
        ),
        (
            {"block_table": np.full((4, 5), 7, INT32), "pages": True},
            r"block_table\[0\]\[0\] is 7; there are 2 pages",
        ),
        (
            {"block_table": np.zeros((4, 5), INT32), "pages": True, "seqused_k": None},
            "block_table is given without cu_seqlens_k or seqused_k",
        ),
    ],
)
@pytest.mark.parametrize("half", ["numpy", "torch"])
def test_refusals(half, changes, message):
    make = np.array if half == "numpy" else pytest.importorskip("torch").tensor
    q, k, v = packed()
    offsets = make(CU_K)
    changes = {"seqused_k": USED, **changes}
    if changes.pop("pages", False):
        k, v, offsets = k[:16].reshape(2, 8, 2, 16), v[:16].reshape(2, 8, 2, 16), None
    changes = {name: None if x is None else make(x) for name, x in changes.items()}
    with pytest.raises(ValueError, match=message):
        fa.flash_attn_varlen_func(*(make(x) for x in (q, k, v, CU_Q)), offsets, *MOST, **changes)


def test_a_replayed_graph_uses_other_keys():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("a CUDA graph")
    inputs = [torch.randn(600, heads, 64, device="cuda").half().requires_grad_() for heads in (4, 2, 2)]
    cu = torch.tensor([0, 300, 300, 600], dtype=torch.int32, device="cuda")
    used = torch.tensor([300, 0, 300], dtype=torch.int32, device="cuda")

    def step():
        o = fa.flash_attn_varlen_func(*inputs, cu, cu, 300, 300, causal=True, seqused_k=used)
        return [o, *torch.autograd.grad(o, inputs, torch.ones_like(o))]

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    # Numbers beyond a sequence's keys count as all of them, and negative ones as none.
    for numbers in ([300, 0, 300], [17, 0, 128], [-5, 3, 1000]):
        used.copy_(torch.tensor(numbers, dtype=torch.int32))
        graph.replay()
        replayed = [t.clone() for t in results]
        used.clamp_(0, 300)
        for a, b in zip(replayed, step()):
            assert torch.equal(a, b)
