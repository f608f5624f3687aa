"""examples/loops/file_stream.py for torchrun, without the verbs of dtj."""

import os
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import dtj
from dtj.models.gpt import GPT, Shape

STEPS, GLOBAL_BATCH, LENGTH = 12, 32, 33
SAVED = Path(os.environ.get("SAVED", "file_stream.pt"))


class Texts(IterableDataset):
    """This rank's pieces of LENGTH bytes, a batch at a time, from `step` on; read again when they end."""

    def __init__(self, folder, step):
        self.files, self.step = sorted(folder.rglob("*.py")), step

    def pieces(self):
        while True:
            for path in self.files:
                with path.open("rb") as file:
                    while len(piece := file.read(LENGTH)) == LENGTH:
                        yield piece

    def __iter__(self):
        pieces = islice(self.pieces(), self.step * GLOBAL_BATCH, None)
        while True:
            batch = list(islice(pieces, GLOBAL_BATCH))
            yield torch.tensor([list(piece) for piece in batch[rank::world]])


device = (
    torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
)
dist.init_process_group(device_id=device if device.type == "cuda" else None)
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = GPT(Shape(vocabulary=256, context=LENGTH - 1, layers=2, heads=2, width=32)).to(device)
model = DistributedDataParallel(model)
opt = torch.optim.AdamW(model.parameters(), 3e-3)

step = 0
if SAVED.exists():
    state = torch.load(SAVED, map_location=device)
    model.module.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    step = state["step"]
loader = DataLoader(Texts(Path(dtj.__file__).parent, step), batch_size=None)
for tokens in islice(loader, STEPS - step):
    tokens = tokens.to(device)
    loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    step += 1
    loss = loss.detach()
    dist.all_reduce(loss)
    if rank == 0:
        print(f"step {step}  loss {loss / world:.4f}  grad_norm {norm:.4f}", flush=True)
        if step % 100 == 0 or step == STEPS:
            state = {"model": model.module.state_dict(), "opt": opt.state_dict(), "step": step}
            torch.save(state, SAVED.with_suffix(".new"))
            SAVED.with_suffix(".new").rename(SAVED)
dist.destroy_process_group()
