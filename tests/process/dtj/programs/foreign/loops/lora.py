"""examples/loops/lora.py for torchrun, without the verbs of dtj."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from dtj.models.gpt import GPT, Shape

STEPS, GLOBAL_BATCH, RANK = 12, 16, 4
SAVED = Path(os.environ.get("SAVED", "lora.pt"))
TEXT = torch.tensor(list((" ".join(f"{n} is twice {n / 2}," for n in range(600))).encode()))
WINDOWS = TEXT[: len(TEXT) // 33 * 33].view(-1, 33)


class LowRank(nn.Module):
    """A frozen linear layer and its correction, which is 0 at first."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


device = (
    torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
)
dist.init_process_group(device_id=device if device.type == "cuda" else None)
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
base = GPT(Shape(vocabulary=128, context=32, layers=2, heads=2, width=32))
base.requires_grad_(requires_grad=False)
for module in list(base.modules()):
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, LowRank(child))
model = DistributedDataParallel(base.to(device))
trained = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
opt = torch.optim.AdamW(trained.values(), 1e-2)
sampler = DistributedSampler(WINDOWS)
loader = DataLoader(WINDOWS, GLOBAL_BATCH // world, sampler=sampler)

step = 0
if SAVED.exists():
    state = torch.load(SAVED, map_location=device)
    model.module.load_state_dict(state["adapters"], strict=False)
    opt.load_state_dict(state["opt"])
    step = state["step"]
while step < STEPS:
    epoch, done = divmod(step, len(loader))
    sampler.set_epoch(epoch)
    for number, mb in enumerate(loader):
        if number < done or step == STEPS:  # done before the restart
            continue
        mb = mb.to(device)
        loss = cross_entropy(model(mb[:, :-1]).flatten(0, 1), mb[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(trained.values(), 1.0)
        opt.step()
        opt.zero_grad()
        step += 1
        loss = loss.detach()
        dist.all_reduce(loss)
        if rank == 0:
            print(f"step {step}  loss {loss / world:.4f}", flush=True)
    if rank == 0:
        adapters = {name: p.detach() for name, p in trained.items()}
        torch.save({"adapters": adapters, "opt": opt.state_dict(), "step": step}, SAVED.with_suffix(".new"))
        SAVED.with_suffix(".new").rename(SAVED)
dist.destroy_process_group()
