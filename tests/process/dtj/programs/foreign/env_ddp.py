"""Plain DDP over `env://`: one process per node, so it uses neither LOCAL_RANK nor a launcher."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from toy import EPOCHS, data, die_if_told, net, note

out = Path(sys.argv[1])
dist.init_process_group("gloo", init_method="env://")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
model = DistributedDataParallel(net())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
dataset = data()
sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)

saved = out / "state.pt"
begin = 0
if saved.exists():
    state = torch.load(saved)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    begin = state["epoch"] + 1
note(out, rank, f"world {world} begins at {begin}")
for epoch in range(begin, EPOCHS):
    sampler.set_epoch(epoch)
    die_if_told(out, rank, epoch)
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    if rank == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, saved.with_suffix(".new"))
        saved.with_suffix(".new").rename(saved)
    dist.barrier()
torch.save(model.module.state_dict(), out / f"weights-{rank}.pt")
dist.destroy_process_group()
