"""Calls in a process that was forked after a call, as workers of a DataLoader are."""

import os
import signal
import time

import numpy as np
import pytest
from plain import tensors

import flash_attention_rs as fa

SECONDS = 20


def ends_well(process):
    """Whether a child ends by itself in time, without an error."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_has_threads():
    q, k, v = tensors((2, 70, 4, 16), 2)
    new = tensors((2, 33, 4, 16), 2)
    want = fa.flash_attn_func(q, k, v)
    child = os.fork()
    if child == 0:
        try:
            same = np.array_equal(fa.flash_attn_func(q, k, v), want)  # the parent's plan
            os._exit(0 if same and np.isfinite(fa.flash_attn_func(*new)).all() else 1)
        finally:
            os._exit(2)
    assert ends_well(child)
    assert np.array_equal(fa.flash_attn_func(q, k, v), want)
