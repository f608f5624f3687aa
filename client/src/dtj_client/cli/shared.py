"""What commands share: options, arguments, and the end of a command that waits for a job."""

import contextlib
import os
import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

import click
from click.shell_completion import CompletionItem

from dtj_client.errors import ClientError, GoneError, Patience
from dtj_client.job import Job
from dtj_client.kube.kubectl import Kubectl
from dtj_client.show.events import of_kubelet
from dtj_client.show.logs import Line
from dtj_client.show.report import indented, plain, pod_state

F = TypeVar("F", bound=Callable[..., Any])
N = TypeVar("N", str, tuple[str, ...])


_NO_NAME = "name the job; kubectl dtj get lists them"


class JobName(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """The name of a job, also as `submit -o name` and kubectl print it: distributedtrainingjob/digits."""

    name = "NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name alone; an empty one is that of a variable that a script has not set."""
        name = str(value).rpartition("/")[2]
        if not name:
            raise click.UsageError(_NO_NAME, ctx)
        return name

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The jobs that a name may become."""
        try:
            found = (ctx.obj or Kubectl()).job_names()
        except ClientError:  # an error would be printed into the command line
            return []
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]


_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "": 1.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([dhms]?)")
_DURATION = re.compile(r"[0-9]+(\.[0-9]+)?|([0-9]+(\.[0-9]+)?[dhms])+")


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """Seconds, also written as kubectl writes durations: 90, 90s, 10m, 1h30m, 2d."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds."""
        if isinstance(value, float):
            return value
        if not _DURATION.fullmatch(value):
            self.fail(f"{value!r} is not a duration: write seconds, or such as 90s, 10m, 1h30m", param, ctx)
        return sum(float(count) * _SECONDS[unit] for count, unit in _PART.findall(value))


WAIT_S = 2.0  # for the first line of a log, before the reason is looked for
COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")


def _named(_context: click.Context, _argument: click.Parameter, name: N) -> N:
    """The name or the names. Raises UsageError if there is none."""
    if not name:
        raise click.UsageError(_NO_NAME)
    return name


NAME = click.argument("name", type=JobName(), required=False, metavar="NAME", callback=_named)
NAMES = click.argument("names", type=JobName(), nargs=-1, metavar="NAME...", callback=_named)
OPTIONAL_NAME = click.argument("name", type=JobName(), required=False)  # see newest


def newest(kubectl: Kubectl, name: str | None) -> str:
    """The name; without one that of the newest job, which is said. Raises ClientError if there is none."""
    if name:
        return name
    jobs = kubectl.jobs()
    if not jobs:
        raise ClientError(
            "there is no job in this namespace", f"kubectl dtj submit{kubectl.chosen} -- train.py makes one"
        )
    found = max(jobs, key=lambda job: (job["metadata"]["creationTimestamp"], job["metadata"]["name"]))
    click.echo(f"{found['metadata']['name']} is the newest job", err=True)
    return str(found["metadata"]["name"])


def _choose(context: click.Context, option: click.Parameter, value: str | None) -> None:
    """Pass an option on to kubectl; a later one wins, as in kubectl."""
    known = context.obj or Kubectl()
    if value:
        context.obj = Kubectl(options=(*known.options, f"--{option.name}={value}"))
    else:
        context.obj = known


def shown(line: Line) -> str:
    """A line of a log; on a terminal its replica or rank has a colour of its own."""
    number = line.replica if line.rank is None else line.rank
    return f"{click.style(f'{line.replica}|', fg=COLOURS[number % len(COLOURS)])} {line.text}"


def echo(text: str) -> None:
    """Print text, with its colours only on a terminal and without NO_COLOR (no-color.org)."""
    click.echo(text, color=False if os.environ.get("NO_COLOR") else None)


def for_kubectl(command: F) -> F:
    """Add the options that choose a cluster, which users of kubectl write before or after the verb."""
    for names in (("-n", "--namespace"), ("--context",), ("--kubeconfig",)):
        command = click.option(*names, callback=_choose, expose_value=False, help="As in kubectl.")(command)
    return command


def output(*formats: str) -> Callable[[F], F]:
    """Add -o, with kubectl's names of formats."""
    return click.option("-o", "--output", type=click.Choice(formats), help="Print the job in this format.")


class Which(TypedDict, total=False):
    """The lines of a log that are wanted, as Job.logs takes them."""

    replicas: set[int] | None
    ranks: set[int] | None
    since: str
    tail: int | None


def follow_to_the_end(kubectl: Kubectl, name: str, which: Which | None = None) -> int:
    """Print lines until the job has finished; return 1 if it has failed."""
    job, has_begun = Job(name, kubectl), threading.Event()
    says = threading.Thread(target=_say_what_it_waits_for, args=(job, has_begun), daemon=True)
    says.start()
    try:
        for line in job.logs(follow=True, **(which or {})):
            has_begun.set()
            echo(shown(line))
    except KeyboardInterrupt:
        click.echo(f"{name} continues; kubectl dtj stop {name}{kubectl.chosen} ends it", err=True)
        raise
    finally:
        has_begun.set()
        says.join(1)  # its question may be on the way
    return ended(job, err=True)


def _say_what_it_waits_for(job: Job, has_begun: threading.Event) -> None:
    """Until the first line of a log, print each change of the phase and of the pods."""
    before = ("", "", "")
    with contextlib.suppress(ClientError):
        while not has_begun.wait(WAIT_S):
            status = job.status
            message = status.message if status.phase else "the operator has not seen this job yet"
            phase = ": ".join(each for each in (status.phase or "New", message) if each)
            pods = job.kubectl.pods(job.name)
            states = ", ".join(f"{count} {state}" for state, count in Counter(map(pod_state, pods)).items())
            now = (phase, f"pods: {states}" if states else "", of_kubelet(job.kubectl, pods))
            changed = "; ".join(text for text, old in zip(now, before, strict=True) if text not in ("", old))
            if changed and not has_begun.is_set():
                click.echo(plain(f"{job.name}: {changed}"), err=True)
            before = now


def ended(job: Job, *, err: bool = False) -> int:
    """Print how the job ended, and why it failed; return 1 if it has failed."""
    status = Patience().ask(lambda: job.status)  # its last answer may be hours old
    click.echo(f"{job.name}: {status.phase}", err=err)
    if status.phase == "Succeeded":
        return 0
    verb = "status"
    with contextlib.suppress(ClientError):
        try:
            _ = job.manifest
        except GoneError:  # with ttlSecondsAfterFinished
            verb = "events"
    said = [*indented(status.message), f"  kubectl dtj {verb} {job.name}{job.kubectl.chosen} shows more"]
    click.echo("\n".join(said), err=err)
    return 1
