"""Context parallelism on two GPUs: the bits of one, and what a rank hears of the other."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

SCRIPT = str(Path(__file__).with_name("context_ranks.py"))
#: Seconds, of which torch's import and the start of NCCL are most.
LIMIT = 300


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def started(what):
    """Both ranks, without a launcher that ends one of them when the other is gone."""
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "FA_PORT": str(free_port())}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen(
            [sys.executable, SCRIPT, what],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            **pipes,
        )
        for rank in range(2)
    ]


def ended(ranks):
    """Of each rank what it printed, on stderr too, and its exit code; and when rank 0 ended."""
    try:
        first = ranks[0].communicate(timeout=LIMIT)
        end = time.time()
        second = ranks[1].communicate(timeout=LIMIT)
    finally:
        for rank in ranks:
            rank.kill()
    return [(*first, ranks[0].returncode), (*second, ranks[1].returncode)], end


def test_bits_are_those_of_one_gpu():
    # They meet on the port behind torchrun's.
    environment = {name: value for name, value in os.environ.items() if name != "FA_PORT"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    place = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    found = subprocess.run(
        [*launcher, *place, SCRIPT, "compare"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * LIMIT,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert len(re.findall("tensors compared, 0 wrong", found.stdout)) == 2
    print(found.stdout)


@pytest.mark.parametrize(
    "what, message",
    [
        ("killed", "PeerError: rank 1 is gone: its connection closed"),
        ("waits", "rank 1 is gone: its connection closed"),
        ("raises", "PeerError: rank 1 gave up: KeyError: 'no more data'"),
    ],
)
def test_a_rank_that_is_gone_is_an_error(what, message):
    ranks, end = ended(started(what))
    out, err, code = ranks[1]
    killed = re.search(r"killed at ([\d.]+)", out)
    assert killed, err
    assert message in ranks[0][1] and ranks[0][2] == 1, ranks[0]
    assert end - float(killed[1]) < 10.0, ranks[0]
    assert code == (1 if what == "raises" else -9)


def test_ranks_that_differ_are_told_in_what():
    ranks, _ = ended(started("differs"))
    for out, err, code in ranks:
        assert "ranks disagree: softcap is 1 on rank 0, and 2 on rank 1" in out and code == 0, err


def test_a_rank_may_end_before_the_other():
    ranks, _ = ended(started("ends"))
    assert [code for *_, code in ranks] == [0, 0], ranks
    assert "rank 0 has its result" in ranks[0][0]
