"""`submit` from Python: arguments of a wrong type are named before anything is sent."""

from pathlib import Path
from typing import Any

import pytest

import dtj_client as dc
from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Kubectl


@pytest.fixture
def kubectl(tmp_path: Path) -> Kubectl:
    """A client that finds no cluster."""
    return Kubectl(options=(f"--kubeconfig={tmp_path / 'none'}",))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"program": None}, "program is None\n  fix: pass a file, another command, or a function"),
        ({"program": ["python", "train.py"]}, "program is ['python', 'train.py']\n  fix: pass a file"),
        ({"replicas": "2"}, "replicas is '2'\n  fix: pass a whole number, or None"),
        ({"name": 5}, "name is 5\n  fix: pass a string"),
        ({"image": None}, "image is None\n  fix: pass a string"),
        ({"env": ["A=1"]}, "env is ['A=1']\n  fix: pass a dictionary, or None"),
        ({"env_from": {"a": 1}}, "env_from is {'a': 1}\n  fix: pass a string, or a list of strings"),
        ({"folder": 3}, "folder is 3\n  fix: pass a path, or None"),
        ({"requirements": ["x"]}, "requirements is ['x']\n  fix: pass a string"),
    ],
)
def test_argument_of_a_wrong_type_is_named(kubectl: Kubectl, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ClientError) as error:
        dc.submit(**{"program": "train.py", **given}, kubectl=kubectl)
    assert str(error.value).startswith(message)
