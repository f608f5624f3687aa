"""What kubectl reads of the user's kuberc."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj_client.errors import ClientError
from dtj_client.kube import preferences
from dtj_client.kube.kubectl import Kubectl

POLICY = {
    "apiVersion": "kubectl.config.k8s.io/v1beta1",
    "kind": "Preference",
    "credentialPluginPolicy": "Allowlist",
    "credentialPluginAllowlist": [{"command": "kubelogin"}],
}
ASKS = {"command": "delete", "options": [{"name": "interactive", "default": "true"}]}


@pytest.fixture
def kuberc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBERC", str(tmp_path / "kuberc"))
    return tmp_path / "kuberc"


@pytest.mark.parametrize("field", ["defaults", "overrides"])
def test_defaults_of_options_are_left_out_and_all_else_stays(field: str, kuberc: Path) -> None:
    kuberc.write_text(yaml.safe_dump_all([POLICY | {field: [ASKS]}, POLICY]))
    chosen = preferences.environment()
    assert chosen
    copy = Path(chosen["KUBERC"])
    assert list(yaml.safe_load_all(copy.read_text())) == [POLICY, POLICY]
    assert preferences.environment() == chosen
    preferences._remove(str(copy), made_by=0)
    assert copy.exists()
    preferences._remove(str(copy), made_by=os.getpid())
    assert not copy.exists()


@pytest.mark.parametrize("text", [None, "", yaml.safe_dump(POLICY), "defaults: ["])
def test_file_without_such_defaults_is_read_by_kubectl_itself(text: str | None, kuberc: Path) -> None:
    if text is not None:
        kuberc.write_text(text)
    assert preferences.environment() is None


def test_file_in_the_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERC", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert preferences.environment() is None
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "kuberc").write_text(yaml.safe_dump({"defaults": [ASKS], "kind": "Preference"}))
    assert preferences.environment()


def test_options_that_the_user_prefers_are_for_what_the_user_reads(
    kuberc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`apply` creates the user's own objects, with server-side apply if the user prefers that."""
    kuberc.write_text(yaml.safe_dump(POLICY | {"defaults": [ASKS]}))
    expected = {"delete": False, "logs": False, "exec": False, "auth": False, "apply": True, "get": True}
    began: dict[str, bool] = {}

    def begin(command: list[str], *, env: dict[str, str] | None, **_: Any) -> None:
        began[next(word for word in command if word in expected)] = env is None
        raise OSError(0, "not in this test")

    monkeypatch.setattr(subprocess, "Popen", begin)
    kubectl = Kubectl(program="sh")
    for ask in (
        lambda: kubectl.delete("pod", "a"),
        lambda: kubectl.run("logs", "a"),
        lambda: kubectl.send(b"", "exec"),
        lambda: kubectl.may("get", "pods"),
        lambda: kubectl.apply({}),
        lambda: kubectl.show("get"),
    ):
        with pytest.raises(ClientError, match="not in this test"):
            ask()
    assert began == expected
