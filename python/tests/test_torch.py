"""Torch tensors, on the CPU and where there is a GPU there too, against PyTorch's own math."""

import itertools

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import flash_attention_rs as fa  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
DTYPES = [(torch.float32, 1e-4), (torch.float16, 1e-2), (torch.bfloat16, 8e-2)]


@pytest.fixture(params=DEVICES)
def device(request):
    torch.manual_seed(0)
    return request.param


def tensors(device, shape, kv_heads=None, keys=None, dtype=torch.float32, requires_grad=True):
    batch, rows, heads, dim = shape
    kv = (batch, keys or rows, kv_heads or heads, dim)
    make = lambda s: torch.randn(s, device=device).to(dtype).requires_grad_(requires_grad)  # noqa: E731
    return make(shape), make(kv), make(kv)


def math(q, k, v, causal=False, scale=None):
    q, k, v = (t.float().transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        rows, keys = scores.shape[-2:]
        mask = torch.ones(rows, keys, dtype=torch.bool, device=q.device).tril(keys - rows)
        scores = scores.masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2), scores.logsumexp(-1)


@pytest.mark.parametrize("dtype, tolerance", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients(device, dtype, tolerance, causal):
    inputs = tensors(device, (2, 50, 4, 32), 2, keys=60, dtype=dtype)
    o, lse, _ = fa.flash_attn_func(*inputs, causal=causal, return_attn_probs=True)
    want, want_lse = math(*inputs, causal)
    torch.testing.assert_close(o.float(), want, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse, want_lse, atol=tolerance, rtol=tolerance)
    weights, lse_weights = torch.randn_like(want), torch.randn_like(want_lse)
    for with_lse in (False, True):
        outputs = ((o.float(), lse), (want, want_lse))
        losses = [(a * weights).sum() + with_lse * (b * lse_weights).sum() for a, b in outputs]
        found, expected = (torch.autograd.grad(loss, inputs, retain_graph=True) for loss in losses)
        for a, b in zip(found, expected):
            torch.testing.assert_close(a.float(), b.float(), atol=4 * tolerance, rtol=4 * tolerance)


def test_lse_alone_has_a_gradient(device):
    inputs = tensors(device, (1, 10, 2, 8))
    _, lse, _ = fa.flash_attn_func(*inputs, return_attn_probs=True)
    found = torch.autograd.grad(lse.sum(), inputs[:2])
    expected = torch.autograd.grad(math(*inputs)[1].sum(), inputs[:2])
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_packed(device):
    q, k, v = (t[0].detach().requires_grad_() for t in tensors(device, (1, 40, 4, 16), 2))
    cu = torch.tensor([0, 13, 13, 40], dtype=torch.int32, device=device)
    o = fa.flash_attn_varlen_func(q, k, v, cu, cu, 27, 27, causal=True)
    parts = [slice(0, 13), slice(13, 40)]
    want = torch.cat([math(q[None, p], k[None, p], v[None, p], True)[0][0] for p in parts])
    torch.testing.assert_close(o, want, atol=1e-4, rtol=1e-4)
    weights = torch.randn_like(want)
    for a, b in zip(
        torch.autograd.grad((o * weights).sum(), (q, k, v)),
        torch.autograd.grad((want * weights).sum(), (q, k, v)),
    ):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_alibi_windows_and_qkvpacked(device):
    qkv = torch.randn(2, 30, 3, 4, 16, device=device, requires_grad=True)
    slopes = torch.rand(2, 4, device=device)
    o = fa.flash_attn_qkvpacked_func(qkv, causal=True, window_size=(9, 0), softcap=4.0, alibi_slopes=slopes)
    array = qkv.detach().cpu().numpy()
    want = fa.flash_attn_qkvpacked_func(
        array, causal=True, window_size=(9, 0), softcap=4.0, alibi_slopes=slopes.cpu()
    )
    torch.testing.assert_close(o.detach().cpu(), torch.from_numpy(want), atol=1e-4, rtol=1e-4)
    (gradient,) = torch.autograd.grad(o.sum(), qkv)
    assert gradient.shape == qkv.shape and gradient.isfinite().all()


def test_strides_are_kept_and_expanded_gradients_taken(device):
    q, k, v = (t.transpose(1, 2) for t in tensors(device, (2, 4, 30, 16)))  # [B, S, H, D] by heads
    o = fa.flash_attn_func(q, k, v)
    assert o.stride() == q.stride()
    torch.testing.assert_close(o, math(q, k, v)[0], atol=1e-4, rtol=1e-4)
    gradients = torch.autograd.grad(o.sum(), (q, k, v))
    assert gradients[0].stride() == q.stride()


@pytest.mark.parametrize("dim", [1, 2, 8])
def test_gradients_lie_as_planned(device, dim):
    for order in itertools.permutations(range(4)):
        for sizes in itertools.product((1, 2), (1, 6), (1, 3)):
            inputs = tensors(device, (*sizes, dim), requires_grad=False)
            inputs = [t.permute(order).contiguous().permute(*map(order.index, range(4))) for t in inputs]
            weights = torch.randn_like(inputs[0])
            found, want = (
                torch.autograd.grad(fa.flash_attn_func(*leaves), leaves, weights)
                for leaves in (
                    [t.detach().requires_grad_() for t in inputs],
                    [t.detach().contiguous().requires_grad_() for t in inputs],
                )
            )
            torch.testing.assert_close(found, want, atol=1e-3, rtol=1e-3)


def test_dropout_is_the_generators(device):
    inputs = tensors(device, (1, 64, 2, 16))
    torch.manual_seed(7)
    first = fa.flash_attn_func(*inputs, dropout_p=0.3)
    second = fa.flash_attn_func(*inputs, dropout_p=0.3)
    torch.manual_seed(7)
    again = fa.flash_attn_func(*inputs, dropout_p=0.3)
    assert torch.equal(first, again) and not torch.equal(first, second)
    # O is linear in V, so that <dV, V> = <O, dO> if both passes drop the same weights.
    (dv,) = torch.autograd.grad(first.sum(), inputs[2:])
    torch.testing.assert_close((dv * inputs[2]).sum(), first.sum(), atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("rows, keys", [(20, 20), (20, 35), (35, 20)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_scaled_dot_product_attention(device, rows, keys, is_causal):
    q, k, v = (t.transpose(1, 2) for t in tensors(device, (2, rows, 4, 16), 2, keys=keys))
    found = fa.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)
    want = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)
    torch.testing.assert_close(found, want, atol=1e-4, rtol=1e-4)
    mask = torch.ones(rows, keys, dtype=torch.bool, device=device)
    fa.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


def test_kvcache(device):
    dtype = torch.float32 if device == "cpu" else torch.float16
    q, k, v = tensors(device, (2, 1, 4, 32), 2, keys=24, dtype=dtype, requires_grad=False)
    lens = torch.tensor([24, 9], dtype=torch.int32, device=device)
    o, lse = fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=lens, return_softmax_lse=True)
    for b, n in enumerate((24, 9)):
        want, want_lse = math(q[[b]], k[[b], :n], v[[b], :n])
        torch.testing.assert_close(o[[b]].float(), want, atol=1e-2, rtol=1e-2)
        torch.testing.assert_close(lse[[b]], want_lse, atol=1e-2, rtol=1e-2)
    table = torch.arange(6, dtype=torch.int32, device=device).view(2, 3)
    pages = [t.reshape(6, 8, 2, 32).clone() for t in (k, v)]
    new = [t[:, :2] for t in (k, v)]
    at = torch.tensor([22, 9], dtype=torch.int32, device=device)
    o = fa.flash_attn_with_kvcache(q, *pages, *new, cache_seqlens=at, block_table=table)
    caches = [t.clone() for t in (k, v)]
    for cache, values in zip(caches, new):
        cache[0, 22:24], cache[1, 9:11] = values[0], values[1]
    torch.testing.assert_close(
        o[[1]].float(), math(q[[1]], *(t[[1], :11] for t in caches))[0], atol=1e-2, rtol=1e-2
    )
    torch.testing.assert_close(
        o[[0]].float(), math(q[[0]], *(t[[0]] for t in caches))[0], atol=1e-2, rtol=1e-2
    )


def test_opcheck(device):
    q, k, v = tensors(device, (2, 20, 4, 16), 2)
    rest = (None, None, None, None, None, None, 0, 0, 0.25, True, -1, -1, 0.0, 0.0)
    torch.library.opcheck(torch.ops.flash_attention_rs.forward.default, (q, k, v, *rest))
    by_heads = [t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in (q, k, v)]
    torch.library.opcheck(torch.ops.flash_attention_rs.forward.default, (*by_heads, *rest))
    o, lse = torch.ops.flash_attention_rs.forward(q, k, v, *rest)
    gradients = [t.detach() for t in (torch.randn_like(o), q, k, v, o, lse)]
    arguments = (gradients[0], None, *gradients[1:], *rest)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.flash_attention_rs.backward.default, arguments, test_utils=tests)


