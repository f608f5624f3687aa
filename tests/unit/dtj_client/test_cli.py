"""How the command line is read."""

import pytest

from dtj_client.cli import main


def test_misspelt_option_of_submit_is_refused_and_not_treated_as_the_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["submit", "--replcas", "4", "--dry-run", "--no-code", "--", "train.py"])
    assert ended.value.code == 2
    assert "--replcas" in capsys.readouterr().err
