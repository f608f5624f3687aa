"""The commands of `kubectl dtj`.

Exit codes: 0 done, 1 an error or a failed job, 2 wrong usage, 3 the time of `wait` or `stop` ran out,
130 interrupted.
"""

import contextlib
import errno
import io
import shutil
import sys
import time
from collections.abc import Callable, Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from dtj_client import __version__
from dtj_client.cli.shared import (
    NAME,
    NAMES,
    OPTIONAL_NAME,
    Duration,
    Which,
    echo,
    ended,
    follow_to_the_end,
    for_kubectl,
    newest,
    output,
    shown,
)
from dtj_client.cli.submit import submit
from dtj_client.cli.ui import ui
from dtj_client.convert.jobs import convert as converted
from dtj_client.convert.jobs import text_of
from dtj_client.doctor.checks import TRY, Finding, Result, examine
from dtj_client.doctor.trial import trial
from dtj_client.errors import ClientError, GoneError, Patience, UnreachableError
from dtj_client.from_yaml import contents, decoded
from dtj_client.job import FINAL, Job
from dtj_client.kube.kubectl import KIND, Json, Kubectl, parse_indices
from dtj_client.progress import bar
from dtj_client.show.report import at_stake, condition, failures, plain, pod_state
from dtj_client.show.top import table
from dtj_client.submission.template import available, find

EXIT_TIMED_OUT = 3
EXIT_INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # where the output goes to


