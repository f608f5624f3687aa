"""A GAN: two models and two optimizers, each with its own backward pass over the batch.

dtj run examples/loops/gan.py
dtj run --nproc 2 --precision fp16 examples/loops/gan.py
"""

import math

import torch
from torch import nn
from torch.nn.functional import softplus

import dtj

NOISE = 8
ANGLES = torch.arange(512) * (2 * math.pi / 8)
POINTS = torch.stack([ANGLES.cos(), ANGLES.sin()], dim=1) + 0.05 * torch.randn(512, 2)


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.BatchNorm1d(32), nn.LeakyReLU(0.2), nn.Linear(32, outputs))


run = dtj.init()
generator = run.parallel(network(NOISE, 2))
critic = run.parallel(network(2, 1))
opt_g = torch.optim.Adam(generator.parameters(), 2e-3, betas=(0.5, 0.999))
opt_c = torch.optim.Adam(critic.parameters(), 2e-3, betas=(0.5, 0.999))
data = run.data(POINTS, global_batch=64, equal_shares=True)  # batch norm needs more than one sample on a rank
run.state(generator=generator, critic=critic, opt_g=opt_g, opt_c=opt_c, data=data)


def fake(count: int) -> torch.Tensor:
    return generator(torch.randn(count, NOISE, device=run.device))


for batch in run.steps(20):
    for real in batch:
        made = fake(len(real)).detach()
        loss_c = run.backward(softplus(-critic(real)).mean() + softplus(critic(made)).mean())
    opt_c.step()
    opt_c.zero_grad()

    for real in batch:
        loss_g = run.backward(softplus(-critic(fake(len(real)))).mean())
    run.clip(1.0, generator.parameters())
    opt_g.step()
    opt_g.zero_grad()
    opt_c.zero_grad()  # the critic got gradients, too
    run.log(loss_c=loss_c, loss_g=loss_g)
run.say(f"done: {run.step} steps")
