"""The same words run a program here and on a cluster."""

import click
import pytest

from dtj.cli import commands
from dtj_client.cli_submit import submit

# These are about the job as an object of the cluster, and -f is a job in both: `dtj run -f job.yaml --local`.
ON_A_CLUSTER = {"-o", "--output", "--dry-run", "-f", "--file"}
OF_KUBECTL = {"-n", "--namespace", "--context", "--kubeconfig"}


def words(command: click.Command) -> set[str]:
    """Return all options of a command."""
    return {option for parameter in command.params for option in parameter.opts if option.startswith("-")}


@pytest.mark.parametrize("command", ["run", "train"])
def test_dtj_takes_the_options_of_submit(command: str):
    assert words(submit) - ON_A_CLUSTER - OF_KUBECTL <= words(commands._dtj.commands[command])
