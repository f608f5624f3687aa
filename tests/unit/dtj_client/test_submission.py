"""A job and its code are created together or not at all."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj_client.errors import ClientError, ExistsError, GoneError, UnansweredError
from dtj_client.kube.kubectl import Kubectl
from dtj_client.submission.create import create, read_file

Json = dict[str, Any]
JOB = {"apiVersion": "dtj.dev/v1alpha1", "kind": "DistributedTrainingJob", "metadata": {"name": "digits"}}
CODE = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "digits-code"}}


class Cluster(Kubectl):
    """Objects in memory; `fault` runs when an object of its kind was stored."""

    def __init__(self, **faults: Callable[[], None]) -> None:
        super().__init__()
        objects: dict[str, Json] = {}
        object.__setattr__(self, "objects", objects)
        object.__setattr__(self, "faults", faults)

    objects: dict[str, Json]
    faults: dict[str, Callable[[], None]]

    def create(self, manifest: Json) -> Json:
        stored = {**manifest, "metadata": {**manifest["metadata"], "uid": "u1"}}
        self.objects[manifest["kind"]] = stored
        self.faults.get(manifest["kind"], lambda: None)()
        return stored

    def job(self, name: str) -> Json:
        if "DistributedTrainingJob" not in self.objects:
            raise GoneError(f"there is no job {name} in this namespace")
        return self.objects["DistributedTrainingJob"]

    def delete(self, kind: str, name: str) -> None:
        """As the garbage collector does: what the job owns goes too."""
        assert (kind, name) == ("distributedtrainingjobs.dtj.dev", "digits")
        job = self.objects.pop("DistributedTrainingJob")
        for other, each in list(self.objects.items()):
            if any(o["uid"] == job["metadata"]["uid"] for o in each["metadata"]["ownerReferences"]):
                del self.objects[other]

    def run(self, *words: str, given: str | None = None) -> str:
        assert words[:3] == ("get", "configmaps", "digits-code")
        return json.dumps(self.objects["ConfigMap"]) if "ConfigMap" in self.objects else ""


def refuse() -> None:
    raise ClientError("quota exceeded")


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_code_has_its_owner_from_the_start() -> None:
    cluster = Cluster()
    create(cluster, JOB, CODE)
    (owner,) = cluster.objects["ConfigMap"]["metadata"]["ownerReferences"]
    assert (owner["name"], owner["uid"]) == ("digits", "u1")


@pytest.mark.parametrize("kind", ["DistributedTrainingJob", "ConfigMap"])
def test_ctrl_c_at_any_step_leaves_nothing(kind: str) -> None:
    cluster = Cluster(**{kind: interrupt})
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        create(cluster, JOB, CODE)
    assert not cluster.objects
    assert signal.getsignal(signal.SIGINT) is before


def test_refused_code_takes_the_job_along() -> None:
    cluster = Cluster(ConfigMap=refuse)
    with pytest.raises(ClientError, match="quota exceeded"):
        create(cluster, JOB, CODE)
    assert not cluster.objects


def lose_the_answer() -> None:
    raise UnansweredError("the API server gave no answer", "try again")


def test_job_whose_creation_was_not_answered_gets_its_code() -> None:
    cluster = Cluster(DistributedTrainingJob=lose_the_answer)
    assert create(cluster, JOB, CODE) == cluster.objects["DistributedTrainingJob"]
    assert cluster.objects["ConfigMap"]["metadata"]["ownerReferences"][0]["uid"] == "u1"


def test_job_that_was_not_created_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    monkeypatch.setattr(Cluster, "create", lambda *_: lose_the_answer())
    with pytest.raises(UnansweredError, match=r"no answer\n  fix: try again$"):
        create(cluster, JOB, CODE)


@pytest.mark.parametrize("code", [CODE, None])
def test_other_job_of_the_name_stays_if_the_creation_is_not_answered(
    code: Json | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one without code of its own, such as that of kubectl apply."""
    cluster = Cluster()
    create(cluster, JOB, code)
    before = dict(cluster.objects)
    monkeypatch.setattr(Cluster, "create", lambda *_: lose_the_answer())
    with pytest.raises(ClientError, match=r"there is another job digits\n  fix: choose another name"):
        create(cluster, JOB, CODE)
    assert cluster.objects == before


