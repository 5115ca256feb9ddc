"""The passes on torch tensors, which the ops and the calls beside PyTorch's dispatcher share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor, empty_like

from . import _checks, _launch, _plans
from ._launch import Kept, Plan, address, enqueue, gradient_like, index_of, on_host, place, rows_of, view
from ._plans import Settings

_forwards, _backwards, _decodes = Kept(), Kept(), Kept()

#: Addresses of slopes, sinks, offsets and used keys of a call without them.
_NO_LISTS = (0, 0, 0, 0, 0)


def _settings(
    q: Tensor, scale: Optional[float], causal: bool, left: int, right: int, softcap: float, lists: Any
) -> Settings:
    _checks.head_dim(q)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    window = (_checks.no_limit(left), _checks.no_limit(right))
    settings = Settings(bool(causal), scale, window, float(softcap), *(lists or ()))
    return settings._replace(batch_invariant=_plans.batch_invariant)


def _plan_forward(q: Tensor, k: Tensor, v: Tensor, axes: int, settings: Settings, by_heads: bool) -> Plan:
    dtype = _checks.qkv(q, k, v, axes, _launch.name_of)
    _launch.check_place(q, k, v)
    plan = Plan(q, v.shape[-1], by_heads)
    if 0 in plan.o[0] or k.numel() == 0:
        if by_heads:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        _checks.shapes(q, k, v)
        shapes = (q.shape, k.shape, v.shape, (*q.shape[:-1], v.shape[-1]))
        _plans.check_empty(dtype, shapes, settings)
        return plan
    views = (*(view(t, by_heads) for t in (q, k, v)), _plans.batched(*plan.o, by_heads))
    plan.take(_plans.forward(place(q), dtype, views, settings), (q, k, v))
    return plan


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alibi: Optional[Tensor],
    sinks: Optional[Tensor],
    cu_q: Optional[Tensor],
    cu_k: Optional[Tensor],
    seqused: Optional[Tensor],
    rng: Optional[Tensor],
    max_q: int,
    max_k: int,
    scale: Optional[float],
    causal: bool,
    left: int,
    right: int,
    softcap: float,
    dropout_p: float,
    needs_lse: bool = True,
    before: Optional[Callable[[], None]] = None,
    *,
    by_heads: bool = False,
) -> tuple[Tensor, Optional[Tensor]]:
    """O and lse; `by_heads`: Q, K, V and O are [B, H, S, D] in place of [B, S, H, D].

    `before` is called once nothing can be refused any more, and may write to K and V.
    """
    lists: Any = None
    behind: tuple[int, ...] = _NO_LISTS
    if not (alibi is None and sinks is None and cu_q is None and seqused is None and rng is None):
        tensors = (alibi, sinks, cu_q, cu_k, seqused, rng)
        lists, behind = _launch.lists(q, *tensors, (max_q, max_k), dropout_p)
    index = index_of(q)
    # One tuple: it is made and looked up in each call.
    key = (
        *(index, index_of(k), index_of(v), q.dtype, k.dtype, v.dtype),
        *(q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride()),
        *(scale, causal, left, right, softcap, lists, by_heads, _plans.batch_invariant),
    )
    plan = _forwards.get(key)
    if plan is None:
        settings = _settings(q, scale, causal, left, right, softcap, lists)
        plan = _plan_forward(q, k, v, 4 if cu_q is None else 3, settings, by_heads)
        if settings.come_again:
            _forwards.keep(key, plan)
    if before is not None:
        before()
    o, lse = plan.outputs(q, needs_lse)
    if plan.native is None:
        if sinks is not None and sinks.numel() > 0 and lse is not None:
            lse.copy_(_launch.lse_of_sinks(sinks, cu_q, q.shape[0]).expand_as(lse))
        return o, lse
    if plan.copies:
        q, k, v = rows_of(q), rows_of(k), rows_of(v)
    at = (q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), 0 if lse is None else lse.data_ptr())
    if index < 0:
        plan.native.run(at, *on_host(cu_q, cu_k, seqused))
    else:
        enqueue(plan, q, index, at, behind)
    return o, lse


def _plan_backward(
    tensors: tuple[Tensor, ...], axes: int, settings: Settings, by_heads: bool, dlse: Optional[Tensor]
) -> Plan:
    q, k, v, o, dout, lse = tensors
    dtype = _checks.qkv(q, k, v, axes, _launch.name_of)
    _launch.check_place(*tensors, dlse)
    plan = Plan(q, v.shape[-1], by_heads)
    if o.numel() == 0 or k.numel() == 0:
        return plan
    for name, t in (("o", o), ("dout", dout)):
        if t.dtype != q.dtype:
            raise ValueError(f"{name} holds {t.dtype}, but q holds {q.dtype}")
    for name, rows in (("lse", lse), ("dlse", dlse)):
        if rows is not None and (rows.dtype != torch.float32 or tuple(rows.shape) != plan.lse):
            raise ValueError(f"{name}: {rows.dtype} {tuple(rows.shape)}; torch.float32 {plan.lse} is needed")
    views = tuple(view(t, by_heads) for t in (q, k, v, o))
    gradients = (dout, *(gradient_like(_launch.without_memory(t)) for t in (q, k, v)))
    gradient_views = tuple(view(t, by_heads) for t in gradients)
    plan.take(_plans.backward(place(q), dtype, views, settings, gradient_views), tensors[:5])
    return plan


def backward(
    dout: Tensor,
    dlse: Optional[Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    alibi: Optional[Tensor],
    sinks: Optional[Tensor],
    cu_q: Optional[Tensor],
    cu_k: Optional[Tensor],
    seqused: Optional[Tensor],
    rng: Optional[Tensor],
    max_q: int,
    max_k: int,
    scale: Optional[float],
    causal: bool,
    left: int,
    right: int,
    softcap: float,
    dropout_p: float,
    *,
    by_heads: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
    """dQ, dK, dV and the gradient of sinks, where there are some."""
    lists: Any = None
    behind: tuple[int, ...] = _NO_LISTS
    if not (alibi is None and sinks is None and cu_q is None and seqused is None and rng is None):
        tensors = (alibi, sinks, cu_q, cu_k, seqused, rng)
        lists, behind = _launch.lists(q, *tensors, (max_q, max_k), dropout_p)
    index = index_of(q)
    key = (
        *(index, index_of(k), index_of(v), index_of(o), index_of(dout), index_of(lse)),
        *(q.dtype, k.dtype, v.dtype, o.dtype, dout.dtype, lse.dtype),
        *(q.shape, k.shape, v.shape, o.shape, dout.shape, lse.shape),
        *(q.stride(), k.stride(), v.stride(), o.stride(), dout.stride()),
        *(scale, causal, left, right, softcap, lists, by_heads),
        None if dlse is None else (index_of(dlse), dlse.dtype, dlse.shape),
    )
    plan = _backwards.get(key)
    if plan is None:
        settings = _settings(q, scale, causal, left, right, softcap, lists)
        axes = 4 if cu_q is None else 3
        plan = _plan_backward((q, k, v, o, dout, lse), axes, settings, by_heads, dlse)
        if settings.come_again:
            _backwards.keep(key, plan)
    dq, dk, dv = gradient_like(q), gradient_like(k), gradient_like(v)
    dsinks = None if sinks is None else empty_like(sinks)
    # Rows of no sequence are not written, nor those of keys that it does not use.
    has_gaps = plan.native is None or cu_q is not None
    if has_gaps:
        dq.zero_()
    if has_gaps or seqused is not None:
        dk.zero_(), dv.zero_()
    if plan.native is None:
        return dq, dk, dv, None if sinks is None else _launch.gradient_of_sinks(sinks, dlse, cu_q)
    if plan.copies:
        q, k, v, o, dout = rows_of(q), rows_of(k), rows_of(v), rows_of(o), rows_of(dout)
    lse = lse.contiguous()
    dlse = None if dlse is None else dlse.contiguous()
    at = (q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr())
    written = (dout.data_ptr(), dq.data_ptr(), dk.data_ptr(), dv.data_ptr(), address(dlse), address(dsinks))
    if index < 0:
        plan.native.run(at, written, *on_host(cu_q, cu_k, seqused))
    else:
        enqueue(plan, q, index, at, behind, written)
    return dq, dk, dv, dsinks


def _plan_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seqused: Optional[Tensor],
    page_table: Optional[Tensor],
    settings: Settings,
    pages: Optional[int],
    num_splits: int,
    descales: Optional[tuple[Any, Any]],
    packed: Optional[tuple[int, int]],
    latent: bool,
) -> Plan:
    if descales is None:
        dtype = _checks.qkv(q if packed is None else q.unsqueeze(0), k, v, 4, _launch.name_of)
    else:
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            _checks.rank(name, tensor, 4)
        dtype = _launch.name_of(q.dtype)
    _launch.check_place(q, k, v, seqused, page_table)
    plan = Plan(q, v.shape[-1])
    if 0 in plan.o[0] or k.numel() == 0:
        return plan
    views = (view(q), view(k), view(v), _plans.batched(*plan.o))
    splits = num_splits if num_splits > 0 and place(q) is not None else None
    native = _plans.decode(place(q), dtype, views, settings, pages, splits, descales, packed, latent)
    plan.take(native, (q, k, v))
    return plan


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seqused: Optional[Tensor],
    page_table: Optional[Tensor],
    alibi: Optional[Tensor],
    sinks: Optional[Tensor],
    scale: float,
    causal: bool,
    left: int,
    right: int,
    softcap: float,
    num_splits: int,
    k_descale: Any = None,
    v_descale: Any = None,
    cu_seqlens_q: Optional[Tensor] = None,
    max_seqlen_q: int = 0,
    latent: bool = False,
    needs_lse: bool = True,
    before: Optional[Callable[[], None]] = None,
) -> tuple[Tensor, Optional[Tensor]]:
    """O and lse of queries against a cache, packed with `cu_seqlens_q`; `latent`: V is the first columns of
    K; `before`: as of the forward pass.
    """
    batch, pages = q.shape[0], None
    packed = None
    if cu_seqlens_q is not None:
        batch = cu_seqlens_q.numel() - 1
        packed = (batch, max_seqlen_q)
        is_contiguous = cu_seqlens_q.is_contiguous()
        _checks.int32_list("cu_seqlens_q", cu_seqlens_q, (batch + 1,), torch.int32, is_contiguous)
    lists: Any = None
    descales: Any = None
    k_factors = v_factors = None
    if _launch.is_e4m3(k):
        of_k, k_factors = _launch.descale("k_descale", k_descale, q, k.shape[2])
        of_v, v_factors = _launch.descale("v_descale", v_descale, q, v.shape[2])
        descales = (of_k, of_v)
    if not (alibi is None and sinks is None):
        offsets = (cu_seqlens_q, cu_seqlens_q)
        lists, _ = _launch.lists(q, alibi, sinks, *offsets, None, None, (max_seqlen_q, 0), 0.0)
    if seqused is not None:
        _checks.int32_list("cache_seqlens", seqused, (batch,), torch.int32, seqused.is_contiguous())
    if page_table is not None:
        pages = page_table.shape[-1]
        shape, is_contiguous = (batch, pages), page_table.is_contiguous()
        _checks.int32_list("block_table", page_table, shape, torch.int32, is_contiguous)
    index = index_of(q)
    key = (
        *(index, index_of(k), index_of(v), q.dtype, k.dtype, v.dtype),
        *(q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride()),
        *(scale, causal, left, right, softcap, lists, num_splits, pages, _plans.batch_invariant),
        *(descales, packed, latent),
        None if seqused is None else index_of(seqused),
        None if page_table is None else index_of(page_table),
    )
    plan = _decodes.get(key)
    if plan is None:
        settings = _settings(q, scale, causal, left, right, softcap, lists)
        of_cache = (pages, num_splits, descales, packed, latent)
        plan = _plan_decode(q, k, v, seqused, page_table, settings, *of_cache)
        if settings.come_again:
            _decodes.keep(key, plan)
    if before is not None:
        before()
    o, lse = plan.outputs(q, needs_lse)
    if plan.native is None:
        if sinks is not None and lse is not None:
            lse.copy_(_launch.lse_of_sinks(sinks, None, batch).expand_as(lse))
        return o, lse
    if plan.copies:
        q, k, v = rows_of(q), rows_of(k), rows_of(v)
    at = (q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), 0 if lse is None else lse.data_ptr())
    behind = (address(seqused), address(page_table))
    if index < 0:
        plan.native.run((*at, *behind))
    else:
        factors = (address(k_factors), address(v_factors), address(cu_seqlens_q))
        enqueue(plan, q, index, at, (*behind, address(alibi), address(sinks), *factors))
    return o, lse
