"""Attention against a K/V cache: check, rotate, append, attend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Optional

from . import _native
from ._pages import Paged, check_shape, check_table, in_sequences, that_hold

#: Of keys and of values.
Pair = tuple[Any, Any]


class Cache(NamedTuple):
    """Keys and values, and which of them a sequence has."""

    k: Any
    v: Any
    #: int32 [B, pages]: pages of each sequence. None where sequence b is row b.
    table: Any
    #: Keys of each sequence: of all alike, int32 [B], or None where the cache is full.
    used: Any
    #: Keys that a sequence has room for.
    room: int


class Places(NamedTuple):
    """Where keys lie, as a caller says it."""

    cache_seqlens: Any
    cache_batch_idx: Any
    block_table: Any


class Rotary(NamedTuple):
    """Cosines and sines, [rows, R / 2], and which elements of D are a pair."""

    cos: Any
    sin: Any
    interleaved: bool


class Options(NamedTuple):
    """What is computed."""

    softmax_scale: Optional[float]
    causal: bool
    window: tuple[int, int]
    softcap: float
    alibi_slopes: Any
    num_splits: int
    needs_lse: bool
    #: Of K and V in e4m3.
    descales: tuple[Any, Any]

    @property
    def in_order(self) -> bool:
        """Whether queries see different keys: they are tokens one after the other."""
        return self.causal or max(self.window) >= 0


def attention(
    half: Any,
    q: Any,
    caches: Sequence[Any],
    new: Optional[Pair],
    rotary: Optional[Rotary],
    places: Places,
    options: Options,
) -> tuple[Any, Any]:
    """O and lse, once `new` is in the cache, which stays as it is where anything is refused."""
    q = half.tensor(q)
    q, *caches = _tensors(half, q, ("q", "k_cache", "v_cache"), (q, *caches))
    _check_descales(half, q, caches, new, options)
    if new is not None:
        if new[0] is None or new[1] is None:
            raise ValueError("k and v are written together, and one of them is None")
        new = _tensors(half, q, ("k", "v"), new)
    cache = _cache(half, q, caches, places, 0 if new is None else new[0].shape[1])
    if new is not None:
        _check_new(half, cache, new)
    if rotary is not None:
        rotary = _checked_rotary(half, q, cache, new, rotary, options.in_order)
    used, append = cache.used, None
    if new is not None:
        start = _listed(half, used, q.shape[0], q)
        by_kernel = half.append(q, cache, new, start, rotary, options.in_order)
        q, append = by_kernel or _by_operations(half, q, cache, new, start, rotary, options.in_order)
        used = used + new[0].shape[1]
    scale = q.shape[-1] ** -0.5 if options.softmax_scale is None else options.softmax_scale
    is_few = q.shape[1] <= _native.MAX_DECODE_SEQLEN_Q and half.decodes(q)
    if is_few or cache.table is not None and half.reads_pages(q, cache.k, cache.v):
        return half.decode(
            q,
            cache.k,
            cache.v,
            seqused=_listed(half, used, q.shape[0], q),
            page_table=cache.table,
            alibi_slopes=options.alibi_slopes,
            softmax_scale=scale,
            causal=options.causal,
            window=options.window,
            softcap=options.softcap,
            num_splits=options.num_splits,
            descales=options.descales,
            needs_lse=options.needs_lse,
            before=append,
        )
    k, v, seqused, before = _in_rows(half, cache, used, append)
    return half.attention(
        q,
        k,
        v,
        seqused_k=seqused,
        alibi_slopes=options.alibi_slopes,
        softmax_scale=scale,
        causal=options.causal,
        window=options.window,
        softcap=options.softcap,
        needs_lse=options.needs_lse,
        casts=False,
        before=before,
    )


def latents(
    half: Any,
    q: Any,
    k_cache: Any,
    head_dim_v: int,
    places: Places,
    softmax_scale: Optional[float],
    causal: bool,
) -> tuple[Any, Any]:
    """O and lse of queries against latents, whose first columns are their values."""
    q = half.tensor(q)
    q, k = _tensors(half, q, ("q", "k_cache"), (q, k_cache))
    if not 1 <= head_dim_v <= k.shape[-1]:
        raise ValueError(f"head_dim_v is {head_dim_v}; 1 to {k.shape[-1]} columns of k_cache are values")
    cache = _cache(half, q, (k, k[..., :head_dim_v]), places, 0)
    return half.decode(
        q,
        cache.k,
        cache.v,
        seqused=_listed(half, cache.used, q.shape[0], q),
        page_table=cache.table,
        alibi_slopes=None,
        softmax_scale=q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
        causal=causal,
        window=(-1, -1),
        softcap=0.0,
        needs_lse=True,
        latent=True,
    )


def are_decoded(half: Any, q: Any, pages: Paged, offsets: Any, rows: int, sinks: Any) -> bool:
    """Whether decode takes packed queries on pages, without gradients: the same few rows of each sequence, or
    any where the GPU reads pages by tensor maps."""
    q = half.tensor(q)
    if not (q.ndim == 3 and rows > 0 and half.is_inference(q, pages.k, pages.v, sinks)):
        return False
    if q.dtype != pages.k.dtype or q.dtype != pages.v.dtype:
        return False
    return _are_alike(half, q, pages, offsets, rows) or half.reads_pages(q, pages.k, pages.v)


def _are_alike(half: Any, q: Any, pages: Paged, offsets: Any, rows: int) -> bool:
    """Whether each sequence has the same few rows."""
    batch = pages.table.shape[0]
    if not (rows <= _native.MAX_DECODE_SEQLEN_Q and q.shape[0] == batch * rows and half.decodes(q)):
        return False
    # No sequence has more rows, so that all have as many; what the host can look at may be wrong.
    return not half.is_on_host(offsets) or offsets.tolist() == [b * rows for b in range(batch + 1)]


def decoded(
    half: Any,
    q: Any,
    pages: Paged,
    offsets: Any,
    rows: int,
    *,
    softmax_scale: Optional[float],
    **options: Any,
) -> Any:
    """O, [total_q, H, Dv], and lse, [H, total_q], of packed queries that `are_decoded`."""
    q = half.tensor(q)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    lists = {"seqused": half.beside(pages.used, q), "page_table": half.integers("block_table", pages.table)}
    if not _are_alike(half, q, pages, offsets, rows):
        packed = {"offsets": half.beside(offsets, q), "max_seqlen_q": rows}
        return half.decode(q, pages.k, pages.v, **lists, **packed, softmax_scale=scale, **options)
    split = q.reshape(pages.table.shape[0], rows, *q.shape[1:])
    o, lse = half.decode(split, pages.k, pages.v, **lists, softmax_scale=scale, **options)
    o = o.reshape(*q.shape[:-1], o.shape[-1])
    return o, None if lse is None else lse.swapaxes(0, 1).reshape(q.shape[1], q.shape[0])


def _listed(half: Any, used: Any, batch: int, like: Any) -> Any:
    """Keys of each sequence as int32 [B], or None, from those or the number of all."""
    return half.filled(used, batch, like) if isinstance(used, int) else used


def _in_rows(half: Any, cache: Cache, used: Any, append: Optional[Callable[[], None]]) -> tuple[Any, ...]:
    """K and V as the forward pass takes them, their used keys, and what is called before they are read."""
    if cache.table is None and (used is None or isinstance(used, int)):
        return cache.k[:, :used], cache.v[:, :used], None, append
    table = cache.table
    batch = cache.k.shape[0] if table is None else table.shape[0]
    seqused = _listed(half, used, batch, cache.k)
    if table is None:
        return cache.k, cache.v, seqused, append
    table = that_hold(table, cache.k, used if isinstance(used, int) else None)
    rows = [half.empty((batch * table.shape[1], *pages.shape[1:]), pages) for pages in cache[:2]]

    def gather() -> None:
        if append is not None:
            append()
        for pages, into in zip(cache[:2], rows):
            half.taken(pages, table, into)

    return *(in_sequences(pages, batch) for pages in rows), seqused, gather


def _tensors(half: Any, q: Any, names: tuple[str, ...], given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors of four axes, of q's type, or caches in e4m3, and on its device, which have no gradient."""
    tensors = tuple(map(half.tensor, given, names))
    for name, tensor in zip(names, tensors):
        if tensor.ndim != 4:
            raise ValueError(f"{name} has {tensor.ndim} axes; 4 are needed")
        if tensor.dtype != q.dtype and not (name.endswith("_cache") and half.is_e4m3(tensor)):
            raise ValueError(f"{name} holds {tensor.dtype}, but q holds {q.dtype}")
    half.check_forward_only(q, names, tensors)
    return tensors


