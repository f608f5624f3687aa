"""The loops in examples/loops train on two ranks, some with the losses of one process."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dtj.checkpoint import reader
from dtj.telemetry import heartbeat
from tests.process.dtj.conftest import Finished

LOOPS = Path(__file__).parents[3] / "examples" / "loops"
Finish = Callable[..., Finished]


def losses(out: str) -> list[float]:
    """Losses of all logged steps as printed, to four decimal places."""
    return [float(number) for number in re.findall(r"  loss (\S+)", out)]


@pytest.fixture
def alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], list[float]]:
    """Losses of a loop in this process."""

    def train(name: str) -> list[float]:
        monkeypatch.setenv("DTJ_LOG_EVERY", "1")
        monkeypatch.setattr("atexit.register", lambda *_: None)
        with torch.random.fork_rng():
            runpy.run_path(str(LOOPS / f"{name}.py"))
        heartbeat.mine.rest()
        return losses(capsys.readouterr().out)

    return train


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("file_stream", ["--workers", 1]),
        ("ema", ["--parallel", "fsdp"]),
        ("lora", ["--parallel", "zero1"]),
    ],
)
def test_loop_has_the_same_losses_on_two_ranks(
    finish: Finish, alone: Callable[[str], list[float]], name: str, flags: list[object]
) -> None:
    ended = finish("run", "--nproc", 2, "--log-every", 1, *flags, LOOPS / f"{name}.py")
    assert ended.code == 0, ended.err
    assert losses(ended.out) == pytest.approx(alone(name), abs=2e-4)


def test_loops_with_transformers_have_the_same_losses_on_two_ranks(
    finish: Finish, alone: Callable[[str], list[float]]
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    ended = finish("run", "--nproc", 2, "--micro-batch", 4, "--log-every", 1, LOOPS / "hugging_face_lm.py")
    assert ended.code == 0, ended.err
    assert losses(ended.out) == pytest.approx(alone("hugging_face_lm"), abs=2e-4)
    ended = finish("run", "--nproc", 2, "--precision", "bf16", LOOPS / "hugging_face_classifier.py")
    assert ended.code == 0, ended.err


@pytest.mark.parametrize(
    ("name", "flags"),
    [("gan", ["--precision", "fp16"]), ("ppo", []), ("own_loader", ["--precision", "bf16"])],
)
def test_loop_trains_on_two_ranks(finish: Finish, name: str, flags: list[object]) -> None:
    ended = finish("run", "--nproc", 2, *flags, LOOPS / f"{name}.py")
    assert ended.code == 0, ended.err
    assert "dtj: done: " in ended.err


def test_only_what_is_trained_is_saved_and_a_resume_shards_it(finish: Finish, tmp_path: Path) -> None:
    """Parts of the program's own hold sharded tensors, too: averages of weights, corrections of LoRA."""
    for name, part in (("lora", "adapters"), ("ema", "average")):
        run = ("run", "--nproc", 2, "--checkpoint", tmp_path / name, LOOPS / f"{name}.py")
        assert finish(*run, DTJ_PARALLEL="fsdp").code == 0
        again = finish(*run, DTJ_PARALLEL="fsdp")
        assert again.code == 0, again.err
        assert "nothing left to train" in again.err
        (folder,) = (tmp_path / name).glob("step-*")
        assert part in reader.whole(folder)["parts"]