def main(argv: list[str] | None = None) -> None:
    """Entry point of `kubectl-dtj`; never returns."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a log may have letters that the locale lacks
            stream.reconfigure(errors="replace")
    try:
        code = dtj.main(argv, prog_name="kubectl dtj", standalone_mode=False)
    except ClientError as error:
        click.echo(f"error: {error}", err=True)
        code = 1
    except TimeoutError as error:
        click.echo(str(error), err=True)
        code = EXIT_TIMED_OUT
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except OSError as error:
        if error.errno not in _FULL:
            raise
        click.echo(f"error: cannot write: {error.strerror}", err=True)
        code = 1
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    sys.exit(code or 0)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@for_kubectl
@click.version_option(__version__)
def dtj() -> None:
    """Submit, follow and steer DistributedTrainingJobs."""


dtj.add_command(submit)
dtj.add_command(ui)


@dtj.command(short_help="Show one job: what it does, why, and what to do next.")
@OPTIONAL_NAME
@output("json", "yaml", "wide", "name")
@for_kubectl
@click.pass_obj
def status(kubectl: Kubectl, name: str | None, output: str | None) -> None:
    """Show one screen: phase and why, replicas, progress, the last failure, what to do next."""
    name = newest(kubectl, name)
    job = Job(name, kubectl)
    if output:
        _ = job.manifest  # for our words if there is no such job
        kubectl.show("get", KIND, name, "-o", output)
    else:
        click.echo(job.report())


@dtj.command(short_help="Show a live table of the jobs.")
@click.option("--every", type=click.FloatRange(min=1), default=2.0, metavar="SECONDS", help="[default: 2]")
@for_kubectl
@click.pass_obj
def top(kubectl: Kubectl, every: float) -> None:
    """Show a live table of the jobs with their rate and what is wrong; once, if not on a terminal."""
    jobs, patience, problem = kubectl.jobs(), Patience(), ""
    if not sys.stdout.isatty():
        click.echo("\n".join(table(jobs, datetime.now(UTC), sys.maxsize)))
        return
    while True:
        size = shutil.get_terminal_size()
        lines = [*([problem] if problem else []), *table(jobs, datetime.now(UTC), size.columns)]
        click.clear()
        click.echo("\n".join(lines[: size.lines - 1]))
        time.sleep(every)
        problem = "the cluster gives no answer; this is what it said last"
        with patience.forgiving():
            jobs, problem = kubectl.jobs(), ""


@dtj.command(short_help="Find what keeps you from training here, and how to fix it.")
@click.option("--try", "tries", is_flag=True, help="Also start three pods for what only a pod can find out.")
@click.option(
    "--image", default="", metavar="IMAGE", help="Image of these pods. [default: the trainer image]"
)
@click.option("--template", metavar="NAME", help="Start them as submit --template would, without its GPUs.")
@for_kubectl
@click.pass_obj
def doctor(kubectl: Kubectl, tries: bool, image: str, template: str | None) -> int:
    """Check the cluster, your rights, GPUs, names, network, queues: a line each, with how to fix it."""
    if (image or template) and not tries:
        raise click.UsageError("--image and --template go with --try")
    part = find(kubectl, template).job if template else None
    # The trial answers what only it can find out.
    bad = _print(each for each in examine(kubectl) if not (tries and each.fix == TRY))
    if tries and bad:
        click.echo("no pods were started: fix what is BAD first", err=True)
    elif tries:
        click.echo("starting pods; this takes as long as nodes need to fetch the image", err=True)
        bad = _print(trial(kubectl, image, part))
    return int(bad)


def _print(findings: Generator[Finding, None, None]) -> bool:
    """Print the lines; return whether one is bad."""
    bad = False
    with contextlib.closing(findings):  # Ctrl-C deletes what a trial started
        for finding in findings:
            click.echo(str(finding))
            bad = bad or finding.result is Result.BAD
    return bad


@dtj.command(short_help="Translate a PyTorchJob, TrainJob, Job or sbatch script.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
def convert(file: str) -> None:
    """Print a PyTorchJob, TrainJob, Job or sbatch script as a DistributedTrainingJob.

    Comments above each job list what could not be carried over.
    """
    text = decoded(contents(file), errors="replace")  # comments in Latin-1
    for line in text_of(converted(text)):
        click.echo(line)


@dtj.command(short_help="List what submit --template takes.")
@for_kubectl
@click.pass_obj
def templates(kubectl: Kubectl) -> None:
    """List what submit --template takes: the templates of this namespace and of dtj-templates."""
    found, problems = available(kubectl)
    for each in found:
        where = " (shared)" if each.shared else ""
        click.echo(f"{each.name}{where}  {each.description}".rstrip())
    for problem in problems:
        click.echo(problem, err=True)
    if not found:
        click.echo(
            "no templates: administrators offer them as ConfigMaps with the label dtj.dev/template", err=True
        )


@dtj.command(
    short_help="List the jobs, with the options of kubectl get.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[KUBECTL OPTIONS]...")
@click.pass_obj
def get(kubectl: Kubectl, options: tuple[str, ...]) -> None:
    """List the jobs; takes the options of kubectl get, such as -A, -w and -o json."""
    kubectl.show("get", KIND, *options)


@dtj.command(short_help="Print the logs of all replicas as one.")
@OPTIONAL_NAME
@click.option(
    "-f", "--follow", is_flag=True, help="Print new lines until the job has finished, of new pods too."
)
@click.option("--replica", metavar="LIST", help="Only these replicas, such as 0-3,7. [default: all]")
@click.option("--rank", metavar="LIST", help="Only lines of these ranks, such as 0-3,7. [default: all lines]")
@click.option("--since", type=Duration(), help="Only lines of the last 10m, for example.")
@click.option(
    "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each replica."
)
@click.option("-p", "--previous", is_flag=True, help="Print how the last five failures ended.")
@for_kubectl
@click.pass_obj
def logs(
    kubectl: Kubectl,
    name: str | None,
    follow: bool,
    replica: str | None,
    rank: str | None,
    since: float | None,
    tail: int | None,
    previous: bool,
) -> int:
    """Print the logs of all replicas in the order of time, each line with its replica."""
    if previous and (follow or replica or rank or since is not None or tail is not None):
        raise click.UsageError("--previous goes with no other option")
    if rank and tail is not None:
        raise click.UsageError("--tail counts the lines of a replica, not of a rank: use --since with --rank")
    replicas, ranks = (parse_indices(each) if each else None for each in (replica, rank))
    which = Which(replicas=replicas, ranks=ranks, since="" if since is None else f"{since:f}s", tail=tail)
    name = newest(kubectl, name)
    if previous:
        click.echo("\n".join(failures(Job(name, kubectl).manifest)))
        return 0
    if follow:
        return follow_to_the_end(kubectl, name, which)
    with bar("reading logs") as progress:
        lines = list(Job(name, kubectl, progress).logs(**which))
    for line in lines:
        echo(shown(line))
    if ranks and not lines:
        world = int((Job(name, kubectl).manifest.get("status") or {}).get("worldSize") or 0)
        why = "only programs under dtj do; try --replica"
        if max(ranks) >= world > 0:  # of an elastic job
            why = f"the job has 0 to {world - 1} at this moment"
        click.echo(f"no line names these ranks: {why}", err=True)
    elif not lines:
        states = ", ".join(dict.fromkeys(map(pod_state, kubectl.pods(name))))
        click.echo(
            f"no lines so far; pods: {states}; kubectl dtj status {name}{kubectl.chosen} says more", err=True
        )
    return 0


@dtj.command(short_help="Print the Python stacks of each rank at this moment.")
@OPTIONAL_NAME
@click.option("--rank", metavar="LIST", help="Only these ranks, such as 0-3,7. [default: all]")
@for_kubectl
@click.pass_obj
def stacks(kubectl: Kubectl, name: str | None, rank: str | None) -> None:
    """Show where each rank is at this moment: its Python stacks, for programs under dtj."""
    name = newest(kubectl, name)
    for each in Job(name, kubectl).stacks(parse_indices(rank) if rank else None):
        click.echo(f"{each}\n")


@dtj.command(short_help="Draw loss and rate over time into a picture.")
@OPTIONAL_NAME
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="[default: NAME.png]")
@for_kubectl
@click.pass_obj
def plot(kubectl: Kubectl, name: str | None, output: Path | None) -> None:
    """Draw loss and rate over time, with the failures, from the logs of the pods that are there."""
    name = newest(kubectl, name)
    target = output or Path(f"{name}.png")
    with bar("reading logs") as progress:
        steps = Job(name, kubectl, progress).plot(target)
    click.echo(f"{target}: {steps} logged steps")


@dtj.command(short_help="Wait until the job has finished.")
@OPTIONAL_NAME
@click.option("--timeout", type=Duration(), help="Such as 90s or 10m. [default: no limit]")
@for_kubectl
@click.pass_obj
def wait(kubectl: Kubectl, name: str | None, timeout: float | None) -> int:
    """Wait until the job has finished: exit code 0 if it succeeded, 1 if it failed, 3 if time ran out."""
    name = newest(kubectl, name)
    with bar("steps") as progress:
        job = Job(name, kubectl, progress)
        job.wait(timeout)
    return ended(job)


@dtj.command(short_help="List what the operator did and why.")
@OPTIONAL_NAME
@for_kubectl
@click.pass_obj
def events(kubectl: Kubectl, name: str | None) -> None:
    """List what the operator did and why; of a deleted job too, as long as the cluster keeps it."""
    name = newest(kubectl, name)
    words = ("events", f"--for={KIND}/{name}")
    try:
        _ = Job(name, kubectl).manifest
    except GoneError:  # our words, if it never was
        if not kubectl.run(*words):
            raise
    kubectl.show(*words)


@dtj.command(short_help="Let jobs save a checkpoint and stop their pods.")
@NAMES
@for_kubectl
@click.pass_obj
def suspend(kubectl: Kubectl, names: tuple[str, ...]) -> int:
    """Stop the pods of jobs, which save a checkpoint if the program can; the jobs stay."""

    def one(job: Job) -> str:
        lost = at_stake(_unfinished(job))
        job.suspend()
        return "; ".join(filter(None, ("suspended", lost)))

    return _for_each(kubectl, names, one)


@dtj.command()
@NAMES
@for_kubectl
@click.pass_obj
def resume(kubectl: Kubectl, names: tuple[str, ...]) -> int:
    """Start the pods of suspended jobs."""

    def one(job: Job) -> str:
        before = _unfinished(job)
        job.resume()
        return _how_it_was_resumed(before)

    return _for_each(kubectl, names, one)


@dtj.command()
@NAME
@click.argument("replicas", type=click.IntRange(min=1))
@for_kubectl
@click.pass_obj
def scale(kubectl: Kubectl, name: str, replicas: int) -> None:
    """Change the number of replicas of an elastic job."""
    job = Job(name, kubectl)
    before = _unfinished(job)
    job.scale(replicas)
    lost = at_stake(before)
    if lost and replicas > before["spec"].get("replicas", 1):
        lost = f"it grows once it can save, and {lost.partition(':')[0]}"
    click.echo("; ".join(filter(None, (f"{name}: asked for {replicas} replicas", lost))))


@dtj.command(short_help="Let the job save a checkpoint, then delete it.")
@NAME
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--timeout", type=Duration(), help="For the pods to end, such as 10m. [default: no limit]")
@for_kubectl
@click.pass_obj
def stop(kubectl: Kubectl, name: str, yes: bool, timeout: float | None) -> None:
    """Suspend the job, wait until its pods have saved a checkpoint and ended, then delete it."""
    _confirm(Job(name, kubectl), yes, "stop and delete")
    try:
        with bar("ended pods") as progress:
            Job(name, kubectl, progress).stop(timeout)
    except KeyboardInterrupt:
        again = f"kubectl dtj resume {name}{kubectl.chosen} starts it again"
        click.echo(f"{name}: not deleted; if it is suspended, {again}", err=True)
        raise
    click.echo(f"{name}: stopped and deleted")


@dtj.command()
@NAMES
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@for_kubectl
@click.pass_obj
def delete(kubectl: Kubectl, names: tuple[str, ...], yes: bool) -> int:
    """Delete jobs with their pods and logs; checkpoints stay."""

    def one(job: Job) -> str:
        _confirm(job, yes, "delete")
        job.delete()
        return "deleted"

    return _for_each(kubectl, names, one)


def _for_each(kubectl: Kubectl, names: Sequence[str], act: Callable[[Job], str]) -> int:
    """Act on each job and print what became of it; return 1 if that failed for one, as kubectl does.

    Raises UnreachableError at once: the others would get no answer either.
    """
    code = 0
    for name in names:
        try:
            click.echo(f"{name}: {act(Job(name, kubectl))}")
        except UnreachableError:
            raise
        except ClientError as error:
            click.echo(f"error: {error}", err=True)
            code = 1
    return code


def _unfinished(job: Job) -> Json:
    """Its manifest. Raises ClientError if it has finished: the API server accepts what has no effect."""
    manifest = job.manifest
    phase = (manifest.get("status") or {}).get("phase") or ""
    if phase in FINAL:
        raise ClientError(f"{job.name} has {phase.lower()}", "submit it again as a new job")
    return manifest


def _how_it_was_resumed(before: Json) -> str:
    """What a resumption did to a job; one that its queue holds has no pods either."""
    if before["spec"].get("suspend"):
        return "resumed"
    held = condition(before.get("status") or {}, "Suspended")
    if held.get("status") == "True" and held.get("reason") != "Suspended":
        return f"is not suspended by a user: {plain(str(held.get('message')))}"
    return "is not suspended"


def _confirm(job: Job, yes: bool, verb: str) -> None:
    """Ask, unless the job has finished. Raises click.Abort."""
    manifest = job.manifest
    phase = (manifest.get("status") or {}).get("phase") or "new"
    if yes or phase in FINAL:
        return
    about = "; ".join(filter(None, (f"{job.name} is {phase}", at_stake(manifest))))
    try:
        click.confirm(f"{about}; {verb} it?", abort=True)
    except click.Abort:  # also without a terminal, as in a script
        click.echo(f"\n{job.name}: not confirmed, nothing was done; --yes does not ask", err=True)
        raise
