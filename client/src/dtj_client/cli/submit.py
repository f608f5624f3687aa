"""`kubectl dtj submit`: the code of a folder, or a job from a file."""

import json
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from dtj_client.as_yaml import as_yaml
from dtj_client.cli.shared import follow_to_the_end, for_kubectl, output
from dtj_client.kube.kubectl import Json, Kubectl
from dtj_client.progress import bar
from dtj_client.submission import create as submission
from dtj_client.submission import delivery, manifest
from dtj_client.submission.delivery import Delivery
from dtj_client.submission.requirements import read
from dtj_client.submission.template import find, origins

FILE = click.Path()  # the completion of the shell offers files
OF_PROGRAMS_TOO = {"--env", "--file", "-f", "--name", "--output", "-o"}  # options of submit that others have
WITH_A_FILE = ("file", "name", "dry_run", "follow", "output", "command")


class _Submit(click.Command):
    """Tells where the options of `dtj run` stand; click guesses at another option of submit."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words behind `submit`."""
        given = list(args)  # click empties the other one
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            near = get_close_matches(error.option_name, error.possibilities or (), n=1, cutoff=0.8)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise click.UsageError(
                f"No such option: {error.option_name}.{meant} Options of dtj run stand behind its name, such "
                "as: -- dtj run --nproc 4 train.py",
                ctx,
            ) from None
        every = (name for each in self.params for name in each.opts if name.startswith("-"))
        own = set(every) - OF_PROGRAMS_TOO
        program, *words = ctx.params.get("command") or [""]
        if given[: -len(words) - 1][-1:] != ["--"]:
            for word in takewhile(lambda each: each != "--", words):  # what is behind it is the program's
                if (option := word.partition("=")[0]) in own:
                    raise click.UsageError(
                        f"{option} stands behind {program}, so it would be an argument of it: write it "
                        f"before the program; or, if it is one, -- before that: -- {program} ... {word}",
                        ctx,
                    )
        return rest


@click.command(
    cls=_Submit,
    short_help="Run a program of this folder, or a job from a file.",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "-f", "--file", type=FILE, metavar="FILE", help="Submit the job of this YAML file; - is standard input."
)
@click.option(
    "--name", metavar="NAME", help="Name of the job. [default: from the program, with a random end]"
)
@click.option("--replicas", type=click.IntRange(min=1), metavar="N", help="Number of pods. [default: 1]")
@click.option(
    "--gpus",
    metavar="N",
    help="GPUs per pod: of the template's kind, else NVIDIA; or such as amd.com/gpu=8. [default: 0]",
)
@click.option(
    "--cpu", default="", metavar="N", help="CPUs of each pod, such as 4 or 500m: request and limit."
)
@click.option(
    "--memory", default="", metavar="SIZE", help="Memory of each pod, such as 16Gi: request and limit."
)
@click.option(
    "--image",
    default="",
    metavar="IMAGE",
    help="Has what the program imports; for a .py file also dtj. [default: the trainer image]",
)
@click.option(
    "--user",
    type=click.IntRange(min=0),
    metavar="N",
    help="Run as the user of this number, such as 1000; needed if the image's user is root.",
)
@click.option(
    "--env",
    "env",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a variable of the program; may be repeated.",
)
@click.option(
    "--env-from",
    "env_from",
    multiple=True,
    metavar="SOURCE",
    help="Set variables from secret/NAME or configmap/NAME, one: VARIABLE=secret/NAME/KEY; may be repeated.",
)
@click.option(
    "--checkpoints",
    "claim",
    default="",
    metavar="CLAIM",
    help="Mount this PersistentVolumeClaim at /checkpoints.",
)
@click.option(
    "--code-claim",
    default="",
    metavar="CLAIM",
    help="Carry code of more than 900 KiB in this PersistentVolumeClaim. [default: that of --checkpoints]",
)
@click.option(
    "--template",
    metavar="NAME",
    help="Take from this template what no option says; the verb templates lists them.",
)
@click.option("--queue", default="", metavar="QUEUE", help="Wait in this queue of Kueue.")
@click.option(
    "--requirements",
    type=FILE,
    metavar="FILE",
    help="Install these packages in each pod, as pip install -r does.",
)
@click.option("--no-code", is_flag=True, help="Send no code: the image has it.")
@click.option("--dry-run", is_flag=True, help="Create nothing; print what would be created, as YAML.")
@click.option("--follow", is_flag=True, help="Print the logs until the job has finished.")
@output("json", "yaml", "name")
@click.argument("command", nargs=-1, type=FILE, metavar="[PROGRAM [ARGUMENTS]...]")
@for_kubectl
@click.pass_context
def submit(
    context: click.Context,
    /,
    command: tuple[str, ...],
    file: str | None,
    name: str | None,
    dry_run: bool,
    follow: bool,
    output: str | None,
    **given: Any,
) -> int:
    """Run a program with the code of this folder on the cluster, without building an image.

    A Python file runs under `dtj run`; any other program as it is. Options of submit stand before the
    program, its own behind it.

    \b
      kubectl dtj submit --replicas 4 -- train.py --lr 3e-4
      kubectl dtj submit --gpus 8 --follow -- torchrun train.py
      kubectl dtj submit --dry-run -- dtj train my_recipe.py:recipe
      kubectl dtj submit -f job.yaml --name second-try
    """  # noqa: D301
    kubectl: Kubectl = context.obj
    others: list[Json] = []
    if file:
        _refuse_options_of_a_program(context)
        job, others = submission.read_file(file)
        if name:
            job["metadata"] = {**job["metadata"], "name": name}
        kubectl = kubectl.in_namespace(job["metadata"].get("namespace", ""))
        sent = Delivery(job=job)
    else:
        sent = _from_folder(kubectl, command, name=name, dry_run=dry_run, output=output, **given)
    if dry_run:
        code = [sent.config_map] if sent.config_map else []
        click.echo(_text([*others, *code, sent.job], output or "yaml"))
        if sent.place:
            click.echo("--dry-run copies nothing into the claim: submit without this option", err=True)
        return 0
    for each in others:
        click.echo(kubectl.apply(each), err=True)
    stored = delivery.submit(kubectl, sent, bar)
    made = stored["metadata"]["name"]
    click.echo(
        _text([stored], output)
        if output
        else f"submitted {made}; kubectl dtj status {made}{kubectl.chosen} shows it"
    )
    if follow:
        return follow_to_the_end(kubectl, made)
    return 0


