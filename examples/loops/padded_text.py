"""Fine-tune a causal language model on texts of different lengths: every token has the same weight.

dtj run examples/loops/padded_text.py
dtj run --nproc 2 --micro-batch 3 examples/loops/padded_text.py     # the same losses
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dtj
from dtj.models.gpt import GPT, Shape

IGNORED = -100  # the label of padding, and of the prompt in instruction tuning
TEXTS = [f"{a} plus {b} is {a + b}." for a in range(0, 1000, 37) for b in (1, 20, 300)]


def padded(texts: list[str]) -> dict[str, torch.Tensor]:
    """Inputs and labels of a micro-batch, padded to its longest text."""
    rows = [torch.tensor(list(text.encode())) for text in texts]
    table = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)
    return {"inputs": table[:, :-1].clamp(min=0), "labels": table[:, 1:]}


run = dtj.init()
model = run.parallel(GPT(Shape(vocabulary=128, context=32, layers=2, heads=2, width=32)))
opt = torch.optim.AdamW(model.parameters(), 3e-3)
data = run.data(TEXTS, global_batch=16, collate=padded)
run.state(model=model, opt=opt, data=data)

for batch in run.steps(12):
    for mb in batch:
        scores = model(mb["inputs"]).flatten(0, 1)
        labels = mb["labels"].flatten()
        mean = cross_entropy(scores, labels, ignore_index=IGNORED)
        loss = run.backward(mean, count=(labels != IGNORED).sum())
    run.log(loss=loss, grad_norm=run.clip(1.0))
    opt.step()
    opt.zero_grad()
run.say(f"done: {run.step} steps")
