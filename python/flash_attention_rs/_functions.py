"""The functions that people call: flash-attn's names and PyTorch's."""

from __future__ import annotations

from typing import Any, Optional

from . import _arrays, _kvcache, _pages

try:
    import torch

    from . import _torch
except (ImportError, OSError):  # not there, or libraries that it needs are not
    torch = None  # type: ignore[assignment]
    _torch = None  # type: ignore[assignment]


def _half(q: Any) -> Any:
    """The half of the package that a tensor is of."""
    if torch is not None and isinstance(q, torch.Tensor):
        return _torch
    return _arrays.module()


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    sinks: Any = None,
) -> Any:
    """softmax(softmax_scale * Q K^T + mask) V for each batch and head.

    Args:
        q: [B, Sq, H, D] in float16, bfloat16 or float32; copied only if its last axis is not contiguous.
        k: [B, Sk, Hkv, D], where Hkv divides H: query head h reads head h // (H // Hkv).
        v: [B, Sk, Hkv, Dv]. D and Dv are 1 to 256.
        dropout_p: probability of dropping a weight, 0 to below 1.
        softmax_scale: 1 / sqrt(D) where None.
        causal: query i sees key j only if j <= i + Sk - Sq (aligned bottom-right).
        window_size: (left, right): i + Sk - Sq - left <= j <= i + Sk - Sq + right; -1 is no limit.
        softcap: scores s become softcap * tanh(s / softcap); 0 is off.
        alibi_slopes: float32 [H] or [B, H]: adds -slope * |i + Sk - Sq - j| to scores.
        deterministic: has no effect, because the backward pass gives the same bits in each run.
        return_attn_probs: returns (out, lse, None), with lse the log-sum-exp of scores, float32 [B, H, Sq].
        sinks: float32 [H] or [B, H], one more logit a row, which takes weight and gives nothing: it joins the
            row's sum and lse. Torch tensors have a gradient.

    Returns:
        [B, Sq, H, Dv] in the type of q. A row that sees no key is 0, and its lse -inf.

    Raises:
        ValueError: names the argument, its value and the limit.
        RuntimeError: where the GPU cannot be used, and why.
    """
    del deterministic
    half = _half(q)
    o, lse = half.attention(
        q,
        k,
        v,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        softmax_scale=softmax_scale,
        causal=causal,
        window=window_size,
        softcap=softcap,
        dropout_p=dropout_p,
        needs_lse=return_attn_probs,
    )
    return (o, lse, None) if return_attn_probs else o


