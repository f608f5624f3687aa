"""The commands of `kubectl dtj`.

Exit codes: 0 done, 1 an error or a failed job, 2 wrong usage, 3 `wait` ran out of time.
"""

import contextlib
import re
import secrets
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from dtj_client import __version__, archive, manifest
from dtj_client.errors import ClientError
from dtj_client.kubectl import KIND, Kubectl, parse_indices, replicas_of
from dtj_client.logs import follow_job, snapshot
from dtj_client.report import report

Json = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])

FINAL = ("Succeeded", "Failed")
POLL_S = 2.0
EXIT_TIMED_OUT = 3
_NAME = click.argument("name")


def main(argv: list[str] | None = None) -> None:
    """Entry point of `kubectl-dtj`; never returns."""
    try:
        code = dtj.main(argv, prog_name="kubectl dtj", standalone_mode=False)
    except ClientError as error:
        click.echo(f"error: {error}", err=True)
        code = 1
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130
    sys.exit(code or 0)


def _choose(context: click.Context, option: click.Parameter, value: str | None) -> None:
    """Pass an option on to kubectl; a later one wins, as in kubectl."""
    known = context.obj or Kubectl()
    if value:
        context.obj = Kubectl(options=(*known.options, f"--{option.name}={value}"))
    else:
        context.obj = known


