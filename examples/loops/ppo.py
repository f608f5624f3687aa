"""Reinforcement learning by PPO: steps without data; each rank plays in environments of its own.

dtj run examples/loops/ppo.py
dtj run --nproc 2 examples/loops/ppo.py     # twice the experience in each step
"""

import torch
from torch import nn
from torch.distributions import Categorical

import dtj

GAMES, MOVES, EPOCHS, CLIP = 32, 16, 4, 0.2


def play(actor: nn.Module, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Walk on a line towards 0: positions, moves (0: left, 1: right) and rewards, (MOVES, GAMES) each."""
    place = 4 * torch.randn(GAMES, device=device)
    places, moves, rewards = [], [], []
    for _ in range(MOVES):
        move = Categorical(logits=actor(place[:, None])).sample()
        after = place + 2 * move - 1
        places.append(place)
        moves.append(move)
        rewards.append(place.abs() - after.abs())
        place = after
    return torch.stack(places), torch.stack(moves), torch.stack(rewards)


def network(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, outputs))


run = dtj.init()
actor, critic = run.parallel(network(2)), run.parallel(network(1))
opt = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 1e-2)
run.state(actor=actor, critic=critic, opt=opt)

for _ in run.steps(20):
    with torch.no_grad(), run.autocast():
        places, moves, rewards = play(run.unwrap(actor), run.device)
        returns = rewards.flip(0).cumsum(0).flip(0).flatten()
        places, moves = places.flatten()[:, None], moves.flatten()
        advantage = returns - critic(places)[:, 0]
        before = Categorical(logits=actor(places)).log_prob(moves)
    for _ in range(EPOCHS):
        with run.autocast():
            policy = Categorical(logits=actor(places))
            ratio = (policy.log_prob(moves) - before).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
            error = (critic(places)[:, 0] - returns).square().mean()
            loss = run.backward(error - gain - 0.01 * policy.entropy().mean())
        run.clip(0.5)
        opt.step()
        opt.zero_grad()
    run.log(loss=loss, reward=rewards.sum(0).mean())
run.say(f"done: {run.step} steps, reward {float(run.reduce(rewards.sum(0).mean())):.1f}")
