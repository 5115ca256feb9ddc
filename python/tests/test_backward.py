"""The backward pass against finite differences of attention by its definition, in numpy."""

import numpy as np
import pytest
from plain import attention, close, tensors

torch = pytest.importorskip("torch")

import flash_attention_rs as fa  # noqa: E402


def test_gradients_are_those_of_finite_differences():
    q, k, v = tensors((1, 7, 4, 8), 2, keys=9)
    options = {"softmax_scale": 0.4, "causal": True, "softcap": 3.0}
    sinks = np.array([-1.0, 0.5, 2.0, 0.0], np.float32)
    inputs = [torch.tensor(x, requires_grad=True) for x in (q, k, v, sinks)]
    o, lse, _ = fa.flash_attn_func(*inputs[:3], sinks=inputs[3], return_attn_probs=True, **options)
    rng = np.random.default_rng(1)
    dout, dlse = (
        rng.standard_normal(o.shape).astype(np.float32),
        rng.standard_normal(lse.shape).astype(np.float32),
    )
    weights = [torch.tensor(x) for x in (dout, dlse)]
    gradients = [gradient.numpy() for gradient in torch.autograd.grad((o, lse), inputs, weights)]

    def loss(q, k, v, sinks):
        o, lse = attention(q, k, v, scale=0.4, causal=True, softcap=3.0, sinks=sinks)
        return (o * dout).sum() + (lse * dlse).sum()

    assert len(gradients) == 4
    for which, gradient in enumerate(gradients):
        direction = rng.standard_normal(gradient.shape)
        moved = []
        for step in (1e-5, -1e-5):
            changed = [x.astype(np.float64) for x in (q, k, v, sinks)]
            changed[which] = changed[which] + step * direction
            moved.append(loss(*changed))
        slope = (moved[0] - moved[1]) / 2e-5
        close((gradient * direction).sum(), np.asarray(slope), 1e-3 * max(1.0, abs(slope)))