def test_compile(device):
    inputs = tensors(device, (2, 20, 4, 16), 2)
    step = torch.compile(
        lambda q, k, v: fa.flash_attn_func(q, k, v, causal=True) * 2, fullgraph=True, backend="aot_eager"
    )
    found, want = step(*inputs), 2 * fa.flash_attn_func(*inputs, causal=True)
    torch.testing.assert_close(found, want)
    for a, b in zip(torch.autograd.grad(found.sum(), inputs), torch.autograd.grad(want.sum(), inputs)):
        torch.testing.assert_close(a, b)


def test_empty_tensors(device):
    q, k, v = tensors(device, (2, 4, 2, 8))
    assert fa.flash_attn_func(q[:, :0], k, v).shape == (2, 0, 2, 8)
    o = fa.flash_attn_func(q, k[:, :0], v[:, :0])
    assert not o.any()
    assert not torch.autograd.grad(o.sum(), q)[0].any()


def test_refusals(device):
    q, k, v = tensors(device, (1, 8, 2, 8))
    with pytest.raises(ValueError, match="k holds torch.float16, but q holds torch.float32"):
        fa.flash_attn_func(q, k.half(), v)
    with pytest.raises(ValueError, match="dtype is torch.float64"):
        fa.flash_attn_func(q.double(), k.double(), v.double())
    with pytest.raises(ValueError, match="k is a list, but q is a torch.Tensor"):
        fa.flash_attn_func(q, [1.0], v)
    cu = torch.tensor([0, 8], device=device)
    with pytest.raises(ValueError, match="cu_seqlens_q holds torch.int64; int32 is needed"):
        fa.flash_attn_varlen_func(q[0], k[0], v[0], cu, cu, 8, 8)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the override is for CUDA")
