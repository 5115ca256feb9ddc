"""What a rank does in `test_context_ranks.py`, which a launcher starts on each GPU, with what as argument."""

import os
import signal
import sys
import time
from typing import NamedTuple

import torch

import flash_attention_rs as fa
from flash_attention_rs import _launch, _native, _plans


class Case(NamedTuple):
    """A problem, of which both passes are compared; (heads, those of K and V, head_dim, that of V)."""

    dtype: torch.dtype = torch.bfloat16
    causal: bool = True
    heads: tuple = (4, 2, 128, 128)
    rows: int = 2048
    keys: int = 0
    batch: int = 1
    softcap: float = 0.0
    window: tuple = (-1, -1)
    mean: float = 0.0

    @property
    def options(self):
        window_size, softcap = self.window, self.softcap
        return {"causal": self.causal, "softcap": softcap, "window_size": window_size}


F16 = torch.float16
CASES = [
    Case(),
    Case(F16),
    Case(causal=False),
    Case(F16, causal=False, mean=1.0),
    Case(mean=1.0),
    Case(F16, heads=(8, 8, 64, 64), rows=1000),
    Case(heads=(8, 1, 64, 64), rows=5003, causal=False),
    Case(heads=(4, 4, 192, 128), rows=1537),
    Case(F16, heads=(4, 2, 64, 128), rows=777, causal=False, mean=1.0),
    Case(F16, heads=(4, 2, 96, 32), rows=1025),
    Case(heads=(2, 2, 256, 256), rows=600),
    Case(rows=1500, keys=3001),
    Case(F16, rows=999, keys=2000, causal=False),
    Case(F16, softcap=15.0, rows=1100),
    Case(softcap=15.0, causal=False, mean=1.0),
    Case(causal=False, window=(-1, 100), rows=2300),
    Case(F16, causal=False, window=(-1, 7), rows=900, keys=1000),
    Case(batch=3, rows=513),
    Case(rows=9000, heads=(2, 1, 128, 128)),
    Case(torch.float32, heads=(2, 2, 64, 64), rows=300),
    Case(rows=5),
    # A left window: forward alone, and of so few rows the second rank has no queries.
    Case(window=(64, 0), rows=3000),
    Case(F16, window=(64, 0), rows=300),
]


def bits(t):
    return t.detach().contiguous().view(torch.uint8)


def tensors(case, device):
    """Q, K, V and dO."""
    heads, kv_heads, dim, dim_v = case.heads
    keys = case.keys or case.rows
    generator = torch.Generator().manual_seed(7)
    shapes = (
        (case.rows, heads, dim),
        (keys, kv_heads, dim),
        (keys, kv_heads, dim_v),
        (case.rows, heads, dim_v),
    )
    made = [torch.randn(case.batch, *shape, generator=generator) for shape in shapes]
    return [(t + case.mean).to(device, case.dtype) for t in made]


def on_one_gpu(case, q, k, v, dout):
    """O, lse, dQ, dK and dV of one GPU, which stores no dS."""
    o, lse, _ = fa.flash_attn_func(q, k, v, return_attn_probs=True, **case.options)
    if case.window[0] >= 0:
        return [o, lse]
    window = tuple(None if side < 0 else side for side in case.window)
    settings = _plans.Settings(case.causal, q.shape[-1] ** -0.5, window, case.softcap)
    views = [(tuple(t.shape), t.stride()) for t in (q, k, v, o, dout)]
    forward = _native.Forward(q.get_device(), _launch.name_of(q.dtype), views[:4], settings)
    backward = _native.Backward(forward, [views[4], *views[:3]], 0)
    dq, dk, dv = map(torch.empty_like, (q, k, v))
    workspace = torch.empty(backward.workspace_bytes, dtype=torch.uint8, device=q.device)
    at = [t.data_ptr() for t in (q, k, v, o, lse, workspace)] + [0] * 5
    gradients = [t.data_ptr() for t in (dout, dq, dk, dv)] + [0] * 2
    backward.enqueue(at, gradients, torch.cuda.current_stream().cuda_stream)
    return [o, lse, dq, dk, dv]


