"""Choice of replicas, and what is said if kubectl cannot do something."""

import contextlib
import errno
import fcntl
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dtj_client.errors import PATIENCE_S, ClientError, Patience, UnansweredError, UnreachableError
from dtj_client.kube import kubectl, stderr
from dtj_client.kube.kubectl import Kubectl, parse_indices, replicas_of

JOB = {"metadata": {"name": "digits"}, "spec": {"replicas": 4}}
UNHANDLED = (
    'E1129 00:44:13.264581   19316 memcache.go:265] "Unhandled Error" err="couldn\'t get current server API '
    'group list: Get \\"https://a/api?timeout=32s\\": getting credentials: exec: executable {}"'
)


def test_list_of_replicas() -> None:
    assert parse_indices("0-2,7") == {0, 1, 2, 7}
    assert list(replicas_of(JOB, None)) == [0, 1, 2, 3]
    assert list(replicas_of(JOB, {3, 1})) == [1, 3]


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1;2", "3-1", "0-99999999"])
def test_bad_list_of_replicas(text: str) -> None:
    with pytest.raises(ClientError, match="such as 0-3,7"):
        parse_indices(text)


def test_replica_that_the_job_does_not_have() -> None:
    with pytest.raises(ClientError, match=r"(?s)no replica 9.*0 to 3"):
        replicas_of(JOB, {1, 9})


def test_namespace_in_a_pod_without_a_kubeconfig_is_that_of_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Kubectl()

    def refuse(*_: str) -> str:
        raise asked.error(b"error: current-context must exist in order to minify")

    monkeypatch.setattr(Kubectl, "run", refuse)
    monkeypatch.setattr(kubectl, "_OF_THIS_POD", tmp_path / "namespace")
    with pytest.raises(ClientError, match="no current context"):
        asked.namespace()

    (tmp_path / "namespace").write_text("team-a")
    assert asked.namespace() == "team-a"
    assert asked.elsewhere("team-b").namespace() == "team-b"


def test_pods_of_a_job_are_those_of_its_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["digits-10", "digits-2", "digits-0-debug", "other", "digits-0"]
    monkeypatch.setattr(Kubectl, "items", lambda *_: [{"metadata": {"name": name}} for name in names])

    shown = [pod["metadata"]["name"] for pod in Kubectl().pods("digits")]
    assert shown == ["digits-0", "digits-2", "digits-10"]


def test_no_kubectl() -> None:
    with pytest.raises(ClientError, match="kubectl is not on the PATH"):
        Kubectl(program="no-such-kubectl").run("version")


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (errno.EAGAIN, "cannot be started: Resource temporarily unavailable\n  fix: end other programs"),
        (errno.ENOEXEC, "cannot be started: Exec format error$"),
    ],
)
def test_process_that_the_system_does_not_start(why: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(ClientError, match=said):
        Kubectl(program="sh").run("version")
    with pytest.raises(ClientError, match=said):
        Kubectl(program="sh").send(b"", "exec")
    with pytest.raises(ClientError, match=said):
        Kubectl(program="sh").may("create", "pods")
    with pytest.raises(ClientError, match=said):
        Kubectl(program="sh").show("get")


@pytest.mark.parametrize(
    ("out", "said", "may"),
    [
        (b"yes\n", b"", True),
        (b"no - no RBAC policy matched\n", b"Warning: a is not namespaced\n", False),
        (b"", b"Unable to connect to the server: net/http: TLS handshake timeout", None),
    ],
)
def test_cluster_without_an_answer_does_not_mean_a_missing_right(
    out: bytes, said: bytes, may: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended:
        returncode = int(may is not True)

        def communicate(self) -> tuple[bytes, bytes]:
            return out, said

    asked: list[str] = []

    def start(_: Kubectl, *words: str, **__: Any) -> contextlib.nullcontext[Ended]:
        asked.extend(words)
        return contextlib.nullcontext(Ended())

    monkeypatch.setattr(Kubectl, "start", start)
    if may is None:
        with pytest.raises(UnreachableError, match="the API server gave no answer"):
            Kubectl().may("create", "pods/portforward")
    else:
        assert Kubectl().may("create", "pods/portforward") is may
    # kubectl takes what stands behind a slash for the name of an object.
    assert asked == ["auth", "can-i", "create", "pods", "--subresource=portforward"]


@pytest.mark.parametrize(
    ("said", "may_be_done"),
    [
        ("Unable to connect to the server: EOF", True),
        (
            "Unable to connect to the server: read tcp a:1->b:443: read: connection reset by peer",
            True,
        ),
        ("Error from server (Timeout): Timeout: request did not complete within requested timeout", True),
        ("Unable to connect to the server: dial tcp 10.0.0.2:443: i/o timeout", False),
        ("Unable to connect to the server: dial tcp: lookup a: no such host", False),
    ],
)
def test_question_that_was_sent_may_have_been_answered(said: str, may_be_done: bool) -> None:
    error = Kubectl()._error(said)
    assert isinstance(error, UnreachableError)
    assert isinstance(error, UnansweredError) is may_be_done


def test_message_of_kubectl_is_read_by_a_process_with_many_open_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def high() -> tuple[int, int]:
        ends = pipe()
        moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 1024) for each in ends]
        for each in ends:
            os.close(each)
        return moved[0], moved[1]

    pipe = os.pipe
    monkeypatch.setattr(os, "pipe", high)
    with stderr.heard() as said:
        os.write(said.fileno(), b"error: a message")
    assert said.text == b"error: a message"


