"""Where the code of a folder goes, and why."""

import os
from pathlib import Path

import pytest

from dtj_client import api
from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Json, Kubectl
from dtj_client.submission import archive, delivery
from dtj_client.submission.manifest import Request

TEMPLATE = {"spec": {"checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "shared"}}}}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose archive is too large for a ConfigMap of 2 KiB."""
    monkeypatch.setattr(archive, "LIMIT", 2048)
    (tmp_path / "train.py").write_bytes(os.urandom(3000))
    return tmp_path


def prepared(folder: Path, template: Json | None = None, claim: str = "") -> delivery.Delivery:
    return delivery.prepare(Request(name="digits", command=["train.py"]), template or {}, folder, claim=claim)


def test_small_code_goes_into_a_config_map_even_if_there_is_a_claim(folder: Path) -> None:
    (folder / "train.py").write_text("print(1)")
    made = prepared(folder, claim="runs")
    assert str(made) == "sending 1 file, 0 KiB, in a ConfigMap"
    assert made.config_map is not None
    assert made.job["spec"]["template"]["spec"]["volumes"][0] == {
        "name": "code",
        "configMap": {"name": "digits-code"},
    }


@pytest.mark.parametrize(
    ("template", "claim", "used"),
    [({}, "runs", "runs"), (TEMPLATE, "", "shared"), (TEMPLATE, "runs", "runs")],
)
def test_large_code_goes_into_a_claim(folder: Path, template: Json, claim: str, used: str) -> None:
    made = prepared(folder, template, claim)
    assert str(made) == f"sending 1 file, 3 KiB, through claim {used}, because a ConfigMap has at most 2 KiB"
    assert made.config_map is None
    pod = made.job["spec"]["template"]["spec"]
    assert pod["volumes"][0] == {"name": "code", "persistentVolumeClaim": {"claimName": used}}
    assert made.place is not None
    assert f"/code/{made.place.path}" in pod["initContainers"][0]["command"][2]


def test_claim_for_code_is_refused_without_code(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="no code is sent, so there is no use for a claim for code"):
        api.submit("train.py", code=False, code_claim="runs", folder=tmp_path)
    request, file = Request(name="digits", command=["run_a.py"]), {"run_a.py": ""}
    made = delivery.prepare(request, {}, None, file, code=False, claim="runs")
    assert made.archive is not None, "a function is sent also if the image has the code that it uses"
    (tmp_path / "other.py").touch()
    made = delivery.prepare(request, {}, tmp_path, file, code=False)
    assert made.archive is not None
    assert made.archive.files == ("run_a.py",), "the folder is not"


@pytest.mark.parametrize("code", [True, False])
def test_python_is_one_rank_in_a_pod_with_several_gpus(tmp_path: Path, code: bool) -> None:
    """Else the operator would count a rank for each GPU, of which only one would start."""
    for name in ("train.py", "a.py"):
        (tmp_path / name).touch()
    for text, processes in (
        *(("python train.py", 1), ("torchrun train.py", None), ("python -m dtj.recipes.a", 1)),
        *(("python -m lightning_train", 1), ("python -u train.py torchrun", 1), ("python -c dtj", 1)),
        *(("python -um torch.distributed.run a.py", None), ("python3.11 -mtorch.distributed.launch a", None)),
        *(("python -X dev -W error -B -m dtj run a.py", None), ("python /opt/conda/bin/torchrun a.py", None)),
        *(
            ("python -m accelerate.commands.accelerate_cli launch a.py", None),
            ("python3 -m lightning fabric", None),
        ),
    ):
        words = text.split()
        request = Request(name="digits", command=words, gpus=4)
        made = delivery.prepare(request, {}, tmp_path, code=code)
        assert made.job["spec"].get("processesPerReplica") == processes
        assert [note.partition(";")[0] for note in made.notes()] == [
            f"processesPerReplica: {processes}: python starts one process in each pod"
        ] * bool(processes)


def test_token_among_the_variables_is_named() -> None:
    env = {"HF_TOKEN": "1", "WANDB_API_KEY": "1", "TOKENIZER": "1", "MASTER_PASSWORD": "1", "PASSWORDS": "1"}
    request = Request(name="digits", command=["a"], env=env)
    (note,) = delivery.prepare(request, {}, None, code=False).notes()
    assert note == (
        "anyone who may read the job can read HF_TOKEN, WANDB_API_KEY, MASTER_PASSWORD: "
        "--env-from NAME=secret/SECRET/KEY takes it from a Secret"
    )


def test_variables_from_python_may_be_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    sent: list[delivery.Delivery] = []

    def submit(_kubectl: Kubectl, made: delivery.Delivery) -> Json:
        sent.append(made)
        return made.job

    monkeypatch.setattr(delivery, "submit", submit)
    api.submit("train.py", env={"SEED": 1, "LR": 0.5}, folder=tmp_path, cpu=0.5, env_from="secret/a")
    (trainer,) = sent[0].job["spec"]["template"]["spec"]["containers"]
    assert trainer["env"] == [{"name": "SEED", "value": "1"}, {"name": "LR", "value": "0.5"}]
    assert trainer["envFrom"] == [{"secretRef": {"name": "a"}}]
    assert trainer["resources"] == {"requests": {"cpu": "0.5"}, "limits": {"cpu": "0.5"}}


def test_files_that_stay_behind_are_said_in_python_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train.py", ".env", "data.csv"):
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("*.csv\n")
    (tmp_path / "data").symlink_to("/data")
    monkeypatch.setattr(delivery, "submit", lambda _kubectl, sent: sent.job)
    with pytest.warns(UserWarning, match="^not sent, because") as warned:
        api.submit("train.py", folder=tmp_path)
    assert [str(each.message).partition("because ")[2] for each in warned] == [
        "they look like secrets: .env",
        "they are links: data",
        ".gitignore matches: data.csv",
    ]


def test_same_code_has_the_same_place(folder: Path) -> None:
    first = prepared(folder, claim="runs").place
    assert prepared(folder, claim="runs").place == first
    (folder / "train.py").write_bytes(os.urandom(3000))
    assert prepared(folder, claim="runs").place != first


def test_large_code_without_a_claim_is_refused(folder: Path) -> None:
    with pytest.raises(ClientError, match=r"(?s)fit into a ConfigMap.*--code-claim"):
        prepared(folder)


@pytest.mark.parametrize("program", ["link.py", "ignored.py", "../train.py", "{}/train.py"])
def test_program_that_would_be_missing_in_the_pods_is_refused(tmp_path: Path, program: str) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (tmp_path / "train.py").touch()
    (folder / "train.py").touch()
    (folder / "link.py").symlink_to("train.py")
    (folder / "ignored.py").touch()
    (folder / ".dtjignore").write_text("ignored.py")
    with pytest.raises(ClientError, match="does not go along"):
        delivery.prepare(Request(name="digits", command=[program.format(tmp_path)]), {}, folder)
    assert delivery.prepare(Request(name="digits", command=["./train.py"]), {}, folder).config_map


@pytest.mark.parametrize(
    ("program", "mode", "text", "said"),
    [
        ("train.ipynb", 0o644, b"{}", "train.ipynb is a notebook.*\n  fix: jupyter nbconvert --to script"),
        ("run.sh", 0o755, b"", "run.sh is not a command of the image\n  fix: write ./run.sh"),
        ("./run.sh", 0o644, b"", "./run.sh is not executable\n  fix: chmod"),
        ("./run.sh", 0o755, b"#!/bin/sh\r\necho\r\n", "line ends of Windows"),
        ("./run.sh", 0o755, b"#!/bin/sh\n", None),
        ("./other.sh", 0o644, b"", None),  # of the image
        ("python", 0o644, b"", None),
    ],
)
def test_script_that_no_pod_could_start_is_refused(
    tmp_path: Path, program: str, mode: int, text: bytes, said: str | None
) -> None:
    file = tmp_path / program.replace("other", "run")
    file.write_bytes(text)
    file.chmod(mode)
    request = Request(name="digits", command=[program])
    if said is None:
        assert delivery.prepare(request, {}, tmp_path).config_map
        return
    with pytest.raises(ClientError, match=said):
        delivery.prepare(request, {}, tmp_path)


@pytest.mark.parametrize("words", [["bash", "run.sh"], ["/bin/sh", "run.sh", "--lr", "1"]])
def test_script_of_a_shell_with_the_line_ends_of_windows_is_refused(tmp_path: Path, words: list[str]) -> None:
    request = Request(name="digits", command=words)
    (tmp_path / "run.sh").write_bytes(b"python a.py\r\n")
    with pytest.raises(ClientError, match=r"run\.sh has the line ends of Windows\n  fix: sed"):
        delivery.prepare(request, {}, tmp_path)
    (tmp_path / "run.sh").write_bytes(b"python a.py\n")
    assert delivery.prepare(request, {}, tmp_path).config_map
    assert delivery.prepare(Request(name="digits", command=["bash", "-c", "ls"]), {}, tmp_path).config_map


@pytest.mark.parametrize("program", [".", "./src", "src/", "src"])
def test_folder_is_not_a_program(tmp_path: Path, program: str) -> None:
    (tmp_path / "src").mkdir()
    request = Request(name="digits", command=[program])
    if program == "src":  # may be a command of the image, too
        assert delivery.prepare(request, {}, tmp_path).config_map
        return
    with pytest.raises(ClientError, match=r"is a folder\n  fix: name the file to run"):
        delivery.prepare(request, {}, tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        ["trian.py"],
        ["python", "-u", "trian.py", "--lr", "1"],
        ["torchrun", "--nproc-per-node", "2", "trian.py"],
        ["uv", "run", "python3", "trian.py"],
        ["dtj", "run", "--nproc", "2", "trian.py"],
    ],
)
def test_misspelt_script_behind_a_launcher_has_a_near_name(folder: Path, command: list[str]) -> None:
    with pytest.raises(ClientError, match=r"no file trian.py in /.*\n  fix: did you mean train.py"):
        delivery.prepare(Request(name="digits", command=command), {}, folder)


def test_misspelt_program_has_a_near_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClientError, match=r"no file trian.py in /.*\n  fix: did you mean train.py"):
        delivery.prepare(Request(name="digits", command=["trian.py"]), {}, folder)
    monkeypatch.chdir(folder)
    with pytest.raises(ClientError, match=r"no file nothing.py in this folder\n  fix: change to the folder"):
        delivery.prepare(Request(name="digits", command=["nothing.py"]), {}, Path.cwd())
