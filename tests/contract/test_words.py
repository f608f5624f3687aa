"""The same words run a program here and on a cluster."""

import click
import pytest

from dtj.cli import commands
from dtj_client.cli.submit import submit
from dtj_client.programs import torchrun

# These are about the job as an object of the cluster, and -f is a job in both: `dtj run -f job.yaml --local`.
ON_A_CLUSTER = {"-o", "--output", "--dry-run", "-f", "--file"}
OF_KUBECTL = {"-n", "--namespace", "--context", "--kubeconfig"}


def words(command: click.Command) -> set[str]:
    """Return all options of a command."""
    return {option for parameter in command.params for option in parameter.opts if option.startswith("-")}


@pytest.mark.parametrize("command", ["run", "train"])
def test_dtj_takes_the_options_of_submit(command: str):
    assert words(submit) - ON_A_CLUSTER - OF_KUBECTL <= words(commands._dtj.commands[command])


@pytest.mark.parametrize("command", ["run", "train"])
def test_submit_knows_the_options_of_dtj_that_have_no_value(command: str):
    parameters = commands._dtj.commands[command].params
    flags = {option for each in parameters if getattr(each, "is_flag", False) for option in each.opts}
    known = (*torchrun._FLAGS, *torchrun._SWITCHES, *torchrun.SWITCHES_OF_DTJ)
    assert {each.lstrip("-").replace("_", "-") for each in flags} <= set(known)
