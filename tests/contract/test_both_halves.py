"""Checks operator and trainer against docs/contract.md and against each other.

The tables of the page are the expectation; the code of both sides is tested.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
import yaml

from dtj import contract as trainer
from dtj.agent.coordinator import restarts
from dtj.agent.options import Options
from dtj.agent.placement import Placement
from dtj.agent.report.status import Status
from dtj.agent.wire import outcome
from dtj.agent.wire.outcome import Ending
from dtj.agent.wire.protocol import CoordinatorState, RestartBudget
from dtj.local import manifest as local
from dtj_client.from_yaml import documents
from dtj_operator.model import agent_status, exit_report, names, spec
from dtj_operator.model.json import Json
from dtj_operator.model.memory import Restarts
from dtj_operator.plan import blame
from dtj_operator.plan.actions import headline
from dtj_operator.plan.children.env import PodContext, of_replica, shared
from dtj_operator.plan.policies import restart
from tests.support.builders import JobBuilder

PAGE = (Path(__file__).parents[2] / "docs" / "contract.md").read_text()


def column(section: str, number: int = 0) -> list[list[str]]:
    """Return, for each row of the table below a heading, the code words of one column."""
    text = PAGE.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")][2:]
    return [re.findall(r"`([^`]+)`", row[number]) or [row[number]] for row in rows]


def flat(section: str) -> list[str]:
    """Return all code words of a table's first column."""
    return [word for row in column(section) for word in row]


def environment_of(job: JobBuilder, *, replica: int = 0) -> dict[str, str]:
    """Return the variables that the operator sets for a replica."""
    parsed = spec.parse(job.raw())
    container = parsed.template["spec"]["containers"][0]
    place = PodContext(attempt=0, size=parsed.replicas, restarts_left=0, restarts=Restarts(highest_step=7))
    variables = of_replica(parsed, replica) + shared(parsed, container, place)
    return resolved(variables, pod=names.pod_name(parsed.name, replica))


def resolved(variables: list[Json], *, pod: str) -> dict[str, str]:
    """The variables as the kubelet gives them to the container of a pod of that name."""
    fields = {"metadata.name": pod}
    return {
        each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in variables
    }


VOLUME: dict[str, dict[str, str]] = {"emptyDir": {}}