def _check_descales(half: Any, q: Any, caches: Sequence[Any], new: Optional[Pair], options: Options) -> None:
    """Refuses factors without a cache in e4m3, and what such a cache is not taken with."""
    k, v = caches
    if k.dtype != v.dtype:
        raise ValueError(f"v_cache holds {v.dtype}, but k_cache holds {k.dtype}")
    if not half.is_e4m3(k):
        for name, descale in zip(("k_descale", "v_descale"), options.descales):
            if descale is not None:
                raise ValueError(f"{name} is given, but k_cache holds {k.dtype}; it is for float8_e4m3fn")
        return
    if new is not None:
        raise ValueError(
            f"k is given, but k_cache holds {k.dtype}, which is read alone: write k / k_descale there before"
        )
    if q.shape[1] > _native.MAX_DECODE_SEQLEN_Q or not half.decodes(q):
        limit = _native.MAX_DECODE_SEQLEN_Q
        raise ValueError(
            f"q has {q.shape[1]} rows of {q.dtype}; on a cache in {k.dtype} at most {limit} are taken, "
            "and on a GPU of 16 bits"
        )


def _cache(half: Any, q: Any, caches: Sequence[Any], places: Places, new: int) -> Cache:
    """The cache, with room for `new` more keys of each sequence."""
    k, v = caches
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(f"v_cache: shape is {tuple(v.shape)}, but k_cache has {tuple(k.shape)}")
    batch, name, table = q.shape[0], "block_table", None
    if places.cache_batch_idx is not None:
        if places.block_table is not None:
            raise ValueError("cache_batch_idx and block_table are given; one of them is possible")
        name = "cache_batch_idx"
        table = half.integers(name, places.cache_batch_idx)
        check_shape(name, table, (batch,))
        # Each row of the cache is a page, and each sequence has one.
        table = table.reshape(batch, 1)
    elif places.block_table is not None:
        table = half.integers(name, places.block_table)
        check_shape(name, table, (batch, table.shape[-1] if table.ndim == 2 else "pages"))
    elif k.shape[0] != batch:
        raise ValueError(f"k_cache: batch is {k.shape[0]}, but q has {batch}")
    room = k.shape[1] if table is None else k.shape[1] * table.shape[1]
    used = _lengths(half, places.cache_seqlens, batch, room, new)
    if table is not None:
        check_table(half, name, table, k.shape[:2], room if used is None else used + new)
        table = half.beside(table, q)
    if used is not None and not isinstance(used, int):
        used = half.beside(used, q)
    return Cache(k, v, table, used, room)


