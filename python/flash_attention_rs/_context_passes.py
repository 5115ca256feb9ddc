"""The passes of context parallelism on torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import torch
from torch import Tensor

from . import _checks, _context_parts, _launch, _plans, _torch
from ._context_parts import Part, Problem, Runs
from ._ops import is_eager

if TYPE_CHECKING:
    from ._context import ContextParallel


def positions(runs: Runs, device: Any) -> Tensor:
    """The rows of runs, int64."""
    rows = [torch.arange(start, end, device=device) for start, end in runs]
    return torch.cat(rows) if rows else torch.zeros(0, dtype=torch.int64, device=device)


def taken(t: Tensor, dim: int, runs: Runs) -> Tensor:
    """These rows of a tensor, one behind the other."""
    rows = [t.narrow(dim, start, end - start) for start, end in runs]
    return torch.cat(rows, dim) if rows else t.narrow(dim, 0, 0).clone()


def part_of(
    tensors: tuple[Tensor, Tensor, Tensor],
    seqlens: tuple[int, int],
    settings: tuple[Any, ...],
    ranks: tuple[int, int],
    partition: str,
) -> tuple[Problem, Part]:
    """The whole problem of these parts of Q, K and V, and what a rank has of it, once they fit."""
    q, k, v = tensors
    dtype = _checks.qkv(q, k, v, 4, _launch.name_of)
    _checks.head_dim(q)
    causal, scale, window, softcap = settings
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    of = _plans.Settings(causal, scale, window, softcap, batch_invariant=_plans.batch_invariant)
    rows, keys = seqlens
    of_q, of_k, of_v = ((t.shape[0], n, *t.shape[2:]) for t, n in zip(tensors, (rows, keys, keys)))
    problem = Problem(dtype, of_q, of_k, of_v, of)
    part = _context_parts.part(problem, ranks, partition)
    for name, t, of_whole in (("q", q, rows), ("k", k, keys), ("v", v, keys)):
        runs = part.q_rows if name == "q" else part.k_rows
        has = _context_parts.count(runs)
        if t.shape[1] != has:
            of_window = f", window_size=({window[0]}, -1)" if name == "q" and window[0] is not None else ""
            raise ValueError(
                f"{name} has {t.shape[1]} rows; rank {ranks[0]} of {ranks[1]} has {has} of {of_whole}, "
                f"which rows({of_whole}{of_window}) lists"
            )
    return problem, part


# What torch.compile has compiled is called before and behind.
@torch.compiler.disable
def attention(
    group: ContextParallel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seqlens: tuple[int, int],
    settings: tuple[Any, ...],
    needs_lse: bool,
) -> tuple[Tensor, Optional[Tensor]]:
    """O and lse of this rank's rows; lse may be left out."""
    tensors = (_torch.tensor(q), _torch.tensor(k, "k"), _torch.tensor(v, "v"))
    if not is_eager(*tensors):
        raise NotImplementedError("context parallelism runs eagerly: not under torch.func or a dispatch mode")
    q, k, v = _torch.autocast("cuda", *tensors)
    ranks = (group.rank, group.world_size)
    problem, part = part_of((q, k, v), seqlens, settings, ranks, group.partition)
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.device != group.device:
            raise ValueError(f"{name} is on {t.device}; rank {group.rank} has {group.device}")
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        part.check_gradients()
        return Attention.apply(q, k, v, group, problem, part)
    return forward(group, problem, part, q, k, v, needs_lse)


def _held(t: Tensor) -> Tensor:
    """The tensor as a plan has it: contiguous, with a row at least."""
    return t.contiguous() if t.shape[1] > 0 else t.new_zeros((t.shape[0], 1, *t.shape[2:]))


def _run(group: ContextParallel, problem: Problem, part: Part, backward: bool, at: tuple[int, ...]) -> None:
    """Launches on the current stream, behind the call before."""

    def launch(stream: int) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise NotImplementedError("context parallelism: there are no CUDA graphs of several GPUs")
        # Plans take memory beside torch's, which may have all of it without using it.
        plan = group._plans.get(problem, part, backward, torch.cuda.empty_cache)
        before, handle = group._stream
        if before is None or handle != stream:
            current = torch.cuda.current_stream(group.device)
            if before is not None:
                current.wait_stream(before)
            group._stream = (current, stream)
        group._plans.last = plan
        plan.enqueue(at, stream)

    with group._lock:
        _launch.on_stream(group.device.index, launch)


def forward(
    group: ContextParallel, problem: Problem, part: Part, q: Tensor, k: Tensor, v: Tensor, needs_lse: bool
) -> tuple[Tensor, Optional[Tensor]]:
    """O and lse of tensors that fit."""
    rows = q.shape[1]
    q, k, v = _held(q), _held(k), _held(v)
    o = q.new_empty((*q.shape[:3], v.shape[3]))
    lse = _launch.lse_like(q) if needs_lse else None
    at = (q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), _launch.address(lse), 0, 0, 0, 0)
    _run(group, problem, part, False, at)
    if rows == 0:
        return o[:, :0], None if lse is None else lse[:, :, :0]
    return o, lse


class Attention(torch.autograd.Function):
    """The forward pass with its gradient, over all ranks."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: ContextParallel, problem: Problem, part: Part
    ) -> tuple[Tensor, Optional[Tensor]]:
        """O and lse, which has no gradient."""
        o, lse = forward(group, problem, part, q, k, v, True)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.mark_non_differentiable(lse)
        ctx.call = (group, problem, part)
        return o, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, _dlse: Any) -> tuple[Optional[Tensor], ...]:
        """dQ, dK and dV of this rank's rows."""
        if torch.is_grad_enabled():
            raise NotImplementedError("gradients over several GPUs have none themselves: no create_graph")
        *saved, lse = ctx.saved_tensors
        q, k, v, o, dout = map(_held, (*saved, dout))
        lse = lse if lse.numel() > 0 else _launch.lse_like(q)
        dq, dk, dv = map(torch.empty_like, (q, k, v))
        group, problem, part = ctx.call
        at = tuple(t.data_ptr() for t in (q, k, v, o, lse, dout, dq, dk, dv))
        _run(group, problem, part, True, at)
        dq, dk, dv = (t[:, : of.shape[1]] for t, of in zip((dq, dk, dv), saved))
        return dq, dk, dv, None, None, None
