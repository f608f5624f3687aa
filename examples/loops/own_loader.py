"""A ResNet with a DataLoader of your own: its batch size is that of one rank, here a part of 64.

dtj run examples/loops/own_loader.py
dtj run --nproc 2 --precision bf16 examples/loops/own_loader.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

import dtj


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.layers(x)).relu()


run = dtj.init()
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
known, held_out = random_split(TensorDataset(images, torch.tensor(digits.target)), [0.8, 0.2])

model = run.parallel(
    nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), Residual(16), Residual(16)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    )
)
opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
data = run.loader(DataLoader(known, batch_size=64 // run.size, shuffle=True, drop_last=True))
schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 0.2, total_steps=2 * data.steps_per_epoch)
run.state(model=model, opt=opt, schedule=schedule, data=data)

for batch in run.steps(2 * data.steps_per_epoch):
    for x, y in batch:
        loss = run.backward(cross_entropy(model(x), y, label_smoothing=0.1))
    opt.step()
    opt.zero_grad()
    schedule.step()
    run.log(loss=loss, lr=schedule.get_last_lr()[0])
    if batch.ends_epoch:
        accuracy = run.evaluate(lambda mb: model(mb.x).argmax(1) == mb.y, held_out)
        run.log(accuracy=accuracy, now=True)
run.say(f"done: {run.step} steps")
