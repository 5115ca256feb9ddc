"""Context parallelism: processes with a GPU each share out the rows of sequences."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, Optional

from . import _native
from ._context_parts import NO_WINDOW, Part, Problem, context_rows, natural, runs_of, window_of

if TYPE_CHECKING:
    import torch


class Plans:
    """Plans that were used last. All ranks ask for them in one order, and so forget the same ones."""

    def __init__(self, native: _native.Ranks, limit: int):
        self.native, self.limit = native, limit
        self.kept: dict[tuple[Problem, bool], _native.RankPlan] = {}
        #: What was called last, which is over after all others.
        self.last: Optional[_native.RankPlan] = None

    def get(
        self, problem: Problem, part: Part, backward: bool, before: Callable[[], None]
    ) -> _native.RankPlan:
        """The plan of a problem, or a new one; `before` is called before memory is taken for it."""
        key = (problem, backward)
        plan = self.kept.pop(key, None)
        if plan is None:
            self.native.check()
            while len(self.kept) >= self.limit:
                self.kept.pop(next(iter(self.kept))).close()
            before()
            plan = self.native.plan(part.native, backward)
        self.kept[key] = plan
        return plan

    def wait(self, timeout: float) -> None:
        """Waits for all calls' work."""
        if self.last is not None and self.last in self.kept.values():
            self.last.wait(timeout)
        self.native.check()

    def close(self, timeout: float, patience: float) -> None:
        """Parts from the other ranks once all are done; `patience`: seconds for them to come."""
        self.wait(timeout)
        self.native.barrier(patience)
        self.last = None
        while self.kept:
            self.kept.popitem()[1].close()
        self.native.close()


#: Seconds for work to end, as torch.distributed has them.
_TIMEOUT = 600.0


def _end(plans: Plans, process: int, patience: float) -> None:
    """At the end of the process, or of the last reference: parts from the others, if nothing went wrong."""
    if os.getpid() != process:
        return
    try:
        error = getattr(sys, "last_value", None)
        if error is not None:
            plans.native.give_up(f"{type(error).__name__}: {error}")
        plans.close(_TIMEOUT, patience)
    except RuntimeError:
        # The others hear of it when this process is gone.
        plans.native.leave()


