"""Fine-tune a classifier of transformers on padded texts.

dtj run examples/loops/hugging_face_classifier.py
dtj run --nproc 2 --precision bf16 examples/loops/hugging_face_classifier.py
"""

from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import random_split
from transformers import AutoModelForSequenceClassification, BertConfig

import dtj

TEXTS = [(f"{a} times {b} is {a * b}.", (a * b) % 2) for a in range(30) for b in range(30)]
# Or AutoModelForSequenceClassification.from_pretrained(name, dtype=torch.float32), with the tokenizer of that
# name.
CONFIG = BertConfig(
    **{"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 64, "max_position_embeddings": 64, "num_labels": 2},
)


def collate(rows: list[tuple[str, int]]) -> dict[str, torch.Tensor]:
    """Tokens, which are bytes here, padded to the longest text of the micro-batch."""
    ids = pad_sequence([torch.tensor(list(text.encode())) for text, _ in rows], batch_first=True)
    labels = torch.tensor([label for _, label in rows])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


run = dtj.init()
model = run.parallel(AutoModelForSequenceClassification.from_config(CONFIG))
opt = torch.optim.AdamW(model.parameters(), 1e-3)
known, held_out = random_split(TEXTS, [0.8, 0.2])
data = run.data(known, global_batch=32, collate=collate)
run.state(model=model, opt=opt, data=data)


def is_right(mb: dict[str, Any]) -> torch.Tensor:
    return model(**mb).logits.argmax(1) == mb["labels"]


for batch in run.steps(data.steps_per_epoch):
    loss = run.backward(lambda mb: model(**mb).loss, batch)
    opt.step()
    opt.zero_grad()
    run.log(loss=loss)
    if batch.ends_epoch:
        run.log(accuracy=run.evaluate(is_right, held_out, collate=collate), now=True)
run.say(f"done: {run.step} steps")
