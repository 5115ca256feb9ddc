"""What a launch on a GPU gets, with a plan that only notes it."""

import pytest

torch = pytest.importorskip("torch")

from flash_attention_rs import _plans, _torch  # noqa: E402

STREAM = 7
REST = (0, 0, 0.25, True, -1, -1, 0.0, 0.0)


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
    monkeypatch.setattr(_torch, "_place", lambda *tensors: 0)
    monkeypatch.setattr(_torch, "_current_stream", lambda index: STREAM)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return plan


def addresses(*tensors):
    return [0 if t is None else t.data_ptr() for t in tensors]


def test_forward_and_backward(plan):
    q, k, v = (torch.randn(2, 8, heads, 16) for heads in (4, 2, 2))
    alibi = torch.rand(4)
    o, lse = _torch._forward(q, k, v, alibi, None, None, None, *REST)
    at, stream = plan.arguments
    assert stream == STREAM and len(at) == 9
    assert at[:5] == addresses(q, k, v, o, lse) and at[5] != 0 and at[6:] == [*addresses(alibi), 0, 0]
    place, dtype, views, settings = plan.key
    assert (place, dtype, len(views)) == (0, "f32", 4)
    assert settings == _plans.Settings(True, 0.25, (None, None), 0.0, None, 4, None, None)
    dout, dlse = torch.randn_like(o), torch.randn_like(lse)
    gradients = _torch._backward(dout, dlse, q, k, v, o, lse, alibi, None, None, None, *REST)
    at, written, stream = plan.arguments
    assert at[:5] == addresses(q, k, v, o, lse) and at[5] != 0 and at[6:] == [*addresses(alibi), 0, 0]
    assert written == addresses(dout, *gradients, dlse) and stream == STREAM


def test_packed_offsets_stay_where_they_are(plan):
    q, k, v = (torch.randn(8, heads, 16) for heads in (4, 2, 2))
    cu = torch.tensor([0, 3, 8], dtype=torch.int32)
    _torch._forward(q, k, v, None, cu, cu, None, 5, 6, *REST[2:])
    at, _ = plan.arguments
    assert at[6:] == [0, *addresses(cu, cu)]
    assert plan.key[3].varlen == (2, 5, 6)
    assert plan.key[2][0] == ((1, 8, 4, 16), (512, 64, 16, 1))


def test_decode(plan):
    q, k, v = (torch.randn(2, rows, heads, 16) for rows, heads in ((1, 4), (8, 2), (8, 2)))
    used, table = torch.zeros(2, dtype=torch.int32), torch.zeros(2, 3, dtype=torch.int32)
    o, lse = _torch._decode(q, k, v, used, table, 0.25, True, 4)
    at, stream = plan.arguments
    assert at[:5] == addresses(q, k, v, o, lse) and at[5] != 0 and at[6:] == addresses(used, table)
    assert plan.key[3:] == (True, 0.25, 3, 4) and stream == STREAM
