"""Sinks of torch tensors, with their gradient, against a chain of PyTorch's ops."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import flash_attention_rs as fa  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request):
    torch.manual_seed(0)
    return request.param


def math(q, k, v, sinks):
    """O and lse, causal; one more column of scores, whose weights are left out."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    rows, keys = scores.shape[-2:]
    hidden = ~torch.ones(rows, keys, dtype=torch.bool, device=q.device).tril(keys - rows)
    scores = scores.masked_fill(hidden, float("-inf"))
    sinks = sinks.expand(q.shape[0], q.shape[1])[..., None, None].expand(*q.shape[:3], 1)
    scores = torch.cat((scores, sinks), -1)
    return (scores.softmax(-1)[..., :-1] @ v).transpose(1, 2), scores.logsumexp(-1)


def close(found, want):
    for a, b in zip(found, want):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("shape", [(4,), (2, 4)])
@pytest.mark.parametrize("compiled", [False, True])
def test_dense(device, shape, compiled):
    attention = fa.flash_attn_func
    if compiled:
        attention = torch.compile(attention, backend="aot_eager", fullgraph=True)
    q, k, v = (torch.randn(2, n, h, 16, device=device) for n, h in ((20, 4), (30, 2), (30, 2)))
    inputs = [t.requires_grad_() for t in (q, k, v, torch.randn(shape, device=device))]
    o, lse, _ = attention(*inputs[:3], causal=True, sinks=inputs[3], return_attn_probs=True)
    want = math(*inputs)
    close((o, lse), want)
    weights = [torch.randn_like(t) for t in want]
    close(*(torch.autograd.grad(outputs, inputs, weights) for outputs in ((o, lse), want)))


def test_sinks_alone_have_a_gradient(device):
    q = torch.randn(1, 9, 2, 8, device=device)
    sinks = torch.zeros(2, device=device, requires_grad=True)
    found, want = fa.flash_attn_func(q, q, q, causal=True, sinks=sinks), math(q, q, q, sinks)[0]
    close(*(torch.autograd.grad(o.sum(), [sinks]) for o in (found, want)))


def test_packed(device):
    q, k, v = (torch.randn(40, heads, 16, device=device) for heads in (4, 2, 2))
    inputs = [t.requires_grad_() for t in (q, k, v, torch.randn(4, device=device))]
    cu = torch.tensor([0, 13, 13, 40], dtype=torch.int32, device=device)
    o = fa.flash_attn_varlen_func(*inputs[:3], cu, cu, 27, 27, causal=True, sinks=inputs[3])
    parts = [slice(0, 13), slice(13, 40)]
    want = torch.cat([math(*(t[None, p] for t in inputs[:3]), inputs[3])[0][0] for p in parts])
    close((o,), (want,))
    weights = torch.randn_like(want)
    close(*(torch.autograd.grad(t, inputs, weights) for t in (o, want)))


@pytest.mark.parametrize("shape", [(4,), (2, 4)])
@pytest.mark.parametrize("packed", [False, True])
def test_without_keys_sinks_are_the_lse(device, shape, packed):
    q = torch.randn(2, 5, 4, 16, device=device, requires_grad=True)
    k = torch.randn(2, 0, 2, 16, device=device)
    sinks = torch.randn(shape, device=device, requires_grad=True)
    want = sinks.expand(2, 4)[..., None].expand(2, 4, 5)

    def attention(q, k, sinks):
        if not packed:
            return fa.flash_attn_func(q, k, k, sinks=sinks, return_attn_probs=True)[:2]
        cu = [torch.tensor([0, n, 2 * n], dtype=torch.int32).to(q.device) for n in (5, 0)]
        tensors = [t.flatten(0, 1) for t in (q, k, k)]
        o, lse, _ = fa.flash_attn_varlen_func(*tensors, *cu, 5, 0, sinks=sinks, return_attn_probs=True)
        return o, lse.view(4, 2, 5).transpose(0, 1)

    o, lse = attention(q, k, sinks)
    assert not o.any() and torch.equal(lse, want)
    weights = torch.randn_like(lse)
    gradients = [torch.autograd.grad(t, sinks, weights, retain_graph=True)[0] for t in (lse, want)]
    torch.testing.assert_close(*gradients)
    assert not torch.autograd.grad(o.sum(), sinks)[0].any()


def test_without_keys_sinks_are_the_lse_of_arrays():
    q, k = np.zeros((2, 5, 4, 8), np.float32), np.zeros((2, 0, 4, 8), np.float32)
    sinks = np.arange(8, dtype=np.float32).reshape(2, 4)
    _, lse, _ = fa.flash_attn_func(q, k, k, sinks=sinks, return_attn_probs=True)
    assert (lse == sinks[..., None]).all()
    cu = np.array([0, 5, 10]), np.zeros(3, int)
    q, k = q.reshape(10, 4, 8), k.reshape(0, 4, 8)
    _, lse, _ = fa.flash_attn_varlen_func(q, k, k, *cu, 5, 0, sinks=sinks, return_attn_probs=True)
    assert (lse.reshape(4, 2, 5).swapaxes(0, 1) == sinks[..., None]).all()


def test_opcheck(device):
    q = torch.randn(2, 20, 4, 16, device=device, requires_grad=True)
    sinks = torch.randn(4, device=device, requires_grad=True)
    numbers = (0, 0, 0.25, True, -1, -1, 0.0, 0.0)
    arguments = (q, q, q, None, sinks, None, None, None, None, *numbers)
    torch.library.opcheck(torch.ops.flash_attention_rs.forward.default, arguments)


def test_refusals(device):
    q = torch.randn(1, 8, 2, 8, device=device)
    with pytest.raises(ValueError, match="sinks: torch.float16"):
        fa.flash_attn_func(q, q, q, sinks=torch.zeros(2, dtype=torch.float16, device=device))
    with pytest.raises(ValueError, match=r"sinks: shape is \(3,\); \(2,\) or \(1, 2\) is needed"):
        fa.flash_attn_func(q, q, q, sinks=torch.zeros(3, device=device))
