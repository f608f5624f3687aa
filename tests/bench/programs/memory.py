"""Some steps of a model of 25 million parameters; rank 0 prints the private memory added per rank."""

import ctypes
import gc
import re
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import dtj
from tests.bench.ranks import tell

WIDTH, LAYERS = 1024, 24


def private_mb(name: str) -> float:
    """RssAnon or VmHWM of this process."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) / 1000 * 1.024


def main() -> None:
    run = dtj.init()
    data = TensorDataset(torch.randn(256, WIDTH))
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # measure the peak from here
    before, before_peak = private_mb("RssAnon"), private_mb("VmHWM")
    model = run.parallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    run.data(data, global_batch=16)
    for batch in run.steps(4):
        run.backward(lambda mb: model(mb[0]).square().mean(), batch)
        optimizer.step()
        optimizer.zero_grad()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # a rank keeps freed memory for its next step
    found = torch.tensor([private_mb("RssAnon") - before, private_mb("VmHWM") - before_peak])
    if dist.is_initialized():
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
    if run.rank == 0:
        tell(kept_mb=float(found[0]), peak_mb=float(found[1]))


if __name__ == "__main__":
    main()
