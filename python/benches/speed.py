"""What a call costs: the host's time beside PyTorch's, and the GPU's time beside cuDNN's on the same tensors.

Run as `python benches/speed.py [FILE]`, which gets the figures as JSON. Needs a GPU and PyTorch.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import flash_attention_rs as fa

ROUNDS = 15
#: Calls that the host enqueues in a measurement: fewer than a stream may fall behind.
ENQUEUED = 100
HEADS, HEAD_DIM = 16, 128
#: Rows of all sequences together, as in the published tables.
TOKENS = 16384

Call = Callable[[], Any]


def host_time(call: Call) -> float:
    """Seconds that the host spends on a call."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(ENQUEUED):
        call()
    spent = (time.perf_counter() - begin) / ENQUEUED
    torch.cuda.synchronize()
    return spent


def gpu_time(call: Call) -> float:
    """Seconds of a call among others on the GPU."""
    runs = 5
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(2_000_000)  # so that the host is ahead
    begin.record()
    for _ in range(runs):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / runs


def in_turns(measure: Callable[[Call], float], calls: dict[str, Call]) -> dict[str, float]:
    """The median of each, timed in turns with equal rests."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(ROUNDS + 3):
        for name, call in calls.items():
            time.sleep(0.02)
            seconds = measure(call)
            if index >= 3:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


@contextlib.contextmanager
def provider() -> Any:
    fa.register_sdpa()
    try:
        yield
    finally:
        fa.unregister_sdpa()


def sdpa(tensors: list[torch.Tensor], causal: bool = False) -> Call:
    return lambda: F.scaled_dot_product_attention(*tensors, is_causal=causal)


def host_times() -> dict[str, float]:
    """One sequence of 512 rows in 8 heads of 64: forward calls without and with a graph, and both passes."""
    plain = [torch.randn(1, 512, 8, 64, device="cuda", dtype=torch.float16) for _ in range(3)]
    leaves = [t.detach().requires_grad_() for t in plain]
    swapped = [t.transpose(1, 2) for t in plain]
    swapped_leaves = [t.detach().requires_grad_() for t in swapped]
    weights = torch.randn_like(plain[0])

    def both_passes(attention: Call, inputs: list[torch.Tensor], weights: torch.Tensor) -> Call:
        return lambda: torch.autograd.grad(attention(), inputs, weights)

    swapped_passes = both_passes(sdpa(swapped_leaves), swapped_leaves, weights.transpose(1, 2))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        calls = {"PyTorch's SDPA": sdpa(swapped), "PyTorch's SDPA, both passes": swapped_passes}
        theirs = in_turns(host_time, calls)
        with provider():
            name = "SDPA through the provider"
            ours = in_turns(host_time, {name: sdpa(swapped), f"{name}, both passes": swapped_passes})
    forward = lambda: fa.flash_attn_func(*leaves)  # noqa: E731
    calls = {
        "flash_attn_func": lambda: fa.flash_attn_func(*plain),
        "flash_attn_func, with a graph for gradients": forward,
        "flash_attn_func, both passes": both_passes(forward, leaves, weights),
    }
    return {**theirs, **ours, **in_turns(host_time, calls)}


def gpu_times(rows: int, causal: bool) -> dict[str, float]:
    """[B, H, S, D] in fp16: cuDNN, the provider, and a direct call."""
    batch = max(1, TOKENS // rows)
    shape = (batch, HEADS, rows, HEAD_DIM)
    tensors = [torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3)]
    call = sdpa(tensors, causal)

    def cudnn() -> None:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            call()

    def provided() -> None:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            call()

    swapped = [t.transpose(1, 2) for t in tensors]
    calls = {
        "cuDNN": cudnn,
        "SDPA through the provider": provided,
        "flash_attn_func": lambda: fa.flash_attn_func(*swapped, causal=causal),
    }
    with torch.no_grad(), provider():
        return in_turns(gpu_time, calls)


def main() -> None:
    host = host_times()
    for name, seconds in host.items():
        print(f"host time, D=64 S=512: {seconds * 1e6:6.1f} us  {name}")
    table = []
    for rows in (512, 1024, 2048, 4096, 8192, 16384):
        for causal in (False, True):
            times = gpu_times(rows, causal)
            ratio = times["cuDNN"] / times["SDPA through the provider"]
            flops = 4 * TOKENS * rows * HEADS * HEAD_DIM / (2 if causal else 1)
            speeds = ", ".join(f"{name} {flops / t * 1e-12:.0f}" for name, t in times.items())
            print(
                f"S={rows} {'causal' if causal else 'full'}: {speeds} TFLOP/s; provider of cuDNN {ratio:.2f}"
            )
            table.append({"rows": rows, "causal": causal, "seconds": times, "of_cudnn": ratio})
    if len(sys.argv) > 1:
        device = torch.cuda.get_device_name()
        document = {"device": device, "torch": torch.__version__, "host_seconds": host, "gpu": table}
        with open(sys.argv[1], "w") as file:
            json.dump(document, file, indent=1)


if __name__ == "__main__":
    main()
