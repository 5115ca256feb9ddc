"""Hooks of PyTorch and transformers: their own attention calls run on this library."""

from __future__ import annotations

from typing import Any, Optional

#: The name under which PyTorch lists the provider.
SDPA_NAME = "flash_attention_rs"

_installed: Any = None


def register_sdpa() -> None:
    """Lets the flash backend of `torch.nn.functional.scaled_dot_product_attention` on CUDA be this library.

    PyTorch still chooses the backend; `torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)` forces it.
    Needs torch.
    """
    global _installed
    import torch

    if _installed is not None:
        return
    attention = torch.nn.attention
    if hasattr(attention, "register_flash_attention_impl"):
        attention.register_flash_attention_impl(SDPA_NAME, register_fn=_install)
        attention.activate_flash_attention_impl(SDPA_NAME)
        _installed = attention.restore_flash_attention_impl
    else:
        _installed = _install().remove


def unregister_sdpa() -> None:
    """Gives the flash backend back to PyTorch."""
    global _installed
    if _installed is not None:
        _installed()
        _installed = None


class _Handle:
    """The overrides, for as long as this lives."""

    def __init__(self, library: Any):
        self.library = library

    def remove(self) -> None:
        self.library._destroy()


def _install() -> _Handle:
    import torch

    from . import _passes

    library = torch.library.Library("aten", "IMPL", "CUDA")
    unread: dict[Any, tuple[Any, ...]] = {}

    def options(rng: Any, scale: Optional[float], is_causal: bool, dropout_p: float) -> tuple[Any, ...]:
        """Arguments of the passes behind their tensors."""
        return (None, None, None, None, None, rng, 0, 0, scale, is_causal, -1, -1, 0.0, dropout_p)

    def without_seed(query: Any) -> tuple[Any, ...]:
        """Seed, offset and debug mask of calls without dropout, which nothing reads."""
        # Made in inference mode they could not be saved for a backward pass later on.
        with torch.inference_mode(False):
            seed, offset = (query.new_empty(shape, dtype=torch.uint64) for shape in ((2,), ()))
            made = (seed, offset, query.new_empty(0))
        return unread.setdefault((query.get_device(), query.dtype), made)

    def forward(
        query: Any,
        key: Any,
        value: Any,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        return_debug_mask: bool = False,
        *,
        scale: Optional[float] = None,
    ) -> tuple[Any, ...]:
        if return_debug_mask:
            raise NotImplementedError("return_debug_mask: the library stores no weights")
        seed, offset, mask = unread.get((query.get_device(), query.dtype)) or without_seed(query)
        rng = None
        if dropout_p > 0.0:
            # It stays on the host, whose launches need it.
            seed = rng = torch.randint(2**62, (2,))
        rest = options(rng, scale, is_causal, dropout_p)
        o, lse = _passes.forward(query, key, value, *rest, by_heads=True)
        return (o, lse, None, None, query.size(2), key.size(2), seed, offset, mask)

    def backward(
        grad_out: Any,
        query: Any,
        key: Any,
        value: Any,
        out: Any,
        logsumexp: Any,
        cum_seq_q: Any,
        cum_seq_k: Any,
        max_q: int,
        max_k: int,
        dropout_p: float,
        is_causal: bool,
        philox_seed: Any,
        philox_offset: Any,
        *,
        scale: Optional[float] = None,
    ) -> tuple[Any, ...]:
        rest = options(philox_seed if dropout_p > 0.0 else None, scale, is_causal, dropout_p)
        tensors = (grad_out, None, query, key, value, out, logsumexp)
        return _passes.backward(*tensors, *rest, by_heads=True)[:3]

    library.impl("_scaled_dot_product_flash_attention", forward, "CUDA")
    library.impl("_scaled_dot_product_flash_attention_backward", backward, "CUDA")
    return _Handle(library)


