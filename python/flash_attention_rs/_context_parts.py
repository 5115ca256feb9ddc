"""Who has which rows of a sequence that ranks share out: no tensors, and no GPU."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from . import _checks, _native, _plans

#: Runs of rows of a sequence, each with its first and the one behind its last.
Runs = tuple[tuple[int, int], ...]

NO_WINDOW = (-1, -1)


class Problem(NamedTuple):
    """What all ranks compute together, of whole tensors."""

    dtype: str
    #: Shapes of Q, K and V, [B, S, H, D].
    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    settings: _plans.Settings


class Part:
    """What one rank has of a problem."""

    __slots__ = ("native", "q_rows", "k_rows", "_has_gradients")

    def __init__(self, problem: Problem, ranks: tuple[int, int], partition: str):
        shapes = (problem.q, problem.k, problem.v, (*problem.q[:3], problem.v[3]))
        views = [((b, s, h, d), (s * h * d, h * d, d, 1)) for b, s, h, d in shapes]
        self.native = _native.Part(problem.dtype, views, problem.settings, ranks, partition)
        self.q_rows: Runs = tuple(self.native.query_rows())
        self.k_rows: Runs = tuple(self.native.key_rows())
        self._has_gradients = False

    def check_gradients(self) -> None:
        """Refuses what has no gradients."""
        if not self._has_gradients:
            self.native.check_gradients()
            self._has_gradients = True


part = lru_cache(maxsize=_plans.KEPT)(Part)


def count(runs: Runs) -> int:
    """How many rows there are."""
    return sum(end - start for start, end in runs)


def window_of(window_size: tuple[int, int]) -> _plans.Window:
    """The sides of a window."""
    left, right = map(int, window_size)
    return _checks.no_limit(left), _checks.no_limit(right)


@lru_cache(maxsize=_plans.KEPT)
def runs_of(seqlen: int, ranks: tuple[int, int], partition: str, window: _plans.Window) -> Runs:
    """The rows of a rank's queries."""
    shape = (1, seqlen, 1, 8)
    problem = Problem("f16", shape, shape, shape, _plans.Settings(False, 1.0, window, 0.0))
    return part(problem, ranks, partition).q_rows


def context_rows(
    seqlen: int,
    rank: int,
    world_size: int,
    *,
    partition: str = "zigzag",
    window_size: tuple[int, int] = NO_WINDOW,
) -> list[range]:
    """Which rows of a sequence a rank has, in its order. Needs no GPU: a data loader may ask too.

    Args:
        seqlen: rows of the whole sequence, at least two for each rank.
        rank: 0 to below `world_size`.
        partition: "zigzag" gives rank r of N the chunks r and 2N - 1 - r of 2N, so that under a causal mask
            all ranks have as much to do; "contiguous" the chunks 2r and 2r + 1.
        window_size: of queries under a left window, whose chunks begin at multiples of 384 rows. Keys are cut
            as without one.

    Raises:
        ValueError: names the argument, its value and the limit.
    """
    ranks = (natural("rank", rank), natural("world_size", world_size))
    runs = runs_of(natural("seqlen", seqlen), ranks, partition, window_of(window_size))
    return [range(start, end) for start, end in runs]


def natural(name: str, value: int) -> int:
    """The number, unless no sequence has so many rows."""
    value = int(value)
    if not 0 <= value <= _checks._MAX_SEQLEN:
        raise ValueError(f"{name} is {value}; 0 to {_checks._MAX_SEQLEN} is needed")
    return value
