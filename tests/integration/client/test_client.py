"""Each command of `kubectl dtj` as a process, with the rights of `edit` in one namespace."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dtj_client import aio
from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Kubectl as Client
from tests.integration.chart.conftest import CHART, Helm, helm
from tests.integration.controlplane import ControlPlane
from tests.integration.direct import Direct
from tests.support.kubectl import Kubectl

__all__ = ["helm"]
Json = dict[str, Any]
ROOT = Path(__file__).parents[3]
RBAC_GROUP = "rbac.authorization.k8s.io"
RBAC = f"/apis/{RBAC_GROUP}/v1"
PATIENCE_S = 300.0  # ends a test that hangs; one command takes seconds on a busy machine


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str


Dtj = Callable[..., Done]


@pytest.fixture(scope="module")
def user(plane: ControlPlane, helm: Helm) -> ControlPlane:
    """Return the control plane, with what the chart adds to the role `edit`, granted to alice."""
    rendered = helm("template", "dtj", str(CHART), "--show-only=templates/user-roles.yaml")
    plane.kubectl("apply", "-f", "-", given=rendered)
    return plane


@pytest.fixture
def alice(user: ControlPlane, direct: Direct, namespace: str) -> dict[str, str]:
    """Return the environment of alice, who may edit the namespace."""
    # Without a controller manager nothing adds these roles to `edit`.
    for level in ("view", "edit"):
        label = f"rbac.authorization.k8s.io/aggregate-to-{level}%3Dtrue"
        for role in direct.get(f"{RBAC}/clusterroles?labelSelector={label}")["items"]:
            name = role["metadata"]["name"]
            binding = {
                "metadata": {"name": f"alice-{level}-{name}".replace(":", "-")},
                "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": name},
                "subjects": [{"apiGroup": RBAC_GROUP, "kind": "User", "name": "alice"}],
            }
            direct.create(f"{RBAC}/namespaces/{namespace}/rolebindings", binding)
    path = f"{user.kubectl.binary.parent}{os.pathsep}{os.environ['PATH']}"
    config = str(user.kubeconfig("alice"))
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "client/src"), "KUBECONFIG": config}


@pytest.fixture
def client(plane: ControlPlane, namespace: str) -> Client:
    """Return the client's kubectl for the namespace, as admin."""
    options = (f"--kubeconfig={plane.kubectl.kubeconfig}", f"--namespace={namespace}")
    return Client(options=options, program=str(plane.kubectl.binary))


@pytest.fixture
def dtj(alice: dict[str, str], namespace: str, tmp_path: Path) -> Dtj:
    """Return what runs `kubectl dtj` as alice in a folder with a program."""
    options = (f"--namespace={namespace}",)
    (tmp_path / "train.py").write_text("print('hello')\n")

    def run(*words: str, given: str = "", options: tuple[str, ...] = options) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "dtj_client", *options, *words],
            cwd=tmp_path,
            env=alice,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run


def submitted(dtj: Dtj, *options: str) -> str:
    """Submit the program as job `digits`, and return its name."""
    done = dtj("submit", "--name=digits", *options, "--", "train.py", "--lr", "1")
    assert (done.code, done.err) == (0, "sending 1 file, 0 KiB, in a ConfigMap\n")
    assert done.out.startswith("submitted digits")
    return "digits"


def test_submitted_job_has_its_code_and_the_code_belongs_to_it(dtj: Dtj, kubectl: Kubectl):
    name = submitted(dtj, "--replicas=2", "--env=A=b=c")

    job, code = kubectl.get("dtj", name), kubectl.get("configmap", "digits-code")
    assert job is not None
    assert code is not None
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["dtj", "run", "train.py", "--lr", "1"]
    assert container["env"] == [{"name": "A", "value": "b=c"}]
    (owner,) = code["metadata"]["ownerReferences"]
    assert owner["uid"] == job["metadata"]["uid"]
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(code["binaryData"]["code.tar.gz"]))) as tar:
        assert tar.getnames() == ["train.py"]


def test_refused_job_leaves_nothing_behind(dtj: Dtj, kubectl: Kubectl):
    done = dtj("submit", "--name=Bad_Name", "--", "train.py")
    assert done.code == 1
    assert "Bad_Name" in done.err

    done = dtj("submit", "--replicas=20000", "--", "train.py")
    assert (done.code, "should be less than or equal to 10000" in done.err) == (1, True)
    assert not [each for each in kubectl.list("configmap") if each["metadata"]["name"].endswith("-code")]


