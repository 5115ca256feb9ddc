"""Pages of a cache: their table, and their rows in order for the passes that take no pages."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional


class Paged(NamedTuple):
    """Pages of keys and values, and which of them sequences have."""

    #: [num_pages, page_size, Hkv, D].
    k: Any
    v: Any
    #: int32 [B, pages].
    table: Any
    #: Keys that each sequence uses, int32 [B].
    used: Any

    @property
    def room(self) -> int:
        """Keys that a sequence has room for."""
        return int(self.table.shape[1] * self.k.shape[1])


def paged(
    half: Any,
    pages: tuple[Any, Any],
    block_table: Any,
    batch: int,
    cu_seqlens_k: Any,
    seqused_k: Optional[Any],
    max_seqlen_k: int,
) -> Paged:
    """The pages that `batch` sequences of at most so many keys have, once they are checked."""
    k, v = (half.tensor(t, name) for t, name in zip(pages, "kv"))
    if k.ndim != 4 or k.shape[:3] != v.shape[:3]:
        raise ValueError(
            f"k is of shape {tuple(k.shape)} and v of shape {tuple(v.shape)}; with block_table both are "
            "[num_pages, page_size, Hkv, D]"
        )
    table = half.integers("block_table", block_table)
    check_shape("block_table", table, (batch, table.shape[-1] if table.ndim == 2 else "pages"))
    table = that_hold(table, k, max_seqlen_k)
    if seqused_k is None:
        if cu_seqlens_k is None:
            raise ValueError(
                "block_table is given without cu_seqlens_k or seqused_k, which say how many keys count"
            )
        offsets = half.integers("cu_seqlens_k", cu_seqlens_k)
        check_shape("cu_seqlens_k", offsets, (batch + 1,))
        used = offsets[1:] - offsets[:-1]
    else:
        used = half.integers("seqused_k", seqused_k)
        check_shape("seqused_k", used, (batch,))
    check_table(half, "block_table", table, k.shape[:2], used)
    return Paged(k, v, half.beside(table, k), used)


def in_order(half: Any, pages: Paged) -> tuple[Any, Any, Any]:
    """A copy of keys and values behind one another, [B * room, H, D], and where each sequence's begin."""
    batch = pages.table.shape[0]
    starts = half.integers("cu_seqlens_k", half.arange(batch + 1, pages.k) * pages.room)
    k, v = (half.taken(t, pages.table) for t in pages[:2])
    k, v = (t.reshape(batch * pages.room, *t.shape[2:]) for t in (k, v))
    return k, v, starts


def that_hold(table: Any, pages: Any, keys: Optional[int]) -> Any:
    """The entries of a table that hold so many keys of a sequence, or all; none of a cache without rows."""
    count, page_size = pages.shape[:2]
    if count == 0 or page_size == 0:
        return table[:, :0]
    return table if keys is None else table[:, : -(-keys // page_size)]


def in_sequences(pages: Any, batch: int) -> Any:
    """Pages of one sequence after the other as [B, rows, H, D]."""
    count, page_size, *rest = pages.shape
    return pages.reshape(batch, count // max(batch, 1) * page_size, *rest)


def check_shape(name: str, tensor: Any, shape: tuple[Any, ...]) -> None:
    """Refuses another shape."""
    if tuple(tensor.shape) != shape:
        needed = ", ".join(map(str, shape))
        raise ValueError(f"{name}: shape is {tuple(tensor.shape)}; [{needed}] is needed")


def check_table(half: Any, name: str, table: Any, cache: tuple[int, int], used: Any) -> None:
    """Refuses entries in use that are no page of the cache, where values can be looked at."""
    if not (half.is_on_host(table) and (isinstance(used, int) or half.is_on_host(used))):
        return
    count, page_size = cache
    used = used if isinstance(used, int) else used[:, None]
    in_use = half.arange(table.shape[1], table)[None] * page_size < used
    wrong = in_use & ((table < 0) | (table >= count))
    for b, of in enumerate(wrong.tolist()):
        if True in of:
            page = of.index(True)
            at = f"[{b}]" if name == "cache_batch_idx" else f"[{b}][{page}]"
            kind = "rows" if name == "cache_batch_idx" else "pages"
            raise ValueError(f"{name}{at} is {int(table[b, page])}; there are {count} {kind}")