def _check_new(half: Any, cache: Cache, new: Pair) -> None:
    """Refuses what is not written to the cache as it is."""
    if cache.used is None:
        raise ValueError("k is given without cache_seqlens, which says where it goes")
    batch = cache.k.shape[0] if cache.table is None else cache.table.shape[0]
    for name, tensor, into in zip("kv", new, (cache.k, cache.v)):
        check_shape(name, tensor, (batch, new[0].shape[1], *into.shape[2:]))
        half.check_written(f"{name}_cache", into)


def _checked_rotary(
    half: Any, q: Any, cache: Cache, new: Optional[Pair], rotary: Rotary, in_order: bool
) -> Rotary:
    """Tables that fit the head_dim, and end behind the last position of keys and queries."""
    if new is None:
        raise ValueError("rotary_cos is given without k: queries and new keys are rotated together")
    if rotary.cos is None or rotary.sin is None:
        raise ValueError("rotary_cos and rotary_sin are given together, and one of them is None")
    cos, sin = half.tensor(rotary.cos, "rotary_cos"), half.tensor(rotary.sin, "rotary_sin")
    half.check_forward_only(q, ("rotary_cos", "rotary_sin"), (cos, sin))
    if cos.ndim != 2 or cos.shape != sin.shape:
        raise ValueError(
            f"rotary_cos is of shape {tuple(cos.shape)} and rotary_sin of shape {tuple(sin.shape)}; "
            "both are [rows, R / 2]"
        )
    if 2 * cos.shape[1] > q.shape[-1]:
        raise ValueError(f"rotary_cos: R is {2 * cos.shape[1]}; the limit is head_dim = {q.shape[-1]}")
    ahead = max(q.shape[1] - new[0].shape[1], 0) if in_order else 0
    if cos.shape[0] < cache.room + ahead:
        behind = f", and queries reach {ahead} positions behind them" if ahead else ""
        raise ValueError(
            f"rotary_cos has {cos.shape[0]} rows; a sequence has room for {cache.room} keys{behind}"
        )
    return Rotary(cos, sin, rotary.interleaved)


