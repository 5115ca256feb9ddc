"""The part of torch.nn that the peer uses."""

from . import attention, functional

__all__ = ["attention", "functional"]
