"""The same training in three libraries: a save every ten steps, and at the end an evaluation.

    libraries.py LIBRARY FOLDER STEPS

A second call on the same folder with more steps resumes. Rank 0 prints times and memory.
"""

import contextlib
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import accelerate  # type: ignore[import-untyped]
import lightning_fabric
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import dtj
from tests.bench.ranks import tell

WIDTH, CLASSES, SHARE, EVERY = 1024, 16, 64, 10
STEPS = int(sys.argv[3])
T = TypeVar("T")


class Timer:
    """Seconds by name. A step lasts until the next one begins, so it includes its save."""

    def __init__(self) -> None:
        self.took: dict[str, list[float]] = defaultdict(list)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.took[name].append(time.perf_counter() - began)

    def steps(self, items: Iterable[T], begin: int) -> Iterator[T]:
        """The items of the steps after step `begin`, each timed from one item to the next."""
        step, began = begin, time.perf_counter()
        for item in items:
            if step > begin:
                self._add(step, began)
            step, began = step + 1, time.perf_counter()
            yield item
        self._add(step, began)

    def _add(self, step: int, began: float) -> None:
        self.took["save" if step % EVERY == 0 else "step"].append(time.perf_counter() - began)


def network() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(9)), nn.Linear(WIDTH, CLASSES))


def samples(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, WIDTH, generator=generator)
    return TensorDataset(x, x[:, :CLASSES].argmax(1))


def with_dtj(folder: Path, data: TensorDataset, held_out: TensorDataset, timer: Timer) -> float:
    run = dtj.init(checkpoint=str(folder), save_every=EVERY)
    model = run.parallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    feed = run.data(data, global_batch=SHARE * run.size)
    with timer("resume"):
        run.state(model=model, optimizer=optimizer, data=feed)
    for batch in timer.steps(run.steps(STEPS), run.step):
        run.backward(lambda mb: cross_entropy(model(mb.x), mb.y), batch)
        optimizer.step()
        optimizer.zero_grad()
    with timer("evaluation"):
        return run.evaluate(lambda mb: (model(mb.x).argmax(1) == mb.y).float(), held_out)


def with_fabric(folder: Path, data: TensorDataset, held_out: TensorDataset, timer: Timer) -> float:
    fabric = lightning_fabric.Fabric(
        accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"])
    )
    fabric.launch()
    model = network()
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=1e-4))
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=SHARE, shuffle=True))
    scored = fabric.setup_dataloaders(DataLoader(held_out, batch_size=SHARE))
    file, begin = folder / "state.ckpt", 0
    state = {"model": model, "optimizer": optimizer, "step": 0}
    with timer("resume"):
        if file.exists():
            state |= fabric.load(file, state)
            begin = int(state["step"])
    batches = iter(loader)
    for step in timer.steps(range(begin, STEPS), begin):
        x, y = next(batches)
        fabric.backward(cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % EVERY == 0:
            fabric.save(file, state | {"step": step + 1})
    with timer("evaluation"), torch.no_grad():
        model.eval()
        right = [(model(x).argmax(1) == y).float().mean() for x, y in scored]
        return float(fabric.all_reduce(torch.stack(right).mean()))  # type: ignore[arg-type]


def with_accelerate(folder: Path, data: TensorDataset, held_out: TensorDataset, timer: Timer) -> float:
    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    model, optimizer, loader, scored = accelerator.prepare(
        model,
        torch.optim.Adam(model.parameters(), lr=1e-4),
        DataLoader(data, batch_size=SHARE, shuffle=True),
        DataLoader(held_out, batch_size=SHARE),
    )
    saved, begin = folder / "state", 0
    with timer("resume"):
        if saved.exists():
            accelerator.load_state(str(saved))
            begin = (STEPS - 1) // EVERY * EVERY  # it stores no step
    batches = iter(loader)
    for step in timer.steps(range(begin, STEPS), begin):
        x, y = next(batches)
        accelerator.backward(cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % EVERY == 0:
            accelerator.save_state(str(saved))
    with timer("evaluation"), torch.no_grad():
        model.eval()
        found = [accelerator.gather_for_metrics((model(x).argmax(1), y)) for x, y in scored]
        right: list[Tensor] = [(guess == y).float() for guess, y in found]
        return float(torch.cat(right).mean())


LIBRARIES = {"dtj": with_dtj, "fabric": with_fabric, "accelerate": with_accelerate}


def peak_mb() -> float:
    """The most memory that this process has had, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1000
    raise AssertionError


def main() -> None:
    data, held_out = samples(2 * SHARE * 50, 0), samples(4096, 1)
    before, timer = peak_mb(), Timer()
    folder = Path(sys.argv[2])
    score = LIBRARIES[sys.argv[1]](folder, data, held_out, timer)
    if os.environ["RANK"] != "0":
        return
    step_s = statistics.median(timer.took["step"])
    tell(
        score=score,
        steps=sum(len(timer.took[name]) for name in ("step", "save")),
        step=1000 * step_s,
        save=[1000 * (s - step_s) for s in timer.took["save"][1:]],  # the first one allocates
        evaluation=1000 * timer.took["evaluation"][0],
        resume=1000 * timer.took["resume"][0],
        memory=peak_mb() - before,
    )


if __name__ == "__main__":
    main()
