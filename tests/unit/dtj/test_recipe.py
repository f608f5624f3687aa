"""`key=value` words, converted by the signature of a recipe."""

from pathlib import Path
from typing import Any

import pytest

from dtj.cli import recipe_cli
from dtj.errors import RecipeError
from dtj.recipe import Recipe


def example(
    name: str, epochs: int = 20, lr: float = 0.1, augment: bool = False, limit: int | None = None, tag="a"
) -> Recipe:
    """Train something.

    In some way.
    """
    raise NotImplementedError(name, epochs, lr, augment, limit, tag)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["name=x"], {"name": "x"}, id="text"),
        pytest.param(["name=x", "epochs=3"], {"name": "x", "epochs": 3}, id="a whole number"),
        pytest.param(["name=x", "lr=1e-3"], {"name": "x", "lr": 1e-3}, id="a number"),
        pytest.param(["name=x", "augment=True"], {"name": "x", "augment": True}, id="true or false"),
        pytest.param(
            ["name=x", "limit=none"], {"name": "x", "limit": None}, id="none, if the type allows it"
        ),
        pytest.param(["name=x", "limit=5"], {"name": "x", "limit": 5}, id="a number, if none is allowed too"),
        pytest.param(["name=a=b"], {"name": "a=b"}, id="text with an equals sign"),
        pytest.param(
            ["name=x", "tag=9"],
            {"name": "x", "tag": "9"},
            id="without an annotation, the type of the default",
        ),
    ],
)
def test_words_become_arguments(words: list[str], expected: dict[str, Any]) -> None:
    assert recipe_cli.arguments(example, words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param([], "needs values for name\n  fix: add name=<str>", id="a missing argument"),
        pytest.param(
            ["name=x", "epoch=3"], "no argument 'epoch'\n  fix: did you mean 'epochs'", id="a mistyped one"
        ),
        pytest.param(
            ["name=x", "zzz=3"], "no argument 'zzz'\n  fix: known: augment, epochs", id="an unknown one"
        ),
        pytest.param(
            ["name=x", "epochs=3.5"], "epochs is '3.5', expected a whole number", id="not a whole number"
        ),
        pytest.param(
            ["name=x", "augment=yes"], "augment is 'yes', expected true or false", id="not true or false"
        ),
        pytest.param(
            ["name=x", "limit=a"], "limit is 'a', expected none or a whole number", id="neither of two types"
        ),
        pytest.param(
            ["name=x", "epochs"],
            "'epochs' is not of the form key=value\n  fix: write key=value",
            id="no value",
        ),
    ],
)
def test_bad_words_are_explained(words: list[str], message: str) -> None:
    with pytest.raises(RecipeError) as raised:
        recipe_cli.arguments(example, words)
    assert message in str(raised.value)
    assert raised.value.exit_code == 78


@pytest.mark.parametrize(
    ("target", "message"),
    [
        pytest.param("dtj.recipes.digits", "does not name a recipe", id="no function"),
        pytest.param(
            "dtj.recipes.digit:recipe", "there is no module 'dtj.recipes.digit'", id="no such module"
        ),
        pytest.param("nowhere:recipe", "there is no module 'nowhere'", id="no such package"),
        pytest.param(
            "dtj.recipes.digits:recip",
            "has no function 'recip'\n  fix: did you mean 'recipe'? known: recipe, split",
            id="no such function",
        ),
        pytest.param("./nowhere.py:recipe", "there is no file nowhere.py", id="no such file"),
    ],
)
def test_missing_targets_are_explained(target: str, message: str) -> None:
    with pytest.raises(RecipeError) as raised:
        recipe_cli.resolve(target)
    assert message in str(raised.value)


def test_target_may_be_a_file_and_its_missing_import_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine_for_test.py"
    file.write_text("def recipe(width: int = 3): ...\n")
    assert recipe_cli.resolve(f"{file}:recipe").__name__ == "recipe"
    file.write_text("import nowhere_to_be_found\n")
    with pytest.raises(RecipeError, match="needs the module 'nowhere_to_be_found', which is not installed"):
        recipe_cli.resolve(f"{file}:recipe")


def test_file_with_the_name_of_an_imported_module_is_rejected(tmp_path: Path) -> None:
    """A later import of that module would get the recipe's file."""
    file = tmp_path / "queue.py"
    file.write_text("def recipe(): ...\n")
    with pytest.raises(
        RecipeError, match=r"module 'queue', which is already imported\n  fix: rename .* my_queue.py"
    ):
        recipe_cli.resolve(f"{file}:recipe")


def test_error_names_the_type_that_was_returned_instead_of_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine_that_forgets.py"
    file.write_text("def recipe(width: int = 3): dict(width=width)\n")
    with pytest.raises(RecipeError, match=r"py:recipe returned a NoneType, expected a dtj\.Recipe"):
        recipe_cli.build(f"{file}:recipe", ["width=5"])


def test_argument_types_that_the_command_line_cannot_pass_are_rejected() -> None:
    def listed(widths=[1, 2], **others) -> Recipe:  # noqa: B006
        raise NotImplementedError(widths, others)

    assert recipe_cli.arguments(listed, []) == {}
    with pytest.raises(RecipeError, match="argument widths is a list, which the command line cannot pass"):
        recipe_cli.arguments(listed, ["widths=3"])


def test_annotation_that_is_not_imported_is_named() -> None:
    def hidden(size: "Size") -> Recipe:  # type: ignore[name-defined]  # noqa: F821
        raise NotImplementedError(size)

    with pytest.raises(
        RecipeError, match=r"an annotation of hidden .*'Size' is not defined\n  fix: import the type"
    ):
        recipe_cli.arguments(hidden, ["size=3"])


def test_help_comes_from_docstring_and_signature() -> None:
    text = recipe_cli.describe("my.py:example", example)
    assert text.startswith(
        "Usage: dtj train my.py:example [key=value ...]\n\n  Train something.\n\n  In some way.\n"
    )
    assert "  name     str         required\n  epochs   int         default 20\n" in text
    assert "  limit    int | None  default None\n" in text


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        pytest.param({}, "sets neither epochs nor steps", id="no end"),
        pytest.param({"epochs": 1, "steps": 5}, "sets epochs and steps", id="two ends"),
        pytest.param({"steps": 0}, "steps is 0, expected a whole number of at least 1", id="nothing to do"),
        pytest.param({"epochs": 1.5}, "epochs is 1.5, expected a whole number", id="half an epoch"),
        pytest.param({"epochs": 1, "held_out": [1]}, "held_out data but no score", id="no score"),
        pytest.param(
            {"epochs": 1, "best": "lowest"}, "no held_out data to score", id="best without held-out data"
        ),
        pytest.param(
            {"epochs": 1, "best": "max", "held_out": [1], "score": len},
            "best is 'max', expected 'highest' or 'lowest'",
            id="neither highest nor lowest",
        ),
    ],
)
def test_parts_that_do_not_fit_are_rejected(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe(model=None, data=None, loss=None, optimizer=None, global_batch=1, **parts)  # type: ignore[arg-type]