@pytest.mark.parametrize("code", [CODE, None])
def test_job_that_may_be_there_is_named(code: Json | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(*_: object) -> None:
        lose_the_answer()

    monkeypatch.setattr(Cluster, "job", no_answer)
    with pytest.raises(
        ClientError,
        match=r"job digits may be there, without its code: the API(?s:.*)kubectl dtj delete digits",
    ):
        create(Cluster(DistributedTrainingJob=lose_the_answer), JOB, code)


@pytest.mark.parametrize("fault", [refuse, interrupt])
def test_job_that_cannot_be_deleted_without_its_code_is_named(
    fault: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(_cluster: Cluster, _kind: str, _name: str) -> None:
        raise ClientError("kubectl cannot reach a cluster")

    monkeypatch.setattr(Cluster, "delete", unreachable)
    with pytest.raises(ClientError, match=r"(?s)job digits is there without its code.*kubectl dtj delete"):
        create(Cluster(ConfigMap=fault), JOB, CODE)


@pytest.mark.parametrize(
    ("owner", "tries"),
    [
        ({"kind": "DistributedTrainingJob", "name": "digits", "uid": "u0"}, 2),  # of the job that was deleted
        ({"kind": "DistributedTrainingJob", "name": "digits", "uid": "u1"}, 0),
        ({"kind": "Deployment", "name": "digits", "uid": "u0"}, 0),
    ],
)
def test_code_waits_until_that_of_a_deleted_job_of_its_name_is_collected(
    owner: Json, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, left = Cluster(), {**CODE, "metadata": {"name": "digits-code", "ownerReferences": [owner]}}
    cluster.objects["ConfigMap"] = left
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == tries:
            del cluster.objects["ConfigMap"]

    def create_new(self: Cluster, manifest: Json) -> Json:
        if manifest["kind"] in self.objects:
            raise ExistsError("digits-code exists already")
        return store(self, manifest)

    store = Cluster.create
    monkeypatch.setattr(Cluster, "create", create_new)
    monkeypatch.setattr(time, "sleep", sleep)
    if tries:
        create(cluster, JOB, CODE)
        assert cluster.objects["ConfigMap"]["metadata"]["ownerReferences"][0]["uid"] == "u1"
    else:
        with pytest.raises(ExistsError):
            create(cluster, JOB, CODE)
    assert len(waits) == tries


def test_second_ctrl_c_does_not_wait() -> None:
    def twice() -> None:
        interrupt()
        interrupt()
        raise AssertionError("the second one was not raised at once")

    with pytest.raises(KeyboardInterrupt):
        create(Cluster(ConfigMap=twice), JOB, CODE)


def test_job_of_a_file_and_what_comes_with_it() -> None:
    job, others = read_file("examples/checkpointed.yaml")
    assert job["metadata"]["name"] == "checkpointed"
    assert [each["kind"] for each in others] == ["PersistentVolumeClaim"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: PyTorchJob", "has 0 DistributedTrainingJobs \\(found: PyTorchJob\\)"),
        ("", "found: nothing"),
        ("kind: a: b", "is not YAML: mapping values are not allowed here in line 1, column 8"),
        ("just words", "without a kind"),
        ("kind: DistributedTrainingJob", "has no metadata"),
        ("kind: DistributedTrainingJob\n---\nkind: DistributedTrainingJob", "has 2 "),
        (
            "kind: DistributedTrainingJob\nmetadata: {name: a}",
            "has a DistributedTrainingJob without apiVersion",
        ),
    ],
)
def test_file_without_a_job(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(ClientError, match=said):
        read_file(str(tmp_path / "job.yaml"))


def test_value_without_quotes_is_what_kubectl_reads(tmp_path: Path) -> None:
    env = "[{value: 2026-11-25}, {value: 1:30:00}, {value: 2026-11-25T10:00:00Z}, {value: 010}, {value: 1.5}]"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB) + f"env: {env}")
    job, _ = read_file(str(tmp_path / "job.yaml"))
    assert [each["value"] for each in job["env"]] == ["2026-11-25", "1:30:00", "2026-11-25T10:00:00Z", 8, 1.5]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(JOB, indent="\t").encode(),
        json.dumps(JOB).replace("/", "\\/").encode(),
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [CODE, JOB]}).encode(),
        yaml.safe_dump(JOB).encode("utf-16"),
        yaml.safe_dump(JOB).replace("\n", "\r\n").encode("utf-8-sig"),
    ],
    ids=["tabs", "escapes", "list", "UTF-16", "Windows"],
)
def test_file_is_read_as_kubectl_reads_it(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "job").write_bytes(text)
    job, others = read_file(str(tmp_path / "job"))
    assert job == JOB
    assert others == ([CODE] if b"List" in text else [])


def test_text_of_a_file_depends_on_no_locale(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({**JOB, "a": "\U0001f600"}))
    (tmp_path / "job.yaml").write_bytes(yaml.safe_dump({**JOB, "a": "größe"}, allow_unicode=True).encode())
    assert read_file(str(tmp_path / "job.json"))[0]["a"] == "\U0001f600"
    assert read_file(str(tmp_path / "job.yaml"))[0]["a"] == "größe"


def test_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(ClientError, match="standard input is closed"):
        read_file("-")


def test_missing_file() -> None:
    with pytest.raises(ClientError, match="cannot read nothing: No such file"):
        read_file("nothing")
