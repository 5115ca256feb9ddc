#!/usr/bin/env python3
"""Compares fa-bench's forward pass with PyTorch's scaled_dot_product_attention, on one GPU in one run.

For each problem half of PyTorch's runs come before ours and half after, so that a drift of the clocks hits both
alike. Both report the median of device-event times with the L2 cache flushed before each run, behind 0.3 s of runs that do not
count where a run is long enough to bring a card to its power limit. Inputs are standard
normal, [B, H, S, D] unless --layout says otherwise. A problem that takes ours less than 20 us is timed in a replayed CUDA
graph of 100 calls too, by both, which has neither a launch nor a cold cache in it.

    cargo build --release -p fa-bench
    python3 scripts/forward_vs_torch.py --binary target/release/fa-bench --json out.json

Without --problems: head_dim 64, 128 and 256, full and causal, B*S = 16384, H*D = 2048, S = 512 to 16384. A problem is
BATCHxHEADSxSEQxDIM, with a c behind it for the causal mask. Ratios above 1 mean that ours is faster.
"""

import argparse
import json
import math
import statistics
import subprocess

BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
# PyTorch enqueues a call in less.
LONG_SECONDS = 150e-6
# For so long a card under load takes to come to rest at its power limit. Both sides run as long before the first run that counts.
WARM_SECONDS = 0.3
# Calls in a graph, as many as in that of fa-bench's figure.
MANY = 100
REPLAYED = f"one of {MANY} in a replayed graph"


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--binary", required=True, help="the built fa-bench")
    parser.add_argument("--json", help="file to write the results to")
    parser.add_argument("--problems", nargs="+", default=list(default_problems()))
    parser.add_argument("--dtype", choices=("f16", "bf16"), default="f16")
    parser.add_argument("--layout", choices=("bshd", "bhsd"), default="bhsd")
    parser.add_argument("--kernel", default="forward_sm80")
    parser.add_argument("--runs", type=int, default=30)
    return parser.parse_args()


def default_problems():
    for dim in (64, 128, 256):
        for mask in ("", "c"):
            for seq in (512, 1024, 2048, 4096, 8192, 16384):
                yield f"{16384 // seq}x{2048 // dim}x{seq}x{dim}{mask}"


def ours(args, shape, causal, warmup):
    """The one kernel's row in fa-bench's document."""
    command = [args.binary, "--kernel", args.kernel, "--backend", "cuda", "--json", "--dtype", args.dtype]
    command += ["--layout", args.layout, "--iterations", str(args.runs)] + ["--causal"] * causal
    command += ["--warmup", str(warmup)]
    for name, value in zip(("batch", "heads", "seq", "dim"), shape):
        command += [f"--{name}", str(value)]
    result = subprocess.run(command, capture_output=True, text=True)
    if not result.stdout:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()}")
    return json.loads(result.stdout)["rows"][0]


def record(torch, run):
    """Two events of the device around what `run` enqueues."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    return begin, end


def elapsed_seconds(torch, run):
    """Seconds between two events of the device around what `run` enqueues."""
    begin, end = record(torch, run)
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


class Theirs:
    """PyTorch's call with one backend, for one problem."""

    def __init__(self, torch, args, flush, shape, causal, backend):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        batch, heads, seq, dim = shape
        kind = {"f16": torch.float16, "bf16": torch.bfloat16}[args.dtype]
        axes = (batch, heads, seq, dim) if args.layout == "bhsd" else (batch, seq, heads, dim)
        tensors = [torch.randn(axes, dtype=kind, device="cuda") for _ in range(3)]
        if args.layout == "bshd":
            tensors = [tensor.transpose(1, 2) for tensor in tensors]
        self.torch, self.flush = torch, flush

        def call():
            with sdpa_kernel(getattr(SDPBackend, BACKENDS[backend])):
                torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal)

        self.call = call
        call()
        self.one_call = elapsed_seconds(torch, call)

    def seconds(self, runs, warmup):
        """Seconds of each of so many calls, of which none holds the time that PyTorch takes to enqueue it."""
        if warmup:
            return self.enqueued(warmup + runs)[warmup:]
        seconds = []
        for _ in range(5 + runs):
            # The device is busy for longer than PyTorch takes to enqueue the call.
            for _ in range(8):
                self.flush.zero_()
            seconds.append(elapsed_seconds(self.torch, self.call))
        return seconds[5:]

    def enqueued(self, runs):
        """Each is enqueued while those before it run, with as much evicted before it as fa-bench does before ours: at a card's
        power limit a longer rest would show."""
        torch, events = self.torch, []
        evicted = 2 * torch.cuda.get_device_properties(0).L2_cache_size // self.flush.element_size()
        for _ in range(runs):
            self.flush[:evicted].zero_()
            events.append(record(torch, self.call))
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in events]

    def replayed(self):
        """Seconds of one call in a replayed graph, the median of five replays."""
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(MANY):
                self.call()
        graph.replay()
        return statistics.median(elapsed_seconds(torch, graph.replay) for _ in range(5)) / MANY


