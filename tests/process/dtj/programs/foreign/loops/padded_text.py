"""examples/loops/padded_text.py for torchrun, without the verbs of dtj."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from dtj.models.gpt import GPT, Shape

STEPS, GLOBAL_BATCH, SAVED = 12, 16, Path(os.environ.get("SAVED", "padded_text.pt"))
IGNORED = -100  # the label of padding, and of the prompt in instruction tuning
TEXTS = [f"{a} plus {b} is {a + b}." for a in range(0, 1000, 37) for b in (1, 20, 300)]


def padded(texts):
    """Inputs and labels of a micro-batch, padded to its longest text."""
    rows = [torch.tensor(list(text.encode())) for text in texts]
    table = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)
    return table[:, :-1].clamp(min=0), table[:, 1:]


device = (
    torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
)
dist.init_process_group(device_id=device if device.type == "cuda" else None)
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(
    GPT(Shape(vocabulary=128, context=32, layers=2, heads=2, width=32)).to(device)
)
opt = torch.optim.AdamW(model.parameters(), 3e-3)
sampler = DistributedSampler(TEXTS)
loader = DataLoader(TEXTS, GLOBAL_BATCH // world, sampler=sampler, collate_fn=padded)

step = 0
if SAVED.exists():
    state = torch.load(SAVED, map_location=device)
    model.module.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    step = state["step"]
while step < STEPS:
    epoch, done = divmod(step, len(loader))
    sampler.set_epoch(epoch)
    for number, (inputs, labels) in enumerate(loader):
        if number < done or step == STEPS:  # done before the restart
            continue
        labels = labels.to(device).flatten()
        tokens = (labels != IGNORED).sum()
        dist.all_reduce(tokens)
        scores = model(inputs.to(device)).flatten(0, 1)
        loss = cross_entropy(scores, labels, ignore_index=IGNORED, reduction="sum") / tokens
        (loss * world).backward()  # DDP divides the sum of the gradients by the number of ranks
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        step += 1
        loss = loss.detach()
        dist.all_reduce(loss)
        if rank == 0:
            print(f"step {step}  loss {loss:.4f}  grad_norm {norm:.4f}", flush=True)
    if rank == 0:
        state = {"model": model.module.state_dict(), "opt": opt.state_dict(), "step": step}
        torch.save(state, SAVED.with_suffix(".new"))
        SAVED.with_suffix(".new").rename(SAVED)
dist.destroy_process_group()
