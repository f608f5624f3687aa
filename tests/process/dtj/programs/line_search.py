"""Trains by LBFGS, which calls its closure as often as the losses demand. Rank 1 dies in a closure, once."""

import os
import signal
from collections import Counter
from functools import partial

import torch
from torch.utils.data import TensorDataset

import dtj

run = dtj.init()
x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True).sin()
model = run.parallel(torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)))
opt = torch.optim.LBFGS(model.parameters(), max_iter=6, line_search_fn="strong_wolfe")
run.state(model=model, opt=opt, data=run.data(TensorDataset(x, y), global_batch=64))
calls: Counter[int] = Counter()


def closure(batch: dtj.Batch) -> torch.Tensor:
    calls[run.step] += 1
    if (run.rank, run.step, calls[2], os.environ["TORCHELASTIC_RESTART_COUNT"]) == (1, 2, 3, "0"):
        os.kill(os.getpid(), signal.SIGKILL)
    opt.zero_grad()
    return run.reduce(run.backward(lambda mb: (model(mb.x) - mb.y).square().mean(), batch))


for batch in run.steps(4):
    run.log(loss=opt.step(partial(closure, batch)))  # type: ignore[no-untyped-call]
