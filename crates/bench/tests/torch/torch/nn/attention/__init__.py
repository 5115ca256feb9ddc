"""Backends, of which one is chosen at a time."""

import contextlib
import types

SDPBackend = types.SimpleNamespace(FLASH_ATTENTION="flash", MATH="math")
chosen = []


@contextlib.contextmanager
def sdpa_kernel(backend):
    chosen.append(backend)
    try:
        yield
    finally:
        chosen.pop()
