"""The loops in examples/loops train on two ranks, some with the losses of one process, or without dtj."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dtj.telemetry import heartbeat
from tests.process.dtj.conftest import PROGRAMS, Finished, losses
from tests.support import checkpoints

LOOPS = Path(__file__).parents[3] / "examples" / "loops"
WITHOUT_DTJ = PROGRAMS / "foreign" / "loops"
SAME_ORDER = PROGRAMS / "foreign" / "same_order.py"
Finish = Callable[..., Finished]
_AUTO = "transformers.models.auto.modeling_auto"
IMPORTS = {  # what takes seconds to import
    "hugging_face_lm": [_AUTO, "transformers.models.gpt2.modeling_gpt2"],
    "hugging_face_classifier": [_AUTO, "transformers.models.bert.modeling_bert"],
}


@pytest.fixture
def alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], list[float]]:
    """Losses of a loop in this process."""

    def train(name: str) -> list[float]:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
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
        ("padded_text", ["--micro-batch", 3, "--parallel", "fsdp", "--reduce-once"]),
        ("hugging_face_lm", ["--micro-batch", 4, "--recompute"]),
    ],
)
def test_loop_has_the_same_losses_on_two_ranks(
    finish: Finish, alone: Callable[[str], list[float]], tmp_path: Path, name: str, flags: list[object]
) -> None:
    """As does the program without dtj: of transformers' own mean over tokens, too."""
    ended = trained(finish, name, "--log-every", 1, *flags)
    expected = pytest.approx(alone(name), abs=2e-4)
    assert losses(ended.out) == expected
    assert losses(without_dtj(finish, name, tmp_path)) == expected


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("gan", ["--precision", "fp16"]),
        ("ppo", []),
        ("own_loader", ["--precision", "bf16"]),
        ("hugging_face_classifier", ["--precision", "bf16"]),
    ],
)
def test_loop_trains_on_two_ranks(finish: Finish, tmp_path: Path, name: str, flags: list[object]) -> None:
    assert "dtj: done: " in trained(finish, name, *flags).err
    plain = losses(without_dtj(finish, name, tmp_path))
    if name == "own_loader":  # the others draw noise
        assert plain == pytest.approx(losses(trained(finish, name, "--log-every", 1).out), abs=2e-4)


def trained(finish: Finish, name: str, *flags: object) -> Finished:
    """The output of two ranks of the example."""
    how: dict[str, Any] = {"imports": IMPORTS.get(name, ())}
    ended = finish("run", "--nproc", 2, *flags, LOOPS / f"{name}.py", HF_HUB_OFFLINE=1, **how)
    assert ended.code == 0, ended.err
    return ended


def without_dtj(finish: Finish, name: str, folder: Path) -> str:
    """The output of two ranks of the program for torchrun; `test_foreign.py` compares dtj with torchrun."""
    program = WITHOUT_DTJ / f"{name}.py"
    how: dict[str, Any] = {"imports": IMPORTS.get(name, ())}
    env = {"SAVED": folder / "saved.pt", "HF_HUB_OFFLINE": 1}
    ended = finish("run", "--nproc", 2, SAME_ORDER, program, **env, **how)
    assert ended.code == 0, ended.err
    assert (folder / "saved.pt").exists()
    return ended.out


def test_only_what_is_trained_is_saved_and_a_resume_shards_it(finish: Finish, tmp_path: Path) -> None:
    """Parts of the program's own hold sharded tensors, too: averages of weights, corrections of LoRA."""
    for name, part in (("lora", "adapters"), ("ema", "average")):
        run = ("run", "--nproc", 2, "--checkpoint", tmp_path / name, LOOPS / f"{name}.py")
        assert finish(*run, DTJ_PARALLEL="fsdp").code == 0
        again = finish(*run, DTJ_PARALLEL="fsdp")
        assert again.code == 0, again.err
        assert "nothing left to train" in again.err
        (folder,) = (tmp_path / name).glob("step-*")
        assert part in checkpoints.whole(folder)["parts"]
