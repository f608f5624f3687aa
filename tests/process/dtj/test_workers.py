"""Worker processes that load samples: same samples, same order, and no process outlives its rank."""

import multiprocessing
import random
import re
import signal
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from dtj.data import loader
from dtj.errors import RecipeError
from dtj.ranks import random_state
from tests.process.dtj.conftest import SIZES, SMALL, Command, Finished, is_dead, wait_for
from tests.process.dtj.test_hang import RESTARTS
from tests.process.dtj.test_resume import assert_identical, weights
from tests.process.dtj.test_same_result import seen
from tests.unit.dtj.feeds import feed, real

Finish = Callable[..., Finished]


# Raised if a test has more workers than this machine has processors.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Augmented:
    """Samples with noise from the random generators of the process that loads them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + noise()


def noise() -> torch.Tensor:
    """() in [0, 0.5), from all generators that a dataset may use."""
    return (torch.rand(()) + random.random() + float(np.random.random())) / 6


def batches(f: Any, count: int) -> list[torch.Tensor]:
    found = []
    for _ in range(count):
        found += list(f.batch())
        f.advance()
    f.close()
    return found


@pytest.mark.parametrize(("workers", "start"), [(3, "fork"), (1, "spawn")])
def test_workers_load_the_same_samples_as_the_rank_itself(workers: int, start: str) -> None:
    alone, helped = feed(40, batch=6, micro=2), feed(40, batch=6, micro=2, workers=workers, start=start)
    expected, found = batches(alone, 15), batches(helped, 15)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


class InOrder(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


def noisy(samples: list[int]) -> torch.Tensor:
    """A collate that augments."""
    return torch.stack([sample + noise() for sample in samples])


@pytest.mark.parametrize(
    ("how", "state"),
    [
        pytest.param({"data": Augmented()}, {"position": 24, "length": 40, "seed": 0}, id="map-style"),
        pytest.param({"data": InOrder(), "collate": noisy}, {"epoch": 0, "consumed": 24}, id="stream"),
    ],
)
@pytest.mark.parametrize("workers", [0, 3])
def test_noise_depends_only_on_the_samples_so_a_resumed_run_repeats_it(
    how: dict[str, Any], state: dict[str, int], workers: int
) -> None:
    """The stages of a pipeline need this too: one stage loads the inputs, another the targets."""
    whole = batches(feed(batch=8, micro=2, workers=2, **how), 5)
    later = feed(batch=8, micro=2, workers=workers, **how)
    later.load_state_dict(state)
    random_state.begin(0, step=3, verb=1, stream=workers, devices=[torch.device("cpu")])  # as another rank
    assert all(torch.equal(a, b) for a, b in zip(whole[12:], batches(later, 2), strict=True))
    assert len({(sample % 1).item() for batch in whole for sample in batch}) > 30, (
        "each sample has its own noise"
    )


class Counting:
    """A collate that counts its calls over all processes."""

    def __init__(self) -> None:
        self._calls = multiprocessing.Value("i", 0)

    @property
    def calls(self) -> int:
        return int(self._calls.value)

    def __call__(self, samples: list[int]) -> torch.Tensor:
        with self._calls.get_lock():
            self._calls.value += 1
        return torch.tensor(samples)


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("data", [range(40), InOrder()], ids=["map-style", "stream"])
def test_evaluation_loads_each_batch_once_and_none_beyond_the_epoch(data: Any, workers: int) -> None:
    f = feed(data=data, batch=8, once=True, workers=workers, collate=(collate := Counting()))
    assert sorted(i for batch in f.epoch_once() for mb in batch for i in mb.tolist()) == list(range(40))
    f.close()
    assert collate.calls == 5


def test_micro_batch_that_is_fetched_twice_is_loaded_once() -> None:
    """A backward pass is repeated if the loss of a rank interrupted it."""
    f = feed(40, batch=40, micro=20, once=True, workers=2, collate=(collate := Counting()))
    batch = f.batch()
    first, second, again = (batch.fetch(batch.micro_batches[n]) for n in (0, 1, 0))
    f.close()
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert collate.calls == 2


def test_finished_batch_is_freed() -> None:
    f = feed(40, batch=8, workers=1)
    done = weakref.ref(next(iter(f.batch())))
    assert done() is not None
    f.advance()
    next(iter(f.batch()))
    f.close()
    assert done() is None


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("data", [Augmented(), InOrder()], ids=["map-style", "stream"])
def test_loading_samples_does_not_change_the_random_numbers_of_dropout(data: Any, workers: int) -> None:
    random_state.seed(4)
    expected = noise()
    random_state.seed(4)
    batches(feed(data=data, collate=noisy, batch=8, workers=workers), 5)
    assert torch.equal(noise(), expected)


def test_workers_restart_when_the_position_jumps() -> None:
    """As after taking over the state of another rank or of a checkpoint."""
    f = feed(40, batch=8, workers=2)
    for position in (0, 24, 8):
        f.load_state_dict({"position": position, "length": 40, "seed": 0})
        assert next(iter(f.batch())).tolist() == real(f)
    f.close()


def test_skipped_batch_does_not_restart_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = []
    ahead = loader.Loader.ahead

    def counted(*args: Any, **how: Any) -> Any:
        starts.append(1)
        return ahead(*args, **how)

    monkeypatch.setattr(loader.Loader, "ahead", counted)
    f = feed(40, batch=8, workers=1)
    for number in range(4):
        batch = f.batch()
        if number % 2:
            assert next(iter(batch)).tolist() == real(f)
        f.advance()
    f.close()
    assert len(starts) == 1


@pytest.mark.parametrize("kind", [{}, {"STREAM": 1}], ids=["map-style", "stream"])
def test_each_sample_is_used_once_when_the_world_size_changes(
    finish: Finish, tmp_path: Path, kind: dict[str, int]
) -> None:
    """2 -> 3 -> 1 -> 4 ranks within one epoch of nine steps."""
    epoch: list[int] = []
    done = 0
    for nproc, until in ((2, 2), (3, 4), (1, 6), (4, 9)):
        out = tmp_path / f"out-{nproc}"
        out.mkdir()
        flags = ("--nproc", nproc, "--workers", 2, "--checkpoint", tmp_path / "saved")
        ended = finish("run", *flags, SMALL, OUT=out, STEPS=until, PLAIN=1, **kind)
        assert ended.code == 0, ended.err
        assert len(list(out.glob("worker-*"))) == 2 * nproc
        epoch += [i for step in range(done, until) for i in seen(out, step)]
        done = until
    assert sorted(epoch) == list(range(98))


def test_workers_of_a_killed_rank_end_and_the_rank_is_healed(
    finish: Finish, tmp_path: Path, unbroken: Callable[..., Path]
) -> None:
    flags = ("run", "--nproc", 2, "--workers", 2, "--max-restarts", 1, SMALL)
    ended = finish(*flags, OUT=tmp_path, FAULTS="1@7:forward:SIGKILL", PLAIN=1, **SIZES)
    assert ended.code == 0, ended.err
    assert_identical(weights(unbroken(2, PLAIN=1)), weights(tmp_path))
    workers = [int(file.name.split("-")[1]) for file in tmp_path.glob("worker-*")]
    assert len(workers) == 6
    wait_for(lambda: all(map(is_dead, workers)), "all workers to end")


def test_stuck_worker_does_not_outlive_a_killed_launcher(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    command = start("run", "--nproc", 2, "--workers", 1, SMALL, OUT=tmp_path, STUCK_AT=5)
    wait_for(lambda: list(tmp_path.glob("stuck-*")), "a stuck worker")
    command.signal(signal.SIGKILL)
    workers = [int(file.name.split("-")[1]) for file in tmp_path.glob("worker-*")]
    wait_for(lambda: all(map(is_dead, workers)), "all workers to end")


@pytest.mark.parametrize("how", [{}, {"STOPS": 1}], ids=["hangs", "is stopped"])
def test_stuck_worker_is_found_and_its_rank_replaced(
    finish: Finish, tmp_path: Path, unbroken: Callable[..., Path], how: dict[str, int]
) -> None:
    flags = ("run", "--nproc", 2, "--workers", 1, "--max-restarts", RESTARTS, SMALL)
    ended = finish(*flags, OUT=tmp_path, STUCK_AT=40, PLAIN=1, DTJ_HANG_SECONDS=2, **SIZES, **how)
    assert ended.code == 0, ended.err
    (stuck,) = tmp_path.glob("stuck-*")
    pid = stuck.name.split("-")[1]
    said = r"failed: no step for \d+ s: rank \d is in .*dataloader\.py:\d+ in .*, where it waits for its data"
    stopped = f" workers; its process {pid} is stopped" if how else ""
    assert re.search(said + stopped, ended.err)
    assert_identical(weights(unbroken(2, PLAIN=1)), weights(tmp_path))
    wait_for(lambda: is_dead(int(pid)), "the worker to end")  # nothing has waited for it


def test_worker_that_dies_fails_its_rank_with_the_reason(finish: Finish, tmp_path: Path) -> None:
    """As when the kernel kills it because there is no memory left."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import os
