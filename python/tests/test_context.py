"""Context parallelism without GPUs: who has which rows, and what is refused."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import flash_attention_rs as fa

ENVIRONMENT = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}


@pytest.mark.parametrize("partition", ["zigzag", "contiguous"])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("seqlen, left", [(16, -1), (1001, -1), (1001, 5), (100_000, -1), (100_000, 5)])
def test_each_row_is_one_ranks(partition, world, seqlen, left):
    window = (left, 0)
    parts = [
        fa.context_rows(seqlen, rank, world, partition=partition, window_size=window) for rank in range(world)
    ]
    rows = [row for part in parts for run in part for row in run]
    assert sorted(rows) == list(range(seqlen))
    for part in parts:
        assert [row for run in part for row in run] == sorted(row for run in part for row in run)
        assert left < 0 or all(run.start % 384 == 0 for run in part)
    if partition == "zigzag" and left < 0 and seqlen == 16 and world == 2:
        assert parts == [[range(0, 4), range(12, 16)], [range(4, 8), range(8, 12)]]


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        ((3, 0, 2), {}, "a sequence of 3 rows cannot be cut for 2 ranks; at least 4 are needed"),
        ((16, 2, 2), {}, "rank 2 is none of 2"),
        ((16, -1, 2), {}, "rank is -1; 0 to "),
        ((-16, 0, 2), {}, "seqlen is -16; 0 to "),
        ((16, 0, 2), {"partition": "ring"}, "partition is ring; zigzag or contiguous is needed"),
    ],
)
def test_rows_are_refused_by_name(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        fa.context_rows(*arguments, **options)


@pytest.mark.parametrize(
    "options, kind, message",
    [
        ({"partition": "ring"}, ValueError, "partition is ring; zigzag or contiguous is needed"),
        ({"transport": "tcp"}, ValueError, "transport is tcp; nccl-ce or nccl is needed"),
        ({"patience": -1}, ValueError, "patience is -1; seconds from 0 on are needed"),
        ({"exit_after": float("nan")}, ValueError, "exit_after is NaN; seconds from 0 on are needed"),
        ({"max_plans": 1}, ValueError, "max_plans is 1; 2 or more is needed"),
        ({}, RuntimeError, "no launcher started this process: none of RANK of torchrun"),
    ],
)
def test_groups_are_refused_by_name(monkeypatch, options, kind, message):
    pytest.importorskip("torch")
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(kind, match=message):
        fa.ContextParallel(**options)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"WORLD_SIZE": "0"}, "RANK is 0, and WORLD_SIZE is 0"),
        ({"RANK": "x"}, "RANK is .x.; a number from 0 on is needed"),
        ({"MASTER_PORT": "65535"}, "MASTER_PORT is 65535, and no port is behind it; set FA_PORT"),
        ({"FA_PORT": "0"}, "FA_PORT is 0; a port from 1 to 65535 is needed"),
    ],
)
def test_what_a_launcher_says_is_refused_by_name(monkeypatch, change, message):
    pytest.importorskip("torch")
    monkeypatch.delenv("FA_PORT", raising=False)
    for name, value in {**ENVIRONMENT, **change}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=message):
        fa.ContextParallel()


def test_without_torch_the_group_says_so():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import flash_attention_rs as fa\n"
        "assert fa.context_rows(8, 1, 2) == [range(2, 4), range(4, 6)]\n"
        "try: fa.ContextParallel()\n"
        "except RuntimeError as error: print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "context parallelism needs torch, which is not there" in found.stdout


def attention(q, k, v, seqlen, *, device="cpu", seqlen_k=None, **options):
    """Of rank 0 of two, which never gets so far as to meet the other."""
    import torch

    from flash_attention_rs import _context_passes

    options = {"causal": False, "scale": None, "window": (None, None), "softcap": 0.0, **options}
    device = torch.device(device)
    group = SimpleNamespace(rank=0, world_size=2, partition="zigzag", device=device)
    seqlens = (seqlen, seqlen if seqlen_k is None else seqlen_k)
    return _context_passes.attention(group, q, k, v, seqlens, tuple(options.values()), False)


def test_tensors_are_refused_by_name():
    torch = pytest.importorskip("torch")
    q, k = torch.zeros(1, 8, 4, 16), torch.zeros(1, 8, 2, 16)
    for arguments, options, message in [
        ((q, k, k, 22), {}, r"q has 8 rows; rank 0 of 2 has 10 of 22, which rows\(22\) lists"),
        ((q, k, k, 16), {"seqlen_k": 40}, r"k has 8 rows; rank 0 of 2 has 20 of 40, which rows\(40\) lists"),
        ((q, k, k[:, :4], 16), {}, r"v has 4 rows; rank 0 of 2 has 8 of 16, which rows\(16\) lists"),
        (
            (q, k, k, 16),
            {"window": (5, 0)},
            r"q has 8 rows; rank 0 of 2 has 16 of 16, which rows\(16, window_size=\(5, -1\)\) lists",
        ),
        ((q, k, k, 16), {"device": "cuda:0"}, "q is on cpu; rank 0 has cuda:0"),
        ((q, k, k, 16), {"seqlen_k": 8}, "16 queries are more than 8 keys"),
        ((q, k, k, 3), {}, "a sequence of 3 rows cannot be cut for 2 ranks"),
        ((q, k.half(), k, 16), {}, "k holds torch.float16, but q holds torch.float32"),
        ((q, k[0], k, 16), {}, r"k has 3 axes; 4 are needed, \[B, S, H, D\]"),
        ((q[:, :, :3], k, k, 16), {}, "kv_heads is 2, which does not divide heads = 3"),
        ((q, k, [1.0], 16), {}, "v is a list, but q is a torch.Tensor"),
        ((q, k, k, 16), {"softcap": -1.0}, "softcap is -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            attention(*arguments, **options)
    with pytest.raises(NotImplementedError, match="runs eagerly"):
        torch.vmap(lambda q: attention(q, k, k, 16))(q[None])


def test_what_has_no_gradient_is_refused_in_the_forward_pass():
    torch = pytest.importorskip("torch")
    q, k = torch.zeros(1, 16, 2, 16, requires_grad=True), torch.zeros(1, 8, 2, 16)
    for inputs in ((q, k, k), (q.detach(), k.detach().requires_grad_(), k)):
        with pytest.raises(ValueError, match="gradients under a left window count keys from a tile's first"):
            attention(*inputs, 16, window=(5, 0))
    with torch.no_grad(), pytest.raises(ValueError, match="q is on cpu"):
        attention(q, k, k, 16, window=(5, 0), device="cuda:0")
