#!/usr/bin/env python3
"""Compares `fa-bench decode` with PyTorch's FlashAttention-2 on one GPU: few queries against a long K/V cache.

PyTorch's scaled_dot_product_attention runs with its FLASH_ATTENTION backend, on [B, Hkv, group*Sq, D] queries
(the group's heads as rows: it then reads K and V once, as ours does) and, where this PyTorch has it, with
enable_gqa on [B, H, Sq, D]. Both sides report the median of device-event times with the L2 cache flushed before
each run; the copy is a device-to-device copy on each side. Inputs are standard normal.

    cargo build --release -p fa-bench
    python3 scripts/decode_vs_torch.py --binary target/release/fa-bench --json out.json

Ratios above 1 mean that ours is faster. A shape is BATCHxHEADSxKV_HEADSxSEQ_QxSEQ_KxDIM. --ours-only leaves PyTorch
out, as a machine without it does.
"""

import argparse
import json
import statistics
import subprocess

SHAPES = [
    "1x32x8x1x131072x128",
    "16x32x8x1x8192x128",
    "64x32x8x1x4096x128",
    "16x32x8x4x8192x128",
    "16x32x32x1x8192x64",
    "16x64x8x1x8192x128",
    "16x16x8x1x8192x256",
]


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--binary", required=True, help="the built fa-bench")
    parser.add_argument("--json", help="file to write the results to")
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--dtype", choices=("f16", "bf16"), default="f16")
    parser.add_argument("--page-sizes", type=int, nargs="*", default=[], help="ours also with these pages")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--ours-only", action="store_true")
    return parser.parse_args()


def ours(args, shape, page_size=None):
    """One document of fa-bench."""
    names = ("batch", "heads", "kv-heads", "seq-q", "seq-k", "dim")
    command = [args.binary, "decode", "--backend", "cuda", "--json", "--dtype", args.dtype]
    for name, value in zip(names, shape):
        command += [f"--{name}", str(value)]
    if page_size:
        command += ["--page-size", str(page_size)]
    result = subprocess.run(command + ["--iterations", str(args.runs)], capture_output=True, text=True)
    if not result.stdout:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()}")
    return json.loads(result.stdout)


class Torch:
    """PyTorch's calls, timed by events behind an L2 flush."""

    def __init__(self, args):
        import torch

        self.torch, self.args = torch, args
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        torch.set_grad_enabled(False)
        torch.manual_seed(0)

    def median(self, call):
        torch = self.torch
        seconds = []
        for turn in range(10 + self.args.runs):
            self.flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            if turn >= 10:
                seconds.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(seconds)

    def attention(self, shape):
        """Median seconds of each way that this PyTorch takes the shape."""
        torch = self.torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        b, h, hkv, sq, sk, d = shape
        kind = {"f16": torch.float16, "bf16": torch.bfloat16}[self.args.dtype]
        normal = lambda *size: torch.randn(*size, dtype=kind, device="cuda")
        # [B, S, H, D] in memory, as ours.
        k, v = (normal(b, sk, hkv, d).transpose(1, 2) for _ in range(2))
        packed, heads = normal(b, hkv, h // hkv * sq, d), normal(b, h, sq, d)
        sdpa = torch.nn.functional.scaled_dot_product_attention
        ways = {
            "packed": lambda: sdpa(packed, k, v),
            "enable_gqa": lambda: sdpa(heads, k, v, enable_gqa=h != hkv),
        }
        medians = {}
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            for name, way in ways.items():
                try:
                    medians[name] = self.median(way)
                except (RuntimeError, TypeError) as error:
                    print(f"  PyTorch's {name} does not run: {str(error).splitlines()[0]}")
        return medians


def figures(document):
    """Median seconds, splits, bytes of K and V per second, and percent of a copy's bandwidth."""
    (row,) = (row for row in document["rows"] if row["series"] == "decode")
    found = {figure["name"]: figure["value"] for figure in row["figures"]}
    return row["measurement"]["median_s"], found["splits"], found["of K and V"], found["of copy"]


def row(args, torch, text):
    shape = [int(size) for size in text.split("x")]
    document = ours(args, shape)
    seconds, splits, rate, percent = figures(document)
    result = {"shape": text, "dtype": args.dtype, "ours": document, "torch_s": {}, "paged": {}}
    line = (
        f"{text} {args.dtype}: ours {seconds * 1e6:.1f} us, {splits:.0f} splits, "
        f"{rate / 1e12:.2f} TB/s, {percent:.1f} % of copy"
    )
    for page_size in args.page_sizes:
        paged = ours(args, shape, page_size)
        result["paged"][page_size] = paged
        line += f"; pages of {page_size} {figures(paged)[0] * 1e6:.1f} us"
    if torch:
        result["torch_s"] = torch.attention(shape)
        for name, theirs in result["torch_s"].items():
            line += f"; PyTorch {name} {theirs * 1e6:.1f} us, ratio {theirs / seconds:.2f}"
    print(line + ("" if document["passed"] else "; WRONG"), flush=True)
    return result


def main():
    args = parse_args()
    torch = None if args.ours_only else Torch(args)
    rows = [row(args, torch, text) for text in args.shapes]
    if args.json:
        version = torch.torch.__version__ if torch else None
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"torch": version, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
