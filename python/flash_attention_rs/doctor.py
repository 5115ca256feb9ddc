"""`python -m flash_attention_rs.doctor`: what is there or missing, and whether a small call is right."""

from __future__ import annotations

import importlib
import platform
import sys
from math import exp
from types import ModuleType

from . import __version__, _native, _plans

#: More GPUs than a machine has.
_MOST_GPUS = 64


def _import(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _check() -> float:
    """Attention of three rows on the CPU; the largest difference from what the definition gives."""
    from array import array

    rows, head_dim = 3, 4
    q, k, v = (
        array("f", [((7 * i + 3 * seed) % 11) / 5.5 - 1 for i in range(rows * head_dim)]) for seed in range(3)
    )
    o, lse = array("f", [0.0] * (rows * head_dim)), array("f", [0.0] * rows)
    view = ((1, rows, 1, head_dim), (rows * head_dim, head_dim, head_dim, 1))
    settings = _plans.Settings(True, head_dim**-0.5, (None, None), 0.0)
    plan = _native.Forward(None, "f32", (view,) * 4, settings)
    plan.run([values.buffer_info()[0] for values in (q, k, v, o, lse)])
    worst = 0.0
    for i in range(rows):
        row = slice(i * head_dim, (i + 1) * head_dim)
        keys = [k[j * head_dim : (j + 1) * head_dim] for j in range(i + 1)]
        weights = [exp(sum(x * y for x, y in zip(q[row], key)) * head_dim**-0.5) for key in keys]
        for column, found in enumerate(o[row]):
            expected = sum(w * v[j * head_dim + column] for j, w in enumerate(weights)) / sum(weights)
            worst = max(worst, abs(found - expected))
    return worst


def main() -> int:
    """Prints the report; 1 where the check fails."""
    print(f"flash-attention-rs {__version__}, Python {platform.python_version()}, {platform.platform()}")
    for name in ("numpy", "torch", "transformers"):
        module = _import(name)
        print(f"{name}: {getattr(module, '__version__', 'there') if module else 'not installed'}")
    print(f"CPU: {_native.describe()}")
    for ordinal in range(_MOST_GPUS):
        try:
            print(f"GPU {ordinal}: {_native.describe(ordinal)}")
        except RuntimeError as error:
            if ordinal == 0:
                print(f"GPU: {error}")
            break
    torch = _import("torch")
    if torch is not None and not torch.cuda.is_available():
        print("torch: sees no CUDA device")
    worst = _check()
    verdict = "right" if worst < 1e-5 else "WRONG"
    print(f"a small call on the CPU: {verdict}, largest difference {worst:.1e}")
    return 0 if worst < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