def flash_attn_qkvpacked_func(
    qkv: Any,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` for Q, K and V in one tensor, [B, S, 3, H, D], which is not copied."""
    half = _half(qkv)
    qkv = half.tensor(qkv, "qkv")
    if qkv.ndim != 5 or qkv.shape[2] != 3:
        raise ValueError(f"qkv: shape is {tuple(qkv.shape)}; [B, S, 3, H, D] is needed")
    q, k, v = half.unbound(qkv)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
    sinks: Any = None,
    seqused_k: Any = None,
) -> Any:
    """`flash_attn_func` for sequences of different lengths behind one another.

    Args:
        q: [total_q, H, D]; k: [total_k, Hkv, D]; v: [total_k, Hkv, Dv].
        cu_seqlens_q: int32 [B + 1], 0 and the end of each sequence. On a GPU it stays there: nothing waits.
        cu_seqlens_k: the same of keys. A sequence may be empty.
        max_seqlen_q: the most rows of a sequence, or a bound of them; on a GPU nothing checks it.
        max_seqlen_k: the same of keys.
        block_table: int32 [B, pages]: k and v are pages, [num_pages, page_size, Hkv, D], and key j of a
            sequence is row j % page_size of page block_table[b, j // page_size]. A sequence has as many keys
            as cu_seqlens_k says, which may be None beside seqused_k. Pages that hold max_seqlen_k keys are
            copied behind one another first, unless all sequences have max_seqlen_q rows, 16 at most, and
            nothing needs a gradient: then they are decoded as by flash_attn_with_kvcache.
        seqused_k: int32 [B]: of each sequence's keys the first so many count, and masks are aligned to the
            last of these. What lies behind them does not matter, and has gradient 0. On a GPU nothing waits
            for it or checks it: more than a sequence has count as all, fewer than none as none.

    Returns:
        [total_q, H, Dv]; with return_attn_probs also lse, [H, total_q], and None. Rows behind the last
        sequence are unspecified.
    """
    del deterministic
    for name, rows in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if rows < 0:
            raise ValueError(f"{name} is {rows}; 0 or more is needed")
    half = _half(q)
    max_seqlen_q, max_seqlen_k = int(max_seqlen_q), int(max_seqlen_k)
    options = {
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window": window_size,
        "softcap": softcap,
        "needs_lse": return_attn_probs,
    }
    if block_table is not None:
        offsets = half.integers("cu_seqlens_q", cu_seqlens_q)
        lists = (block_table, offsets.shape[0] - 1, cu_seqlens_k, seqused_k, max_seqlen_k)
        pages = _pages.paged(half, (k, v), *lists)
        if dropout_p == 0.0 and _kvcache.are_decoded(half, q, pages, offsets, max_seqlen_q, sinks):
            o, lse = _kvcache.decoded(half, q, pages, offsets, max_seqlen_q, **options)
            return (o, lse, None) if return_attn_probs else o
        k, v, cu_seqlens_k = _pages.in_order(half, pages)
        seqused_k, max_seqlen_k = pages.used, pages.room
    o, lse = half.attention(
        q,
        k,
        v,
        seqused_k=seqused_k,
        cu_seqlens=(cu_seqlens_q, cu_seqlens_k),
        max_seqlens=(max_seqlen_q, max_seqlen_k),
        dropout_p=dropout_p,
        **options,
    )
    return (o, lse, None) if return_attn_probs else o


def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    k_descale: Any = None,
    v_descale: Any = None,
) -> Any:
    """Attention against a K/V cache, each sequence of its own length; forward pass alone.

    Nothing is written to the cache where an argument is refused: a tensor that requires a gradient is,
    except under torch.no_grad(). All tensors have the type of q, which autocast leaves as it is, but that
    k_cache and v_cache may be torch.float8_e4m3fn.

    Args:
        q: [B, Sq, H, D].
        k_cache: [B, Sk, Hkv, D], or pages [num_pages, page_size, Hkv, D] with a block_table.
        v_cache: as k_cache.
        k: [B, new, Hkv, D], written behind the cached keys first, in place; v: [B, new, Hkv, Dv].
        rotary_cos: [rows, R / 2], rows for all keys of the cache: the first R of D of q and of k are rotated
            before. New key i is at position cache_seqlens + i. So is query i if it is causal or has a window;
            else all queries are at cache_seqlens. More queries than keys need as many more rows.
        rotary_sin: as rotary_cos.
        cache_seqlens: keys that are in the cache, one integer or [B] of them; all of it where None.
        cache_batch_idx: integers [B], the row of the cache for each sequence.
        block_table: integers [B, pages]: key j is row j % page_size of page block_table[b, j // page_size].
        causal: query i of a sequence with n keys sees key j only if j <= i + n - Sq.
        rotary_interleaved: rotates elements 2i and 2i + 1 of D (GPT-J), else i and i + R / 2 (GPT-NeoX).
        num_splits: parts that keys are split into on a GPU, which do not depend on what else is in a batch; 0
            lets the library choose.
        return_softmax_lse: returns (out, lse), lse float32 [B, H, Sq].
        k_descale: of a k_cache in float8_e4m3fn what its elements are multiplied by: a number, or float32
            [Hkv] or [B, Hkv]; 1 where None. Such a cache is read alone, by up to 16 rows.
        v_descale: as k_descale.

    With Sq above 16, and of float32 on a GPU, it is the forward pass, for which pages are copied behind one
    another first. cache_leftpad raises NotImplementedError.
    """
    if cache_leftpad is not None:
        raise NotImplementedError("cache_leftpad: flash_attn_with_kvcache does not take it")
    left, right = window_size
    options = _kvcache.Options(
        softmax_scale,
        bool(causal),
        (int(left), int(right)),
        float(softcap),
        alibi_slopes,
        num_splits,
        return_softmax_lse,
        (k_descale, v_descale),
    )
    o, lse = _kvcache.attention(
        _half(q),
        q,
        (k_cache, v_cache),
        None if k is None and v is None else (k, v),
        None
        if rotary_cos is None and rotary_sin is None
        else _kvcache.Rotary(rotary_cos, rotary_sin, rotary_interleaved),
        _kvcache.Places(cache_seqlens, cache_batch_idx, block_table),
        options,
    )
    return (o, lse) if return_softmax_lse else o


def flash_mla_with_kvcache(
    q: Any,
    k_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    head_dim_v: int,
    tile_scheduler_metadata: Any = None,
    num_splits: Any = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
) -> tuple[Any, Any]:
    """Attention against latents (MLA, arXiv:2405.04434), as FlashMLA's function; forward pass alone.

    Args:
        q: [B, Sq, H, D] in the space of latents, D up to 576.
        k_cache: pages [num_pages, page_size, 1, D] of latents, whose first `head_dim_v` columns, up to 512,
            are values too; where block_table is None, [B, Sk, 1, D].
        block_table: integers [B, pages]: key j is row j % page_size of page block_table[b, j // page_size].
        cache_seqlens: keys of each sequence, integers [B]; all of the cache where None.
        tile_scheduler_metadata: not looked at, and neither is num_splits: plans have their own.
        softmax_scale: 1 / sqrt(D) where None.
        causal: query i of a sequence with n keys sees key j only if j <= i + n - Sq.

    Returns:
        out [B, Sq, H, head_dim_v], and lse float32 [B, H, Sq]. On a GPU it takes Hopper and 16 bits.
    """
    del tile_scheduler_metadata, num_splits
    places = _kvcache.Places(cache_seqlens, None, block_table)
    return _kvcache.latents(_half(q), q, k_cache, head_dim_v, places, softmax_scale, bool(causal))


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Any:
    """`torch.nn.functional.scaled_dot_product_attention`: [B, H, S, D], a causal mask aligned top-left.

    With attn_mask, or tensors of another rank than 4, torch tensors go to PyTorch's own function; numpy
    arrays raise NotImplementedError.
    """
    half = _half(query)
    query = half.tensor(query, "query")
    if attn_mask is not None or query.ndim != 4:
        if half is _torch:
            return torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        raise NotImplementedError(f"attn_mask, or {query.ndim} axes: [B, H, S, D] without a mask is taken")
    key, value = half.tensor(key, "key"), half.tensor(value, "value")
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError(
            f"key: heads is {key.shape[1]}, but query has {query.shape[1]}; enable_gqa lets them differ"
        )
    window = (-1, -1)
    rows, keys = query.shape[2], key.shape[2]
    if is_causal and rows < keys:
        key, value = key[:, :, :rows], value[:, :, :rows]
    if is_causal:
        window = (-1, max(rows - keys, 0))
    q, k, v = half.swapped(query), half.swapped(key), half.swapped(value)
    o, _ = half.attention(q, k, v, softmax_scale=scale, window=window, dropout_p=dropout_p)
    return half.swapped(o)
