"""What `dtj run` refuses to run, and what to write instead."""

import pytest

from dtj.cli import program
from dtj.errors import RecipeError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["accelerate", "launch", "--mixed_precision", "bf16", "train.py", "--lr", "1"],
            "accelerate starts the ranks, and so does dtj run\n"
            "  fix: leave it out, with its options: dtj run train.py --lr 1",
        ),
        (["torchrun", "-m", "pkg.train"], "torchrun starts the ranks, and so does dtj run"),
        (["deepspeed", "train.py"], "deepspeed starts the ranks"),
        (["python", "train.py"], "python is a program\n  fix: leave out python: dtj run train.py"),
        (["nowhere.py"], "script not found: nowhere.py"),
    ],
)
def test_program_that_is_not_a_script(words: list[str], message: str) -> None:
    with pytest.raises(RecipeError) as raised:
        program.script(words[0], words[1:])
    assert message in f"{raised.value.what}\n  fix: {raised.value.fix}"


@pytest.mark.parametrize("module", ["torch.distributed.run", "accelerate.commands.launch"])
def test_module_that_starts_ranks_is_refused(module: str) -> None:
    with pytest.raises(RecipeError, match=f"-m {module} starts the ranks, and so does dtj run"):
        program.module(module, ["train.py"])
