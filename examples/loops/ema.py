"""An exponential moving average of the weights (EMA), which often scores better than the weights themselves.

dtj run examples/loops/ema.py
dtj run --nproc 2 --parallel fsdp examples/loops/ema.py     # the averages are sharded as the weights are
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset, random_split

import dtj

run = dtj.init()
digits = load_digits()
inputs = torch.tensor(digits.data, dtype=torch.float32) / 16
known, held_out = random_split(TensorDataset(inputs, torch.tensor(digits.target)), [0.8, 0.2])

model = run.parallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
average = dtj.EMA(model, decay=0.9)
opt = torch.optim.SGD(model.parameters(), 0.5)
data = run.data(known, global_batch=32)
run.state(model=model, average=average, opt=opt, data=data)


def accuracy() -> float:
    return run.evaluate(lambda mb: model(mb.x).argmax(1) == mb.y, held_out)


for batch in run.steps(2 * data.steps_per_epoch):
    for mb in batch:
        loss = run.backward(cross_entropy(model(mb.x), mb.y))
    opt.step()
    opt.zero_grad()
    average.update()
    run.log(loss=loss)
    if batch.ends_epoch:
        with average.applied():
            run.log(averaged_accuracy=accuracy())
        run.log(accuracy=accuracy(), now=True)
run.say(f"done: {run.step} steps")