import signal
import weakref
import torch
import dtj

class Data:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)

run = dtj.init()
model = run.parallel(torch.nn.Linear(1, 1))
run.data(Data(), global_batch=4)
for batch in run.steps(2):
    run.backward(lambda mb: model(mb).mean(), batch)
"""
    )
    ended = finish("run", "--nproc", 2, "--workers", 1, script)
    assert ended.code == 1
    assert re.search(
        r"failed: .*WorkerLostError: DataLoader worker .pid [0-9]+. was killed by SIGKILL .*memory", ended.err
    )


def test_death_of_a_worker_interrupts_nothing_but_the_loading_of_samples(
    finish: Finish, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
import multiprocessing
import os
import signal
import torch
import dtj

run = dtj.init()
model = run.parallel(torch.nn.Linear(1, 1))
run.data(torch.utils.data.TensorDataset(torch.ones(99, 1)), global_batch=1)
for batch in run.steps(99):
    run.backward(lambda mb: model(mb[0]).mean(), batch)
    (worker,) = multiprocessing.active_children()
    worker.kill()
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # its signal arrives here
    print("not interrupted")
"""
    )
    ended = finish("run", "--workers", 1, script)
    assert ended.out.count("not interrupted") == 1
    assert re.search(r"WorkerLostError: DataLoader worker .pid [0-9]+. was killed by SIGKILL", ended.err)


