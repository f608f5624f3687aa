"""Fine-tune a causal language model of transformers on texts of different lengths.

dtj run examples/loops/hugging_face_lm.py
dtj run --nproc 2 --micro-batch 4 examples/loops/hugging_face_lm.py     # the same losses
"""

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, GPT2Config

import dtj

TEXTS = [f"{a} plus {b} is {a + b}." for a in range(0, 1000, 37) for b in (1, 20, 300)]
# Or AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32), with the tokenizer of that name.
CONFIG = GPT2Config(
    **{"vocab_size": 256, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2},
    **{"bos_token_id": 0, "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
)


def collate(texts: list[str]) -> dict[str, torch.Tensor]:
    """Tokens, which are bytes here, padded to the longest text of the micro-batch."""
    rows = [torch.tensor(list(text.encode())) for text in texts]
    labels = pad_sequence(rows, batch_first=True, padding_value=-100)
    return {"input_ids": labels.clamp(min=0), "attention_mask": (labels >= 0).long(), "labels": labels}


run = dtj.init()
model = run.parallel(AutoModelForCausalLM.from_config(CONFIG))
opt = torch.optim.AdamW(model.parameters(), 3e-3)
data = run.data(TEXTS, global_batch=16, collate=collate)
run.state(model=model, opt=opt, data=data)

for batch in run.steps(12):
    for mb in batch:
        tokens = (mb["labels"][:, 1:] != -100).sum()  # the model shifts the labels by one
        loss = run.backward(model(**mb).loss, count=tokens)
    run.log(loss=loss, grad_norm=run.clip(1.0))
    opt.step()
    opt.zero_grad()
run.say(f"done: {run.step} steps")
