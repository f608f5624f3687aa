"""Rules of the repository that no other tool checks."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_operator_folder_never_becomes_a_package():
    # The top-level folder is called `operator`: with an __init__.py in it, Python started from the
    # root imports it instead of the standard library's module and does not even start.
    assert not (ROOT / "operator" / "__init__.py").exists()
