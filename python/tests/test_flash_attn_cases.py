"""The lengths, head_dims and masks that flash-attn's own tests have, by its rule: at most twice the error of
PyTorch's math in the same precision."""

import pytest

torch = pytest.importorskip("torch")

import flash_attention_rs as fa  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
#: Rows of Q, rows of K, head_dim, heads of K and V, causal, window and softcap.
CASES = [
    (113, 203, 32, 6, False, (-1, -1), 0.0),
    (128, 217, 40, 3, True, (-1, -1), 0.0),
    (113, 211, 59, 1, False, (30, 20), 0.0),
    (108, 256, 64, 6, True, (50, 0), 0.0),
    (256, 512, 80, 3, False, (-1, -1), 15.0),
    (512, 256, 96, 1, True, (-1, -1), 0.0),
    (257, 129, 111, 6, False, (-1, -1), 0.0),
    (384, 256, 128, 2, True, (-1, -1), 15.0),
    (1, 239, 160, 3, False, (-1, -1), 0.0),
    (3, 799, 192, 6, True, (-1, -1), 0.0),
    (127, 512, 224, 1, True, (100, 0), 0.0),
    (140, 200, 256, 3, False, (-1, -1), 0.0),
]


@pytest.fixture(params=DEVICES)
def device(request):
    torch.manual_seed(0)
    return request.param


def math(q, k, v, causal, window, softcap, precision):
    """Attention as a chain of PyTorch's ops on tensors of `precision`."""
    q, k, v = (t.to(precision).transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    rows, keys = q.shape[2], k.shape[2]
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    distance = (
        torch.arange(keys, device=q.device) - torch.arange(rows, device=q.device)[:, None] - keys + rows
    )
    left, right = window
    right = 0 if causal else right
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if left >= 0:
        hidden |= distance < -left
    if right >= 0:
        hidden |= distance > right
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return (weights.masked_fill(hidden.all(-1, keepdim=True), 0.0) @ v).transpose(1, 2)


def check(found, plain, exact):
    """At most twice the error of the plain computation, and the rounding of what is compared."""
    rounded = exact.to(found.dtype)
    rounding = 2 * (rounded + 0.3 - 0.3 - rounded).abs().max().double()
    error, allowed = (found.double() - exact).abs().max(), (plain.double() - exact).abs().max()
    assert error <= 2 * allowed + rounding, (error.item(), allowed.item())


def with_gradients(function, inputs, weights):
    inputs = [t.detach().requires_grad_() for t in inputs]
    o = function(*inputs)
    return [o.detach(), *torch.autograd.grad((o * weights.to(o.dtype)).sum(), inputs)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows, keys, dim, kv_heads, causal, window, softcap", CASES)
def test_dense(device, dtype, rows, keys, dim, kv_heads, causal, window, softcap):
    q = torch.randn(2, rows, 6, dim, device=device).to(dtype)
    k, v = (torch.randn(2, keys, kv_heads, dim, device=device).to(dtype) for _ in range(2))
    weights = torch.randn_like(q)
    attention = lambda *t: fa.flash_attn_func(*t, causal=causal, window_size=window, softcap=softcap)  # noqa: E731
    found = with_gradients(attention, (q, k, v), weights)
    plain, exact = (
        with_gradients(
            lambda *t, p=p: math(*t, causal, window, softcap, p), (q.to(p), k.to(p), v.to(p)), weights
        )
        for p in (dtype, torch.float64)
    )
    for results in zip(found, plain, exact):
        check(*results)


@pytest.mark.parametrize("causal", [False, True])
def test_packed(device, causal):
    lengths = [(113, 203), (1, 80), (64, 64), (0, 30), (200, 211)]
    inputs, offsets = [], []
    for side, heads in ((0, 6), (1, 2), (1, 2)):
        parts = [torch.randn(pair[side], heads, 64, device=device).half() for pair in lengths]
        inputs.append(parts)
        ends = torch.tensor([0] + [pair[side] for pair in lengths]).cumsum(0)
        offsets.append(ends.to(device=device, dtype=torch.int32))
    packed = [torch.cat(parts) for parts in inputs]
    most = [max(pair[side] for pair in lengths) for side in (0, 1)]
    weights = torch.randn_like(packed[0])
    attention = lambda *t: fa.flash_attn_varlen_func(*t, *offsets[:2], *most, causal=causal)  # noqa: E731
    found = with_gradients(attention, packed, weights)

    def by_parts(*tensors):
        split = [t.split([pair[side] for pair in lengths]) for t, side in zip(tensors, (0, 1, 1))]
        parts = zip(*split)
        return torch.cat(
            [math(*(t[None] for t in part), causal, (-1, -1), 0.0, part[0].dtype)[0] for part in parts]
        )

    plain, exact = (
        with_gradients(by_parts, [t.to(p) for t in packed], weights) for p in (torch.half, torch.double)
    )
    for results in zip(found, plain, exact):
        check(*results)


@pytest.mark.parametrize(
    "rows, dim, paged", [(1, 64, True), (1, 128, False), (3, 80, True), (16, 256, False)]
)
def test_kvcache(device, rows, dim, paged):
    batch, page, pages = 3, 16, 13
    q = torch.randn(batch, rows, 8, dim, device=device).half()
    k, v = (torch.randn(batch * pages, page, 2, dim, device=device).half() for _ in range(2))
    used = torch.tensor([37, 208, 16], dtype=torch.int32, device=device)
    table = torch.randperm(batch * pages, device=device).view(batch, pages).int()
    whole = [t[table.long()].reshape(batch, pages * page, 2, dim) for t in (k, v)]
    caches, options = ((k, v), {"block_table": table}) if paged else (whole, {})
    found = fa.flash_attn_with_kvcache(q, *caches, cache_seqlens=used, causal=True, **options)
    for b, n in enumerate(used.tolist()):
        part = (q[[b]], *(t[[b], :n] for t in whole))
        check(found[[b]], *(math(*part, True, (-1, -1), 0.0, p) for p in (torch.half, torch.double)))
