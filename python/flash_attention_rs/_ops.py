"""The ops `flash_attention_rs::forward`, `backward` and `decode`, and calls past PyTorch's dispatcher."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _passes
from ._launch import gradient_like, lse_like, output

#: Arguments that the forward and the backward op have in common, behind their tensors.
_OPTIONS = (
    "Tensor? alibi_slopes, Tensor? sinks, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqused_k, "
    "Tensor? rng_state, SymInt max_seqlen_q, SymInt max_seqlen_k, float? softmax_scale, bool causal, "
    "int window_left, int window_right, float softcap, float dropout_p"
)
#: The tensors among these, and how many they are.
_Lists = tuple[Any, ...]
_LIST_COUNT = 6

_SCHEMAS = (
    f"forward(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)",
    # The gradient of sinks is empty without sinks.
    f"backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, {_OPTIONS}) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    "decode(Tensor q, Tensor k, Tensor v, Tensor? seqused, Tensor? page_table, Tensor? alibi_slopes, "
    "Tensor? sinks, float softmax_scale, bool causal, int window_left, int window_right, float softcap, "
    "int num_splits, Tensor? k_descale=None, Tensor? v_descale=None, Tensor? cu_seqlens_q=None, "
    "SymInt max_seqlen_q=0, bool latent=False) -> (Tensor, Tensor)",
)

_library = torch.library.Library("flash_attention_rs", "DEF")
for _schema in _SCHEMAS:
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))

_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_is_compiling = torch.compiler.is_compiling

try:
    _modes, _functions = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
    _transforms, _trace = torch._C._are_functorch_transforms_active, torch._C._get_tracing_state
except AttributeError:  # a torch that does not tell: the dispatcher has every call

    def is_eager(*tensors: Tensor) -> bool:
        """Whether nothing but autograd listens to what is done with tensors."""
        return False
else:

    def is_eager(*tensors: Tensor) -> bool:
        """Whether nothing but autograd listens to what is done with tensors."""
        if _is_compiling() or _modes() or _functions() or _transforms() or _trace() is not None:
            return False
        if forward_ad._current_level >= 0 or not (tensors[0].is_cuda or tensors[0].is_cpu):
            return False
        for t in tensors:
            # A negated view has the memory of its base, whose signs are the other ones.
            if type(t) not in _PLAIN or t.is_neg():
                return False
        return True


def refuse_tangents(*tensors: Optional[Tensor]) -> None:
    """Refuses forward-mode derivatives, which the ops would leave out."""
    if _is_compiling() or forward_ad._current_level < 0:
        return
    for t in tensors:
        if t is not None and forward_ad.unpack_dual(t).tangent is not None:
            raise NotImplementedError("attention has no forward-mode derivative; backward() gives gradients")


def _backward(*arguments: Any) -> tuple[Tensor, ...]:
    *gradients, dsinks = _passes.backward(*arguments)
    return (*gradients, gradients[0].new_empty(0, dtype=torch.float32) if dsinks is None else dsinks)


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return output(q, v.shape[-1]), lse_like(q)


def _backward_fake(
    _dout: Any,
    _dlse: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    _o: Any,
    _lse: Any,
    _alibi: Any,
    sinks: Any,
    *_: Any,
) -> tuple[Tensor, ...]:
    dsinks = q.new_empty(0, dtype=torch.float32) if sinks is None else torch.empty_like(sinks)
    return (*map(gradient_like, (q, k, v)), dsinks)


def _save(ctx: Any, tensors: tuple[Any, ...], lists: _Lists, numbers: tuple[Any, ...]) -> None:
    """What the backward pass needs."""
    ctx.set_materialize_grads(False)
    ctx.numbers = numbers
    ctx.save_for_backward(*tensors, *lists)


def _has_memory(*tensors: Tensor) -> bool:
    """Whether no tensor is a batch of some, as gradients with is_grads_batched are."""
    return all(map(torch._C._has_storage, tensors))


def _gradients(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    """dQ, dK, dV and dsinks, from what was saved."""
    if dout is None and dlse is None:
        return (None, None, None, None)
    q, k, v, o, lse, *lists = ctx.saved_tensors
    dout = torch.zeros_like(o) if dout is None else dout
    # Where this pass is to have a gradient itself, the op refuses that.
    given = (dout,) if dlse is None else (dout, dlse)
    is_direct = not torch.is_grad_enabled() and is_eager(*given, q, k, v) and _has_memory(*given)
    backward = _passes.backward if is_direct else torch.ops.flash_attention_rs.backward
    *gradients, dsinks = backward(dout, dlse, q, k, v, o, lse, *lists, *ctx.numbers)
    return (*gradients, None if lists[1] is None else dsinks)


class Attention(torch.autograd.Function):
    """The forward pass with its gradient, past the dispatcher."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Optional[Tensor],
        rest: tuple[_Lists, tuple[Any, ...]],
    ) -> tuple[Tensor, Optional[Tensor]]:
        """O and lse; `rest`: the forward op's arguments behind V, few objects for autograd to look at."""
        lists, numbers = rest
        o, lse = _passes.forward(q, k, v, *lists, *numbers)
        _save(ctx, (q, k, v, o, lse), lists, numbers)
        return o, lse

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
        """Of Q, K, V and the sinks."""
        return (*_gradients(ctx, dout, dlse), None)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, lists, numbers = inputs[:3], inputs[3 : 3 + _LIST_COUNT], inputs[3 + _LIST_COUNT :]
    _save(ctx, (*tensors, *output), lists, numbers)


def _op_gradient(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    dq, dk, dv, dsinks = _gradients(ctx, dout, dlse)
    return (dq, dk, dv, None, dsinks, *(None for _ in range(_LIST_COUNT - 2)), *(None for _ in ctx.numbers))


def _no_gradient(_ctx: Any, *_: Any) -> None:
    raise NotImplementedError("the backward pass of attention has no gradient: it can be taken once")


for _name, _function, _fake in (
    ("forward", _passes.forward, _forward_fake),
    ("backward", _backward, _backward_fake),
    ("decode", _passes.decode, _forward_fake),
):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"flash_attention_rs::{_name}", _fake, lib=_library)

torch.library.register_autograd(
    "flash_attention_rs::forward", _op_gradient, setup_context=_setup_context, lib=_library
)
torch.library.register_autograd("flash_attention_rs::backward", _no_gradient, lib=_library)
