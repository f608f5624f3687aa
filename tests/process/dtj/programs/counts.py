"""Trains with DDP under torch's profiler; rank 0 writes every message that was sent to $OUT/sent.json.

Each is [operation, elements of its first tensor]; the first steps, in which DDP builds its buckets, are
left out.
"""

import json
import math
import os
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import TensorDataset

import dtj

FIRST, STEPS = 3, 23
LAYERS, WIDTH = 4, 64  # a DDP bucket would hold 400 times as many


def main() -> None:
    run = dtj.init()
    model = run.parallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))))
    optimizer = torch.optim.AdamW(model.parameters())
    data = run.data(TensorDataset(torch.randn(96, WIDTH)), global_batch=8)
    run.state(model=model, optimizer=optimizer, data=data)
    watch = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
    for batch in run.steps(STEPS):
        if run.step == FIRST:
            watch.start()
        loss = run.backward(lambda mb: model(mb[0]).square().mean(), batch)
        run.clip(1.0)
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        if run.step == STEPS - 1:
            watch.stop()
    if run.rank == 0:
        events = [event for event in watch.events() or [] if event.name.startswith("gloo:")]  # type: ignore[no-untyped-call]
        sent = [[event.name, math.prod(event.input_shapes[0])] for event in events]
        (Path(os.environ["OUT"]) / "sent.json").write_text(json.dumps(sent))


if __name__ == "__main__":
    main()
