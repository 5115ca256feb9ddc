"""The backward pass on numpy arrays, against finite differences of attention by its definition."""

import numpy as np
from plain import attention, close, tensors

from flash_attention_rs._numpy import Call


def test_gradients_are_those_of_finite_differences():
    q, k, v = tensors((1, 7, 4, 8), 2, keys=9)
    options = {"softmax_scale": 0.4, "causal": True, "window": (-1, -1), "softcap": 3.0}
    sinks = np.array([-1.0, 0.5, 2.0, 0.0], np.float32)
    call = Call(q, k, v, sinks=sinks, **options)
    o, lse = call.forward()
    rng = np.random.default_rng(1)
    dout, dlse = (
        rng.standard_normal(o.shape).astype(np.float32),
        rng.standard_normal(lse.shape).astype(np.float32),
    )
    gradients = call.backward(dout, o, lse, dlse)

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
