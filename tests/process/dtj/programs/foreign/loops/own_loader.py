"""examples/loops/own_loader.py for torchrun, without the verbs of dtj."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset, random_split

EPOCHS, SAVED = 2, Path(os.environ.get("SAVED", "own_loader.pt"))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)),
        )

    def forward(self, x):
        return (x + self.layers(x)).relu()


device = (
    torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
)
dist.init_process_group(device_id=device if device.type == "cuda" else None)
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
known, held_out = random_split(TensorDataset(images, torch.tensor(digits.target)), [0.8, 0.2])
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), Residual(16), Residual(16)),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
)
model = DistributedDataParallel(model.to(device))
opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
sampler = DistributedSampler(known)
loader = DataLoader(known, 32, sampler=sampler, drop_last=True)
schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 0.2, total_steps=EPOCHS * len(loader))
mine = Subset(held_out, range(rank, len(held_out), world))  # not padded, as a sampler would

step = 0
if SAVED.exists():
    state = torch.load(SAVED, map_location=device)
    model.module.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    schedule.load_state_dict(state["schedule"])
    step = state["step"]
for epoch in range(step // len(loader), EPOCHS):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = cross_entropy(model(x.to(device)), y.to(device), label_smoothing=0.1)
        loss.backward()
        opt.step()
        opt.zero_grad()
        schedule.step()
        step += 1
        loss = loss.detach()
        dist.all_reduce(loss)
        if rank == 0:
            print(f"step {step}  loss {loss / world:.4f}  lr {schedule.get_last_lr()[0]:.4f}", flush=True)
    model.eval()
    right = torch.zeros((), device=device)
    with torch.no_grad():
        for x, y in DataLoader(mine, 32):
            right += (model.module(x.to(device)).argmax(1) == y.to(device)).sum()
    model.train()
    dist.all_reduce(right)
    if rank == 0:
        print(f"step {step}  accuracy {right / len(held_out):.4f}", flush=True)
        parts = {"model": model.module, "opt": opt, "schedule": schedule}
        state = {name: part.state_dict() for name, part in parts.items()} | {"step": step}
        torch.save(state, SAVED.with_suffix(".new"))
        SAVED.with_suffix(".new").rename(SAVED)
dist.destroy_process_group()