def _lengths(half: Any, given: Any, batch: int, room: int, new: int) -> Any:
    """Keys that each sequence has: an int for all, int32 [B], or None where the cache is full."""
    if given is None:
        return None
    used = given
    if not isinstance(used, int):
        used = half.integers("cache_seqlens", given)
        if used.ndim == 0:
            used = int(used) if half.is_on_host(used) else half.repeated(used, batch)
    if not isinstance(used, int):
        check_shape("cache_seqlens", used, (batch,))
        if not half.is_on_host(used):
            return used
    lengths = [used] if isinstance(used, int) else used.tolist()
    if not all(0 <= length <= room - new for length in lengths):
        behind = f", {new} of them new" if new else ""
        found = used if isinstance(used, int) else lengths
        raise ValueError(f"cache_seqlens is {found}; a sequence has room for {room} keys{behind}")
    return used


def _by_operations(
    half: Any,
    q: Any,
    cache: Cache,
    new: Pair,
    start: Any,
    rotary: Optional[Rotary],
    in_order: bool,
) -> tuple[Any, Callable[[], None]]:
    """Queries, rotated where there is an embedding, and what puts `new` into the cache."""
    if rotary is not None:
        q = _rotated(half, q, rotary, _positions(half, start, q.shape[1] if in_order else 1))
        new = _rotated(half, new[0], rotary, _positions(half, start, new[0].shape[1])), new[1]
    return q, partial(_append, half, cache, new, start)


def _append(half: Any, cache: Cache, new: Pair, used: Any) -> None:
    """Writes new keys and values behind those that are used."""
    batch, length = new[0].shape[:2]
    sequence = half.arange(batch, used)[:, None]
    position = _positions(half, used, length)
    if cache.table is not None:
        page_size = cache.k.shape[1]
        sequence = half.indices(cache.table)[sequence, position // page_size]
        position = position % page_size
    for into, values in zip((cache.k, cache.v), new):
        into[sequence, position] = values


def _positions(half: Any, used: Any, length: int) -> Any:
    """[B, length]: those of tokens behind the ones that are used."""
    return half.indices(used)[:, None] + half.arange(length, used)[None]


def _rotated(half: Any, x: Any, rotary: Rotary, position: Any) -> Any:
    """A copy of x, [B, S, H, D], whose first R of D are turned by angles of a position, [B, S] or [B, 1].

    Computed in float32.
    """
    cos, sin = (half.single(table[position])[:, :, None] for table in (rotary.cos, rotary.sin))
    width = 2 * rotary.cos.shape[1]
    if rotary.interleaved:
        first, second = slice(0, width, 2), slice(1, width, 2)
    else:
        first, second = slice(0, width // 2), slice(width // 2, width)
    a, b = half.single(x[..., first]), half.single(x[..., second])
    result = half.copied(x)
    result[..., first], result[..., second] = a * cos - b * sin, a * sin + b * cos
    return result
