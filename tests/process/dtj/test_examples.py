"""The command line of every example trains on this machine, with one rank per pod."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj import settings
from dtj.cli import commands as cli
from tests.process.dtj.conftest import PROGRAMS, Finished, losses
from tests.support.commands import small

EXAMPLES = Path(__file__).parents[3] / "examples"
NOT_ON_CPUS = {"gpt2"}
Train = Callable[..., Finished]


def jobs(file: str = "*") -> dict[str, dict[str, Any]]:
    """Specs of the jobs in examples/ by the job's name."""
    texts = [path.read_text() for path in sorted(EXAMPLES.glob(f"{file}.yaml"))]
    found = [each for text in texts for each in yaml.safe_load_all(text)]
    return {e["metadata"]["name"]: e["spec"] for e in found if e["kind"] == "DistributedTrainingJob"}


def arguments(spec: dict[str, Any]) -> list[str]:
    """Arguments of `dtj` in a job's pods; empty if they run another command."""
    (container,) = spec["template"]["spec"]["containers"]
    return [str(word) for word in container.get("args", [])]


TRAINING = {name: spec for name, spec in jobs().items() if arguments(spec)[:1] == ["train"]}


def command(name: str) -> list[str]:
    """`dtj` and its arguments: train an example on this machine for fewer steps, with one rank per pod."""
    _, *words = arguments(TRAINING[name])
    return small(["dtj", "train", "--nproc", str(TRAINING[name].get("replicas", 1)), *words])


def train(finish: Train, words: Sequence[str], *flags: object) -> Finished:
    _, verb, *words = words
    ended = finish(verb, *flags, *words)
    assert ended.code == 0, ended.err
    assert "dtj: done: " in ended.err
    return ended


@pytest.fixture(scope="session")
def alone(finish_once: Train) -> list[float]:
    """Losses of the model of examples/strategies in one process."""
    found = losses(train(finish_once, command("text-none"), "--log-every", 1).out)
    assert len(found) >= 8
    return found


@pytest.mark.parametrize("name", sorted(jobs("strategies").keys() - {"text-none"}))
def test_strategy_has_the_losses_of_one_process(finish: Train, alone: list[float], name: str) -> None:
    found = losses(train(finish, command(name), "--log-every", 1).out)
    assert found == pytest.approx(alone, abs=2e-4)


@pytest.fixture(scope="module")
def trained(finish_once: Train, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Returns the folder of a run of these words; each is run once. Some examples differ in other fields."""

    def folder(*words: str, saves: bool) -> Path:
        out = tmp_path_factory.mktemp("trained")
        train(finish_once, words, *(["--checkpoint", out] if saves else []))
        return out

    return functools.cache(folder)


@pytest.mark.parametrize("name", sorted(TRAINING.keys() - jobs("strategies").keys() - NOT_ON_CPUS))
def test_example_trains(trained: Callable[..., Path], name: str) -> None:
    saves = "checkpoint" in TRAINING[name]
    assert saves == any(trained(*command(name), saves=saves).glob("step-*"))


def test_padded_texts_have_the_same_losses_in_every_layout(finish: Train) -> None:
    """The mean over tokens does not depend on ranks, micro-batches, or on the form of `run.backward`."""
    loop = EXAMPLES / "loops" / "padded_text.py"
    function = PROGRAMS / "padded.py"
    alone = losses(finish("run", "--log-every", 1, loop).out)
    two_ranks = ("run", "--log-every", 1, "--nproc", 2)
    assert len(alone) == 12
    assert losses(finish(*two_ranks, "--micro-batch", 3, loop).out) == pytest.approx(alone, abs=2e-4)
    stages = finish(*two_ranks, "--parallel", "pp", "--micro-batch", 4, function)
    assert losses(stages.out) == pytest.approx(alone, abs=2e-4)


def test_every_strategy_sync_policy_and_compression_has_an_example() -> None:
    words = [word.split(":")[0] for spec in TRAINING.values() for word in arguments(spec)]
    missing = {*settings.STRATEGIES, *settings.SYNCS.known, *settings.COMPRESSIONS.known} - {
        *words,
        "none",
        "every",
        "fp16",
    }
    assert not missing


@pytest.mark.parametrize("name", sorted(NOT_ON_CPUS))
def test_flags_of_an_example_for_gpus_are_valid(name: str) -> None:
    command = cli._dtj.commands["train"]
    given = command.make_context("dtj train", arguments(TRAINING[name])[1:]).params
    assert (given["target"], given["precision"], given["compile"]) == ("dtj.recipes.text:gpt2", "bf16", True)
