#!/usr/bin/env python3
"""Compares the CPU backend with PyTorch's scaled_dot_product_attention, on one machine in one run.

Both run the same shapes in turns (one call of ours, one of PyTorch's, and so on), so that noise and clock
changes hit both alike; medians and minima are over the turns. Inputs are standard normal.

    cargo build --release -p flash-attention --example cpu_bench
    python3 scripts/cpu_vs_torch.py --binary target/release/examples/cpu_bench --json out.json

Needs PyTorch; --threads defaults to all cores that the process may use. --isa limits ours to an
instruction set (avx2, portable); to limit PyTorch too, set ATEN_CPU_CAPABILITY and
MKL_ENABLE_INSTRUCTIONS. Ratios above 1 mean that ours is faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import time

DTYPES = ("f32", "bf16", "f16")


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--binary", required=True, help="the built example cpu_bench")
    parser.add_argument("--json", help="file to write the results to")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=0, help="turns per shape; 0 chooses by size")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--seqlens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["f32"])
    parser.add_argument("--isa", help="widest instruction set of ours")
    return parser.parse_args()


class Ours:
    """The example as a child that answers one line per request."""

    def __init__(self, args):
        env = dict(os.environ, RAYON_NUM_THREADS=str(args.threads))
        self.child = subprocess.Popen(
            [args.binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        self.options = f" isa={args.isa}" if args.isa else ""

    def __call__(self, dtype, b, h, s, d, causal):
        line = f"forward {dtype} {b} {h} {h} {s} {s} {d} {int(causal)} bhsd 1{self.options}\n"
        self.child.stdin.write(line)
        self.child.stdin.flush()
        answer = self.child.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.child.args[0]} ended at request {line!r}")
        return json.loads(answer)


def torch_call(torch, dtype, b, h, s, d, causal):
    """A function that runs PyTorch once and returns the seconds."""
    kind = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]
    q, k, v = (torch.randn(b, h, s, d).to(kind) for _ in range(3))

    def run():
        # As ours does before each turn: bring the inputs back into the caches.
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        start = time.perf_counter()
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return time.perf_counter() - start

    return run


def measure(ours, torch, args, dtype, s, d, causal):
    b, h = args.batch, args.heads
    theirs = torch_call(torch, dtype, b, h, s, d, causal)
    turns = args.turns or max(5, min(40, int(4e10 / (4 * b * h * s * s * d))))
    samples = {"ours": [], "torch": []}
    for _ in range(turns):
        answer = ours(dtype, b, h, s, d, causal)
        samples["ours"] += answer["seconds"]
        samples["torch"].append(theirs())
    flops = 4 * b * h * d * (s * (s + 1) / 2 if causal else s * s)
    row = dict(dtype=dtype, batch=b, heads=h, seqlen=s, head_dim=d, causal=causal, turns=turns)
    for name, seconds in samples.items():
        row[name] = {
            "median_ms": statistics.median(seconds) * 1e3,
            "min_ms": min(seconds) * 1e3,
            "median_gflops": flops / statistics.median(seconds) / 1e9,
        }
    row["ratio_of_medians"] = row["torch"]["median_ms"] / row["ours"]["median_ms"]
    row["ratio_of_minima"] = row["torch"]["min_ms"] / row["ours"]["min_ms"]
    row.update(isa=answer["isa"], tile=answer["tile"], extra_bytes=answer["extra_bytes"])
    return row


def main():
    args = parse_args()
    import torch

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    ours = Ours(args)
    rows = []
    print(f"PyTorch {torch.__version__}, {args.threads} threads; milliseconds, median (min)")
    for dtype in args.dtypes:
        for s in args.seqlens:
            for d in args.head_dims:
                for causal in (False, True):
                    row = measure(ours, torch, args, dtype, s, d, causal)
                    rows.append(row)
                    cells = (f"{row[n]['median_ms']:9.2f} ({row[n]['min_ms']:.2f})" for n in ("ours", "torch"))
                    print(
                        f"{dtype} S={s} D={d} {'causal' if causal else 'full  '} ours {next(cells)} torch {next(cells)}"
                        f"  ratio {row['ratio_of_medians']:.2f} (min {row['ratio_of_minima']:.2f})"
                        f"  {row['ours']['median_gflops']:.0f} GFLOP/s",
                        flush=True,
                    )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "threads": args.threads, "rows": rows}, file, indent=1)
    ours.child.stdin.close()
    ours.child.wait()


if __name__ == "__main__":
    main()