def _refuse_options_of_a_program(context: click.Context) -> None:
    """A file has these as fields; to change one of them silently or to ignore the option would surprise."""
    if context.params["command"]:
        raise click.UsageError("-f takes no program: the file has the command")
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name not in WITH_A_FILE and source is ParameterSource.COMMANDLINE and option.expose_value:
            raise click.UsageError(f"{option.opts[-1]} does not go with -f: change the field in the file")


def _from_folder(  # noqa: PLR0913 - the options of a command line
    kubectl: Kubectl,
    command: tuple[str, ...],
    *,
    env: tuple[str, ...],
    template: str | None,
    name: str | None,
    requirements: str | None,
    no_code: bool,
    code_claim: str,
    dry_run: bool,
    output: str | None,
    **given: Any,
) -> Delivery:
    if not command:
        raise click.UsageError("name a program, such as: -- train.py; or a file with a job: -f job.yaml")
    wrong = [each for each in env if "=" not in each[1:]]
    if wrong:
        raise click.UsageError(f"--env {wrong[0]}: write NAME=VALUE")
    request = manifest.Request(
        name=name or manifest.new_name(command[0]),
        command=command,
        env=dict(each.split("=", 1) for each in env),
        requirements=read(requirements, Path.cwd()) if requirements else None,
        **given,
    )
    part = find(kubectl, template).job if template else {}
    sent = delivery.prepare(request, part, Path.cwd(), code=not no_code, claim=code_claim, bar=bar)
    if template and dry_run and output in (None, "yaml"):
        words = manifest.asked(request, with_code=not no_code, template=part)
        for path, origin in origins(sent.job, {"command line": words, f"template {template}": part}):
            click.echo(f"# {path}: {origin}")
    for sentence in (*([] if no_code else [str(sent)]), *sent.notes()):
        click.echo(sentence, err=True)
    return sent


def _text(objects: list[Json], output: str) -> str:
    match output:
        case "name":
            return "\n".join(f"{each['kind'].lower()}/{each['metadata']['name']}" for each in objects)
        case "json":
            whole = (
                objects[0] if len(objects) == 1 else {"apiVersion": "v1", "kind": "List", "items": objects}
            )
            return json.dumps(whole, indent=2)
        case _:
            return as_yaml(*objects)