@pytest.mark.parametrize(
    "said",
    [
        "Error from server (NotFound): the server could not find the requested resource",
        'error: the server doesn\'t have a resource type "distributedtrainingjobs"',
        'error: unable to recognize "STDIN": no matches for kind "DistributedTrainingJob" in version '
        '"dtj.dev/v1alpha1"',
    ],
)
def test_cluster_without_the_operator(said: str) -> None:
    error = Kubectl()._error(said)
    assert str(error).startswith(
        "this cluster does not know DistributedTrainingJobs\n  fix: install the operator"
    )


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            'error: error validating "STDIN": error validating data: failed to download openapi: '
            'Get "http://a/openapi/v2": dial tcp 127.0.0.1:8080: connect: connection refused; '
            "if you choose to ignore these errors, turn validation off with --validate=false",
            'kubectl cannot reach a cluster: Get "http://a/openapi/v2": dial tcp 127.0.0.1:8080: '
            "connect: connection refused\n  fix: choose a cluster: kubectl config get-contexts lists them, "
            "--context and --kubeconfig name one",
        ),
        (
            "The connection to the server localhost:8080 was refused - did you specify the right host or "
            "port?",
            "kubectl has no kubeconfig that names a cluster\n  fix: copy that of your cluster to "
            "~/.kube/config, or name it with --kubeconfig or KUBECONFIG",
        ),
        (
            'The DistributedTrainingJob "a" is invalid: '
            'spec.template.spec.containers[0].resources.limits.memory: Invalid value: "16GB": '
            "spec.template.spec.containers[0].resources.limits.memory in body should "
            r"match '^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$'",
            'spec.template.spec.containers[0].resources.limits.memory: "16GB" is not an amount\n'
            "  fix: write a number, or such as 500m of a CPU, 16Gi or 16G of memory",
        ),
        (
            "error: current-context is not set",
            "the kubeconfig has no current context\n  fix: kubectl config use-context NAME chooses one, "
            "kubectl config get-contexts lists them",
        ),
        (
            "error: current-context must exist in order to minify",
            "the kubeconfig has no current context\n  fix: kubectl config use-context NAME chooses one, "
            "kubectl config get-contexts lists them",
        ),
        (
            'error: context "nowhere" does not exist',
            "there is no context nowhere in the kubeconfig\n  fix: kubectl config get-contexts lists them",
        ),
        (
            "error: stat /a b/config: no such file or directory",
            "there is no kubeconfig /a b/config\n  fix: correct --kubeconfig or the variable KUBECONFIG",
        ),
        (
            "error: You must be logged in to the server (Unauthorized)",
            "the cluster does not accept the login in the kubeconfig\n"
            "  fix: log in again; kubectl get pods must work",
        ),
        (
            'error: error validating "STDIN": error validating data: failed to download openapi: the server '
            "has asked for the client to provide credentials; if you choose to ignore these errors, turn "
            "validation off with --validate=false",
            "the cluster does not accept the login in the kubeconfig\n"
            "  fix: log in again; kubectl get pods must work",
        ),
        (
            "Unable to connect to the server: getting credentials: exec: executable aws failed",
            "kubectl cannot log in: exec: executable aws failed\n"
            "  fix: log in again; kubectl get pods must work",
        ),
        (  # kubectl asks five times for the APIs
            5 * ("The session has expired. Run aws sso login.\n" + UNHANDLED.format("aws failed") + "\n")
            + "The session has expired. Run aws sso login.\n"
            + "Unable to connect to the server: getting credentials: exec: executable aws failed",
            "kubectl cannot log in: The session has expired. Run aws sso login.\n"
            "exec: executable aws failed\n  fix: log in again; kubectl get pods must work",
        ),
        (
            'E1129 00:44:13.264581   19316 memcache.go:265] "Unhandled Error" err=<\n'
            '\tcouldn\'t get current server API group list: Get "https://a/api": getting credentials: exec: '
            "executable gke-gcloud-auth-plugin not found\n\t\n\tIt looks like ...\n >\n"
            "Unable to connect to the server: getting credentials: exec: executable gke-gcloud-auth-plugin "
            "not found\n\nIt looks like you are trying to use a client-go credential plugin that is not "
            "installed.",
            "kubectl cannot log in without the program gke-gcloud-auth-plugin, which is not on the PATH\n"
            "  fix: install gke-gcloud-auth-plugin; kubectl get pods must work",
        ),
        (
            'Error from server (InternalError): error when creating "STDIN": Internal error occurred: failed '
            'calling webhook "a.kyverno.svc": failed to call webhook: Post "https://kyverno.svc:443/a": '
            "dial tcp 10.96.1.1:443: connect: connection refused",
            "the cluster's webhook a.kyverno.svc gives no answer: failed to call webhook: Post "
            '"https://kyverno.svc:443/a": dial tcp 10.96.1.1:443: connect: connection refused\n'
            "  fix: ask an administrator of the cluster",
        ),
        (
            'Error from server: Get "https://10.0.0.3:10250/containerLogs/team/digits-1/trainer": dial tcp '
            "10.0.0.3:10250: i/o timeout",
            "the node of the pod gives no answer: dial tcp 10.0.0.3:10250: i/o timeout\n  fix: kubectl get "
            "nodes shows whether it is Ready; the operator replaces the pods of a lost node",
        ),
        (
            "Error from server: error dialing backend: dial tcp 10.0.0.3:10250: connect: no route to host",
            "the node of the pod gives no answer: dial tcp 10.0.0.3:10250: connect: no route to host\n  fix: "
            "kubectl get nodes shows whether it is Ready; the operator replaces the pods of a lost node",
        ),
        (
            'Error from server (NotFound): error when creating "STDIN": namespaces "team" not found',
            "there is no namespace team\n"
            "  fix: choose one with --namespace; kubectl get namespaces lists them",
        ),
    ],
)
def test_no_cluster(said: str, shown: str) -> None:
    assert str(Kubectl()._error(said)) == shown


