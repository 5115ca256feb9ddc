"""Each refusal names the argument, its value and the limit."""

import numpy as np
import pytest
from plain import tensors

import flash_attention_rs as fa
from flash_attention_rs import _native, _plans

Q, K, V = tensors((1, 10, 4, 8), 2)


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        ((Q, K[:, :5], V), {}, r"v: shape is \(1, 10, 2, 8\), but k has \(1, 5, 2, 8\)"),
        ((Q, K[..., :7], V), {}, "k: head_dim is 7, but q has 8"),
        ((Q[:, :, :3], K, V), {}, "kv_heads is 2, which does not divide heads = 3"),
        ((Q, K.astype(np.float16), V), {}, "k holds float16, but q holds float32"),
        (
            tuple(x.astype(np.float64) for x in (Q, K, V)),
            {},
            "dtype is float64; one of float16, float32, bfloat16",
        ),
        ((Q[0], K, V), {}, "q has 3 axes; 4 are needed"),
        ((Q, K, V), {"softcap": -1.0}, "softcap is -1.0; 0 "),
        ((Q, K, V), {"softmax_scale": float("nan")}, "softmax_scale is NaN"),
        ((Q, K, V), {"dropout_p": 1.0}, "dropout_p is 1.0; 0 to below 1"),
        (
            (Q, K, V),
            {"alibi_slopes": [1.0, 2.0]},
            r"alibi_slopes: shape is \(2,\); \(4,\) or \(1, 4\) is needed",
        ),
        ((Q, K, V), {"sinks": [1.0, 2.0]}, r"sinks: shape is \(2,\); \(4,\) or \(1, 4\) is needed"),
        (([[1.0]], K, V), {}, "q is a list; a tensor is needed"),
        (
            tuple(np.ones((1, 2, 1, 257), np.float32) for _ in range(3)),
            {},
            "head_dim is 257; kernels take 1 to 256",
        ),
    ],
)
def test_arguments(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        fa.flash_attn_func(*arguments, **options)


@pytest.mark.parametrize("name", ["alibi_slopes", "sinks"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("half", ["numpy", "torch"])
def test_values_of_heads_are_in_their_order(name, packed, half):
    q = np.zeros((2, 6, 3, 8), np.float32)
    values, cu = np.zeros((3, 2), np.float32), np.array([0, 6, 12], np.int32)
    if half == "torch":
        q, values, cu = map(pytest.importorskip("torch").from_numpy, (q, values, cu))
    with pytest.raises(ValueError, match=rf"{name}: shape is \(3, 2\); \(3,\) or \(2, 3\) is needed"):
        if packed:
            q = q.reshape(12, 3, 8)
            fa.flash_attn_varlen_func(q, q, q, cu, cu, 6, 6, **{name: values})
        else:
            fa.flash_attn_func(q, q, q, **{name: values})


@pytest.mark.parametrize(
    "offsets_q, offsets_k, message",
    [
        ([0, 4], [0, 4, 10], "cu_seqlens_q has 2 offsets and cu_seqlens_k 3"),
        ([], [], "is empty"),
        ([1, 10], [0, 10], "cu_seqlens_q: offset 0 is 1; the first must be 0"),
        ([0, 11], [0, 10], "cu_seqlens_q: offset 1 is 11; q has 10 rows"),
        ([0, 6, 5], [0, 5, 10], "cu_seqlens_q: offset 2 is 5"),
        ([0, 9], [0, -1], "the least offset is -1"),
        ([0, 10], [0, 10], "k: seqlen is 10; the limit is 5"),
    ],
)
def test_offsets(offsets_q, offsets_k, message):
    with pytest.raises(ValueError, match=message):
        fa.flash_attn_varlen_func(Q[0], K[0], V[0], np.array(offsets_q), np.array(offsets_k), 10, 5)


def test_torch_offsets_and_rows_without_elements():
    torch = pytest.importorskip("torch")
    q, none = torch.zeros(4, 2, 8), torch.zeros(0, dtype=torch.int32)
    with pytest.raises(ValueError, match="cu_seqlens_q is empty"):
        fa.flash_attn_varlen_func(q, q, q, none, none, 4, 4)
    for q in (torch.zeros(1, 4, 2, 0), np.zeros((1, 4, 2, 0), np.float32)):
        with pytest.raises(ValueError, match="q: head_dim is 0; at least 1 is needed"):
            fa.flash_attn_func(q, q, q)


@pytest.mark.parametrize("half", ["numpy", "torch"])
@pytest.mark.parametrize(
    "heads, dim, options, message",
    [
        (3, 8, {}, "kv_heads is 2, which does not divide heads = 3"),
        (4, 257, {}, "head_dim is 257; kernels take 1 to 256"),
        (4, 8, {"softmax_scale": float("nan")}, "softmax_scale is NaN"),
        (4, 8, {"softcap": -1.0}, "softcap is -1.0"),
    ],
)
def test_empty_tensors_are_checked_as_others(half, heads, dim, options, message):
    for rows, keys in ((0, 5), (5, 0)):
        q, k = np.zeros((1, rows, heads, dim), np.float32), np.zeros((1, keys, 2, dim), np.float32)
        if half == "torch":
            q, k = map(pytest.importorskip("torch").from_numpy, (q, k))
        with pytest.raises(ValueError, match=message):
            fa.flash_attn_func(q, k, k, **options)


def test_what_is_no_tensor():
    with pytest.raises(ValueError, match="qkv is a list"):
        fa.flash_attn_qkvpacked_func([1.0])
    with pytest.raises(ValueError, match="query is a list"):
        fa.scaled_dot_product_attention([1.0], K, V)
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="k is a Tensor that numpy does not take"):
        fa.flash_attn_func(Q, torch.tensor(K, requires_grad=True), V)


def test_a_machine_without_a_gpu_says_what_is_missing():
    try:
        _native.describe(0)
    except RuntimeError as error:
        assert "no CUDA device" in str(error) or "driver" in str(error)
    with pytest.raises(RuntimeError):
        _native.describe(4000)


def test_addresses_are_checked_as_far_as_they_can_be():
    view = ((1, 1, 1, 1), (1, 1, 1, 1))
    plan = _native.Forward(None, "f32", (view,) * 4, _plans.Settings(False, 1.0, (None, None), 0.0))
    with pytest.raises(ValueError, match="q: no address was given"):
        plan.run([0] * 5)
    with pytest.raises(ValueError, match="q: address 0x3 is no multiple of 4"):
        plan.run([3] * 5)
    with pytest.raises(ValueError, match="the plan is for the CPU"):
        plan.enqueue([0] * 11, 0)
    with pytest.raises(ValueError, match="dtype is f64; one of f32, f16, bf16"):
        _native.Forward(None, "f64", (view,) * 4, _plans.Settings(False, 1.0, (None, None), 0.0))


def test_doctor(capsys):
    from flash_attention_rs.doctor import main

    assert main() == 0
    assert "a small call on the CPU: right" in capsys.readouterr().out
