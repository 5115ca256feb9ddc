"""PyTorch's context_parallel, a process for each GPU: prints a JSON line for each problem and backend."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def seconds(run, once):
    """The median of three turns, each of as many runs as fill 150 ms."""
    runs = max(1, min(200, int(0.15 / once)))
    run()
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(runs):
            run()
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / runs)
    return sorted(times)[1]


def main():
    problems = json.loads(sys.argv[1])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    mesh = init_device_mesh("cuda", (world,), mesh_dim_names=("cp",))
    dtypes = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
    for index, problem in enumerate(problems):
        batch, heads, kv_heads = problem["batch"], problem["heads"], problem["kv_heads"]
        seq, dim, dtype, causal = problem["seq"], problem["dim"], dtypes[problem["dtype"]], problem["causal"]
        flops = 4.0 * batch * heads * seq * seq * dim / (2 if causal else 1)
        for name, backend in BACKENDS.items():
            shapes = (heads, kv_heads, kv_heads)
            q, k, v = (torch.randn(batch, of, seq, dim, device="cuda", dtype=dtype) for of in shapes)
            options = {"is_causal": causal, "enable_gqa": heads != kv_heads}
            parts = {"buffers": [q, k, v], "buffer_seq_dims": [2, 2, 2], "no_restore_buffers": {q, k, v}}
            line = {"problem": index, "backend": name, "version": torch.__version__}
            try:
                with sdpa_kernel(backend), torch.no_grad(), context_parallel(mesh, **parts):
                    run = lambda: F.scaled_dot_product_attention(q, k, v, **options)
                    line["seconds"] = seconds(run, flops / world / 500e12)
            except (RuntimeError, ValueError) as error:
                line["error"] = str(error).splitlines()[0]
            if rank == 0:
                print(json.dumps(line), flush=True)
            del q, k, v, parts
            torch.cuda.empty_cache()
    dist.destroy_process_group()


main()
