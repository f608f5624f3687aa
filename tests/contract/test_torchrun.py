"""torchrun without flags follows the environment that the operator sets."""

from __future__ import annotations

import pytest
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, get_args_parser

from dtj_operator.plan.children.env import PodContext, environment
from tests.support.builders import UID, JobBuilder


def launched(job: JobBuilder, monkeypatch: pytest.MonkeyPatch) -> LaunchConfig:
    """Return torchrun's configuration from the environment of replica 1 in attempt 2."""
    parsed = job.job()
    place = PodContext(index=1, attempt=2, size=parsed.replicas, restarts_left=10)
    for variable in environment(parsed, parsed.template["spec"]["containers"][0], place):
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