def test_sdpa_provider():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    inputs = [
        t.detach().transpose(1, 2).requires_grad_()
        for t in tensors("cuda", (2, 64, 4, 64), dtype=torch.float16)
    ]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        want = F.scaled_dot_product_attention(*inputs, is_causal=True)
        fa.register_sdpa()
        try:
            found = F.scaled_dot_product_attention(*inputs, is_causal=True)
            gradients = torch.autograd.grad(found.float().sum(), inputs)
        finally:
            fa.unregister_sdpa()
    torch.testing.assert_close(found, want, atol=1e-2, rtol=1e-2)
    for a, b in zip(gradients, torch.autograd.grad(want.float().sum(), inputs)):
        torch.testing.assert_close(a, b, atol=2e-2, rtol=2e-2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_current_device_stays():
    q, k, v = tensors("cuda:1", (1, 30, 2, 32), dtype=torch.float16)
    torch.cuda.set_device(0)
    o = fa.flash_attn_func(q, k, v)
    assert torch.cuda.current_device() == 0
    assert torch.zeros(1, device="cuda").device.index == 0
    torch.testing.assert_close(o.float(), math(q, k, v)[0], atol=1e-2, rtol=1e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph")
def test_cuda_graph():
    q, k, v = (t.detach() for t in tensors("cuda", (1, 100, 2, 64), dtype=torch.float16))
    want = fa.flash_attn_func(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = fa.flash_attn_func(q, k, v)
    graph.replay()
    torch.testing.assert_close(o, want)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph")
@pytest.mark.parametrize("dim", [64, 128])
def test_a_replayed_graph_takes_other_lengths(dim):
    q, k, v = (t[0].detach() for t in tensors("cuda", (1, 600, 4, dim), 2, dtype=torch.float16))
    inputs = [t.requires_grad_() for t in (q, k, v)]
    cu = torch.tensor([0, 300, 300, 600], dtype=torch.int32, device="cuda")

    def step():
        o = fa.flash_attn_varlen_func(*inputs, cu, cu, 400, 400, causal=True)
        return [o, *torch.autograd.grad(o, inputs, torch.ones_like(o))]

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for offsets in ([0, 300, 300, 600], [0, 1, 401, 600], [0, 200, 400, 599]):
        cu.copy_(torch.tensor(offsets, dtype=torch.int32))
        graph.replay()
        replayed = [t[: offsets[-1]].clone() for t in results]
        for a, b in zip(replayed, step()):
            assert torch.equal(a, b[: offsets[-1]])


def test_training_goes_as_with_pytorchs_attention(device):
    def losses(attention):
        torch.manual_seed(1)
        qkv, out, head = (torch.nn.Linear(32, n).to(device) for n in (96, 32, 11))
        tokens = torch.nn.Embedding(11, 32).to(device)
        parameters = [p for m in (qkv, out, head, tokens) for p in m.parameters()]
        optimizer = torch.optim.Adam(parameters, 3e-3)
        text = torch.randint(11, (4, 25), device=device)
        for _ in range(50):
            x = tokens(text[:, :-1])
            q, k, v = qkv(x).view(4, 24, 3, 2, 16).unbind(2)
            x = x + out(attention(q, k, v).reshape(4, 24, 32))
            loss = F.cross_entropy(head(x).flatten(0, 1), text[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()

    def pytorchs(*tensors):
        q, k, v = (t.transpose(1, 2) for t in tensors)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    found, want = list(losses(lambda *t: fa.flash_attn_func(*t, causal=True))), list(losses(pytorchs))
    assert want[-1] < want[0] / 2
    assert max(abs(a - b) for a, b in zip(found, want)) < 1e-3
