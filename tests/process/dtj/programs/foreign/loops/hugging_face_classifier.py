"""examples/loops/hugging_face_classifier.py for torchrun, without the verbs of dtj."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, DistributedSampler, random_split
from transformers import AutoModelForSequenceClassification, BertConfig

GLOBAL_BATCH, SAVED = 32, Path(os.environ.get("SAVED", "hugging_face_classifier.pt"))
TEXTS = [(f"{a} times {b} is {a * b}.", (a * b) % 2) for a in range(30) for b in range(30)]
CONFIG = BertConfig(
    **{"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 64, "max_position_embeddings": 64, "num_labels": 2},
)


def collate(rows):
    """Tokens, which are bytes here, padded to the longest text of the micro-batch."""
    ids = pad_sequence([torch.tensor(list(text.encode())) for text, _ in rows], batch_first=True)
    labels = torch.tensor([label for _, label in rows])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


device = (
    torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
)
dist.init_process_group(device_id=device if device.type == "cuda" else None)
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = AutoModelForSequenceClassification.from_config(CONFIG).to(device)
model = DistributedDataParallel(model)
opt = torch.optim.AdamW(model.parameters(), 1e-3)
known, held_out = random_split(TEXTS, [0.8, 0.2])
sampler = DistributedSampler(known)
loader = DataLoader(known, GLOBAL_BATCH // world, sampler=sampler, collate_fn=collate)
mine = torch.utils.data.Subset(held_out, range(rank, len(held_out), world))  # not padded, as a sampler would

step, steps = 0, len(loader)
if SAVED.exists():
    state = torch.load(SAVED, map_location=device)
    model.module.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    step = state["step"]
while step < steps:
    epoch, done = divmod(step, len(loader))
    sampler.set_epoch(epoch)
    torch.manual_seed(epoch * world + rank)  # dropout differs between ranks
    for number, mb in enumerate(loader):
        if number < done:  # done before the restart
            continue
        loss = model(**{name: value.to(device) for name, value in mb.items()}).loss
        loss.backward()
        opt.step()
        opt.zero_grad()
        step += 1
        loss = loss.detach()
        dist.all_reduce(loss)
        if rank == 0:
            print(f"step {step}  loss {loss / world:.4f}", flush=True)
    model.eval()
    right = torch.zeros((), device=device)
    with torch.no_grad():
        for mb in DataLoader(mine, GLOBAL_BATCH // world, collate_fn=collate):
            mb = {name: value.to(device) for name, value in mb.items()}
            right += (model.module(**mb).logits.argmax(1) == mb["labels"]).sum()
    model.train()
    dist.all_reduce(right)
    if rank == 0:
        print(f"step {step}  accuracy {right / len(held_out):.4f}", flush=True)
        state = {"model": model.module.state_dict(), "opt": opt.state_dict(), "step": step}
        torch.save(state, SAVED.with_suffix(".new"))
        SAVED.with_suffix(".new").rename(SAVED)
dist.destroy_process_group()
