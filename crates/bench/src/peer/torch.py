"""Runs attention and matrix products on PyTorch's tensors for fa-bench: a JSON request a line, a JSON answer a line.

The first line that is sent says who answers; src/peer/protocol.rs lists the requests. Times are between CUDA
events with the L2 cache evicted before each run, or by a monotonic clock on the CPU.
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

DEVICE, THREADS = sys.argv[1], int(sys.argv[2])
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn"}
ON_GPU = DEVICE.startswith("cuda")


class Missing(Exception):
    """No call of a kind can be made here, whatever its problem."""


def randn(axes, dtype):
    # Of 8 bits there is no normal distribution, but a conversion.
    drawn = torch.float16 if dtype == "e4m3" else getattr(torch, DTYPES[dtype])
    values = torch.randn(axes, dtype=drawn, device=DEVICE)
    return values.to(getattr(torch, DTYPES[dtype])) if dtype == "e4m3" else values


def flash_attention_4(options, deterministic):
    """The function of flash-attn-4, which takes [B, S, H, D]."""
    try:
        from flash_attn.cute.interface import flash_attn_func
    # Its dependencies fail with errors of many types.
    except Exception as error:
        raise Missing(f"this Python cannot import flash_attn.cute: {str(error) or type(error).__name__}") from error
    if options["dropout_p"]:
        raise RuntimeError("FlashAttention-4 drops no weights")

    def run(q, k, v):
        tensors = [tensor.transpose(1, 2) for tensor in (q, k, v)]
        result = flash_attn_func(
            *tensors, softmax_scale=options["scale"], causal=options["is_causal"], deterministic=deterministic
        )
        # Some versions give lse too.
        output = result[0] if isinstance(result, tuple) else result
        return output.transpose(1, 2)

    return run


def scaled_dot_product(options, implementation):
    """PyTorch's function with one backend, or as it comes."""
    function = torch.nn.functional.scaled_dot_product_attention
    if implementation == "default":
        return lambda q, k, v: function(q, k, v, **options)
    if not hasattr(SDPBackend, implementation):
        raise Missing(f"this PyTorch has no {implementation}")
    if implementation == "CUDNN_ATTENTION" and not ON_GPU:
        raise Missing("cuDNN runs on GPUs alone")
    backend = getattr(SDPBackend, implementation)

    def run(q, k, v):
        with sdpa_kernel(backend):
            return function(q, k, v, **options)

    return run


