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