def test_object_of_another_version_or_kind() -> None:
    said = 'no matches for kind "DistributedTrainingJob" in version "dtj.dev/v1"\nensure CRDs are installed'
    assert str(Kubectl()._error(said)).startswith(
        "this cluster has no DistributedTrainingJob of dtj.dev/v1\n"
    )


@pytest.mark.parametrize("prefix", ["error: ", "Error: ", ""])  # the second: kubectl of the Google Cloud CLI
def test_message_has_no_prefix_of_its_own(prefix: str) -> None:
    assert Kubectl()._error(f'{prefix}invalid argument "5x"').message == 'invalid argument "5x"'


@pytest.mark.parametrize(("size", "is_large"), [(1000, False), (300 << 10, True)])
def test_object_that_fits_into_no_annotation_is_applied_without_one(
    size: int, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kubectl, "run", lambda _self, *words, given: " ".join(words) if given else "")
    assert ("--server-side" in Kubectl().apply({"data": "x" * size})) == is_large


def test_missing_right_names_the_verb_and_the_kind() -> None:
    said = (
        'Error from server (Forbidden): pods "digits-0" is forbidden: User "alice" cannot create resource '
        '"pods/exec" in API group "" in the namespace "team"'
    )
    assert str(Kubectl()._error(said)) == (
        "alice may not create pods/exec here\n"
        "  fix: ask for a role that allows create on pods/exec, such as edit"
    )


