"""Trains a small model and prints how many graphs torch.compile made of it."""

import torch
from torch import nn
from torch._dynamo.utils import counters

import dtj

run = dtj.init(log_every=1)
model = run.parallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
samples = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
run.data(torch.utils.data.TensorDataset(samples), global_batch=4)
for batch in run.steps(4):
    loss = run.backward(lambda mb: model(mb[0]).square().mean(), batch)
    optimizer.step()
    optimizer.zero_grad()
    run.log(loss=loss)
print("graphs:", counters["stats"]["unique_graphs"])
