"""What a launch on a GPU gets, with a plan that only notes it."""

import contextlib

import pytest

torch = pytest.importorskip("torch")

import flash_attention_rs as fa  # noqa: E402
from flash_attention_rs import _launch, _passes, _plans  # noqa: E402

STREAM = 7
NUMBERS = (0, 0, 0.25, True, -1, -1, 0.0, 0.0)


class Plan:
    workspace_bytes = 64

    def enqueue(self, *arguments):
        self.arguments = arguments


@pytest.fixture
def plan(monkeypatch):
    """A plan of GPU 0, which the tensors of the CPU are taken to be on."""
    plan = Plan()
    for name in ("forward", "backward", "decode"):
        monkeypatch.setattr(_plans, name, lambda *key: setattr(plan, "key", key) or plan)
    for module in (_launch, _passes):
        monkeypatch.setattr(module, "index_of", lambda t: 0)
    for kept in ("_forwards", "_backwards", "_decodes"):
        monkeypatch.setattr(_passes, kept, _launch.Kept())
    monkeypatch.setattr(_launch, "_current_stream", lambda index: STREAM)
    monkeypatch.setattr(_launch, "_current_device", lambda: 0)
    return plan


def addresses(*tensors):
    return tuple(0 if t is None else t.data_ptr() for t in tensors)


def test_forward_and_backward(plan):
    q, k, v = (torch.randn(2, 8, heads, 16) for heads in (4, 2, 2))
    alibi, sinks = torch.rand(4), torch.rand(4)
    lists = (alibi, sinks, None, None, None, None)
    o, lse = _passes.forward(q, k, v, *lists, *NUMBERS)
    at, stream = plan.arguments
    assert stream == STREAM and len(at) == 11
    assert (
        at[:5] == addresses(q, k, v, o, lse) and at[5] != 0 and at[6:] == (*addresses(alibi, sinks), 0, 0, 0)
    )
    place, dtype, views, settings = plan.key
    assert (place, dtype, len(views)) == (0, "f32", 4)
    assert settings == _plans.Settings(True, 0.25, (None, None), 0.0, alibi_len=4, sinks_len=4)
    dout, dlse = torch.randn_like(o), torch.randn_like(lse)
    *gradients, dsinks = _passes.backward(dout, dlse, q, k, v, o, lse, *lists, *NUMBERS)
    at, written, stream = plan.arguments
    assert (
        at[:5] == addresses(q, k, v, o, lse) and at[5] != 0 and at[6:] == (*addresses(alibi, sinks), 0, 0, 0)
    )
    assert written == addresses(dout, *gradients, dlse, dsinks) and stream == STREAM


def test_a_call_that_nothing_needs_lse_of_has_none(plan):
    q = torch.randn(2, 8, 4, 16)
    assert fa.flash_attn_func(q, q, q).shape == q.shape
    at, _ = plan.arguments
    assert at[4] == 0


def test_heads_may_come_before_rows(plan):
    q, k, v = (torch.randn(2, 8, heads, 16).transpose(1, 2) for heads in (4, 2, 2))
    o, lse = _passes.forward(q, k, v, *(None,) * 6, *NUMBERS, by_heads=True)
    assert o.shape == q.shape and o.stride() == q.stride() and lse.shape == (2, 4, 8)
    views = plan.key[2]
    assert views[0] == views[3] == ((2, 8, 4, 16), (512, 64, 16, 1))
    assert views[1] == views[2] == ((2, 8, 2, 16), (256, 32, 16, 1))


def test_another_device_is_made_the_current_one(plan, monkeypatch):
    entered = []
    monkeypatch.setattr(_launch, "_current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device", lambda index: entered.append(index) or contextlib.nullcontext())
    fa.flash_attn_func(*(torch.randn(2, 8, 4, 16) for _ in range(3)))
    assert entered == [0] and plan.arguments[1] == STREAM


def test_packed_offsets_stay_where_they_are(plan):
    q, k, v = (torch.randn(8, heads, 16) for heads in (4, 2, 2))
    cu = torch.tensor([0, 3, 8], dtype=torch.int32)
    used = torch.tensor([1, 5], dtype=torch.int32)
    _passes.forward(q, k, v, None, None, cu, cu, used, None, 5, 6, *NUMBERS[2:])
    at, _ = plan.arguments
    assert at[6:] == (0, 0, *addresses(cu, cu, used))
    assert plan.key[3].varlen == (2, 5, 6) and plan.key[3].has_seqused_k
    assert plan.key[2][0] == ((1, 8, 4, 16), (512, 64, 16, 1))


def test_the_same_bits_in_any_batch_are_asked_for(plan, monkeypatch):
    monkeypatch.setattr(_plans, "batch_invariant", False)
    q = torch.randn(2, 8, 4, 16)
    calls = (lambda: fa.flash_attn_func(q, q, q)), (lambda: fa.flash_attn_with_kvcache(q[:, :1], q, q))
    for enabled in (False, True):
        fa.set_batch_invariant(enabled)
        for call in calls:
            call()
            assert plan.key[3].batch_invariant is enabled


def test_decode(plan):
    q, k, v = (torch.randn(2, rows, heads, 16) for rows, heads in ((1, 4), (8, 2), (8, 2)))
    used, table = torch.zeros(2, dtype=torch.int32), torch.zeros(2, 3, dtype=torch.int32)
    slopes = torch.ones(4)
    o, lse = _passes.decode(q, k, v, used, table, slopes, None, 0.25, True, 5, -1, 2.0, 4)
    at, stream = plan.arguments
    assert (
        at[:5] == addresses(q, k, v, o, lse)
        and at[5] != 0
        and at[6:10] == addresses(used, table, slopes, None)
    )
    settings, *numbers = plan.key[3:]
    assert settings[:4] == (True, 0.25, (5, None), 2.0) and settings.alibi_len == 4
    assert at[10:] == (0, 0, 0) and numbers[:2] == [3, 4] and stream == STREAM
