"""Plans and launches by address. A wrong address, or one of freed memory, is undefined behaviour."""

from collections.abc import Sequence
from typing import Any, Optional

__version__: str
#: The most query rows of a sequence that are few.
MAX_DECODE_SEQLEN_Q: int

#: Shape and strides in elements, both in the order B, S, H, D.
_View = tuple[Sequence[int], Sequence[int]]
_CuSeqlens = Optional[tuple[Sequence[int], Sequence[int]]]

def describe(device: Optional[int] = None) -> str:
    """One line about GPU `device`, or about the CPU. RuntimeError says what is missing."""

class Forward:
    """A planned forward pass on a GPU by its ordinal, or on the CPU (None).

    ValueError names the argument, its value and the limit; RuntimeError says why the GPU cannot be used.
    """

    workspace_bytes: int
    def __init__(self, device: Optional[int], dtype_name: str, views: Sequence[_View], settings: Any) -> None:
        """`dtype_name`: f16, bf16 or f32; `views`: q, k, v, o; `settings`: of `_plans.Settings`."""
    def enqueue(self, at: Sequence[int], stream: int) -> None:
        """On a GPU. `at`: q, k, v, o, lse, workspace, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k,
        seqused_k; 0 is none.
        """
    def run(
        self, at: Sequence[int], cu_seqlens: _CuSeqlens = None, seqused_k: Optional[Sequence[int]] = None
    ) -> None:
        """On the CPU. `at`: q, k, v, o, lse; 0 is no lse."""

class Backward:
    """A planned backward pass; `views`: dout, dq, dk, dv."""

    workspace_bytes: int
    def __init__(
        self, forward: Forward, views: Sequence[_View], workspace_limit: Optional[int] = None
    ) -> None:
        """`workspace_limit`: bytes; with 0 no dS is stored, as over several ranks."""
    def enqueue(self, at: Sequence[int], gradients: Sequence[int], stream: int) -> None:
        """On a GPU. `at`: as `Forward.enqueue`; `gradients`: dout, dq, dk, dv, dlse, dsinks;
        0 is none of the last two.
        """
    def run(
        self,
        at: Sequence[int],
        gradients: Sequence[int],
        cu_seqlens: _CuSeqlens = None,
        seqused_k: Optional[Sequence[int]] = None,
    ) -> None:
        """On the CPU. `at`: q, k, v, o, lse."""

class Append:
    """A planned launch that writes new keys and values to a cache on a GPU."""

    def __init__(
        self,
        device: int,
        dtype_name: str,
        views: Sequence[_View],
        max_pages: Optional[int] = None,
        rotary: Optional[tuple[int, int, bool]] = None,
        queries: Optional[tuple[_View, _View, bool]] = None,
    ) -> None:
        """`views`: k, v, k_cache, v_cache, which are pages where `max_pages` is given; `rotary`: columns that
        are turned, rows of its tables, and whether pairs are neighbours; `queries`: q, where those that are
        turned go, and whether query i is at the position of new key i.
        """
    def enqueue(self, at: Sequence[int], stream: int) -> None:
        """`at`: k, v, k_cache, v_cache, seqused_k, page_table, rotary_cos, rotary_sin, q, q_out;
        0 is none of those behind seqused_k.
        """

class Decode:
    """A planned decode step; K and V are pages where `max_pages` is given."""

    workspace_bytes: int
    def __init__(
        self,
        device: Optional[int],
        dtype_name: str,
        views: Sequence[_View],
        settings: Any,
        max_pages: Optional[int] = None,
        num_splits: Optional[int] = None,
        descales: Optional[tuple[Any, Any]] = None,
        packed: Optional[tuple[int, int]] = None,
        latent: bool = False,
    ) -> None:
        """`descales`: of K and V in e4m3 one factor, those of the heads, or how many the device has.
        `packed`: sequences and the most rows of one, where queries lie behind one another.
        `latent`: V is the first columns of K.
        """
    def enqueue(self, at: Sequence[int], stream: int) -> None:
        """On a GPU. `at`: q, k, v, o, lse, workspace, seqused_k, page_table, alibi_slopes,
        sinks, k_descale, v_descale, cu_seqlens_q; 0 is none.
        """
    def run(self, at: Sequence[int]) -> None:
        """On the CPU. `at`: q, k, v, o, lse, seqused_k, page_table."""

class PeerError(RuntimeError):
    """Another rank is gone, gave up, or computes something else: there is no result."""

class Part:
    """A rank's part of a problem. `views`: whole q, k, v, o; `ranks`: the rank, and how many there are."""

    def __init__(
        self,
        dtype_name: str,
        views: Sequence[_View],
        settings: Any,
        ranks: tuple[int, int],
        partition: str,
    ) -> None: ...
    def query_rows(self) -> list[tuple[int, int]]:
        """Where runs of the rank's queries begin and end in their sequence."""
    def key_rows(self) -> list[tuple[int, int]]:
        """The same of its keys."""
    def check_gradients(self) -> None:
        """ValueError says what has no gradients."""

class RankPlan:
    """What a rank computes with the others."""

    memory_bytes: int
    reasons: list[str]
    def enqueue(self, at: Sequence[int], stream: int) -> None:
        """All ranks together. `at`: q, k, v, o, lse, dout, dq, dk, dv; 0 is none."""
    def wait(self, timeout: float) -> None:
        """For the last call's work. Where that takes longer, all ranks give up."""
    def close(self) -> None: ...

class Ranks:
    """The ranks that a launcher started. A wait of seconds that is over, and a rank that is gone, are
    PeerError.
    """

    rank: int
    world_size: int
    device: int
    transport: str
    def __init__(
        self,
        device: Optional[int] = None,
        patience: float = 30.0,
        transport: Optional[str] = None,
        exit_after: Optional[float] = None,
    ) -> None: ...
    def plan(self, part: Part, has_gradients: bool) -> RankPlan:
        """All ranks together."""
    def check(self) -> None: ...
    def barrier(self, timeout: float) -> None: ...
    def give_up(self, reason: str) -> None: ...
    def leave(self) -> None:
        """Before the process ends, which work that waits for a rank that is gone then holds up for 3 s."""
    def close(self) -> None:
        """Parts from the others, once all plans are closed."""
