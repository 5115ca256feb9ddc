#!/usr/bin/env python3
"""Compares matrix multiplication on the GPU with torch.matmul, on one device in one run.

Both run the same shapes in turns (some runs of ours, as many of PyTorch's, and so on), so that clock changes hit
both alike; medians are over all runs. Times are between device events, the L2 cache is flushed before each
run, and inputs are normal with variance 1.

    cargo build --release -p flash-attention --example gemm_bench
    python3 scripts/gemm_vs_torch.py --binary target/release/examples/gemm_bench --json out.json

Needs PyTorch with CUDA. Ratios above 1 mean that ours is faster.
"""

import argparse
import json
import statistics
import subprocess

DTYPES = ("f16", "bf16", "f32")
ORDERS = ("row", "col")


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--binary", required=True, help="the built example gemm_bench")
    parser.add_argument("--json", help="file to write the results to")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--shape", type=int, nargs=3, metavar=("M", "N", "K"), help="one shape in place of --sizes")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["f16"])
    parser.add_argument("--a-order", choices=ORDERS, default="row")
    parser.add_argument("--b-order", choices=ORDERS, default="row")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--runs", type=int, default=5, help="runs of each per turn")
    parser.add_argument("--tf32", action="store_true", help="let PyTorch use TF32 for f32")
    return parser.parse_args()


class Ours:
    """The example as a child that answers one line per request."""

    def __init__(self, args):
        self.child = subprocess.Popen([args.binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, request, runs):
        self.child.stdin.write(f"{request} {runs}\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.child.args[0]} ended at request {request!r}")
        return json.loads(answer)


class Theirs:
    """torch.matmul into a result that is there."""

    def __init__(self, torch, dtype, m, n, k, a_order, b_order):
        kind = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]

        def matrix(rows, columns, order):
            if order == "row":
                return torch.randn(rows, columns, device="cuda").to(kind)
            return torch.randn(columns, rows, device="cuda").to(kind).t()

        self.torch = torch
        self.a, self.b = matrix(m, k, a_order), matrix(k, n, b_order)
        self.c = torch.empty(m, n, device="cuda", dtype=kind)
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        self.eviction = torch.empty(2 * l2_bytes, device="cuda", dtype=torch.uint8)
        torch.matmul(self.a, self.b, out=self.c)

    def __call__(self, runs):
        torch, seconds = self.torch, []
        for _ in range(runs):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.eviction.zero_()
            start.record()
            torch.matmul(self.a, self.b, out=self.c)
            end.record()
            end.synchronize()
            seconds.append(start.elapsed_time(end) / 1e3)
        return seconds


def measure(ours, torch, args, dtype, m, n, k):
    theirs = Theirs(torch, dtype, m, n, k, args.a_order, args.b_order)
    request = f"{dtype} {m} {n} {k} {args.a_order} {args.b_order}"
    samples = {"ours": [], "torch": []}
    # The first turn warms up.
    for turn in range(args.turns + 1):
        answer = ours(request, args.runs)
        seconds = theirs(args.runs)
        if turn > 0:
            samples["ours"] += answer["seconds"]
            samples["torch"] += seconds
    row = dict(dtype=dtype, m=m, n=n, k=k, a_order=args.a_order, b_order=args.b_order, entry=answer["entry"])
    for name, seconds in samples.items():
        median = statistics.median(seconds)
        row[name] = {"median_ms": median * 1e3, "min_ms": min(seconds) * 1e3, "tflops": 2 * m * n * k / median / 1e12}
    row["ratio_of_medians"] = row["torch"]["median_ms"] / row["ours"]["median_ms"]
    return row


def main():
    args = parse_args()
    import torch

    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = args.tf32
    ours = Ours(args)
    rows = []
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name(0)}; medians of {args.turns * args.runs} runs")
    for dtype in args.dtypes:
        for m, n, k in [args.shape] if args.shape else [(size,) * 3 for size in args.sizes]:
            row = measure(ours, torch, args, dtype, m, n, k)
            rows.append(row)
            cells = (f"{row[name]['median_ms']:8.3f} ms {row[name]['tflops']:6.1f} TFLOP/s" for name in ("ours", "torch"))
            print(
                f"{dtype} {m}x{n}x{k} ours {next(cells)}  torch {next(cells)}  ratio {row['ratio_of_medians']:.3f}"
                f"  {row['entry']}",
                flush=True,
            )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "rows": rows}, file, indent=1)
    ours.child.stdin.close()
    ours.child.wait()


if __name__ == "__main__":
    main()
