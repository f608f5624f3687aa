"""examples/loops/gan.py for torchrun, without the verbs of dtj."""

import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import softplus
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

STEPS, GLOBAL_BATCH, NOISE = 20, 64, 8
SAVED = Path(os.environ.get("SAVED", "gan.pt"))


def network(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 32), nn.BatchNorm1d(32), nn.LeakyReLU(0.2), nn.Linear(32, outputs))


device = (
    torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
)
dist.init_process_group(device_id=device if device.type == "cuda" else None)
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
angles = torch.arange(512) * (2 * math.pi / 8)
points = torch.stack([angles.cos(), angles.sin()], dim=1) + 0.05 * torch.randn(512, 2)
# Called twice before backward: buffers that DDP copies in each forward would be changed in between.
generator = DistributedDataParallel(network(NOISE, 2).to(device), broadcast_buffers=False)
critic = DistributedDataParallel(network(2, 1).to(device), broadcast_buffers=False)
opt_g = torch.optim.Adam(generator.parameters(), 2e-3, betas=(0.5, 0.999))
opt_c = torch.optim.Adam(critic.parameters(), 2e-3, betas=(0.5, 0.999))
sampler = DistributedSampler(points, drop_last=True)
loader = DataLoader(points, GLOBAL_BATCH // world, sampler=sampler, drop_last=True)
parts = {"generator": generator.module, "critic": critic.module, "opt_g": opt_g, "opt_c": opt_c}

step = 0
if SAVED.exists():
    state = torch.load(SAVED, map_location=device)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    step = state["step"]
while step < STEPS:
    epoch, done = divmod(step, len(loader))
    sampler.set_epoch(epoch)
    torch.manual_seed(epoch * world + rank)  # noise differs between ranks
    for number, real in enumerate(loader):
        if number < done or step == STEPS:  # done before the restart
            continue
        real = real.to(device)
        made = generator(torch.randn(len(real), NOISE, device=device)).detach()
        loss_c = softplus(-critic(real)).mean() + softplus(critic(made)).mean()
        loss_c.backward()
        opt_c.step()
        opt_c.zero_grad()

        loss_g = softplus(-critic(generator(torch.randn(len(real), NOISE, device=device)))).mean()
        loss_g.backward()
        nn.utils.clip_grad_norm_(generator.parameters(), 1.0)
        opt_g.step()
        opt_g.zero_grad()
        opt_c.zero_grad()  # the critic got gradients, too
        step += 1
        losses = torch.stack([loss_c.detach(), loss_g.detach()])
        dist.all_reduce(losses)
        if rank == 0:
            print(f"step {step}  loss_c {losses[0] / world:.4f}  loss_g {losses[1] / world:.4f}", flush=True)
    if rank == 0:
        state = {name: part.state_dict() for name, part in parts.items()} | {"step": step}
        torch.save(state, SAVED.with_suffix(".new"))
        SAVED.with_suffix(".new").rename(SAVED)
dist.destroy_process_group()
