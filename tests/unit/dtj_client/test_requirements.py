"""What `submit --requirements` adds to a job."""

import io
import tarfile
from base64 import b64decode
from pathlib import Path

import pytest
import yaml

from dtj_client.cli.commands import main
from dtj_client.errors import ClientError
from dtj_client.in_pod import install as pod_install
from dtj_client.kube.kubectl import Json
from dtj_client.submission import manifest
from dtj_client.submission.manifest import Request
from dtj_client.submission.requirements import Requirements, read
from dtj_operator.model.spec import parse

PACKAGES = Requirements(path="requirements.txt", text="einops\n")


def pod(
    *, template: Json | None = None, found: Requirements = PACKAGES, env: dict[str, str] | None = None
) -> Json:
    request = Request(name="digits", command=["train.py"], requirements=found, env=env or {})
    made = manifest.job(request, with_code=True, template=template)
    meta = {"namespace": "team-a", "uid": "u", **made["metadata"]}
    assert parse({**made, "metadata": meta}).error is None
    spec: Json = made["spec"]["template"]["spec"]
    return spec


def test_packages_are_installed_after_the_code_was_unpacked() -> None:
    found = pod()
    code, installer = found["initContainers"]
    assert (code["name"], installer["name"]) == ("code", "packages")
    assert installer["command"][3:] == ["/packages", "-r", "requirements.txt"]
    assert installer["image"] == found["containers"][0]["image"]
    policies = {each["terminationMessagePolicy"] for each in found["initContainers"]}
    assert policies == {"FallbackToLogsOnError"}, "the status has the end of pip's log"
    assert {"name": "packages", "emptyDir": {}} in found["volumes"]
    assert {"name": "packages", "mountPath": "/packages"} in found["containers"][0]["volumeMounts"]


def test_hashes_in_the_file_make_pip_demand_them_for_all() -> None:
    found = Requirements(path="r.txt", text="einops==0.8.0 --hash=sha256:" + "0" * 64)
    assert pod(found=found)["initContainers"][1]["command"][4:] == ["--require-hashes", "-r", "r.txt"]


def test_pip_has_the_variables_of_the_program_and_of_the_template() -> None:
    container = {"name": "trainer", "env": [{"name": "PIP_INDEX_URL", "value": "https://pip.example.com"}]}
    template = {"spec": {"template": {"spec": {"containers": [container]}}}}
    found = pod(template=template, env={"HTTPS_PROXY": "http://proxy", "PYTHONPATH": "/app/src"})
    assert {each["name"] for each in found["initContainers"][1]["env"]} == {"PIP_INDEX_URL", "HTTPS_PROXY"}
    values = {each["name"]: each["value"] for each in found["containers"][0]["env"]}
    assert values["PYTHONPATH"] == "/app/src:/packages/site"


FROM_A_MAP = {"configMapKeyRef": {"name": "paths", "key": "python"}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"value": "/shared"}, "/shared:/packages/site"),
        ({"value": ""}, "/packages/site"),
        ({"valueFrom": FROM_A_MAP}, "$(PYTHONPATH_BEFORE_PACKAGES):/packages/site"),
    ],
)
def test_folders_of_the_template_are_searched_before_the_packages(given: Json, expected: str) -> None:
    container = {"name": "trainer", "env": [{"name": "PYTHONPATH", **given}]}
    found = pod(template={"spec": {"template": {"spec": {"containers": [container]}}}})
    *others, path = found["containers"][0]["env"]
    assert path == {"name": "PYTHONPATH", "value": expected}
    assert [each["valueFrom"] for each in others] == [*filter(None, [given.get("valueFrom")])]


def test_file_is_read_within_the_folder_of_the_code(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "r.txt").write_text("einops\n")
    (tmp_path / "r.txt").write_text("einops\n")
    assert read("sub/r.txt", folder) == Requirements(path="sub/r.txt", text="einops\n")
    with pytest.raises(ClientError, match="outside of the folder of the code"):
        read("../r.txt", folder)
    with pytest.raises(ClientError, match=r"cannot read the requirements none\.txt: No such file"):
        read("none.txt", folder)


def test_files_to_which_the_requirements_refer_go_along(tmp_path: Path) -> None:
    """Also those that .gitignore matches."""
    texts = {
        "sub/r.txt": "-r ../base.txt\n--constraint=c.txt # pinned\neinops\n-r /etc/image.txt\n-r ${HERE}/a\n",
        "base.txt": "-rsub/r.txt\n  -c 'https://example.com/c.txt'\n-c sub/c.txt\ntorch-r x\n",
        "sub/c.txt": "einops==0.8\n",
    }
    (tmp_path / "sub").mkdir()
    for path, text in texts.items():
        (tmp_path / path).write_text(text)
    found = read("sub/r.txt", tmp_path)
    assert {found.path: found.text, **found.others} == texts

    (tmp_path / "sub" / "c.txt").unlink()
    with pytest.raises(
        ClientError, match=r"requirements sub/c\.txt of \.\./base\.txt of sub/r\.txt: No such"
    ):
        read("sub/r.txt", tmp_path)
    (tmp_path / "base.txt").write_text("-r ../other.txt")
    (tmp_path.parent / "other.txt").touch()
    with pytest.raises(ClientError, match=r"other\.txt of \.\./base\.txt of .* is outside of the folder"):
        read("sub/r.txt", tmp_path)


@pytest.mark.parametrize(
    "said",
    [
        "ERROR: Cannot find command 'git' - do you have 'git' installed and in your PATH?",
        # `pip freeze` of a conda environment
        "ERROR: Could not install packages due to an OSError: [Errno 2] No such file or directory: '/croot'",
        "ERROR: work is not a valid wheel filename.",
        "ERROR: Could not open requirements file: [Errno 2] No such file or directory: '/etc/absent.txt'",
        "ERROR: Directory '.' is not installable. Neither 'setup.py' nor 'pyproject.toml' found.",
        "ERROR: file:///app does not appear to be a Python project: neither 'setup.py' nor 'pyproject.toml'",
        "LookupError: setuptools-scm was unable to detect version for /app.",
    ],
)
def test_what_pip_says_of_requirements_that_no_other_try_can_meet(said: str) -> None:
    assert pod_install._FINAL.search(said)
    assert not pod_install._PASSING.search(said)


def test_dry_run_shows_the_installer_and_no_code_refuses_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "requirements.txt").write_text("-r base.txt\n")
    (tmp_path / "base.txt").write_text("einops\n")
    (tmp_path / ".gitignore").write_text("*.txt\n")
    words = ["submit", "--requirements", "requirements.txt", "--dry-run"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--", "train.py"])
    assert ended.value.code == 0
    code, job = yaml.safe_load_all(capsys.readouterr().out)
    assert job["spec"]["template"]["spec"]["initContainers"][1]["name"] == "packages"
    with tarfile.open(fileobj=io.BytesIO(b64decode(code["binaryData"]["code.tar.gz"]))) as sent:
        assert set(sent.getnames()) == {".gitignore", "train.py", "requirements.txt", "base.txt"}
    with pytest.raises(SystemExit) as ended:
        main([*words, "--no-code", "--", "train.py"])
    assert ended.value.code == 1
    assert "no use for requirements" in capsys.readouterr().err


def test_file_as_powershell_writes_it(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes("einops\r\n".encode("utf-16"))
    assert read("requirements.txt", tmp_path).text == "einops\r\n"
