"""Attention that checks its shapes."""

import warnings

from .. import Tensor, enable_grad, float8_e4m3fn
from ..cuda import trace
from . import attention


def scaled_dot_product_attention(q, k, v, is_causal, scale, dropout_p, attn_mask=None, enable_gqa=False):
    batch, heads, rows, head_dim = q.shape
    if attn_mask is not None:
        assert not is_causal and attn_mask.shape in [(batch, 1, 1, k.shape[2]), (rows, k.shape[2])]
        if attention.chosen and attention.chosen[-1] == "flash":
            raise RuntimeError("Flash attention here takes no mask.")
    assert k.shape == v.shape and k.shape[0] == batch and k.shape[3] == head_dim and scale > 0
    assert 0 <= dropout_p < 1
    assert enable_gqa or k.shape[1] == heads
    assert not is_causal or k.shape[2] == rows
    if q.dtype == float8_e4m3fn:
        raise RuntimeError("Expected query to be of dtype: {Half, BFloat16}")
    if attention.chosen and attention.chosen[-1] == "flash" and head_dim > 64:
        warnings.warn("Flash attention here takes head_dim up to 64.")
        raise RuntimeError("No available kernel. Aborting execution.\nmore of it")
    trace("a")
    output = Tensor(q.shape)
    output.has_graph = q.requires_grad and enable_grad.depth > 0
    return output