def test_ctrl_c_between_the_job_and_its_code_leaves_nothing(
    alice: dict[str, str], kubectl: Kubectl, namespace: str, tmp_path: Path
):
    """Its kubectl sends the terminal's signal when it is called to create the job, and then creates it."""
    (tmp_path / "train.py").write_text("")
    (tmp_path / "kubectl").write_text(
        f"""#!/bin/sh
case "$*" in *" create "*) [ -e sent ] || {{ touch sent; kill -s INT -- "-$PPID"; }} ;; esac
exec {kubectl.binary} "$@"
"""
    )
    (tmp_path / "kubectl").chmod(0o755)
    words = ("submit", "--name=digits", "--", "train.py")
    done = subprocess.run(
        [sys.executable, "-m", "dtj_client", f"--namespace={namespace}", *words],
        cwd=tmp_path,
        env={**alice, "PATH": f"{tmp_path}{os.pathsep}{alice['PATH']}"},
        capture_output=True,
        check=False,
        start_new_session=True,  # so the signal reaches nothing else
    )
    assert (tmp_path / "sent").exists()
    assert (done.returncode, done.stdout) == (130, b"")
    assert kubectl.get("dtj", "digits") is None
    assert kubectl.get("configmap", "digits-code") is None


def test_dry_run_prints_objects_that_the_api_server_accepts(dtj: Dtj, kubectl: Kubectl, tmp_path: Path):
    options = ("--name=digits", "--dry-run", "--gpus=2", "--code-claim=runs")
    words = ("submit", *options, "--", "train.py", "3e-4")
    small = dtj(*words)
    (tmp_path / "weights.bin").write_bytes(os.urandom(1_000_000))
    large = dtj(*words)
    assert "through claim runs, because a ConfigMap has at most 900 KiB" in large.err
    for done, count in ((small, 2), (large, 1)):
        assert (done.code, done.out.count("apiVersion: ")) == (0, count)
        stored = kubectl("create", "--dry-run=server", "-f", "-", "-o", "yaml", given=done.out)
        assert '- "3e-4"' in stored, "a text, as the pods need it"
    assert kubectl.get("dtj", "digits") is None


def test_file_is_submitted_under_another_name(dtj: Dtj, kubectl: Kubectl, tmp_path: Path):
    printed = dtj("submit", "--name=digits", "--no-code", "--dry-run", "--", "train.py").out
    (tmp_path / "job.yaml").write_text(printed)
    assert (
        dtj("submit", "-f", "job.yaml", "--name=second", "-o", "name").out
        == "distributedtrainingjob/second\n"
    )
    assert kubectl.get("dtj", "digits") is None
    assert json.loads(dtj("status", "second", "-o", "json").out)["kind"] == "DistributedTrainingJob"
    assert "no failure" in dtj("logs", "second", "--previous").out
    assert dtj("stop", "second", "--yes").out == "second: stopped and deleted\n"
    assert kubectl.get("dtj", "second") is None


def test_example_of_the_docs_submits_a_function_and_waits(
    alice: dict[str, str], kubectl: Kubectl, namespace: str, tmp_path: Path
):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/client.md").read_text(), re.DOTALL)
    here = example.replace(
        "replicas=2", f"replicas=2, name='digits', kubectl=dc.cluster(namespace='{namespace}')"
    )
    (tmp_path / "example.py").write_text(here)
    command = [sys.executable, "example.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=alice, stdout=subprocess.PIPE, text=True) as process:
        kubectl.until("configmap", "digits-code", bool, within_s=PATIENCE_S)
        kubectl.set_status("dtj", "digits", phase="Succeeded", restarts={"total": 3})
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert out == "Succeeded 3\n"
    job, code = kubectl.get("dtj", "digits"), kubectl.get("configmap", "digits-code")
    assert job is not None
    assert code is not None
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["dtj", "run", "run_train.py"]
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(code["binaryData"]["code.tar.gz"]))) as tar:
        sent = tar.extractfile("run_train.py")
        assert sent is not None
        assert b"    train(0.1)\n" in sent.read()


