"""The numpy half, imported at its first use."""

from __future__ import annotations

from types import ModuleType


def module() -> ModuleType:
    """The half, or an error that says what is missing."""
    try:
        from . import _numpy
    except ImportError as error:
        raise RuntimeError(f"tensors that are not torch's need numpy, which is not there: {error}") from error
    return _numpy
