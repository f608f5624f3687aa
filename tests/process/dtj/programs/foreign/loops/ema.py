"""examples/loops/ema.py for torchrun, without the verbs of dtj."""

import copy
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset, random_split

EPOCHS, GLOBAL_BATCH, SAVED = 2, 32, Path(os.environ.get("SAVED", "ema.pt"))

device = (
    torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
)
dist.init_process_group(device_id=device if device.type == "cuda" else None)
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
digits = load_digits()
inputs = torch.tensor(digits.data, dtype=torch.float32) / 16
known, held_out = random_split(TensorDataset(inputs, torch.tensor(digits.target)), [0.8, 0.2])
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
model = DistributedDataParallel(model)
average = AveragedModel(copy.deepcopy(model.module), multi_avg_fn=get_ema_multi_avg_fn(0.9))
average.update_parameters(model.module)
opt = torch.optim.SGD(model.parameters(), 0.5)
sampler = DistributedSampler(known)
loader = DataLoader(known, GLOBAL_BATCH // world, sampler=sampler)
mine = Subset(held_out, range(rank, len(held_out), world))  # not padded, as a sampler would


def accuracy(scored):
    right = torch.zeros((), device=device)
    with torch.no_grad():
        for x, y in DataLoader(mine, GLOBAL_BATCH // world):
            right += (scored(x.to(device)).argmax(1) == y.to(device)).sum()
    dist.all_reduce(right)
    return float(right) / len(held_out)


step = 0
if SAVED.exists():
    state = torch.load(SAVED, map_location=device)
    model.module.load_state_dict(state["model"])
    average.load_state_dict(state["average"])
    opt.load_state_dict(state["opt"])
    step = state["step"]
for epoch in range(step // len(loader), EPOCHS):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        opt.step()
        opt.zero_grad()
        average.update_parameters(model.module)
        step += 1
        loss = loss.detach()
        dist.all_reduce(loss)
        if rank == 0:
            print(f"step {step}  loss {loss / world:.4f}", flush=True)
    averaged, last = accuracy(average), accuracy(model.module)
    if rank == 0:
        print(f"step {step}  averaged_accuracy {averaged:.4f}  accuracy {last:.4f}", flush=True)
        parts = {"model": model.module, "average": average, "opt": opt}
        state = {name: part.state_dict() for name, part in parts.items()} | {"step": step}
        torch.save(state, SAVED.with_suffix(".new"))
        SAVED.with_suffix(".new").rename(SAVED)
dist.destroy_process_group()
