"""What PyTorch gets for its own function, on tensors of the CPU, and sinks as transformers gives them."""

import types

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import flash_attention_rs as fa  # noqa: E402
from flash_attention_rs import _providers  # noqa: E402


@pytest.fixture
def overrides(monkeypatch):
    """The overrides by their names, which are not PyTorch's yet."""
    found = {}

    class Library:
        def __init__(self, *arguments):
            pass

        def impl(self, name, function, key):
            found[name.removeprefix("_scaled_dot_product_flash_attention")] = function

    monkeypatch.setattr(torch.library, "Library", Library)
    _providers._install()
    return found[""], found["_backward"]


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_overrides(overrides, heads_first, dropout_p):
    torch.manual_seed(0)
    forward, backward = overrides
    shape = (2, 4, 30, 16) if heads_first else (2, 30, 4, 16)
    q, k, v, dout = (torch.randn(shape) for _ in range(4))
    if not heads_first:
        q, k, v, dout = (t.transpose(1, 2) for t in (q, k, v, dout))
    with torch.inference_mode():
        forward(q, k, v)
    o, lse, _, _, rows, keys, seed, offset, mask = forward(q, k, v, dropout_p, True, False, scale=0.3)
    assert (rows, keys) == (30, 30) and o.stride() == q.stride() and lse.shape == (2, 4, 30)
    assert not seed.is_inference() and mask.dtype == q.dtype
    numbers = (None, None, rows, keys, dropout_p, True, seed, offset)
    gradients = backward(dout, q, k, v, o, lse, *numbers, scale=0.3)
    assert all(gradient.stride() == t.stride() for gradient, t in zip(gradients, (q, k, v)))
    if dropout_p > 0.0:
        # O is linear in V, so that <dV, V> = <O, dO> if both passes drop the same weights.
        torch.testing.assert_close((gradients[2] * v).sum(), (o * dout).sum(), atol=1e-3, rtol=1e-3)
        return
    inputs = [t.detach().requires_grad_() for t in (q, k, v)]
    want = F.scaled_dot_product_attention(*inputs, is_causal=True, scale=0.3)
    torch.testing.assert_close(o, want, atol=1e-4, rtol=1e-4)
    for a, b in zip(gradients, torch.autograd.grad(want, inputs, dout)):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_debug_masks_are_refused(overrides):
    q = torch.randn(1, 2, 8, 8)
    with pytest.raises(NotImplementedError, match="return_debug_mask"):
        overrides[0](q, q, q, 0.0, False, True)


@pytest.mark.parametrize("padded", [False, True])
def test_transformers_sinks(padded):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 12, 16) for heads in (4, 2, 2))
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, :5] = not padded
    sinks = torch.nn.Parameter(torch.randn(4).bfloat16())
    module = types.SimpleNamespace(is_causal=True)
    o, _ = _providers._transformers_attention(module, q, k, v, mask if padded else None, s_aux=sinks)
    swapped = [t.transpose(1, 2) for t in (q, k, v)]
    want = fa.flash_attn_func(*swapped, causal=True, sinks=sinks.float())
    torch.testing.assert_close(o[1], want[1])
    (gradient,) = torch.autograd.grad(o.sum(), [sinks])
    assert gradient.dtype == torch.bfloat16 and gradient.abs().min() > 0
