"""Plain scripts without a verb of dtj that are slow in all ways of `control_plan.PLAIN_KINDS`.

$FRAMEWORK says who has the loop: the script itself, Accelerate, transformers or Lightning. Every event is the
real thing: a model is evaluated, a file written, a function compiled, bytes come from $URL.
"""

import gc
import json
import os
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.bench.control_plan import PLAIN_KINDS, Event, plan

STEP_S = float(os.environ["STEP_S"])
RANK = int(os.environ["RANK"])
OUT = Path(os.environ["OUT"])
# What one rank compiles is new to the others, and no rank reads a file that another is about to write.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(OUT / f"inductor-{RANK}")
EVENTS = OUT / f"events-{RANK}.jsonl"
_SHARE_OF_CPU = 0.1  # of an evaluation, so that several jobs fit on a small machine
_AT_A_TIME = 64  # samples
_SAVED_MIB_PER_S = 4
_GARBAGE = 1_000_000
_CALM_STEPS = 3


def note(kind: str, **fields: Any) -> None:
    """Write one line for the harness."""
    with EVENTS.open("a") as file:
        file.write(json.dumps({"kind": kind, **fields}) + "\n")


class Slowness:
    """Call `step` after every optimizer step; a restarted script has no plan any more."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._step = self._compiled = 0
        has_run = EVENTS.exists() and '"calm"' in EVENTS.read_text()
        found = plan(
            int(os.environ["SEED"]),
            seconds=float(os.environ["SECONDS_OF_PLAN"]),
            step_s=STEP_S,
            ranks=int(os.environ["WORLD_SIZE"]),
            kinds=PLAIN_KINDS,
        )
        self._plan = {} if has_run else found
        self._calm_at = max(self._plan, default=0) + _CALM_STEPS
        note("start", pid=os.getpid())

    def step(self) -> None:
        """Take the usual time, or that of the event at this step."""
        self._step += 1
        time.sleep(STEP_S)
        event, began = self._plan.get(self._step), time.monotonic()
        if event and event.rank in {None, RANK}:
            self._suffer(event)
            note(event.kind, seconds=time.monotonic() - began)
        if self._step == self._calm_at:
            note("calm", step=self._step)

    def _suffer(self, event: Event) -> None:
        end = time.monotonic() + event.seconds
        match event.kind:
            case "slow steps":
                time.sleep(event.seconds)
            case "slow start" | "evaluation":
                self._evaluate(end)
            case "checkpoint":
                save(end)
            case "recompilation":
                self._compiled += 1
                compile_anew(self._compiled)
            case "download":
                download(event.seconds)
            case "garbage collection":
                collect_garbage()
            case kind:
                raise ValueError(f"a plain script has no event {kind!r}")

    def _evaluate(self, end: float) -> None:
        samples = torch.randn(4096, 64)
        with torch.no_grad():
            while time.monotonic() < end:
                for few in torch.split(samples, _AT_A_TIME):  # a rank that sleeps for seconds does nothing
                    began = time.monotonic()
                    for sample in few:
                        self._model(sample)
                    time.sleep((time.monotonic() - began) * (1 / _SHARE_OF_CPU - 1))


def save(end: float) -> None:
    """Write files until the time is over, as one large file is written to a slow volume."""
    state = torch.zeros(2**18 * _SAVED_MIB_PER_S)
    while time.monotonic() < end:
        torch.save(state, OUT / f"state-{RANK}.pt")
        time.sleep(1)


def compile_anew(number: int) -> None:
    """Compile a function that has not been compiled before."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * number).sin().cumsum(0) @ x

    torch.compile(function, dynamic=False)(torch.randn(8 + number, 8 + number))


def download(seconds: float) -> None:
    """Read a file that takes this long; the server's speed is drawn."""
    with urllib.request.urlopen(f"{os.environ['URL']}/{seconds:.0f}") as answer:
        while answer.read(2**16):
            pass


def collect_garbage() -> None:
    """Make reference cycles that only the garbage collector can free, and collect them."""
    gc.disable()
    for _ in range(_GARBAGE):
        cycle: list[Any] = []
        cycle.append(cycle)
    gc.enable()
    gc.collect()


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def samples() -> TensorDataset:
    return TensorDataset(torch.randn(256, 64), torch.zeros(256, 1))


def batches(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def own_loop() -> None:
    """DistributedDataParallel and a loop by hand."""
    dist.init_process_group("gloo")
    inner = net()
    model, slow = nn.parallel.DistributedDataParallel(inner), Slowness(inner)
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in batches(DataLoader(samples(), batch_size=8, num_workers=1)):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
        slow.step()


def with_accelerate() -> None:
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator(cpu=True)
    inner = net()
    loader = DataLoader(samples(), batch_size=8)
    model, optimizer, loader = accelerator.prepare(inner, torch.optim.AdamW(inner.parameters()), loader)
    slow = Slowness(inner)
    for x, y in batches(loader):
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
        slow.step()


def with_transformers() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": nn.functional.mse_loss(self.net(x), y)}

    model = Loss()
    slow = Slowness(model.net)

    class Callback(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            slow.step()

    arguments = TrainingArguments(
        output_dir=str(OUT / "transformers"),
        use_cpu=True,
        max_steps=10**9,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    data = samples()
    rows = [{"x": x, "y": y} for x, y in (data[number] for number in range(len(data)))]
    Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Callback()]).train()


def with_lightning() -> None:
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            return nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def on_train_batch_end(self, *_: Any) -> None:
            slow.step()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    module = Module()
    slow = Slowness(module.net)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=-1,
        default_root_dir=OUT,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(samples(), batch_size=8))


if __name__ == "__main__":
    {
        "own loop": own_loop,
        "Accelerate": with_accelerate,
        "transformers": with_transformers,
        "Lightning": with_lightning,
    }[os.environ["FRAMEWORK"]]()
