"""Trains one model three times, in blocks that take turns: Run's verbs and two hand-written DDP loops.

    throughput.py MODEL FIRST

The place of a model in memory makes it up to 2 % faster or slower for the whole life of a process. So the
loops are created in an order that starts with number FIRST, and the caller tries all of them.
"""

import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import dtj
from dtj.recipe import Recipe
from dtj.recipes import digits, text
from tests.bench.ranks import tell

# Blocks of about a third of a second, short enough that the load of the machine is the same for all. At least
# three steps, because the first one finds the caches filled with another loop's data.
BLOCKS, BLOCK_S, LEAST, WARM_UP = 24, 0.3, 3, 20


def ours(run: dtj.Run, recipe: Recipe, data: TensorDataset) -> Iterator[None]:
    model = run.parallel(recipe.model())
    optimizer = recipe.optimizer(model.parameters())
    run.data(data, global_batch=recipe.global_batch)
    for batch in run.steps(10**6):
        loss = run.backward(lambda mb: recipe.loss(model, mb), batch)
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        yield


def bare(recipe: Recipe, data: TensorDataset) -> Iterator[None]:
    """The fastest loop: the samples are in one tensor, nothing is logged, no stop is checked."""
    model, rank, size = wrapped(recipe)
    optimizer = recipe.optimizer(model.parameters())
    x, y = data.tensors
    share = recipe.global_batch // size
    for epoch in range(10**6):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for start in range(0, len(x), recipe.global_batch):
            mine = order[start + rank * share : start + (rank + 1) * share]
            loss = loss_of(model(x[mine]), y[mine])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            yield


def usual(recipe: Recipe, data: TensorDataset) -> Iterator[None]:
    """The usual loop, with torch's sampler and loader; it does not log either."""
    model, rank, size = wrapped(recipe)
    optimizer = recipe.optimizer(model.parameters())
    sampler = DistributedSampler[tuple[Tensor, ...]](data, num_replicas=size, rank=rank)
    loader = DataLoader(data, batch_size=recipe.global_batch // size, sampler=sampler)
    for epoch in range(10**6):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            yield


def wrapped(recipe: Recipe) -> tuple[nn.Module, int, int]:
    """The model, wrapped in DDP if there are several ranks; this rank; and the number of ranks."""
    model: nn.Module = recipe.model()
    if not dist.is_initialized():
        return model, 0, 1
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return model, dist.get_rank(), dist.get_world_size()


def loss_of(found: Tensor, wanted: Tensor) -> Tensor:
    if found.ndim == 3:
        return nn.functional.cross_entropy(found.flatten(0, 1), wanted.flatten())
    return nn.functional.cross_entropy(found, wanted)


def chosen(name: str) -> tuple[Recipe, TensorDataset]:
    """Whole batches only: a smaller batch at the end of an epoch would be a cheaper step."""
    if name == "linear":
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(2048, 8, generator=generator), torch.randint(3, (2048,), generator=generator)
        data = TensorDataset(x, y)
        return Recipe(
            model=lambda: nn.Linear(8, 3),
            data=data,
            loss=lambda model, mb: nn.functional.cross_entropy(model(mb.x), mb.y),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
            global_batch=64,
            epochs=1,
        ), data
    if name == "cnn":
        recipe = digits.recipe()
        whole = len(recipe.data) // recipe.global_batch * recipe.global_batch
        return recipe, TensorDataset(*recipe.data[:whole])
    recipe = text.recipe()
    samples = [recipe.data[index] for index in range(2048)]
    x, y = (torch.stack(column) for column in zip(*samples, strict=True))
    return recipe, TensorDataset(x, y)


def seconds(loop: Iterator[None], steps: int) -> float:
    if dist.is_initialized():
        dist.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        next(loop)
    if dist.is_initialized():
        dist.barrier()
    return time.perf_counter() - began


def main() -> None:
    recipe, data = chosen(sys.argv[1])
    run = dtj.init()
    loops = ours(run, recipe, data), bare(recipe, data), usual(recipe, data)
    for number in range(len(loops)):  # a loop creates its model at its first step
        seconds(loops[(int(sys.argv[2]) + number) % len(loops)], WARM_UP)
    wanted = torch.tensor(max(LEAST, int(WARM_UP * BLOCK_S / seconds(loops[1], WARM_UP))))
    if dist.is_initialized():
        dist.broadcast(wanted, src=0)
    steps = int(wanted)
    took: tuple[list[float], ...] = ([], [], [])
    for block in range(BLOCKS):
        # Each loop follows each of the other two half of the time, so all find the caches in the same state.
        for which in (0, 1, 2) if block < BLOCKS // 2 else (2, 1, 0):
            took[which].append(1000 * seconds(loops[which], steps) / steps)
    if run.rank == 0:
        tell(ours=took[0], bare=took[1], usual=took[2])


if __name__ == "__main__":
    main()
