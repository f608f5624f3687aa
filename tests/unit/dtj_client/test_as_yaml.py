"""Objects as YAML that kubectl reads as the same objects."""

import pytest
import yaml

from dtj_client.as_yaml import as_yaml


@pytest.mark.parametrize("text", ["3e-4", "1E5", "1.5e3", "08", "0o17", "0XFF", "1_e5", "y", "N"])
def test_text_that_kubectl_would_read_as_another_type_has_quotes(text: str) -> None:
    assert as_yaml([text]) == f"- '{text}'"
    assert yaml.safe_load(as_yaml([text])) == [text]


@pytest.mark.parametrize("text", ["--lr=3e-4", "e5", "train.py", "yes.py", "4Gi", "0x"])
def test_other_text_has_none(text: str) -> None:
    assert as_yaml([text]) == f"- {text}"
