"""examples/loops/ppo.py for torchrun, without the verbs of dtj."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel

STEPS, GAMES, MOVES, EPOCHS, CLIP = 20, 32, 16, 4, 0.2
SAVED = Path(os.environ.get("SAVED", "ppo.pt"))


def play(actor, device):
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


def network(outputs):
    return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, outputs))


device = (
    torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
)
dist.init_process_group(device_id=device if device.type == "cuda" else None)
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
actor = DistributedDataParallel(network(2).to(device))
critic = DistributedDataParallel(network(1).to(device))
weights = [*actor.parameters(), *critic.parameters()]
opt = torch.optim.Adam(weights, 1e-2)
parts = {"actor": actor.module, "critic": critic.module, "opt": opt}

begin = 0
if SAVED.exists():
    state = torch.load(SAVED, map_location=device)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    begin = state["step"]
for step in range(begin + 1, STEPS + 1):
    torch.manual_seed(step * world + rank)  # games differ between ranks
    with torch.no_grad():
        places, moves, rewards = play(actor.module, device)
        returns = rewards.flip(0).cumsum(0).flip(0).flatten()
        places, moves = places.flatten()[:, None], moves.flatten()
        advantage = returns - critic(places)[:, 0]
        before = Categorical(logits=actor(places)).log_prob(moves)
    for _ in range(EPOCHS):
        policy = Categorical(logits=actor(places))
        ratio = (policy.log_prob(moves) - before).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
        error = (critic(places)[:, 0] - returns).square().mean()
        loss = error - gain - 0.01 * policy.entropy().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 0.5)
        opt.step()
        opt.zero_grad()
    means = torch.stack([loss.detach(), rewards.sum(0).mean()])
    dist.all_reduce(means)
    if rank == 0:
        print(f"step {step}  loss {means[0] / world:.4f}  reward {means[1] / world:.4f}", flush=True)
        if step % 100 == 0 or step == STEPS:
            state = {name: part.state_dict() for name, part in parts.items()} | {"step": step}
            torch.save(state, SAVED.with_suffix(".new"))
            SAVED.with_suffix(".new").rename(SAVED)
dist.destroy_process_group()