@pytest.mark.parametrize(
    ("names", "fix"), [(["digits", "mnist"], "did you mean digits?"), ([], "kubectl dtj get lists the jobs")]
)
def test_missing_job_has_near_names(names: list[str], fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kubectl, "job_names", lambda _self: names)
    said = 'Error from server (NotFound): distributedtrainingjobs.dtj.dev "digit" not found'
    assert str(Kubectl()._error(said)) == f"there is no job digit in this namespace\n  fix: {fix}"


def test_old_server_names_the_fields_that_it_does_not_know() -> None:
    said = (
        'Error from server (BadRequest): error when creating "STDIN": DistributedTrainingJob in version '
        '"v1alpha1" cannot be handled as a DistributedTrainingJob: strict decoding error: unknown field '
        '"spec.quantum", unknown field "spec.replica"'
    )
    assert str(Kubectl()._error(said)) == (
        "the API of this cluster has no field spec.quantum, spec.replica\n"
        "  fix: correct the name; or update the operator and its CRD, if they are older than the job"
    )


@pytest.mark.parametrize(
    ("why", "shown"),
    [
        (
            "Invalid value: replicas cannot be changed without spec.elastic; delete and recreate the job",
            "replicas cannot be changed without spec.elastic\n  fix: delete and recreate the job",
        ),
        (
            "Invalid value: 0: spec.replicas in body should be greater than or equal to 1",
            "spec.replicas in body should be greater than or equal to 1",
        ),
        (
            'Invalid value: "string": spec.replicas in body must be of type integer: "string"\n'
            "* <nil>: Invalid value: null: some validation rules were not checked because the object was "
            "invalid; correct the existing errors to complete validation",
            'spec.replicas in body must be of type integer: "string"',
        ),
    ],
)
def test_rule_of_the_api_is_one_sentence(why: str, shown: str) -> None:
    first = "\n* " if "\n" in why else ""
    said = f'The DistributedTrainingJob "digits" is invalid: {first}spec.replicas: {why}'
    assert str(Kubectl()._error(said)) == shown


@pytest.mark.parametrize(
    "said",
    [
        "(Timeout): the server was unable to return a response in the time allotted, but may",
        '(InternalError): an error on the server ("x") has prevented the request from succeeding (get pods)',
    ],
)
def test_load_balancer_without_an_api_server_is_asked_again(said: str) -> None:
    assert isinstance(Kubectl()._error(f"Error from server {said}"), UnreachableError)


def test_api_server_that_is_too_busy_for_a_handshake_is_asked_again() -> None:
    error = Kubectl()._error("Unable to connect to the server: net/http: TLS handshake timeout")
    assert isinstance(error, UnansweredError)
    assert error.fix == "try again"


@pytest.mark.parametrize(
    "said", ["net/http: TLS handshake timeout", "getting credentials: exec: executable aws failed"]
)
def test_cluster_without_an_answer_is_asked_again_for_some_minutes(said: str) -> None:
    now = [1.0]
    patience = Patience(lambda: now[0])

    def ask() -> None:
        with patience.forgiving():
            raise Kubectl()._error(f"Unable to connect to the server: {said}")

    ask()
    now[0] += PATIENCE_S
    ask()
    with patience.forgiving():
        pass  # an answer
    now[0] += PATIENCE_S
    ask()
    now[0] += PATIENCE_S + 1
    with pytest.raises(UnreachableError):
        ask()
