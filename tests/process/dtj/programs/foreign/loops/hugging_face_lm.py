"""examples/loops/hugging_face_lm.py for torchrun, without the verbs of dtj."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoModelForCausalLM, GPT2Config

STEPS, GLOBAL_BATCH, SAVED = 12, 16, Path(os.environ.get("SAVED", "hugging_face_lm.pt"))
TEXTS = [f"{a} plus {b} is {a + b}." for a in range(0, 1000, 37) for b in (1, 20, 300)]
CONFIG = GPT2Config(
    **{"vocab_size": 256, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2},
    **{"bos_token_id": 0, "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
)


def collate(texts):
    """Tokens, which are bytes here, padded to the longest text of the micro-batch."""
    rows = [torch.tensor(list(text.encode())) for text in texts]
    labels = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    return {"input_ids": labels.clamp(min=0), "attention_mask": (labels >= 0).long(), "labels": labels}


device = (
    torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
)
dist.init_process_group(device_id=device if device.type == "cuda" else None)
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(AutoModelForCausalLM.from_config(CONFIG).to(device))
opt = torch.optim.AdamW(model.parameters(), 3e-3)
sampler = DistributedSampler(TEXTS)
loader = DataLoader(TEXTS, GLOBAL_BATCH // world, sampler=sampler, collate_fn=collate)

step = 0
if SAVED.exists():
    state = torch.load(SAVED, map_location=device)
    model.module.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    step = state["step"]
while step < STEPS:
    epoch, done = divmod(step, len(loader))
    sampler.set_epoch(epoch)
    for number, mb in enumerate(loader):
        if number < done or step == STEPS:  # done before the restart
            continue
        mb = {name: value.to(device) for name, value in mb.items()}
        tokens = (mb["labels"][:, 1:] != -100).sum()  # the model shifts the labels by one
        dist.all_reduce(tokens)
        loss = model(**mb, use_cache=False, num_items_in_batch=tokens).loss  # the sum, divided by all tokens
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
