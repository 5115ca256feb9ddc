"""Stands in for PyTorch where the peer's side of the pipe is tested: shapes are checked, nothing is computed."""

import math
import types

from . import cuda
from .cuda import trace

__version__ = "0.0.test"
float32, float16, bfloat16, float8_e4m3fn = "float32", "float16", "bfloat16", "float8_e4m3fn"
backends = types.SimpleNamespace(cuda=types.SimpleNamespace(matmul=types.SimpleNamespace(allow_tf32=True)))


class Tensor:
    def __init__(self, shape, contiguous=True):
        self.shape, self.is_contiguous, self.requires_grad = tuple(shape), contiguous, False
        self.dtype = None
        self.has_graph = False

    def transpose(self, first, second):
        shape = list(self.shape)
        shape[first], shape[second] = shape[second], shape[first]
        view = Tensor(shape, contiguous=False).to(self.dtype)
        view.requires_grad, view.has_graph = self.requires_grad, self.has_graph
        return view

    def to(self, dtype):
        self.dtype = dtype
        return self

    def t(self):
        return self.transpose(0, 1)

    def contiguous(self):
        return Tensor(self.shape)

    def requires_grad_(self):
        self.requires_grad = True
        return self

    def sum(self):
        trace("z")

    def view(self, *shape):
        assert all(length == -1 or length == 1 for length in shape)
        return Tensor(tuple(math.prod(self.shape) if length == -1 else 1 for length in shape))

    def __lt__(self, other):
        assert len(self.shape) == len(other.shape) and all(1 in pair for pair in zip(self.shape, other.shape))
        return Tensor(tuple(max(pair) for pair in zip(self.shape, other.shape)))

    def __getitem__(self, index):
        """Slices from the start, which leave as many as there are at most."""
        shape = list(self.shape)
        for axis, part in enumerate(index if isinstance(index, tuple) else (index,)):
            assert part.start is None and part.step is None
            if part.stop is not None:
                assert 1 <= part.stop <= shape[axis]
                shape[axis] = part.stop
        return Tensor(shape, contiguous=False).to(self.dtype)


def randn(*shape, dtype, device):
    assert dtype in (float32, float16, bfloat16) and device in ("cpu", "cuda:0")
    return Tensor(shape[0] if isinstance(shape[0], tuple) else shape)


def tensor(values, device):
    assert device in ("cpu", "cuda:0")
    return Tensor((len(values),))


def arange(count, device):
    assert device in ("cpu", "cuda:0")
    return Tensor((count,))


def zeros(size, device, dtype):
    assert 4 * size == 2 * cuda.L2_BYTES and device == "cuda:0" and dtype == float32
    return Tensor((size,))


def matmul(a, b, out):
    assert a.shape[1] == b.shape[0] and out.shape == (a.shape[0], b.shape[1])
    trace("m")
    return out


def manual_seed(seed):
    pass


def set_grad_enabled(enabled):
    assert not enabled


threads = 3


def set_num_threads(count):
    global threads
    threads = count


def get_num_threads():
    return threads


class enable_grad:
    """Keeps count, so that a graph can be asked for."""

    depth = 0

    def __enter__(self):
        enable_grad.depth += 1

    def __exit__(self, *_):
        enable_grad.depth -= 1


class autograd:
    @staticmethod
    def grad(output, inputs, grad_output, retain_graph):
        trace("b")
        assert output.has_graph and output.shape == grad_output.shape
        assert all(tensor.requires_grad for tensor in inputs)
        # A graph that is not kept can be gone through once.
        output.has_graph = retain_graph
        return [Tensor(tensor.shape) for tensor in inputs]


from . import nn  # noqa: E402