class ContextParallel:
    """The processes of a launcher, each with a GPU and a part of each sequence's rows.

    Attention over all of them, and its gradients, have the bits of one GPU where head_dims are multiples of
    8 (in types of 16 bits). torchrun, Slurm and Open MPI are taken. Ranks meet at MASTER_ADDR, on FA_PORT or
    the port behind MASTER_PORT. All make the same calls in the same order, backward passes too.

    A rank that dies, hangs or computes something else is a `PeerError` in the next call of all others, and
    in those that wait. After one the process should end: its GPU may wait for ever. `with` tells the others
    of an exception, and parts from them at the end, as `close` does.

    Args:
        partition: as in `context_rows`.
        device: ordinal of this process's GPU; that of its local rank where None.
        patience: seconds after which a rank that says nothing is gone.
        transport: "nccl-ce", NCCL's gathers by copy engines, "nccl", by kernels, or None for the first of
            these that NCCL has.
        exit_after: where `item()`, say, waits for this GPU, and this GPU for a rank that is gone, no call can
            raise. So many seconds later the process ends by itself, with a line on stderr. None is never.
        max_plans: problems that memory is kept for, of gathered keys and values, the forward and the
            backward pass of each counted; those used last are kept.

    Raises:
        ValueError: names the argument.
        RuntimeError: where no launcher started this process, a GPU, NCCL or torch is missing, or a rank does
            not come within `patience`.
    """

    def __init__(
        self,
        *,
        partition: str = "zigzag",
        device: Optional[int] = None,
        patience: float = 30.0,
        transport: Optional[str] = None,
        exit_after: Optional[float] = 10.0,
        max_plans: int = 8,
    ):
        if max_plans < 2:
            raise ValueError(f"max_plans is {max_plans}; 2 or more is needed, one for each pass")
        # Refuses another partition before ranks meet.
        context_rows(2, 0, 1, partition=partition)
        try:
            # It brings NCCL along.
            import torch

            from . import _context_passes
        except ImportError as error:
            raise RuntimeError(f"context parallelism needs torch, which is not there: {error}") from error
        native = _native.Ranks(device, float(patience), transport, exit_after)
        #: Index of this rank, and how many there are.
        self.rank, self.world_size = native.rank, native.world_size
        #: This rank's GPU.
        self.device = torch.device("cuda", native.device)
        self.partition, self.transport = partition, native.transport
        self._native, self._passes = native, _context_passes
        self._plans, self._lock = Plans(native, max_plans), Lock()
        #: The stream of the call before, and its handle.
        self._stream: tuple[Any, int] = (None, 0)
        self._end = weakref.finalize(self, _end, self._plans, os.getpid(), float(patience))

    @property
    def _ranks(self) -> tuple[int, int]:
        return self.rank, self.world_size

    def rows(self, seqlen: int, *, window_size: tuple[int, int] = NO_WINDOW) -> torch.Tensor:
        """Positions of this rank's rows in a sequence, int64 [rows] on its GPU, for rotary embeddings.

        `window_size`: as in `context_rows`.
        """
        runs = runs_of(natural("seqlen", seqlen), self._ranks, self.partition, window_of(window_size))
        return self._passes.positions(runs, self.device)

    def shard(
        self, tensor: torch.Tensor, dim: int = 1, *, window_size: tuple[int, int] = NO_WINDOW
    ) -> torch.Tensor:
        """A copy of this rank's rows of a whole tensor, whose axis `dim` is a sequence's, where it lies."""
        seqlen = tensor.shape[dim]
        runs = runs_of(seqlen, self._ranks, self.partition, window_of(window_size))
        return self._passes.taken(tensor, dim, runs)

    def attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        seqlen: int,
        *,
        seqlen_k: Optional[int] = None,
        softmax_scale: Optional[float] = None,
        causal: bool = False,
        window_size: tuple[int, int] = NO_WINDOW,
        softcap: float = 0.0,
        return_lse: bool = False,
    ) -> Any:
        """`flash_attn_func` of whole sequences, of which each rank gives and gets its rows.

        On the GPU's current stream; the call waits for nothing but the first of its shapes, which all ranks
        plan together. Gradients are those of the sum of all ranks' losses.

        Args:
            q: [B, rows, H, D], this rank's rows, as `shard` takes them, on its GPU.
            k: [B, rows, Hkv, D], where Hkv divides H.
            v: [B, rows, Hkv, Dv].
            seqlen: rows of the whole sequences.
            seqlen_k: keys of these, at least as many; as `seqlen` where None.
            window_size: as in `flash_attn_func`. A left window has no gradients, and cuts queries otherwise
                than keys (`context_rows`).
            return_lse: returns (out, lse), with lse float32 [B, H, rows], which has no gradient.

        Returns:
            [B, rows, H, Dv] in the type of q.

        Raises:
            ValueError: names the argument, its value and the limit, and in this call what has no gradients.
            PeerError: a rank is gone, or computes something else.
            NotImplementedError: under torch.func, and in a CUDA graph. torch.compile breaks its graph here.
        """
        seqlen = natural("seqlen", seqlen)
        seqlen_k = seqlen if seqlen_k is None else natural("seqlen_k", seqlen_k)
        window, softcap = window_of(window_size), float(softcap)
        scale = None if softmax_scale is None else float(softmax_scale)
        settings = (bool(causal), scale, window, softcap)
        o, lse = self._passes.attention(self, q, k, v, (seqlen, seqlen_k), settings, return_lse)
        return (o, lse) if return_lse else o

    def check(self) -> None:
        """Raises PeerError where a rank is gone; waits for nothing."""
        self._native.check()

    def synchronize(self, timeout: float = _TIMEOUT) -> None:
        """Waits for the work of all calls, and raises PeerError within seconds where a rank is gone.

        Where work takes longer than `timeout` seconds, all ranks give up.
        """
        with self._lock:
            self._plans.wait(float(timeout))

    def barrier(self, timeout: float = 30.0) -> None:
        """Waits until all ranks have come here, for as many seconds."""
        self._native.barrier(float(timeout))

    @property
    def memory_bytes(self) -> int:
        """Bytes on the GPU that plans hold, outside of torch's allocator."""
        with self._lock:
            return sum(plan.memory_bytes for plan in self._plans.kept.values())

    def close(self, timeout: float = _TIMEOUT) -> None:
        """Waits until all ranks are done, and parts from them. The end of a process does the same.

        A process that ends with an exception does not: the others hear of that.
        """
        if self._end.alive:
            with self._lock:
                self._plans.close(float(timeout), float(timeout))
            self._end.detach()

    def __enter__(self) -> ContextParallel:
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.close()
        elif self._end.alive:
            self._native.give_up(f"{type(error).__name__}: {error}")
