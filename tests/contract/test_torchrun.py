"""torchrun follows the environment that the operator sets, and `dtj run` takes its place."""

from __future__ import annotations

import inspect
import re

import click
import pytest
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import api as multiprocessing_api
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, get_args_parser

from dtj import contract
from dtj.agent.placement import Placement
from dtj.cli import commands, program, torchrun
from dtj.errors import RecipeError
from dtj_operator.plan.children.env import PodContext, of_replica, shared
from tests.support.builders import UID, JobBuilder


def launched(job: JobBuilder, monkeypatch: pytest.MonkeyPatch) -> LaunchConfig:
    """Return torchrun's configuration from the environment of replica 1 in attempt 2."""
    parsed = job.job()
    place = PodContext(attempt=2, size=parsed.replicas, restarts_left=10)
    container = parsed.template["spec"]["containers"][0]
    for variable in of_replica(parsed, 1) + shared(parsed, container, place):
        if "value" in variable:
            monkeypatch.setenv(variable["name"], variable["value"])
    return config_from_args(get_args_parser().parse_args(["train.py"]))[0]


def test_fixed_job_is_restarted_by_the_operator_alone(monkeypatch: pytest.MonkeyPatch):
    launch = launched(JobBuilder().replicas(3), monkeypatch)

    assert (launch.min_nodes, launch.max_nodes, launch.max_restarts) == (3, 3, 0)
    assert (launch.rdzv_backend, launch.rdzv_configs["rank"]) == ("static", 1)
    assert launch.rdzv_endpoint == "digits-0.digits.team-a.svc:29500"


def test_elastic_job_uses_its_limits_as_numbers_of_nodes(monkeypatch: pytest.MonkeyPatch):
    launch = launched(JobBuilder().replicas(3).elastic(2, 5), monkeypatch)

    assert (launch.min_nodes, launch.max_nodes, launch.max_restarts) == (2, 5, 10)
    assert (launch.rdzv_backend, launch.run_id) == ("c10d", f"{UID}-2")
    assert launch.rdzv_endpoint == "digits-0.digits.team-a.svc:29500"


def test_agent_sets_every_variable_that_torchrun_sets_for_its_workers():
    """The list is read in the installed torch; ranks inherit the others from the agent (launch.py)."""
    source = inspect.getsource(LocalElasticAgent._start_workers)
    source += inspect.getsource(LocalElasticAgent._set_local_rank_env)
    source += inspect.getsource(multiprocessing_api)
    theirs = set(re.findall(r'"([A-Z][A-Z_]+)": ', source)) | set(
        re.findall(r'env\w*\["([A-Z_]+)"\]', source)
    )
    theirs |= set(re.findall(r'envs\[local_rank\]\["([A-Z_]+)"\]', source))
    assert {"RANK", "LOCAL_RANK", "TORCHELASTIC_ERROR_FILE", "OMP_NUM_THREADS"} <= theirs
    placement = Placement.read({}, nproc=2)
    ours = placement.env_of(1, generation=1, store=("127.0.0.1", 1), heals=False, connect_s=20.0)
    theirs -= {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}  # only with --virtual-local-rank
    of_the_agent = {"OMP_NUM_THREADS", contract.TORCHRUN_RESTARTS, contract.ERROR_FILE}
    assert theirs - ours.keys() == of_the_agent


@pytest.mark.parametrize(
    ("flags", "env"),
    [
        ([], {}),
        (["--standalone"], {"NNODES": "1", "NODE_RANK": "0"}),
        (["--nnodes=1:1", "--rdzv_id=7"], {"NNODES": "1", "TORCHELASTIC_RUN_ID": "7"}),
        (
            ["--nnodes=2", "--node_rank=1", "--master_addr=a", "--master_port=29501"],
            {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29501"},
        ),
        (
            ["--rdzv-backend=c10d", "--rdzv-endpoint=a:29400"],
            {"MASTER_ADDR": "a", "MASTER_PORT": "29400"},
        ),
        (["--rdzv-endpoint=localhost:0"], {"MASTER_ADDR": "localhost"}),  # of several jobs on a machine
        (["--rdzv-endpoint=[fd00::1]:29400"], {"MASTER_ADDR": "fd00::1", "MASTER_PORT": "29400"}),
    ],
)
def test_options_of_torchrun_have_the_same_meaning(flags: list[str], env: dict[str, str]):
    get_args_parser().parse_args([*flags, "--nproc-per-node=2", "train.py"])  # torchrun has them too
    assert given(flags) == {"ROLE_NAME": "default"} | env


def test_every_option_of_torchrun_is_known() -> None:
    """One that a new torch adds must be accepted or refused."""
    theirs = {option for action in get_args_parser()._actions for option in action.option_strings}
    ours = {option for parameter in commands._dtj.commands["run"].params for option in parameter.opts}
    assert theirs - {"-h", "--help"} <= ours


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--nnodes=1:4"], "--nnodes is '1:4', expected one number"),
        (["--nnodes=2"], "the number of this machine is not known"),
        (["--rdzv-backend=etcd"], "--rdzv-backend is etcd"),
        (["--rdzv_conf=timeout=9"], "no option --rdzv-conf: the agents of dtj meet"),
        (["-t", "3"], "no option --tee: the output of all ranks is on stdout"),
        (["--no-python"], "no option --no-python: the ranks are forked"),
        (["--virtual-local-rank"], "no option --virtual-local-rank: each rank sees all GPUs"),
        (["--signals_to_handle=SIGTERM,SIGUSR1"], "no option --signals-to-handle: SIGTERM and SIGINT reach"),
    ],
)
def test_option_of_torchrun_without_a_counterpart_is_refused_with_the_reason(flags: list[str], message: str):
    get_args_parser().parse_args([*flags, "train.py"])
    with pytest.raises(RecipeError, match=re.escape(message)):
        given(flags)


def test_option_of_torchrun_without_an_effect_is_accepted():
    flags = ["--start-method=fork", "--monitor-interval=5", "--run-path"]
    get_args_parser().parse_args([*flags, "train.py"])
    assert given(flags) == {"ROLE_NAME": "default"}


@pytest.mark.parametrize(
    "line",
    [
        "train.py --lr 1",
        "train.py -- --lr 1",
        "-m pkg.train -- --lr 1",
        "train.py -- -- --lr 1",
        "train.py --lr 1 -- data",
        "-- train.py --lr 1",
    ],
)
def test_program_gets_the_words_that_torchrun_gives_it(line: str, monkeypatch: pytest.MonkeyPatch):
    theirs = get_args_parser().parse_args(line.split())
    for kind in ("script", "module"):
        monkeypatch.setattr(program, kind, lambda *named: named)
    monkeypatch.setattr(torchrun, "environment", lambda _given: {})
    monkeypatch.setattr(commands, "_launch", lambda named, _given: named)
    ours = commands._dtj.main(["run", *line.split()], standalone_mode=False)
    assert ours == (theirs.training_script, tuple(theirs.training_script_args))


def given(flags: list[str]) -> dict[str, str]:
    """The variables that `dtj run` takes from these options."""

    @torchrun.options
    @click.command()
    def command(**found: object) -> dict[str, str]:
        return torchrun.environment(found)

    found: dict[str, str] = command.main(flags, standalone_mode=False)
    return found
