"""Trains a tensor-parallel model with dropout; each rank prints the weights of a replicated layer."""

import torch
from torch import nn

import dtj


class Model(nn.Sequential):
    """Two sharded matrices, then dropout on activations that both ranks hold, then a replicated matrix."""

    def tensor_plan(self, ranks: int) -> dict[str, str]:
        return {"0": "columns", "2": "rows"}


run = dtj.init()
model = run.parallel(
    Model(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.Dropout(0.5), nn.Linear(8, 1, bias=False))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
data = run.data(torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), global_batch=16)
run.state(model=model, opt=optimizer, data=data)
for batch in run.steps(4):
    run.backward(lambda mb: nn.functional.mse_loss(model(mb[0]), mb[1]), batch)
    optimizer.step()
    optimizer.zero_grad()
mine = dict(model.named_parameters())["4.weight"].to_local()  # type: ignore[attr-defined]  # a DTensor
print("weights", *mine.flatten().tolist(), flush=True)
