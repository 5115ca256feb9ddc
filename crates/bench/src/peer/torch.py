"""Runs attention and matrix products with PyTorch for fa-bench: one JSON request a line, one JSON answer a line.

The first line that is sent says who answers; src/peer/protocol.rs lists the requests. Times are between CUDA events with
the L2 cache overwritten before each run, or by a monotonic clock on the CPU.
"""

import atexit
import json
import os
import signal
import sys
import time
import warnings

# Ctrl-C is the parent's to handle; it closes the pipe.
signal.signal(signal.SIGINT, signal.SIG_IGN)
answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
atexit.register(answers.close)
os.dup2(2, 1)


def answer(**fields):
    answers.write(json.dumps(fields) + "\n")
    answers.flush()


try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    answer(missing=str(error))
    sys.exit(0)

DEVICE = sys.argv[1]
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn"}
ON_GPU = DEVICE.startswith("cuda")
# Overwriting the L2 cache this often takes the device longer than PyTorch takes to enqueue a call, which is none of the call's time.
EVICTIONS = 16


def randn(axes, dtype):
    # Of 8 bits there is no normal distribution, but a conversion.
    drawn = torch.float16 if dtype == "e4m3" else getattr(torch, DTYPES[dtype])
    values = torch.randn(axes, dtype=drawn, device=DEVICE)
    return values.to(getattr(torch, DTYPES[dtype])) if dtype == "e4m3" else values


class Attention:
    """scaled_dot_product_attention with one backend."""

    def __init__(
        self, batch, heads, kv_heads, seq, kv_seq, head_dim, dtype, layout, causal, softmax_scale, dropout, backend, copies,
        gradients,
    ):
        if causal and seq != kv_seq:
            raise RuntimeError("PyTorch's causal mask begins top-left, which differs where seq is not kv_seq")

        def tensor(rows, tensor_heads):
            axes = (batch, tensor_heads, rows, head_dim) if layout == "bhsd" else (batch, rows, tensor_heads, head_dim)
            values = randn(axes, dtype)
            return values if layout == "bhsd" else values.transpose(1, 2)

        self.tensors = [tensor(seq, heads), tensor(kv_seq, kv_heads), tensor(kv_seq, kv_heads)]
        self.options = {"is_causal": causal, "scale": softmax_scale, "dropout_p": dropout}
        if heads != kv_heads:
            self.options["enable_gqa"] = True
        self.backend = getattr(SDPBackend, backend)
        self.copies = copies
        self.gradients = gradients
        if gradients != "none":
            for leaf in self.tensors:
                leaf.requires_grad_()
            # In the order of O's axes, as a layer behind this one gives it.
            self.dout = tensor(seq, heads)
        if gradients == "alone":
            with torch.enable_grad():
                self.output = self.forward()

    def __call__(self):
        if self.gradients == "none":
            return self.forward()
        if self.gradients == "alone":
            return self.backward(self.output)
        with torch.enable_grad():
            output = self.forward()
        return self.backward(output)

    def backward(self, output):
        return torch.autograd.grad(output, self.tensors, self.dout, retain_graph=self.gradients == "alone")

    def forward(self):
        tensors = [tensor.contiguous() for tensor in self.tensors] if self.copies else self.tensors
        with sdpa_kernel(self.backend):
            output = torch.nn.functional.scaled_dot_product_attention(*tensors, **self.options)
        return output.transpose(1, 2).contiguous() if self.copies else output


class Product:
    """torch.matmul into a result that is there."""

    def __init__(self, m, n, k, dtype, orders):
        def matrix(rows, columns, order):
            if order == "row":
                return randn((rows, columns), dtype)
            return randn((columns, rows), dtype).t()

        self.a, self.b, self.c = matrix(m, k, orders[0]), matrix(k, n, orders[1]), matrix(m, n, orders[2])

    def __call__(self):
        return torch.matmul(self.a, self.b, out=self.c)


class Clock:
    """Seconds of one call."""

    def __init__(self):
        if ON_GPU:
            l2_bytes = torch.cuda.get_device_properties(DEVICE).L2_cache_size
            self.eviction = torch.empty(2 * l2_bytes, device=DEVICE, dtype=torch.uint8)

    def seconds(self, call):
        if not ON_GPU:
            begin = time.perf_counter()
            call()
            return time.perf_counter() - begin
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(EVICTIONS):
            self.eviction.zero_()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


def peak_bytes(call):
    """The most memory that a call takes beside its inputs, its output included."""
    if not ON_GPU:
        raise RuntimeError("PyTorch counts no memory on the CPU")
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def describe():
    return torch.cuda.get_device_name(DEVICE) if ON_GPU else f"CPU, {torch.get_num_threads()} threads"


def serve():
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    # As the library's fp32: no TF32.
    torch.backends.cuda.matmul.allow_tf32 = False
    answer(name=f"PyTorch {torch.__version__}", device=describe())
    clock, calls = Clock(), {}
    for line in sys.stdin:
        request = json.loads(line)
        operation = request.pop("op")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                if operation in ("attention", "product"):
                    number = request.pop("number")
                    calls[number] = (Attention if operation == "attention" else Product)(**request)
                    # Refused here, if it is refused.
                    calls[number]()
                    answer(ready=True)
                elif operation == "time":
                    answer(seconds=[clock.seconds(calls[request["number"]]) for _ in range(request["runs"])])
                elif operation == "peak":
                    answer(bytes=peak_bytes(calls[request["number"]]))
                elif operation == "forget":
                    calls.clear()
                    if ON_GPU:
                        torch.cuda.empty_cache()
                    answer(ready=True)
                else:
                    answer(refused=f"unknown request {operation}")
            # Whatever the reason, a refusal is a result here.
            except Exception as error:
                texts = [str(warning.message) for warning in said] + [str(error) or type(error).__name__]
                answer(refused="; ".join(dict.fromkeys(text.split("\n")[0].strip() for text in texts)))


try:
    serve()
except Exception as error:
    answer(missing=f"{type(error).__name__}: {error}".split("\n")[0])