def register_transformers(name: str = "rust_attention") -> str:
    """Adds an `attn_implementation` to transformers, and returns its name.

    Names with "flash" in them are refused: transformers looks those up among its own and in the hub.
    Needs transformers 4.53 or later.
    """
    if "flash" in name:
        raise ValueError(f"name is {name!r}; transformers takes names with 'flash' in them for its own")
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

    AttentionInterface.register(name, _transformers_attention)
    AttentionMaskInterface.register(name, flash_attention_mask)
    return name


def _transformers_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: Optional[float] = None,
    dropout: float = 0.0,
    sliding_window: Optional[int] = None,
    softcap: Optional[float] = None,
    is_causal: Optional[bool] = None,
    s_aux: Any = None,
    **kwargs: Any,
) -> tuple[Any, None]:
    """[B, H, S, D] in, [B, S, H, D] out; a mask is [B, Sk], true where there is a token, and s_aux sinks."""
    from ._functions import flash_attn_func, flash_attn_varlen_func

    causal = module.is_causal if is_causal is None else is_causal
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    window = (-1, -1)
    if sliding_window is not None and k.shape[1] > sliding_window:
        window = (sliding_window - 1, sliding_window - 1)
    options: dict[str, Any] = {
        "dropout_p": dropout,
        "softmax_scale": scaling,
        "causal": causal,
        "window_size": window,
        "softcap": softcap or 0.0,
        "sinks": None if s_aux is None else s_aux.float(),
    }
    if attention_mask is not None:
        return _padded(q, k, v, attention_mask, options), None
    packed = _packed(q, k, kwargs)
    if packed is None:
        return flash_attn_func(q, k, v, **options), None
    flat = (t.reshape(-1, *t.shape[2:]) for t in (q, k, v))
    return flash_attn_varlen_func(*flat, *packed, **options).reshape(*q.shape[:3], v.shape[-1]), None


def _packed(q: Any, k: Any, kwargs: dict[str, Any]) -> Optional[tuple[Any, ...]]:
    """Offsets and longest sequences of a batch without padding, where there are some."""
    import torch

    names = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    given: list[Any] = [kwargs.get(name) for name in names]
    if all(value is not None for value in given):
        cu_q, cu_k, max_q, max_k = given
        return cu_q.int(), cu_k.int(), int(max_q), int(max_k)
    positions = kwargs.get("position_ids")
    if positions is None or positions.ndim != 2 or q.shape[0] != 1 or positions.shape[1] != q.shape[1]:
        return None
    if q.shape[1] < 2 or k.shape[1] != q.shape[1] or torch.compiler.is_compiling():
        return None
    # Sequences begin where positions do not go on by one.
    starts = (positions[0].diff() != 1).nonzero()[:, 0] + 1
    if starts.numel() == 0:
        return None
    total = q.shape[1]
    offsets = torch.nn.functional.pad(starts, (1, 0))
    offsets = torch.nn.functional.pad(offsets, (0, 1), value=total).int()
    longest = int(offsets.diff().max())
    return offsets, offsets, longest, longest


def _padded(q: Any, k: Any, v: Any, mask: Any, options: dict[str, Any]) -> Any:
    """Attention without the tokens that the mask, [B, Sk], takes away."""
    import torch

    from ._functions import flash_attn_varlen_func

    batch, rows = q.shape[:2]
    mask = mask.bool()
    k, v = k[:, : mask.shape[1]], v[:, : mask.shape[1]]
    # Queries are the last of the keys.
    mask_q = mask[:, mask.shape[1] - rows :] if rows > 1 else torch.ones_like(mask[:, :1])

    def offsets(of: Any) -> tuple[Any, int]:
        lengths = of.sum(1)
        return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int(), int(lengths.max())

    (cu_q, max_q), (cu_k, max_k) = offsets(mask_q), offsets(mask)
    o = flash_attn_varlen_func(q[mask_q], k[mask], v[mask], cu_q, cu_k, max_q, max_k, **options)
    padded = o.new_zeros((batch, rows, *o.shape[1:]))
    padded[mask_q] = o
    return padded
