"""The command line of every example trains on this machine, with as many ranks as it has pods."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.dtj.conftest import Finished

EXAMPLES = Path(__file__).parents[3] / "examples"
SHORT = {
    "dtj.recipes.text:recipe": ["kilobytes=40", "layers=2", "width=32"],
    "dtj.recipes.digits:recipe": ["epochs=1"],
}


def jobs() -> Iterator[Any]:
    """(job, arguments of its trainer) of all examples that use the built-in loop."""
    for file in sorted(EXAMPLES.glob("*.yaml")):
        for found in yaml.safe_load_all(file.read_text()):
            if found and found["kind"] == "DistributedTrainingJob":
                (container,) = found["spec"]["template"]["spec"]["containers"]
                args = [str(word) for word in container.get("args", [])]
                if args[:1] == ["train"]:
                    yield pytest.param(found["spec"], args, id=file.stem)


@pytest.mark.parametrize(("spec", "args"), list(jobs()))
def test_example_trains(
    finish: Callable[..., Finished], tmp_path: Path, spec: dict[str, Any], args: list[str]
) -> None:
    _, *words = args
    short = next(changes for recipe, changes in SHORT.items() if recipe in words)
    flags = ["--nproc", spec.get("replicas", 1)]
    if "checkpoint" in spec:
        flags += ["--checkpoint", tmp_path / "run"]
    ended = finish("train", *flags, *words, *short)
    assert ended.code == 0, ended.err
    assert "dtj: done: " in ended.err
    assert ("checkpoint" in spec) == any(tmp_path.glob("run/step-*"))
