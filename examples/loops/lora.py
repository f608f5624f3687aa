"""LoRA: the base model is frozen, and only low-rank corrections of its layers are trained and saved.

dtj run examples/loops/lora.py
dtj run --nproc 2 --parallel fsdp examples/loops/lora.py
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dtj
from dtj.models.gpt import GPT, Shape

RANK = 4
TEXT = torch.tensor(list((" ".join(f"{n} is twice {n / 2}," for n in range(600))).encode()))
WINDOWS = TEXT[: len(TEXT) // 33 * 33].view(-1, 33)


class LowRank(nn.Module):
    """A frozen linear layer and its correction, which is 0 at first."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


class Trained:
    """The parameters that are trained: a checkpoint without the base, which is in a file already."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.model.load_state_dict(state, strict=False)


run = dtj.init()
base = GPT(Shape(vocabulary=128, context=32, layers=2, heads=2, width=32))  # flag --weights reads a file
base.requires_grad_(requires_grad=False)
for module in list(base.modules()):
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, LowRank(child))
model = run.parallel(base)
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
data = run.data(WINDOWS, global_batch=16)
run.state(adapters=Trained(run.unwrap(model)), opt=opt, data=data)

for batch in run.steps(12):
    for mb in batch:
        loss = run.backward(cross_entropy(model(mb[:, :-1]).flatten(0, 1), mb[:, 1:].flatten()))
    run.clip(1.0)
    opt.step()
    opt.zero_grad()
    run.log(loss=loss)
run.say(f"done: {run.step} steps")