class Attention:
    """O of Q, K and V, its gradients, or both, by one implementation."""

    def __init__(
        self, batch, heads, kv_heads, seq, kv_seq, head_dim, dtype, layout, causal, softmax_scale, dropout,
        implementation, form, gradients,
    ):  # fmt: skip
        is_flash_4 = implementation.startswith("FlashAttention-4")
        if causal and seq != kv_seq and not is_flash_4:
            raise RuntimeError("PyTorch's causal mask begins top-left, which differs where seq is not kv_seq")

        def tensor(rows, tensor_heads):
            axes = (batch, tensor_heads, rows, head_dim) if layout == "bhsd" else (batch, rows, tensor_heads, head_dim)
            values = randn(axes, dtype)
            return values if layout == "bhsd" else values.transpose(1, 2)

        if form == "heads_as_rows":
            queries = randn((batch, kv_heads, heads // kv_heads * seq, head_dim), dtype)
        else:
            queries = tensor(seq, heads)
        self.tensors = [queries, tensor(kv_seq, kv_heads), tensor(kv_seq, kv_heads)]
        options = {"is_causal": causal, "scale": softmax_scale, "dropout_p": dropout}
        if is_flash_4:
            self.attention = flash_attention_4(options, implementation.endswith(" deterministic"))
        else:
            if heads != kv_heads and form != "heads_as_rows":
                options["enable_gqa"] = True
            self.attention = scaled_dot_product(options, implementation)
        self.copies = form == "copies"
        self.can_be_captured = gradients == "none"
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
        output = self.attention(*tensors)
        return output.transpose(1, 2).contiguous() if self.copies else output


class Service:
    """The attention of a service's steps over padded K and V, of which one layer's stand for all."""

    def __init__(
        self, layers, sequences, rows, keys, heads, kv_heads, head_dim, dtype, softmax_scale, implementation
    ):  # fmt: skip
        self.layers, self.kv_heads = layers, kv_heads
        # Heads that share a key head are rows of one, so that its keys are read once.
        self.newest = randn((sequences, kv_heads, heads // kv_heads, head_dim), dtype)
        self.queries = randn((1, heads, rows, head_dim), dtype)
        self.k, self.v = (randn((sequences, kv_heads, keys, head_dim), dtype) for _ in range(2))
        self.options = {"scale": softmax_scale, "dropout_p": 0.0}
        self.grouped = {"enable_gqa": True} if heads != kv_heads else {}
        self.implementation = implementation
        for call in self.calls([1], [[1, 1]]):
            call()

    def calls(self, decoding, filling):
        """One call for all sequences that decode, one for each that fills its cache. Their masks are made here."""
        calls = []
        if decoding:
            longest = max(decoding)
            used = torch.tensor(decoding, device=DEVICE).view(-1, 1, 1, 1)
            mask = torch.arange(longest, device=DEVICE).view(1, 1, 1, -1) < used
            calls.append(self.call(self.newest[: len(decoding)], longest, {"is_causal": False, "attn_mask": mask}))
        for rows, keys in filling:
            mask = {"is_causal": True}
            if rows != keys:
                from torch.nn.attention.bias import causal_lower_right

                mask = {"is_causal": False, "attn_mask": causal_lower_right(rows, keys)}
            calls.append(self.call(self.queries[:, :, :rows], keys, mask | self.grouped))
        return calls

    def call(self, queries, keys, options):
        k, v = (tensor[: queries.shape[0], :, :keys] for tensor in (self.k, self.v))
        attention = scaled_dot_product(self.options | options, self.implementation)
        return lambda: attention(queries, k, v)

    def seconds(self, clock, decoding, filling, evictions):
        """Seconds of a step in all layers, after one layer whose time does not count: a library may plan for the
        step's lengths."""
        calls = self.calls(decoding, filling)
        for call in calls:
            call()

        def step():
            for _ in range(self.layers):
                for call in calls:
                    call()

        return clock.seconds(step, 1, evictions * self.layers * len(calls), waits=True)


class Product:
    """torch.matmul into a result that is there."""

    can_be_captured = True

    def __init__(self, m, n, k, dtype, orders):
        def matrix(rows, columns, order):
            if order == "row":
                return randn((rows, columns), dtype)
            return randn((columns, rows), dtype).t()

        self.a, self.b, self.c = matrix(m, k, orders[0]), matrix(k, n, orders[1]), matrix(m, n, orders[2])

    def __call__(self):
        return torch.matmul(self.a, self.b, out=self.c)


class Clock:
    """Seconds of calls."""

    def __init__(self):
        if ON_GPU:
            l2_bytes = torch.cuda.get_device_properties(DEVICE).L2_cache_size
            # Read, and not written: lines that are written would be written back under what is timed.
            self.eviction = torch.zeros(l2_bytes // 2, device=DEVICE, dtype=torch.float32)

    def seconds(self, call, runs, evictions, waits):
        """Evicts the L2 cache some times before each call. Without waits a call is enqueued while those before it
        run: at a card's power limit a rest would show."""
        if not ON_GPU:
            return [wall_seconds(call) for _ in range(runs)]
        events = []
        for _ in range(runs):
            for _ in range(evictions):
                self.eviction.sum()
            events.append(recorded(call))
            if waits:
                events[-1][1].synchronize()
        torch.cuda.synchronize()
        return [elapsed(*pair) for pair in events]

    def probe(self, call, evictions):
        """Seconds of one call on the device, and seconds that the host takes to enqueue it."""
        if not ON_GPU:
            raise RuntimeError("the CPU has no queue")
        # The first may load what later ones find.
        device = min(self.seconds(call, 2, evictions, waits=True))
        # While the device is busy, so that the call does not wait for a launch.
        self.eviction.sum()
        host = wall_seconds(call)
        torch.cuda.synchronize()
        return {"device": device, "host": host}


def wall_seconds(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def recorded(call):
    """Two events of the device around what a call enqueues."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    return begin, end


def elapsed(begin, end):
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


class Replays:
    """CUDA graphs that hold many calls, by the calls' numbers."""

    def __init__(self):
        self.graphs = {}

    def seconds(self, number, call, runs):
        """Seconds of one call in a replay, which has neither a launch nor a cold cache in it."""
        if not ON_GPU:
            raise RuntimeError("the CPU has no graphs")
        if number not in self.graphs:
            if not call.can_be_captured:
                raise RuntimeError("gradients are computed on the stream that O was, which no capture sees")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(runs):
                    call()
            graph.replay()
            self.graphs[number] = graph
        return elapsed(*recorded(self.graphs[number].replay)) / runs


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


class Server:
    """Calls that were prepared, and what is asked of them."""

    def __init__(self):
        self.clock, self.replays, self.calls = Clock(), Replays(), {}

    def do(self, operation, request):
        """The fields of the answer."""
        if operation == "serve":
            number = request.pop("number")
            self.calls[number] = Service(**request)
            return {"ready": True}
        if operation in ("attention", "product"):
            number = request.pop("number")
            call = (Attention if operation == "attention" else Product)(**request)
            # Refused here, if it is refused.
            call()
            self.calls[number] = call
            return {"ready": True}
        if operation == "forget":
            self.calls.clear()
            self.replays = Replays()
            if ON_GPU:
                torch.cuda.empty_cache()
            return {"ready": True}
        number = request.pop("number")
        call = self.calls[number]
        if operation == "step":
            return {"seconds": call.seconds(self.clock, **request)}
        if operation == "time":
            return {"seconds": self.clock.seconds(call, **request)}
        if operation == "probe":
            return self.clock.probe(call, **request)
        if operation == "replay":
            return {"seconds": [self.replays.seconds(number, call, **request)]}
        if operation == "peak":
            return {"bytes": peak_bytes(call)}
        return {"refused": f"unknown request {operation}"}


def serve():
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    # As the library's fp32: no TF32.
    torch.backends.cuda.matmul.allow_tf32 = False
    if ON_GPU:
        # A library that asks for the current device, or its stream, must find this one.
        torch.cuda.set_device(DEVICE)
    else:
        torch.set_num_threads(THREADS)
    answer(name=f"PyTorch {torch.__version__}", device=describe())
    server = Server()
    for line in sys.stdin:
        request = json.loads(line)
        operation = request.pop("op")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                fields = server.do(operation, request)
            except Missing as error:
                fields = {"missing": str(error).split("\n")[0]}
            # Whatever the reason, a refusal is a result here.
            except Exception as error:
                texts = [str(warning.message) for warning in said] + [str(error) or type(error).__name__]
                fields = {"refused": "; ".join(dict.fromkeys(text.split("\n")[0].strip() for text in texts))}
        answer(**fields)


try:
    serve()
except Exception as error:
    answer(missing=f"{type(error).__name__}: {error}".split("\n")[0])
