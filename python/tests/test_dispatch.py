"""Which calls go past PyTorch's dispatcher, and that those which may not go through the ops."""

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import flash_attention_rs as fa  # noqa: E402
from flash_attention_rs import _ops, _passes, _torch  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
DTYPE = torch.bfloat16


@pytest.fixture(params=DEVICES)
def inputs(request):
    torch.manual_seed(0)
    return [torch.randn(2, 20, 4, 16, device=request.param, requires_grad=True) for _ in range(3)]


class Seen(TorchDispatchMode):
    """The ops of this package that the dispatcher is asked for."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function.namespace == "flash_attention_rs":
            self.names.append(function.__name__.removesuffix(".default"))
        return function(*arguments, **(options or {}))


def with_gradients(inputs, **options):
    o, lse, _ = fa.flash_attn_func(*inputs, causal=True, return_attn_probs=True, **options)
    return [o, lse, *torch.autograd.grad(o.square().sum() + lse.sum(), inputs)]


def test_both_ways_give_the_same_bits(inputs, monkeypatch):
    assert _ops.is_eager(*inputs)
    direct = with_gradients(inputs)
    with Seen() as seen:
        through_ops = with_gradients(inputs)
    assert seen.names == ["forward", "backward"]
    assert all(map(torch.equal, direct, through_ops))
    with torch.no_grad():
        assert torch.equal(fa.flash_attn_func(*inputs, causal=True), direct[0])
    # Nothing of the direct way is the op.
    monkeypatch.setattr(torch.ops, "flash_attention_rs", None)
    assert all(map(torch.equal, direct, with_gradients(inputs)))


def test_decode_goes_both_ways(inputs):
    q, k, v = (t.detach().half() for t in inputs)  # decode has no float32 on GPUs
    direct = fa.flash_attn_with_kvcache(q[:, :1], k, v, cache_seqlens=12)
    with Seen() as seen:
        assert torch.equal(fa.flash_attn_with_kvcache(q[:, :1], k, v, cache_seqlens=12), direct)
    assert seen.names == ["decode"]


def test_the_same_few_rows_of_each_sequence_are_decoded_from_their_pages(inputs):
    q, k, v = (t.detach().half() for t in inputs)
    batch, keys, heads, dim = k.shape
    cu = torch.arange(batch + 1, dtype=torch.int32, device=q.device)
    used = torch.full((batch,), keys, dtype=torch.int32, device=q.device)
    table = torch.arange(batch, dtype=torch.int32, device=q.device)[:, None]
    sinks = torch.rand(q.shape[2], device=q.device)
    row, options = q[:, 0].contiguous(), {"causal": True, "sinks": sinks, "return_attn_probs": True}
    with Seen() as seen:
        o, lse, _ = fa.flash_attn_varlen_func(
            row, k, v, cu, None, 1, keys, block_table=table, seqused_k=used, **options
        )
    assert seen.names == ["decode"]
    of_k = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * keys
    rows = (t.reshape(batch * keys, heads, dim) for t in (k, v))
    expected, expected_lse, _ = fa.flash_attn_varlen_func(row, *rows, cu, of_k, 1, keys, **options)
    assert o.shape == expected.shape and lse.shape == expected_lse.shape
    assert torch.allclose(o, expected, atol=2e-3) and torch.allclose(lse, expected_lse, atol=1e-4)


def test_what_is_not_plain_goes_through_ops(inputs):
    class Other(torch.Tensor):
        pass

    assert not _ops.is_eager(inputs[0].as_subclass(Other), *inputs[1:])
    assert not _ops.is_eager(*(t.to("meta") for t in inputs))
    assert _ops.is_eager(*map(torch.nn.Parameter, inputs))
    with torch.autograd.forward_ad.dual_level():
        assert not _ops.is_eager(*inputs)
    seen = []
    torch.func.grad(lambda q: seen.append(_ops.is_eager(q)) or q.sum())(inputs[0])
    torch.jit.trace(lambda q: seen.append(_ops.is_eager(q)) or q.sum(), inputs[0], check_trace=False)
    assert seen == [False, False]
    assert fa.flash_attn_func(*(t.to("meta") for t in inputs)).shape == inputs[0].shape


def test_negated_views_are_read_with_their_signs(inputs):
    q, k, v = (t.detach() for t in inputs)
    want = fa.flash_attn_func(-q, k, v)
    torch.testing.assert_close(fa.flash_attn_func(torch._neg_view(q), k, v), want)
    (dq,) = torch.autograd.grad(fa.flash_attn_func(*inputs), inputs[:1], torch._neg_view(want))
    torch.testing.assert_close(dq, torch.autograd.grad(fa.flash_attn_func(*inputs), inputs[:1], -want)[0])


def test_gradients_may_be_batched(inputs):
    o, lse, _ = fa.flash_attn_func(*inputs, return_attn_probs=True)
    weights = torch.randn(3, *o.shape, device=o.device), torch.randn(3, *lse.shape, device=o.device)
    for outputs, batch in (((o, lse), weights), ((o,), weights[:1]), ((lse,), weights[1:])):
        options = {"retain_graph": True, "allow_unused": True}
        found = torch.autograd.grad(outputs, inputs[:2], batch, is_grads_batched=True, **options)
        for index in range(3):
            want = torch.autograd.grad(outputs, inputs[:2], [t[index] for t in batch], **options)
            for a, b in zip(found, want):
                torch.testing.assert_close(a[index], b)


def test_a_gradient_of_the_gradient_is_refused(inputs):
    (dq,) = torch.autograd.grad(fa.flash_attn_func(*inputs).sum(), inputs[:1], create_graph=True)
    with pytest.raises(NotImplementedError, match="the backward pass of attention has no gradient"):
        torch.autograd.grad(dq.sum(), inputs)


@pytest.mark.parametrize("attention", [fa.flash_attn_func, fa.flash_attn_with_kvcache])
def test_forward_mode_is_refused(inputs, attention):
    q, k, v = (t.detach().half() for t in inputs)
    for index in range(3):
        given = [q[:, :4], k, v]

        def call(t, given=given, index=index):
            return attention(*given[:index], t, *given[index + 1 :])

        with pytest.raises(NotImplementedError, match="attention has no forward-mode derivative"):
            torch.func.jvp(call, (given[index],), (given[index],))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(given[index], given[index])
            with pytest.raises(NotImplementedError, match="attention has no forward-mode derivative"):
                call(dual)
            assert torch.equal(call(given[index]), attention(*given))


def test_vmap(inputs):
    q, k, v = (t.detach() for t in inputs)
    batch = torch.stack((q, -q))
    found = torch.vmap(lambda q: fa.flash_attn_func(q, k, v))(batch)
    torch.testing.assert_close(found, torch.stack([fa.flash_attn_func(q, k, v) for q in batch]))


def test_one_input_may_need_a_gradient(inputs):
    q, k, v = inputs
    o = fa.flash_attn_func(q.detach(), k, v.detach())
    (dk,) = torch.autograd.grad(o.sum(), [k])
    torch.testing.assert_close(dk, torch.autograd.grad(fa.flash_attn_func(*inputs).sum(), [k])[0])
    with torch.inference_mode():
        assert not fa.flash_attn_func(*inputs).requires_grad


def test_checkpoints(inputs):
    from torch.utils.checkpoint import checkpoint

    def loss(attention):
        return torch.autograd.grad(attention(*inputs).square().sum(), inputs)

    kept = loss(lambda *t: checkpoint(fa.flash_attn_func, *t, use_reentrant=False))
    assert all(map(torch.equal, kept, loss(fa.flash_attn_func)))


def test_plans_are_found_again_and_forgotten(inputs, monkeypatch):
    from flash_attention_rs import _launch, _plans

    kept = _launch.Kept()
    monkeypatch.setattr(_passes, "_forwards", kept)
    monkeypatch.setattr(_plans, "KEPT", 2)
    for rows in (5, 5, 6, 7):
        fa.flash_attn_func(*(t[:, :rows] for t in inputs))
    assert sorted(key[6][1] for key in kept) == [6, 7]
    # A seed, and sinks that are trained, do not come again.
    sinks = torch.zeros(4, device=inputs[0].device)
    fa.flash_attn_func(*inputs, dropout_p=0.5)
    fa.flash_attn_func(*inputs, sinks=sinks)
    assert all(key[6][1] < 20 for key in kept) or inputs[0].is_cuda


@pytest.mark.parametrize("convert", [torch.tensor, np.array])
def test_options_are_values(inputs, convert):
    q, k, v = (t.detach() for t in inputs)
    for scale in (0.3, 0.7):
        value = convert(scale)
        options = {
            "softmax_scale": value,
            "softcap": value,
            "causal": convert(1),
            "window_size": (convert(9), -1),
        }
        want = fa.flash_attn_func(q, k, v, 0.0, scale, True, (9, -1), scale)
        torch.testing.assert_close(fa.flash_attn_func(q, k, v, **options), want)
        value += 1 - 2 * scale
        want = fa.flash_attn_func(q, k, v, 0.0, float(value), True, (9, -1), float(value))
        torch.testing.assert_close(fa.flash_attn_func(q, k, v, **options), want)


def test_sides_of_windows_that_no_sequence_reaches(inputs):
    q, k, v = (t.detach() for t in inputs)
    want = fa.flash_attn_func(q, k, v, window_size=(-1, 3))
    assert torch.equal(fa.flash_attn_func(q, k, v, window_size=(2**70, 3)), want)


def test_threads_share_plans(inputs):
    tensors = [t.detach() for t in inputs]
    rows = range(1, 20)
    want = {n: fa.flash_attn_func(*(t[:, :n] for t in tensors)) for n in rows}
    for kept in (_passes._forwards, _passes._backwards):
        kept.clear()
    wrong = []

    def work():
        for n in rows:
            if not torch.equal(fa.flash_attn_func(*(t[:, :n] for t in tensors)), want[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast(inputs, compiled):
    kind = inputs[0].device.type
    attention = fa.flash_attn_func
    if compiled:
        attention = torch.compile(attention, backend="aot_eager", fullgraph=True)
    with torch.autocast(kind, dtype=DTYPE):
        o = attention(*inputs, causal=True)
        q, k, v = (t.transpose(1, 2) for t in inputs)
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert o.dtype == theirs.dtype == DTYPE
    assert torch.equal(o, fa.flash_attn_func(*(t.to(DTYPE) for t in inputs), causal=True))
    gradients = torch.autograd.grad(o.float().square().sum(), inputs)
    assert all(gradient.dtype == torch.float32 for gradient in gradients)
    for a, b in zip(gradients, torch.autograd.grad(theirs.float().square().sum(), inputs)):
        torch.testing.assert_close(a, b, atol=5e-2, rtol=5e-2)


def test_autocast_takes_tensors_of_different_types(inputs):
    q, k, v = inputs
    with torch.autocast(q.device.type, dtype=DTYPE):
        assert fa.flash_attn_func(q, k.half(), v.to(DTYPE)).dtype == DTYPE
        assert fa.flash_attn_func(*(t.to("meta") for t in (q, k, v))).is_meta
        with pytest.raises(ValueError, match="dtype is torch.float64"):
            fa.flash_attn_func(q.double(), k.double(), v.double())
    with pytest.raises(ValueError, match="k holds torch.float16"):
        fa.flash_attn_func(q, k.half(), v)


def test_lists_are_tensors(inputs):
    for name in ("alibi_slopes", "sinks"):
        with pytest.raises(ValueError, match=f"{name} is a list, but q is a torch.Tensor"):
            _torch.attention(*inputs, **{name: [0.0] * 4})