def test_notebook_submits_shows_and_deletes_a_job(
    alice: dict[str, str], kubectl: Kubectl, namespace: str, tmp_path: Path
):
    """Each of its cells runs, with a `display` that asks for HTML as a notebook does."""
    cells = json.loads((ROOT / "examples/notebook.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    program = "\n".join(code).replace("dc.cluster()", f"dc.cluster(namespace='{namespace}')")
    program = program.replace("replicas=2,", "replicas=2, name='digits',").replace("sleep(2)", "sleep(0.1)")
    lists_logs = "for line in job.logs():\n    print(line)\n"
    assert lists_logs in program + "\n"
    program = (program + "\n").replace(lists_logs, "")  # no kubelet is here that has logs
    shows = """
class display:
    def __init__(self, shown, display_id): self.update(shown)
    def update(self, shown): print(shown._repr_html_(), flush=True)
"""
    (tmp_path / "notebook.py").write_text(shows + program)
    command = [sys.executable, "notebook.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=alice, stdout=subprocess.PIPE, text=True) as process:
        kubectl.until("configmap", "digits-code", bool, within_s=PATIENCE_S)
        kubectl.set_status("dtj", "digits", phase="Succeeded", step="100/100", message="<script>")
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert '<progress value="100" max="100"' in out
    assert "&lt;script&gt;" in out
    assert kubectl.get("dtj", "digits") is None


def test_template_of_the_namespace_fills_in_a_job(dtj: Dtj, kubectl: Kubectl):
    part = "spec: {template: {spec: {nodeSelector: {gpu: h100}}}}"
    kubectl("create", "configmap", "h100", f"--from-literal=job.yaml={part}")
    kubectl("label", "configmap", "h100", "dtj.dev/template=")
    kubectl("annotate", "configmap", "h100", "dtj.dev/description=8 GPUs")
    listed = dtj("templates")
    assert (listed.code, listed.out) == (0, "h100  8 GPUs\n")
    assert "alice may not list configmaps" in listed.err, "the shared namespace"
    submitted(dtj, "--template=h100")
    job = kubectl.get("dtj", "digits")
    assert job is not None
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}
    shown = dtj("submit", "--template=h100", "--dry-run", "--no-code", "--", "train.py").out
    assert "# spec.template.spec.nodeSelector.gpu: template h100\n" in shown
    assert "# spec.replicas: default\n" in shown
    assert "did you mean h100?" in dtj("submit", "--template=h10", "--", "train.py").err


def test_status_suspend_resume_scale_and_delete(dtj: Dtj, kubectl: Kubectl):
    submitted(dtj)
    assert "the operator has not seen this job yet" in dtj("status", "digits").out
    assert dtj("suspend", "digits").out == "digits: suspended\n"
    suspended = kubectl.get("dtj", "digits")
    assert suspended is not None
    assert suspended["spec"]["suspend"] is True
    kubectl.set_status("dtj", "digits", phase="Suspended")
    found = dtj("status", "digits").out
    assert found.endswith(f"next: kubectl dtj resume digits --namespace {kubectl.namespace}\n")
    assert dtj("resume", "digits").code == 0
    fixed = dtj("scale", "digits", "3")
    assert fixed.err.startswith("error: replicas cannot be changed without spec.elastic\n  fix: delete and")
    kubectl.set_status("dtj", "digits", phase="Running")
    assert dtj("delete", "digits", given="n\n").code == 130
    assert kubectl.get("dtj", "digits") is not None
    assert dtj("delete", "digits", "--yes").out == "digits: deleted\n"
    assert kubectl.get("dtj", "digits") is None


def test_wait_tells_by_its_exit_code_how_the_job_ended(dtj: Dtj, kubectl: Kubectl):
    submitted(dtj)
    assert dtj("wait", "digits", "--timeout=0").code == 3
    kubectl.set_status("dtj", "digits", phase="Failed")
    assert dtj("wait", "digits").code == 1
    kubectl.set_status("dtj", "digits", phase="Succeeded")
    assert dtj("wait", "digits").code == 0


def test_get_takes_the_options_of_kubectl(dtj: Dtj, kubectl: Kubectl):
    submitted(dtj)
    assert dtj("get", "-o", "name").out == "distributedtrainingjob.dtj.dev/digits\n"
    assert json.loads(dtj("get", "digits", "-o", "json").out)["metadata"]["name"] == "digits"
    assert dtj("events", "digits").code == 0


def test_preferences_of_the_user_change_no_answer(
    alice: dict[str, str], dtj: Dtj, kubectl: Kubectl, tmp_path: Path
):
    """Without a terminal, kubectl would delete nothing and succeed; and it refuses --raw with --output."""
    preferred = {"delete": ("interactive", "true"), "get": ("output", "wide"), "create": ("output", "name")}
    defaults = [
        {"command": command, "options": [{"name": name, "default": value}]}
        for command, (name, value) in preferred.items()
    ]
    kuberc = {"apiVersion": "kubectl.config.k8s.io/v1beta1", "kind": "Preference", "defaults": defaults}
    (tmp_path / "kuberc").write_text(json.dumps(kuberc))
    (tmp_path / ".dtjignore").write_text("kuberc\n.dtjignore\n")
    alice["KUBERC"] = str(tmp_path / "kuberc")
    submitted(dtj)
    assert "ok   API: dtj.dev/v1alpha1\n" in dtj("doctor").out
    assert dtj("delete", "digits", "--yes").out == "digits: deleted\n"
    assert kubectl.get("dtj", "digits") is None


def test_namespace_is_that_of_the_context(client: Client, tmp_path: Path):
    """Not one in an extension for a program that logs in."""
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"namespace": "root"}}
    cluster = {"server": "https://example.com", "extensions": [extension]}
    config = {
        "kind": "Config",
        "clusters": [{"name": "a", "cluster": cluster}],
        "contexts": [
            {"name": "a", "context": {"cluster": "a", "namespace": "team"}},
            {"name": "b", "context": {"cluster": "a"}},
        ],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    for context, expected in (("a", "team"), ("b", "default")):
        options = (f"--kubeconfig={tmp_path / 'config'}", f"--context={context}")
        assert Client(options=options, program=client.program).namespace() == expected


def test_doctor_names_what_is_missing(dtj: Dtj):
    done = dtj("doctor")
    assert "ok   API: dtj.dev/v1alpha1\n" in done.out
    assert "ok   rights: submit, follow and delete jobs\n" in done.out
    assert "?    gpus: alice may not list nodes here\n" in done.out
    assert "ok   shared memory: jobs get half their memory limit" in done.out
    assert "?    name resolution: alice may not list endpointslices here\n     fix: kubectl" in done.out
    assert done.code == 0
    elsewhere = dtj("doctor", "-n", "kube-system")
    assert (elsewhere.code, "BAD  rights: you may not create" in elsewhere.out) == (1, True)


@pytest.mark.parametrize(
    ("words", "given", "said"),
    [
        pytest.param(("get", "unknowns.dtj.dev"), None, "does not know DistributedTrainingJobs", id="read"),
        pytest.param(
            ("create", "-f", "-"),
            '{"apiVersion": "dtj.dev/v1", "kind": "Unknown", "metadata": {"name": "a"}}',
            "has no Unknown of dtj.dev/v1\n",
            id="write",
        ),
    ],
)
def test_cluster_without_the_kind_is_named(
    client: Client, words: tuple[str, ...], given: str | None, said: str
):
    with pytest.raises(ClientError, match=f"this cluster {said}"):
        client.run(*words, given=given)


async def test_asyncio_has_the_same_verbs(dtj: Dtj, kubectl: Kubectl, client: Client):
    submitted(dtj)
    (job,) = await aio.get(client)
    waiting = asyncio.create_task(job.wait(timeout=PATIENCE_S))
    await job.suspend()
    assert (await job.manifest)["spec"]["suspend"] is True
    kubectl.set_status("dtj", "digits", phase="Failed", restarts={"total": 2})
    assert await waiting == "Failed"
    assert (await job.status).restarts == 2
    await job.stop()
    assert await aio.get(client) == []


def test_errors_are_one_sentence_and_a_fix(dtj: Dtj, plane: ControlPlane):
    submitted(dtj)
    missing = dtj("status", "digit")
    assert (missing.code, missing.err) == (
        1,
        "error: there is no job digit in this namespace\n  fix: did you mean digits?\n",
    )
    here = f"--kubeconfig={plane.kubeconfig('alice')}"
    forbidden = dtj("suspend", "digits", options=(here, "--namespace=kube-system"))
    assert "alice may not" in forbidden.err
    assert "fix: ask for a role" in forbidden.err
    after_the_verb = dtj("suspend", "digits", "-n", "kube-system")
    assert "alice may not" in after_the_verb.err
    unreachable = dtj("status", "digits", options=("--kubeconfig=/dev/null",))
    assert unreachable.err.startswith("error: kubectl has no kubeconfig that names a cluster\n  fix: ")
    assert unreachable.err.count("\n") == 2
    wrong = dtj("status", "digits", options=("--context=nowhere",))
    assert wrong.err.startswith("error: there is no context nowhere in the kubeconfig\n  fix: ")
    printed = dtj("submit", "--name=digits", "--no-code", "--dry-run", "--", "train.py").out
    assert dtj("submit", "-f", "-", given=printed).err.startswith("error: digits exists already\n  fix: ")
    newer = printed.replace("spec:\n", "spec:\n  quantum: 3\n  replica: 2\n", 1)
    unknown = dtj("submit", "-f", "-", "--name=second", given=newer)
    assert unknown.err.startswith(
        "error: the API of this cluster has no field spec.quantum, spec.replica\n  fix: "
    )
    logs = dtj("logs", "digits")
    assert "has no pods" in logs.err
    nowhere = dtj("get", "digits", options=("--kubeconfig=/dev/null",))
    assert (nowhere.code, nowhere.err.count("\n  fix: ")) == (1, 1)
    assert dtj("submit", "--", "nothing.py").err.startswith(
        "error: there is no file nothing.py in this folder"
    )
    assert dtj("scale", "digits", "0").code == 2
