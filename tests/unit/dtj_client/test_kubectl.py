"""Choice of replicas, and what is said if kubectl cannot do something."""

import pytest

from dtj_client.errors import ClientError
from dtj_client.kubectl import Kubectl, parse_indices, replicas_of

JOB = {"metadata": {"name": "digits"}, "spec": {"replicas": 4}}


def test_list_of_replicas() -> None:
    assert parse_indices("0-2,7") == {0, 1, 2, 7}
    assert list(replicas_of(JOB, None)) == [0, 1, 2, 3]
    assert list(replicas_of(JOB, {3, 1})) == [1, 3]


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1;2"])
def test_bad_list_of_replicas(text: str) -> None:
    with pytest.raises(ClientError, match="such as 0-3,7"):
        parse_indices(text)


def test_replica_that_the_job_does_not_have() -> None:
    with pytest.raises(ClientError, match=r"(?s)no replica 9.*0 to 3"):
        replicas_of(JOB, {1, 9})


def test_no_kubectl() -> None:
    with pytest.raises(ClientError, match="kubectl is not on the PATH"):
        Kubectl(program="no-such-kubectl").run("version")


@pytest.mark.parametrize(
    "said",
    [
        "Error from server (NotFound): the server could not find the requested resource",
        'error: the server doesn\'t have a resource type "distributedtrainingjobs"',
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
            "connect: connection refused\n  fix: check kubectl config current-context",
        ),
        (
            "error: current-context is not set",
            "the kubeconfig has no current context\n  fix: kubectl config use-context NAME chooses one, "
            "kubectl config get-contexts lists them",
        ),
    ],
)
def test_no_cluster(said: str, shown: str) -> None:
    assert str(Kubectl()._error(said)) == shown


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
    ],
)
def test_rule_of_the_api_is_one_sentence(why: str, shown: str) -> None:
    said = f'The DistributedTrainingJob "digits" is invalid: spec.replicas: {why}'
    assert str(Kubectl()._error(said)) == shown
