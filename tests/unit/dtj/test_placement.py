"""Environment -> ranks and replica; contradictions are errors, never guesses."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from dtj.agent.placement import Placement, threads, unused_gpus
from dtj.agent.wire.protocol import Limits
from dtj.errors import RecipeError
from dtj.ranks.world import World
from dtj.settings import SYNCS, Settings, as_text

MASTER = {"MASTER_ADDR": "digits-0.digits.ns.svc", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("env", "world"),
    [
        pytest.param({}, World(), id="nothing set, as on a laptop"),
        pytest.param(
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", **MASTER},
            World(rank=3, size=4, local_rank=1),
            id="a launcher's rank",
        ),
        pytest.param(
            {"NODE_RANK": "1", "WORLD_SIZE": "2", "NPROC_PER_NODE": "1", **MASTER},
            World(rank=1, size=2),
            id="a pod of one process",
        ),
    ],
)
def test_world(env: Mapping[str, str], world: World) -> None:
    assert World.from_env(env) == world


@pytest.mark.parametrize(
    ("env", "message"),
    [
        pytest.param(
            {"RANK": "4", "WORLD_SIZE": "4", **MASTER},
            "RANK is 4, but WORLD_SIZE is 4",
            id="rank out of range",
        ),
        pytest.param(
            {"RANK": "x", "WORLD_SIZE": "4", **MASTER},
            "RANK is 'x', expected a whole number",
            id="rank not a number",
        ),
        pytest.param(
            {"RANK": "1", "WORLD_SIZE": "4"},
            "MASTER_ADDR and MASTER_PORT are not set",
            id="no master address",
        ),
        pytest.param(
            {"WORLD_SIZE": "4", "NPROC_PER_NODE": "2", **MASTER},
            "dtj run script.py",
            id="no launcher",
        ),
    ],
)
def test_invalid_world(env: Mapping[str, str], message: str) -> None:
    with pytest.raises(RecipeError) as raised:
        World.from_env(env)
    assert message in str(raised.value)


def place(env: Mapping[str, str], nproc: int | None = None) -> Placement:
    return Placement.read(env, nproc=nproc)


@pytest.mark.parametrize(
    ("flags", "excluded"),
    [
        pytest.param({"DTJ_PARALLEL": "hsdp", "DTJ_MESH": "fsdp=4"}, {1, 3}, id="half of the sizes"),
        pytest.param({"DTJ_PARALLEL": "ddp"}, set(), id="no mesh"),
        pytest.param({"DTJ_MESH": "fsdp=4"}, set(), id="the program says for which strategy"),
        pytest.param({}, set(), id="no flags"),
    ],
)
def test_elastic_job_has_no_size_that_its_mesh_does_not_fit(
    flags: dict[str, str], excluded: set[int]
) -> None:
    found = place({"DTJ_MIN_REPLICAS": "1", "DTJ_MAX_REPLICAS": "4", **MASTER, **flags}, nproc=2)
    assert found.limits == Limits(1, 4, frozenset(excluded))


def test_laptop_needs_nothing() -> None:
    found = place({}, nproc=2)
    assert list(found.ranks) == [0, 1]
    assert found.env_of(1, generation=1, store=("127.0.0.1", 4242), heals=False, connect_s=20.0) == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "0",
        "NNODES": "1",
        "NPROC_PER_NODE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4242",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "ROLE_RANK": "1",
        "ROLE_WORLD_SIZE": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "GLOO_ENABLE_STORE_V2_API": "1",
        "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER": "1",
        "DTJ_GENERATION": "1",
        "DTJ_HEALING": "0",
        "DTJ_CONNECT_SECONDS": "20.0",
    }


def test_rank_that_is_alone_has_no_store_of_an_agent() -> None:
    """Else a script that opens a group of its own processes, at an address of its own, waits for a store."""
    env = place({}).env_of(0, generation=1, store=("127.0.0.1", 4242), heals=False, connect_s=20.0)
    assert (env["WORLD_SIZE"], env["TORCHELASTIC_USE_AGENT_STORE"]) == ("1", "False")


def test_pod_follows_the_operator() -> None:
    env = {
        "NNODES": "3",
        "NODE_RANK": "2",
        "NPROC_PER_NODE": "2",
        "WORLD_SIZE": "6",
        "DTJ_JOB_UID": "0b5c",
        **MASTER,
    }
    found = place(env)
    assert list(found.ranks) == [4, 5]
    assert (found.master_addr, found.master_port) == ("digits-0.digits.ns.svc", 29500)
    env = found.env_of(5, generation=3, store=("10.0.0.7", 41234), heals=True, connect_s=40.0)
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.7", "41234")
    assert (env["RANK"], env["LOCAL_RANK"], env["GROUP_RANK"]) == ("5", "1", "2")
    assert (env["TORCHELASTIC_RESTART_COUNT"], env["DTJ_HEALING"]) == ("2", "1")
    assert env["TORCHELASTIC_RUN_ID"] == "0b5c"


@pytest.mark.parametrize(
    ("env", "nproc", "message"),
    [
        pytest.param(
            {"NNODES": "2", "NODE_RANK": "2", **MASTER},
            None,
            "NODE_RANK is 2, but NNODES is 2",
            id="node rank out of range",
        ),
        pytest.param(
            {"NNODES": "0"}, None, "NNODES is '0', expected a whole number of at least 1", id="zero nodes"
        ),
        pytest.param(
            {"WORLD_SIZE": "4", "NNODES": "2", **MASTER},
            4,
            "leave out --nproc, or unset WORLD_SIZE",
            id="flag against the environment",
        ),
        pytest.param(
            {"WORLD_SIZE": "2", "NNODES": "1", "DTJ_JOB": "a"},  # as with --standalone
            None,
            "leave out --nproc, --nnodes and --standalone: processesPerReplica and replicas of the job say",
            id="flag against the job",
        ),
    ],
)
def test_invalid_placement(env: Mapping[str, str], nproc: int | None, message: str) -> None:
    with pytest.raises(RecipeError) as raised:
        place(env, nproc)
    assert message in str(raised.value)


def test_threads_are_set_by_the_user_or_a_share_of_the_cpus() -> None:
    assert threads({"OMP_NUM_THREADS": "3"}, nproc=2) == 3
    assert threads({}, nproc=10_000) == 1


@pytest.mark.parametrize(
    ("said", "nproc", "expected"),
    [
        ("max 100000\n", 1, 16),
        ("400000 100000\n", 1, 4),
        ("400000 100000\n", 2, 2),
        ("50000 100000\n", 1, 1),
        ("9900000 100000\n", 1, 16),
        ("", 1, 16),
    ],
)
def test_ranks_share_the_cpu_limit_of_the_container(
    said: str, nproc: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert threads({}, nproc=nproc, groups=tmp_path) == 16 // nproc
    (tmp_path / "cpu.max").write_text(said)
    assert threads({}, nproc=nproc, groups=tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("100000\n", 1), ("-1\n", 16)])
def test_ranks_share_the_cpu_limit_of_an_older_control_group(
    quota: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert threads({}, nproc=1, groups=tmp_path) == expected


def test_flag_of_the_job_takes_precedence_over_the_code() -> None:
    assert Settings.read({"DTJ_MICRO_BATCH": "4"}, micro_batch=8).micro_batch == 4
    assert Settings.read({}, micro_batch=8).micro_batch == 8


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            {"DTJ_SAVE_EVERY": "0"},
            "--save-every (DTJ_SAVE_EVERY) is '0': 0 is not in the range x>=1",
        ),
        ({"DTJ_TF32": "maybe"}, "--tf32 (DTJ_TF32) is 'maybe': 'maybe' is not a valid boolean"),
        ({"DTJ_SYNC": "local"}, "--sync (DTJ_SYNC) is 'local': it needs a number of steps"),
        ({"DTJ_CHECKPOINT_DIR": "x", "DTJ_KEEP": "1"}, "--keep (DTJ_KEEP) is '1'"),
    ],
)
def test_invalid_setting_is_refused_under_both_of_its_names(env: dict[str, str], message: str) -> None:
    with pytest.raises(RecipeError) as raised:
        Settings.read(env)
    assert message in str(raised.value)


@pytest.mark.parametrize("text", ["diloco:20", "local:3", "every", "stale:2"])
def test_policy_reaches_the_ranks_as_it_was_given(text: str) -> None:
    """The command line parses it, writes it into a variable, and a rank parses that."""
    chosen = SYNCS.convert(text, None, None)
    assert Settings.read({"DTJ_SYNC": as_text(chosen)}).sync == chosen


def test_container_with_more_gpus_than_ranks_is_noted_with_the_field_that_helps() -> None:
    assert "has 8 GPUs and 1 rank:" in unused_gpus(1, gpus=8, in_job=True)
    assert unused_gpus(2, gpus=8, in_job=True).endswith("fix: processesPerReplica: 8")
    assert unused_gpus(2, gpus=8, in_job=False).endswith("fix: --nproc 8")
    assert unused_gpus(8, gpus=8, in_job=True) == unused_gpus(1, gpus=0, in_job=True) == ""