def _for_kubectl(command: F) -> F:
    """Add the options that choose a cluster, which users of kubectl write before or after the verb."""
    for names in (("-n", "--namespace"), ("--context",), ("--kubeconfig",)):
        command = click.option(*names, callback=_choose, expose_value=False, help="As in kubectl.")(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@_for_kubectl
@click.version_option(__version__)
def dtj() -> None:
    """Submit, follow and steer DistributedTrainingJobs."""


@dtj.command(context_settings={"allow_interspersed_args": False})
@click.option("--name", help="Name of the job. [default: from the program, with a random end]")
@click.option("--replicas", type=click.IntRange(min=1), default=1, show_default=True, help="Number of pods.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, show_default=True, help="GPUs per pod.")
@click.option("--image", default="", help="Image with Python, torch and dtj. [default: the trainer image]")
@click.option(
    "--env", "env", multiple=True, metavar="NAME=VALUE", help="Variable of the program; may be repeated."
)
@click.option(
    "--checkpoints", "claim", default="", metavar="CLAIM", help="PersistentVolumeClaim for checkpoints."
)
@click.option("--queue", default="", help="Label the job for this queue of Kueue.")
@click.option("--no-code", is_flag=True, help="The image has the code: send none.")
@click.option("--dry-run", is_flag=True, help="Print the objects as YAML and create nothing.")
@click.option("--follow", is_flag=True, help="Then follow the logs until the job has finished.")
@click.argument("command", nargs=-1, required=True, metavar="PROGRAM [ARGUMENTS]...")
@_for_kubectl
@click.pass_obj
def submit(
    kubectl: Kubectl,
    /,
    command: tuple[str, ...],
    env: tuple[str, ...],
    name: str | None,
    no_code: bool,
    dry_run: bool,
    follow: bool,
    **given: Any,
) -> int:
    r"""Run a program with the code of this folder on the cluster, without building an image.

    A Python file runs under `dtj run`; any other program as it is. Put -- before the program.

    \b
      kubectl dtj submit --replicas 4 -- train.py --lr 3e-4
      kubectl dtj submit --gpus 8 --follow -- torchrun train.py
    """
    wrong = [each for each in env if "=" not in each]
    if wrong:
        raise click.UsageError(f"--env {wrong[0]}: write NAME=VALUE")
    if command[0].endswith(".py") and not no_code and not Path(command[0]).is_file():
        raise ClientError(
            f"there is no file {command[0]} in this folder", "change to the folder of the program"
        )
    request = manifest.Request(
        name=name or _new_name(command[0]),
        command=command,
        env=dict(each.split("=", 1) for each in env),
        **given,
    )
    job = manifest.job(request, with_code=not no_code)
    sent = None if no_code else archive.pack(Path.cwd())
    objects = [*([] if sent is None else [manifest.config_map(request, sent)]), job]
    if dry_run:
        click.echo(yaml.safe_dump_all(objects, sort_keys=False).rstrip())
        return 0
    if sent is not None:
        _say_what_goes_along(sent)
    _create(kubectl, objects)
    click.echo(f"submitted {request.name}; kubectl dtj status {request.name} shows it")
    return _follow(kubectl, request.name, None) if follow else 0


def _new_name(program: str) -> str:
    stem = re.sub(r"[^a-z0-9]+", "-", Path(program).stem.lower()).strip("-")[:40]
    return f"{stem if stem[:1].isalpha() else 'job'}-{secrets.token_hex(2)}"


def _say_what_goes_along(sent: archive.Archive) -> None:
    click.echo(f"sending {len(sent.files)} files, {len(sent.data) / 1024:.0f} KiB", err=True)
    if sent.secrets:
        left_out = ", ".join(sent.secrets)
        click.echo(f"not sent, because they look like secrets: {left_out}", err=True)


def _create(kubectl: Kubectl, objects: list[Json]) -> None:
    """Create the code and the job; if the job cannot be created, the code goes too."""
    *code, job = objects
    created = [kubectl.create(each) for each in code]
    try:
        stored = kubectl.create(job)
    except BaseException:
        for each in created:
            with contextlib.suppress(ClientError):  # the first error is the one to show
                kubectl.run("delete", "configmap", each["metadata"]["name"], "--wait=false")
        raise
    for each in created:
        kubectl.patch("configmap", each["metadata"]["name"], manifest.owned_by(stored))


@dtj.command()
@_NAME
@_for_kubectl
@click.pass_obj
def status(kubectl: Kubectl, name: str) -> None:
    """Show one screen: phase and why, replicas, progress, the last failure, what to do next."""
    for line in report(kubectl.job(name), kubectl.pods(name), datetime.now(UTC)):
        click.echo(line)


@dtj.command(context_settings={"ignore_unknown_options": True})
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[KUBECTL OPTIONS]...")
@click.pass_obj
def get(kubectl: Kubectl, options: tuple[str, ...]) -> int:
    """List the jobs; takes the options of kubectl get, such as -A, -w and -o json."""
    return kubectl.show("get", KIND, *options)


@dtj.command()
@_NAME
@click.option(
    "-f", "--follow", is_flag=True, help="Until the job has finished, also of pods that replace others."
)
@click.option(
    "--replica", "wanted", metavar="LIST", help="Only these replicas, such as 0-3,7. [default: all]"
)
@click.option("--since", help="Only newer lines, such as 10m; not with --follow.")
@_for_kubectl
@click.pass_obj
def logs(kubectl: Kubectl, name: str, follow: bool, wanted: str | None, since: str | None) -> int:
    """Print the logs of all replicas in the order of time, each line with its replica."""
    if follow and since:
        raise click.UsageError("--since does not go with --follow")
    chosen = parse_indices(wanted) if wanted else None
    if follow:
        return _follow(kubectl, name, chosen)
    replicas = set(replicas_of(kubectl.job(name), chosen))
    pods = [pod for pod in kubectl.pods(name) if int(pod["metadata"]["name"].rpartition("-")[2]) in replicas]
    if not pods:
        raise ClientError(
            f"job {name} has no pods, and their logs went with them", f"see kubectl dtj status {name}"
        )
    for line in snapshot(kubectl, pods, name, *([f"--since={since}"] if since else [])):
        click.echo(str(line))
    return 0


def _follow(kubectl: Kubectl, name: str, chosen: set[int] | None) -> int:
    """Print lines until the job has finished; return 1 if it has failed."""
    replicas = replicas_of(kubectl.job(name), chosen)
    for line in follow_job(kubectl, name, replicas, finished=lambda: _phase(kubectl, name) in FINAL):
        click.echo(str(line))
    ended = _phase(kubectl, name)
    click.echo(f"{name}: {ended}", err=True)
    return int(ended != "Succeeded")


def _phase(kubectl: Kubectl, name: str) -> str:
    return str((kubectl.job(name).get("status") or {}).get("phase", ""))


@dtj.command()
@_NAME
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds. [default: no limit]")
@_for_kubectl
@click.pass_obj
def wait(kubectl: Kubectl, name: str, timeout: float | None) -> int:
    """Wait until the job has finished: exit code 0 if it succeeded, 1 if it failed, 3 if time ran out."""
    ends = None if timeout is None else time.monotonic() + timeout
    while (phase := _phase(kubectl, name)) not in FINAL:
        if ends is not None and time.monotonic() >= ends:
            click.echo(f"{name}: {phase or 'not started'} after {timeout:.0f} s", err=True)
            return EXIT_TIMED_OUT
        time.sleep(POLL_S if ends is None else min(POLL_S, max(0.0, ends - time.monotonic())))
    click.echo(f"{name}: {phase}")
    return int(phase != "Succeeded")


@dtj.command()
@_NAME
@_for_kubectl
@click.pass_obj
def events(kubectl: Kubectl, name: str) -> int:
    """List what the operator did and why."""
    kubectl.job(name)
    return kubectl.show("events", f"--for={KIND}/{name}")


@dtj.command()
@_NAME
@_for_kubectl
@click.pass_obj
def suspend(kubectl: Kubectl, name: str) -> None:
    """Stop the pods, which save a checkpoint if the program can; the job stays."""
    _change(kubectl, name, {"suspend": True}, "suspended")


@dtj.command()
@_NAME
@_for_kubectl
@click.pass_obj
def resume(kubectl: Kubectl, name: str) -> None:
    """Start the pods of a suspended job."""
    _change(kubectl, name, {"suspend": False}, "resumed")


@dtj.command()
@_NAME
@click.argument("replicas", type=click.IntRange(min=1))
@_for_kubectl
@click.pass_obj
def scale(kubectl: Kubectl, name: str, replicas: int) -> None:
    """Change the number of replicas of an elastic job."""
    _change(kubectl, name, {"replicas": replicas}, f"asked for {replicas} replicas")


def _change(kubectl: Kubectl, name: str, change: Json, done: str) -> None:
    kubectl.patch(KIND, name, {"spec": change})
    click.echo(f"{name}: {done}")


@dtj.command()
@_NAME
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_for_kubectl
@click.pass_obj
def delete(kubectl: Kubectl, name: str, yes: bool) -> None:
    """Delete the job with its pods and their logs; checkpoints stay."""
    phase = _phase(kubectl, name)
    if not yes and phase not in FINAL:
        click.confirm(f"{name} is {phase or 'new'}; delete it?", abort=True)
    kubectl.run("delete", KIND, name, "--wait=false")
    click.echo(f"{name}: deleted")


if __name__ == "__main__":
    main()
