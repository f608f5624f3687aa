"""The agent's options, from flags and variables."""

import pytest

from dtj.agent.options import Options


@pytest.mark.parametrize(
    ("env", "no_buddy", "has_buddy"),
    [
        pytest.param({}, False, True, id="by default"),
        pytest.param({}, True, False, id="--no-buddy"),
        pytest.param(
            {"DTJ_MEMORY_EVERY": "0"}, False, False, id="--memory-every 0: there is nothing to keep"
        ),
        pytest.param({"DTJ_MEMORY_EVERY": "5"}, False, True, id="--memory-every 5"),
    ],
)
def test_another_replica_keeps_copies_unless_asked_not_to(
    env: dict[str, str], no_buddy: bool, has_buddy: bool
) -> None:
    found = Options.read(
        env, shown=None, as_json=False, port=None, termination_log=None, max_restarts=None, no_buddy=no_buddy
    )
    assert found.has_buddy == has_buddy


@pytest.mark.parametrize(
    ("env", "host"),
    [
        pytest.param({}, "127.0.0.1", id="no job"),
        pytest.param({"DTJ_JOB": "a", "MASTER_ADDR": "a-0.a.b.svc"}, "", id="a pod"),
        pytest.param({"DTJ_JOB": "a", "MASTER_ADDR": "127.0.0.1"}, "127.0.0.1", id="a job on one machine"),
    ],
)
def test_status_is_served_beyond_the_machine_only_in_a_pod(env: dict[str, str], host: str) -> None:
    found = Options.read(env, shown=None, as_json=False, port=None, termination_log=None, max_restarts=None)
    assert found.host == host
