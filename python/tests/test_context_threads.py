"""Context parallelism of ranks that are threads on the CPU."""

import contextlib
import ctypes
import threading
from types import SimpleNamespace

import pytest

import flash_attention_rs as fa
from flash_attention_rs import _context_parts, _native


class Board:
    """Where ranks that are threads meet, and what they lay side by side."""

    def __init__(self, world):
        self.barrier, self.whole, self.lock = threading.Barrier(world), {}, threading.Lock()

    def gathered(self, name, part, runs, rows):
        """The whole tensor of all ranks' parts, [B, S, H, D]."""
        with self.lock:
            whole = self.whole.get(name)
            if whole is None:
                shape = (part.shape[0], rows, *part.shape[2:])
                whole = self.whole[name] = part.new_full(shape, float("nan"))
        self.barrier.wait()
        first = 0
        for start, end in runs:
            whole[:, start:end] = part[:, first : first + end - start]
            first += end - start
        self.barrier.wait()
        self.whole.pop(name, None)
        return whole


class Ranks:
    """`_native.Ranks`, of threads."""

    def __init__(self, board, rank, world, problem):
        self.board, self.rank, self.world_size, self.problem = board, rank, world, problem
        self.device, self.transport, self.calls = 0, "nccl", []

    def plan(self, part, has_gradients):
        self.calls.append(("plan", has_gradients))
        return RankPlan(self, part, has_gradients)

    def check(self):
        pass

    def barrier(self, timeout):
        self.board.barrier.wait(timeout)

    def give_up(self, reason):
        self.calls.append(("give_up", reason))

    def leave(self):
        pass

    def close(self):
        self.calls.append(("close",))


class RankPlan:
    """A rank's plan on the CPU: it gathers all, and computes all, of which it takes its rows."""

    memory_bytes = 7

    def __init__(self, ranks, part, has_gradients):
        self.ranks, self.part, self.has_gradients = ranks, part, has_gradients

    def wait(self, timeout):
        self.ranks.calls.append(("wait", timeout))

    def close(self):
        self.ranks.calls.append(("close plan", self.has_gradients))

    def enqueue(self, at, stream):
        import torch

        from flash_attention_rs._context_passes import taken

        self.ranks.calls.append(("enqueue", self.has_gradients))
        shapes, rows = self.ranks.problem, (self.part.query_rows(), self.part.key_rows())
        of_q = (shapes["q"], rows[0])
        of_o = ((*shapes["q"][:3], shapes["v"][3]), rows[0])
        of_k, of_v = (shapes["k"], rows[1]), (shapes["v"], rows[1])

        def tensor(address, of):
            (b, _, h, d), runs = of
            shape = (b, _context_parts.count(runs), h, d)
            count = b * shape[1] * h * d
            if count == 0:
                return torch.empty(shape)
            memory = (ctypes.c_float * count).from_address(address)
            return torch.frombuffer(memory, dtype=torch.float32).view(shape)

        def gathered(name, address, of):
            return self.ranks.board.gathered(name, tensor(address, of), of[1], of[0][1])

        def give(address, of, whole):
            tensor(address, of).copy_(taken(whole, 1, of[1]))

        q, k, v, o, lse, dout, dq, dk, dv = at
        with torch.enable_grad():
            inputs = (("q", q, of_q), ("k", k, of_k), ("v", v, of_v))
            inputs = [gathered(*of).requires_grad_() for of in inputs]
            options = self.ranks.problem["options"]
            found, found_lse, _ = fa.flash_attn_func(*inputs, return_attn_probs=True, **options)
        if self.has_gradients:
            of_rows = (of_q[0][:3] + (1,), rows[0])
            mine = taken(found_lse.detach(), 2, rows[0])
            assert torch.equal(tensor(lse, of_rows).flatten(), mine.flatten())
            weights = gathered("dout", dout, of_o)
            gradients = torch.autograd.grad(found, inputs, weights)
            for address, of, whole in zip((dq, dk, dv), (of_q, of_k, of_v), gradients):
                give(address, of, whole)
            return
        give(o, of_o, found.detach())
        if lse:
            mine = taken(found_lse.detach(), 2, rows[0])
            tensor(lse, ((*of_q[0][:3], 1), rows[0])).view(-1).copy_(mine.flatten())