def on_ranks(group, case, q, k, v, dout, side):
    """This rank's rows of the same, the second pass on another stream."""
    of_queries = {"window_size": case.window}
    parts = [group.shard(q, **of_queries), group.shard(k), group.shard(v)]
    seqlens = (case.rows, case.keys or None)
    if case.window[0] >= 0:
        return group.attention(*parts, seqlens[0], return_lse=True, **case.options)
    parts = [t.requires_grad_() for t in parts]
    o, lse = group.attention(*parts, seqlens[0], seqlen_k=seqlens[1], return_lse=True, **case.options)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        again = group.attention(*parts, seqlens[0], seqlen_k=seqlens[1], **case.options)
    gradients = torch.autograd.grad(o, parts, group.shard(dout))
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(bits(o), bits(again)), f"{case}: O is another on another stream"
    return [o, lse, *gradients]


def compare():
    """All cases, by both partitions."""
    wrong, seen = [], 0
    for partition in ("zigzag", "contiguous"):
        with fa.ContextParallel(partition=partition, max_plans=4) as group:
            torch.cuda.set_device(group.device)
            side = torch.cuda.Stream()
            for case in CASES:
                whole = tensors(case, group.device)
                found = on_ranks(group, case, *whole, side)
                group.synchronize(60.0)
                fa.set_batch_invariant(case.window[0] >= 0)
                want = on_one_gpu(case, *whole)
                fa.set_batch_invariant(False)
                rows = group.rows(case.rows, window_size=case.window)
                keys = group.rows(case.keys or case.rows)
                for name, a, b in zip(("O", "lse", "dQ", "dK", "dV"), found, want):
                    of = keys if name in ("dK", "dV") else rows
                    mine = b[:, :, of] if name == "lse" else b[:, of]
                    seen += 1
                    if not torch.equal(bits(a), bits(mine)):
                        worst = (a.float() - mine.float()).abs().max().item()
                        wrong.append(f"{partition} {case}: {name} is off by {worst}")
            print(f"rank {group.rank}: {group.transport}, {partition}", flush=True)
    print("\n".join(wrong), file=sys.stderr)
    print(f"{seen} tensors compared, {len(wrong)} wrong", flush=True)
    sys.exit(len(wrong) > 0)


def step(group, q, softcap=0.0):
    parts = [group.shard(q).requires_grad_() for _ in range(3)]
    o = group.attention(*parts, q.shape[1], causal=True, softcap=softcap)
    o.backward(torch.ones_like(o))
    return o


def met(**options):
    """A group after some steps."""
    group = fa.ContextParallel(patience=10.0, **options)
    torch.cuda.set_device(group.device)
    q = torch.randn(1, 16384, 8, 128, device=group.device, dtype=torch.bfloat16)
    for _ in range(3):
        step(group, q)
    group.synchronize()
    group.barrier()
    return group, q


def killed():
    """Rank 1 is killed; rank 0 ends with what it is told in its next call."""
    group, q = met(exit_after=None)
    if group.rank == 1:
        step(group, q)
        print(f"killed at {time.time()}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        step(group, q)
        group.synchronize()


def waits():
    """Rank 1 is killed while rank 0 is in no call, and waits for its GPU."""
    group, q = met(exit_after=2.0)
    if group.rank == 1:
        time.sleep(1.0)
        print(f"killed at {time.time()}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    step(group, q).sum().item()


def raises():
    """Rank 1 raises; rank 0 hears what."""
    group, q = met()
    with group:
        if group.rank == 1:
            print(f"killed at {time.time()}", flush=True)
            raise KeyError("no more data")
        step(group, q)
        group.synchronize()


def differs():
    """Ranks compute different things."""
    group, q = met()
    try:
        step(group, q, softcap=1.0 + group.rank)
    except fa.PeerError as error:
        print(error, flush=True)
    # Nothing was computed, so that they may go on.
    step(group, q)
    group.close()


def ends():
    """Rank 1 is done, and ends, before rank 0 is."""
    group, q = met()
    step(group, q)
    if group.rank == 0:
        time.sleep(2.0)
        group.synchronize()
        print("rank 0 has its result", flush=True)


if __name__ == "__main__":
    {call.__name__: call for call in (compare, killed, waits, raises, differs, ends)}[sys.argv[1]]()