def test_signal_of_a_child_does_not_interrupt_the_report_of_a_failure(finish: Finish, tmp_path: Path) -> None:
    """torch's handler raises an error as a worker dies, also if its rank is failing for the same reason."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import os
import signal

def torchs(*_):
    raise RuntimeError("a worker died")

class BrokenError(Exception):
    def __str__(self):
        os.kill(os.getpid(), signal.SIGCHLD)
        return "row 7 is broken"

signal.signal(signal.SIGCHLD, torchs)
raise BrokenError
"""
    )
    assert "rank 0 failed: BrokenError: row 7 is broken" in finish("run", script).err


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        pytest.param(
            "a function",
            78,
            "the dataset Numbers returned cannot be sent .*lambda.*\n  fix: build it from",
            id="a function",
        ),
        pytest.param(
            "a stream of functions",
            78,
            "the dataset Endless returned cannot be sent .*lambda",
            id="a function of a stream",
        ),
        pytest.param(
            "a gradient",
            78,
            "the dataset Numbers returned cannot be sent .*requires_grad",
            id="a tensor with a gradient",
        ),
        pytest.param("a local error", 1, "failed: .*Broken: row 7 is broken", id="an error of a local class"),
    ],
)
def test_sample_that_cannot_be_pickled_fails_its_rank_instead_of_hanging_it(
    finish: Finish, tmp_path: Path, given: str, code: int, message: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import torch
import dtj

class Numbers:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        class Broken(Exception):
            pass
        if {given!r} == "a local error":
            raise Broken("row 7 is broken")
        return index

class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(8))

def collate(samples):
    x = torch.tensor(samples, dtype=torch.float32)
    return (x, x * torch.ones(1, requires_grad=True) if {given!r} == "a gradient" else lambda: x)

run = dtj.init()
model = run.parallel(torch.nn.Linear(4, 1))
run.data(Endless() if "stream" in {given!r} else Numbers(), global_batch=4, collate=collate)
for batch in run.steps(2):
    run.backward(lambda mb: model(mb[0]).mean(), batch)
"""
    )
    ended = finish("run", "--workers", 1, script)
    assert ended.code == code, ended.err
    assert re.search(message, ended.err)


@pytest.mark.filterwarnings("ignore:Got pickle error")  # newer versions of torch also warn
def test_dataset_that_cannot_be_sent_to_a_worker_is_named() -> None:
    """If workers are not forked, the dataset itself is pickled."""

    class Secret(Augmented):
        pass

    f = feed(data=Secret(), batch=4, workers=1, start="spawn")
    with pytest.raises(RecipeError, match="the dataset Secret cannot be sent between a rank and its worker"):
        next(iter(f.batch()))
