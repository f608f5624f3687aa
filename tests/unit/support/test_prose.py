from pathlib import Path

import pytest

from tests.support.prose import findings

# Concatenated, or lint would find them in this file.
WORD, PHRASE = "an" + "ew", "in" + " vain"


def found(tmp_path: Path, name: str, text: str) -> list[str]:
    (tmp_path / name).write_text(text)
    return [hit.removeprefix(f"{tmp_path}/") for hit in findings([tmp_path])]


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        pytest.param("a.md", f"# Title\n\nIt starts {WORD}.\n", "a.md:3", id="a page"),
        pytest.param("a.md", f"Waiting is {PHRASE.replace(' ', chr(10))}.\n", "a.md:1", id="over two lines"),
        pytest.param("a.py", f"\nx = 1  # started {WORD}\n", "a.py:2", id="a comment"),
        pytest.param("a.py", f'raise ValueError(\n    f"{{x}} {WORD}"\n)\n', "a.py:2", id="a message"),
        pytest.param(
            "a.py", f'x = (\n    "waits in"\n    f"{PHRASE[3:]}"\n)\n', "a.py:2", id="over two strings"
        ),
        pytest.param("a.py", f'"""Text.\n\nStarted {WORD}.\n"""\n', "a.py:3", id="a docstring"),
        pytest.param("a.py", f"def test_starts_{WORD}():\n    pass\n", "a.py:1", id="a test name"),
        pytest.param("Makefile", f"lint: ## do it {WORD}\n", "Makefile:1", id="the Makefile"),
        pytest.param("values.yaml", f"# made {WORD}\nx: 1\n", "values.yaml:1", id="chart values"),
    ],
)
def test_word_is_found_with_its_line_and_a_suggestion(tmp_path: Path, name: str, text: str, place: str):
    [hit] = found(tmp_path, name, text)
    assert hit.startswith(f"{place}: ")
    assert hit.endswith(("recreated, restarted", "without success"))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{WORD} = started_{WORD} = 1\n", id="identifiers"),
        pytest.param(f'x = y["{WORD}"]  # `{WORD}`, x.{WORD}, is_{WORD}, --{WORD}\n', id="names in text"),
        pytest.param(f'x = f"{{{WORD}}} again"\n', id="what an f-string fills in"),
    ],
)
def test_names_are_not_prose(tmp_path: Path, text: str):
    assert found(tmp_path, "a.py", text) == []