def test_operator_sets_exactly_the_variables_on_the_page():
    job = (
        JobBuilder()
        .container(resources={"limits": {"cpu": "2"}})
        .wants(
            elastic={"minReplicas": 1, "maxReplicas": 2}, hang={"timeoutSeconds": 60, "workingSeconds": 900}
        )
        .wants(checkpoint={"mountPath": "/checkpoints", "volume": VOLUME, "resumeFrom": {"job": "monday"}})
        .wants(successPolicy={"replicas": [0]})
    )
    assert environment_of(job).keys() == set(flat("Environment of the training container"))


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("elastic", [None, {"minReplicas": 1, "maxReplicas": 4}])
def test_local_replicas_get_the_environment_of_pods(processes: int, elastic: dict[str, int] | None):
    wants = {
        "replicas": 2,
        "processesPerReplica": processes,
        "hang": {"timeoutSeconds": 60, "workingSeconds": 900},
    }
    job = JobBuilder().wants(**wants, **({"elastic": elastic} if elastic else {}))
    raw = job.raw()
    raw["spec"]["template"]["spec"]["containers"][0]["args"] = ["run", "train.py"]
    uid = raw["metadata"]["uid"]
    found = local.environment(local.parse(raw), index=1, uid=uid, port=29500, agent_port=29400)
    expected = environment_of(job, replica=1)
    own = {name for name in expected if name in {"MASTER_ADDR", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT"}}
    own |= {"DTJ_MAX_RESTARTS", "DTJ_HIGHEST_STEP", "DTJ_ATTEMPT"}
    assert {k: v for k, v in found.items() if k not in own} == {
        k: v for k, v in expected.items() if k not in own
    }
    assert found.keys() | {"DTJ_HIGHEST_STEP"} == expected.keys()


def test_rank_variables_are_absent_if_a_replica_has_several_processes():
    ranks = {"RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    assert environment_of(JobBuilder()).keys() & ranks == ranks
    assert environment_of(JobBuilder().wants(processesPerReplica=2)).keys() & ranks == set()


def test_trainer_reads_only_variables_that_the_page_names():
    names_read = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT NODE_RANK NNODES"
    names_read += " NPROC_PER_NODE JOB JOB_UID ATTEMPT REPLICA_INDEX AGENT_PORT CHECKPOINT_DIR RESUME_DIR"
    names_read += " HANG_SECONDS HANG_WORKING_SECONDS HANG_ACTION"
    read = {getattr(trainer, name) for name in names_read.split()}
    assert read <= set(flat("Environment of the training container"))
    optional = {trainer.MAX_RESTARTS, trainer.RESTARTS_IN_PLACE, trainer.MAX_RESTARTS_WITHOUT_PROGRESS}
    optional |= {trainer.RESTART_WINDOW_SECONDS, trainer.RESTARTS_WITHOUT_PROGRESS, trainer.HIGHEST_STEP}
    optional |= {trainer.BACKOFF_SECONDS, trainer.SUCCESS_REPLICAS}
    assert all(f"`{name}`" in PAGE for name in optional)


def test_agents_continue_the_counts_of_the_operator():
    parsed = spec.parse(
        JobBuilder().recovery(windowSeconds=600, maxRestartsWithoutProgress=2, backoffSeconds=7).raw()
    )
    past = Restarts(in_place_of_attempt=3, without_progress=2, highest_step=41)
    place = PodContext(attempt=1, size=1, restarts_left=4, restarts=past)
    env = resolved(of_replica(parsed, 0) + shared(parsed, {}, place), pod="job-0")
    options = Options.read(env, shown=None, as_json=False, port=None, termination_log=None, max_restarts=None)

    expected = RestartBudget(restarts=7, spent=3, without_progress=2, window_s=600, backoff_s=7)
    assert options.budget == expected
    assert options.past == CoordinatorState(in_place=3, without_progress=2, best_step=41)


def test_agents_know_which_replicas_decide():
    env = environment_of(JobBuilder().replicas(4).wants(successPolicy={"replicas": [2, 0]}))
    options = Options.read(env, shown=None, as_json=False, port=None, termination_log=None, max_restarts=None)
    assert options.deciding == frozenset({0, 2})


def test_variables_that_the_agent_sets_for_its_ranks_are_those_on_the_page():
    ours = [trainer.USE_AGENT_STORE, trainer.RUN_ID, trainer.RESTART_COUNT]
    ours += [trainer.TORCHRUN_RESTARTS, trainer.ERROR_FILE]
    ours += [trainer.GENERATION, trainer.HEALING, trainer.CONNECT_SECONDS, trainer.INCARNATION]
    ours += [trainer.BUDDY]
    assert ours == flat("Between the agents of a job")


def test_labels_are_those_on_the_page():
    ours = [names.JOB_NAME, names.JOB_UID, names.REPLICA_INDEX, names.ATTEMPT, names.AVOIDS_NODES]
    assert ours == flat("Names")


def test_exit_codes_are_those_on_the_page():
    page = {code for row in column("Exit codes") for code in row if code.isdigit()}
    ours = {trainer.EXIT_DONE, trainer.EXIT_STOPPED, trainer.EXIT_PEER_LOST, trainer.EXIT_BAD_RECIPE}
    assert {str(code) for code in ours} == page


@pytest.mark.parametrize(
    ("section", "fields"),
    [
        ("Termination message", trainer.TERMINATION_FIELDS),
        ("Agent HTTP, on `DTJ_AGENT_PORT`", trainer.STATUS_FIELDS),
    ],
)
def test_fields_are_those_on_the_page(section: str, fields: tuple[str, ...]):
    assert list(fields) == flat(section)


def test_operator_reads_the_culprit_of_another_replica_from_a_termination_message():
    culprit = Ending(
        rank=3, code=1, at=datetime.now(UTC), step=7, message="x" * 5000 + "the end", reason="Exception"
    )
    fields = outcome.termination_fields(
        [outcome.echo(culprit, now=datetime.now(UTC))],
        ranks=range(2),
        elsewhere=outcome.failure_fields(culprit, generation=2, processes=2),
        reported={"checkpoint": {"path": "/checkpoints/" + "c" * 500}},
        generation=2,
        now=datetime.now(UTC),
    )
    message = outcome.encode(outcome.fit(fields, limit=trainer.TERMINATION_BYTES))

    assert len(message) <= trainer.TERMINATION_BYTES
    found = exit_report.parse(message.decode()).culprit
    assert found is not None
    assert (found.replica, found.rank, found.reason, found.exit_code) == (1, 3, "Exception", 1)
    assert (found.generation, found.at) == (2, outcome.stamp(culprit.at))
    assert found.message.endswith("the end")


def test_reasons_and_states_are_those_on_the_page():
    for words in (trainer.REASONS, trainer.STATES):
        assert ", ".join(f"`{word}`" for word in words) in PAGE


def test_operator_accepts_the_status_of_replica_0_only():
    job = JobBuilder().replicas(2)
    parsed = spec.parse(job.raw())

    def answer(replica: int) -> bytes:
        env = environment_of(job, replica=replica)
        placement = Placement.read(env, nproc=None)
        options = Options.read(
            env, shown=None, as_json=False, port=None, termination_log=None, max_restarts=None
        )
        status = Status(
            job=options.job, uid=options.uid, replica=placement.node_rank, attempt=options.attempt
        )
        return json.dumps(status.document(datetime.now(UTC), job={})).encode()

    key = names.Key(parsed.namespace, parsed.name)
    assert agent_status.parse(answer(0), key, parsed.uid, observed_at=0, address="10.0.0.1", ranks=2).rejoin
    with pytest.raises(msgspec.ValidationError, match=f"does not belong to replica 0 of {key}"):
        agent_status.parse(answer(1), key, parsed.uid, observed_at=0, address="10.0.0.1", ranks=2)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param("epoch 1\nKilled", id="the end of a log"),
        pytest.param("there is no module 'digitz'\n  fix: check the name", id="an error of dtj"),
        pytest.param(
            'Traceback:\n  File "a.py", line 1\n    x()\nCudaError: no memory\nCompile with debug symbols.',
            id="an error of several lines, and a traceback",
        ),
        pytest.param(
            '  + Exception Group Traceback (most recent call last):\n  |   File "a.py", line 1\n  |     x()\n'
            "  | ExceptionGroup: two loaders (2 sub-exceptions)\n  +-+---- 1 ----\n    | ValueError: a",
            id="a group of errors",
        ),
        pytest.param(
            'Traceback:\n  File "a.py", line 1\n    x()\nChildFailedError: \n=====\ntrain.py FAILED\n',
            id="a reason below the error",
        ),
        pytest.param('in a wait:\n  File "a.py", line 1\n    x()', id="a stack without an error"),
    ],
)
def test_log_of_the_agent_and_status_of_the_job_have_the_same_line_of_an_error(message: str):
    assert outcome.headline(message) == headline(message)


def test_same_errors_are_the_programs_on_both_sides_and_end_with_the_same_time():
    """Agents count restarts in place without progress by these rules, and the operator those of pods."""
    at = datetime.now(UTC)
    endings = [Ending(rank=0, code=1, at=at, reason=reason) for reason in trainer.REASONS]
    counted = {each.cause for each in endings if outcome.error_number(each)}
    assert counted == set(blame.PROGRAM_ERRORS)
    assert restarts.RAN_WELL_S == restart.RAN_WELL_S


def test_client_and_local_run_read_the_same_values_from_a_manifest():
    text = "[1:30:00, 2026-11-25, 2026-11-25T10:00:00Z, 010, 1.5, 3e-4, yes, ~, text, '1:30']"
    assert [yaml.load(text, local._loader(yaml))] == documents(text)