@pytest.fixture
def groups(monkeypatch):
    """Makes groups of ranks that are threads, on the CPU."""
    torch = pytest.importorskip("torch")
    from flash_attention_rs import _launch

    monkeypatch.setattr(_launch, "on_stream", lambda _, launch: launch(1))
    stream = SimpleNamespace(wait_stream=lambda _: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def make(world, problem, **options):
        board, found = Board(world), []
        for rank in range(world):
            monkeypatch.setattr(_native, "Ranks", lambda *_, rank=rank: Ranks(board, rank, world, problem))
            group = fa.ContextParallel(**options)
            group.device = torch.device("cpu")
            found.append(group)
        return found

    return make


def on_all(groups, call):
    """What a call gives on each rank, each in a thread."""
    found, errors = [None] * len(groups), []

    def run(group):
        try:
            found[group.rank] = call(group)
        except BaseException as error:
            errors.append(error)
            group._native.board.barrier.abort()

    threads = [threading.Thread(target=run, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


# The last of five ranks has no queries.
@pytest.mark.parametrize(
    "world, partition", [(1, "zigzag"), (2, "zigzag"), (2, "contiguous"), (3, "zigzag"), (5, "contiguous")]
)
def test_ranks_that_are_threads_have_the_rows_of_one(groups, world, partition):
    import torch

    torch.manual_seed(0)
    shapes = {"q": (2, 31, 4, 8), "k": (2, 45, 2, 8), "v": (2, 45, 2, 16)}
    options = {"causal": True, "softcap": 3.0, "window_size": (-1, 2), "softmax_scale": 0.4}
    whole = [torch.randn(shape).requires_grad_() for shape in shapes.values()]
    weights = torch.randn(2, 31, 4, 16)
    want, want_lse, _ = fa.flash_attn_func(*whole, return_attn_probs=True, **options)
    want_gradients = torch.autograd.grad(want, whole, weights)

    def call(group):
        # By heads, so that each part is copied.
        parts = [group.shard(t.detach()).transpose(1, 2).contiguous().transpose(1, 2) for t in whole]
        parts = [t.requires_grad_() for t in parts]
        assert torch.equal(parts[0], whole[0][:, group.rows(31)])
        o, lse = group.attention(*parts, 31, seqlen_k=45, return_lse=True, **options)
        assert o.requires_grad and not lse.requires_grad
        gradients = torch.autograd.grad(o, parts, group.shard(weights))
        with torch.no_grad():
            again = group.attention(*parts, 31, seqlen_k=45, **options)
        assert torch.equal(again, o)
        group.synchronize(9.0)
        assert group.memory_bytes == 14
        group.close()
        return o, lse, gradients

    ranks = groups(world, {**shapes, "options": options}, partition=partition)
    calls = [group._native.calls for group in ranks]
    for group, (o, lse, gradients) in zip(ranks, on_all(ranks, call)):
        rows = group.rows(31)
        assert torch.equal(o, want[:, rows]) and torch.equal(lse, want_lse[:, :, rows])
        for found, expected in zip(gradients, want_gradients):
            assert torch.equal(found, group.shard(expected))
    passes = [("plan", False), ("enqueue", False), ("plan", True), ("enqueue", True), ("enqueue", False)]
    ends = [("wait", 9.0), ("wait", 600.0), ("close plan", False), ("close plan", True), ("close",)]
    assert calls == [passes + ends] * world


def test_plans_that_were_used_last_are_kept(groups):
    import torch

    shape = (1, 8, 1, 8)
    (group,) = groups(1, {"q": shape, "k": shape, "v": shape, "options": {}}, max_plans=2)
    t, calls = torch.zeros(shape), group._native.calls
    for scale in (1.0, 2.0, 1.0, 3.0, 1.0, 2.0):
        group.attention(t, t, t, 8, softmax_scale=scale)
    made = [call for call in calls if call[0] != "enqueue"]
    assert made == [("plan", False)] * 2 + [("close plan", False), ("plan", False)] * 2
    group.close()


def test_what_is_compiled_and_computed_again(groups):
    import torch
    from torch.utils.checkpoint import checkpoint

    shape = (1, 8, 1, 8)
    (group,) = groups(1, {"q": shape, "k": shape, "v": shape, "options": {}})
    q = torch.randn(shape, requires_grad=True)
    step = lambda q: group.attention(q * 0.5, q, q, 8) * 2  # noqa: E731
    want = step(q)
    (gradient,) = torch.autograd.grad(want.sum(), q)
    for other in (
        torch.compile(step, backend="aot_eager"),
        lambda q: checkpoint(step, q, use_reentrant=False),
    ):
        found = other(q)
        torch.testing.assert_close(found, want)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), q)[0], gradient)
    with pytest.raises(NotImplementedError, match="no create_graph"):
        torch.autograd.grad(step(q).sum(), q, create_graph=True)
    group.close()


def test_others_hear_of_an_exception(groups):
    shape = (1, 8, 1, 8)
    (group,) = groups(1, {"q": shape, "k": shape, "v": shape, "options": {}})
    with pytest.raises(KeyError), group:
        raise KeyError("lost")
    assert group._native.calls == [("give_up", "KeyError: 'lost'")]
    for error in (None, SystemExit(0)):
        (other,) = groups(1, {"q": shape, "k": shape, "v": shape, "options": {}})
        with contextlib.suppress(SystemExit), other:
            if error is not None:
                raise error
        assert other._native.calls == [("close",)]
        assert not other._end.alive
