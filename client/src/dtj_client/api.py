"""The verbs of `kubectl dtj` for Python programs and notebooks."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType

from dtj_client.errors import ClientError
from dtj_client.job import Job
from dtj_client.kube.kubectl import Kubectl
from dtj_client.submission import delivery, manifest
from dtj_client.submission.function import as_program
from dtj_client.submission.requirements import read
from dtj_client.submission.template import Template, available, find


def cluster(*, namespace: str = "", context: str = "", kubeconfig: str = "") -> Kubectl:
    """Choose a cluster and a namespace as kubectl's options of these names do."""
    given = {"namespace": namespace, "context": context, "kubeconfig": kubeconfig}
    return Kubectl(options=tuple(f"--{name}={value}" for name, value in given.items() if value))


def submit(  # noqa: PLR0913 - the options of a command line
    program: str | Path | Callable[..., object],
    *arguments: object,
    name: str = "",
    replicas: int | None = None,
    gpus: int | str | None = None,
    cpu: str | float = "",
    memory: str | int = "",
    image: str = "",
    user: int | None = None,
    env: Mapping[str, object] | None = None,
    env_from: str | Sequence[str] = (),
    checkpoints: str = "",
    code_claim: str = "",
    queue: str = "",
    template: str = "",
    requirements: str = "",
    folder: str | Path | None = None,
    code: bool = True,
    kubectl: Kubectl | None = None,
) -> Job:
    """Run a program or a function on each replica of a new job, and return the job. Raises ClientError.

    Warns of files of the folder that are not sent: links, what looks like a secret, and what .gitignore
    matches, other than caches. Warns too if it writes `processesPerReplica: 1`, because the command starts
    one process.

    program      a file such as train.py, another command, or a function: its source is sent, and what it
                 returns is dropped
    arguments    of the program; of a function: numbers, strings, and lists and dictionaries of these
    name         of the job; empty: from the program, with a random end
    replicas     None: as in the template, else 1
    gpus         per pod, such as 8 or "amd.com/gpu=8"; None: as in the template, else CPUs only
    cpu, memory  of each pod, such as 4 and "16Gi": request and limit; empty: as in the template
    image        empty: as in the template, else the trainer image
    user         number of a user that runs it; None: as in the template, else the image's, unless it is root
    env          variables of the program; a value that is not a string is written as one
    env_from     more of them: "secret/NAME" or "configmap/NAME", or one: "VARIABLE=secret/NAME/KEY"
    checkpoints  PersistentVolumeClaim for checkpoints
    code_claim   PersistentVolumeClaim for code of more than 900 KiB; empty: that of checkpoints
    queue        queue of Kueue
    template     fills in what is not given here
    requirements  file within the folder whose packages each pod installs
    folder       whose files go along; for a program by default the current one, for a function none
    code         False: the image has the code
    kubectl      the cluster, as `cluster` returns it; kubectl's own default without it
    """
    words = {
        "name": name,
        "image": image,
        "checkpoints": checkpoints,
        "code_claim": code_claim,
        "queue": queue,
        "template": template,
        "requirements": requirements,
    }
    for argument, value in words.items():
        _check(argument, value, str, "a string")
    _check("replicas", replicas, (int, NoneType), "a whole number, or None")
    _check("user", user, (int, NoneType), "the number of a user, or None")
    _check("env", env, (Mapping, NoneType), "a dictionary, or None")
    _check("env_from", env_from, (str, list, tuple), "a string, or a list of strings")
    _check("folder", folder, (str, Path, NoneType), "a path, or None")
    kubectl = kubectl or Kubectl()
    extra: dict[str, str] = {}
    if callable(program):
        file = f"run_{program.__name__}.py"
        extra[file] = as_program(program, *arguments, with_folder=folder is not None)
        command = [file]
    else:
        _check("program", program, (str, Path), "a file, another command, or a function")
        command = [str(program), *map(str, arguments)]
        folder = folder or "."
    request = manifest.Request(
        name=name or manifest.new_name(command[0].removeprefix("run_") if extra else command[0]),
        command=command,
        replicas=replicas,
        gpus=gpus,
        cpu=str(cpu),
        memory=str(memory),
        image=image,
        user=user,
        env_from=[env_from] if isinstance(env_from, str) else env_from,
        env={variable: str(value) for variable, value in (env or {}).items()},
        claim=checkpoints,
        queue=queue,
        requirements=read(requirements, Path(folder or ".")) if requirements else None,
    )
    part = find(kubectl, template).job if template else {}
    where = None if folder is None else Path(folder)
    sent = delivery.prepare(request, part, where, extra, code=code, claim=code_claim)
    for sentence in sent.notes():
        warnings.warn(sentence, stacklevel=2)
    stored = delivery.submit(kubectl, sent)
    return Job(stored["metadata"]["name"], kubectl)


def _check(argument: str, value: object, kinds: type | tuple[type, ...], expected: str) -> None:
    """ClientError if an argument has another type."""
    if not isinstance(value, kinds):
        raise ClientError(f"{argument} is {value!r}", f"pass {expected}")


def get(kubectl: Kubectl | None = None) -> list[Job]:
    """Return the jobs of the namespace. Raises ClientError."""
    kubectl = kubectl or Kubectl()
    return [Job(name, kubectl) for name in kubectl.job_names()]


def templates(kubectl: Kubectl | None = None) -> list[Template]:
    """Return what submit takes as a template: of the namespace, and the shared ones. Raises ClientError."""
    return available(kubectl or Kubectl())[0]