def warm_calls(peers):
    """Calls of every side before the first that counts; 0 where one is too short to be enqueued while those before it run."""
    shortest = min((peer.one_call for peer in peers), default=0.0)
    return math.ceil(WARM_SECONDS / shortest) if shortest > LONG_SECONDS else 0


def measure(torch, args, flush, problem):
    causal = problem.endswith("c")
    shape = [int(size) for size in problem.rstrip("c").split("x")]
    theirs, refused = {}, {}
    for name in BACKENDS:
        try:
            theirs[name] = Theirs(torch, args, flush, shape, causal, name)
        except RuntimeError as error:
            refused[name] = str(error).splitlines()[0]
    warmup = warm_calls(theirs.values())
    samples = {name: peer.seconds(args.runs // 2, warmup) for name, peer in theirs.items()}
    kernel = ours(args, shape, causal, warmup or 10)
    for name, peer in theirs.items():
        samples[name] += peer.seconds(args.runs // 2, warmup)
    measurement = {**kernel["measurement"], "passed": kernel["check"]["passed"]}
    row = {"problem": problem, "tile": kernel["plan"]["tile"], "refused": refused, "ours": measurement}
    for name, seconds in samples.items():
        row[name] = {"median_s": statistics.median(seconds), "times_s": seconds}
        row[name]["ratio"] = row[name]["median_s"] / measurement["median_s"]
    for figure in kernel["figures"]:
        if figure["name"] == REPLAYED:
            measurement["replayed_s"] = figure["value"]
            for name in theirs:
                row[name]["replayed_s"] = theirs[name].replayed()
    return row


def line(row):
    cells = [f"{row['problem']:>18} ours {row['ours']['median_s'] * 1e3:8.3f} ms {row['ours']['tflops']:6.1f} TFLOP/s"]
    for name in BACKENDS:
        if name in row:
            cells.append(f"{name} {row[name]['median_s'] * 1e3:8.3f} ms, ratio {row[name]['ratio']:.3f}")
        else:
            cells.append(f"{name} refuses: {row['refused'][name]}")
    in_graph = {name: row[name]["replayed_s"] for name in ("ours", *BACKENDS) if "replayed_s" in row.get(name, {})}
    replayed = [f"{name} {seconds * 1e6:.2f} us" for name, seconds in in_graph.items()]
    if replayed:
        cells.append(f"in a replayed graph: {', '.join(replayed)}")
    return "  ".join(cells) + ("" if row["ours"]["passed"] else "  WRONG")


def main():
    args = parse_args()
    import torch
    import warnings

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name(0)}, {args.dtype} {args.layout}")
    rows = []
    for problem in args.problems:
        rows.append(measure(torch, args, flush, problem))
        print(line(rows[-1]), flush=True)
    ratios = [row["flash"]["ratio"] for row in rows if "flash" in row]
    if ratios:
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
        print(f"against flash: geometric mean {mean:.3f}, least {min(ratios):.3f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "dtype": args.dtype, "layout": args.layout, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
