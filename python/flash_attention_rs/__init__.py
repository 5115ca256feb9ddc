"""FlashAttention in pure Rust: exact attention in linear memory, for PyTorch and numpy.

On an NVIDIA GPU (compute capability 7.5 and later) through PyTorch, on the CPU through PyTorch or numpy.
"""

from . import _native
from ._context import ContextParallel
from ._context_parts import context_rows
from ._functions import (
    flash_attn_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    flash_mla_with_kvcache,
    scaled_dot_product_attention,
)
from ._plans import set_batch_invariant
from ._providers import register_sdpa, register_transformers, unregister_sdpa

__version__ = _native.__version__
PeerError = _native.PeerError

__all__ = [
    "ContextParallel",
    "PeerError",
    "context_rows",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "flash_mla_with_kvcache",
    "register_sdpa",
    "register_transformers",
    "scaled_dot_product_attention",
    "set_batch_invariant",
    "unregister_sdpa",
]
