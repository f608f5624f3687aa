"""Runs the user's kubectl. Everything that this package asks of the cluster passes here."""

import contextlib
import difflib
import errno
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dtj_client.errors import (
    ClientError,
    ExistsError,
    ForbiddenError,
    GoneError,
    SilentNodeError,
    UnansweredError,
    UnreachableError,
)
from dtj_client.kube.preferences import environment
from dtj_client.kube.stderr import heard
from dtj_client.progress import Progress, ignore

Json = dict[str, Any]
GROUP, VERSION = "dtj.dev", "v1alpha1"
KIND = f"distributedtrainingjobs.{GROUP}"
TRAINER = "trainer"
_OF_THIS_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_NO_ROOM = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE)  # for one more process, such as in a notebook's pod
# With SIGINT ignored, which stays so over exec: Ctrl-C then does not stop what it starts.
_DEAF = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
_BLOCK = 1 << 18  # bytes that are sent between two signs of progress
_COPIED = 200 << 10  # bytes of an object that kubectl apply can copy into an annotation of at most 256 KiB

_NOT_FOUND = re.compile(re.escape(KIND) + r' "(?P<name>[^"]*)" not found')
# Of the libraries in kubectl: a line, or a text of several, which are indented.
_LOGGED = re.compile(r"^[EIW]\d{4} (?:[^\n]*=<\n(?:\t[^\n]*\n)*? >|[^\n]*)\n?", re.MULTILINE)
# That of the kubectl of the Google Cloud CLI is upper case.
_PREFIX = re.compile(r"\A[Ee]rror(?: from server \(BadRequest\))?: ")
# The API server lists errors in lines; one says that rules were not checked because of the others.
_NOT_CHECKED = re.compile(r"\n\* <nil>: Invalid value: null: some validation rules were not checked[^\n]*")
_ONLY_ONE = re.compile(r"(?<= is invalid): \n\* (?=[^\n]*$)")
_CHOOSE = "choose a cluster: kubectl config get-contexts lists them, --context and --kubeconfig name one"
# What kubectl says -> our sentence, the fix, and the class of the error if it is a narrower one.
_EXPLAINED = [
    (re.compile(pattern), message, fix, kind[0] if kind else ClientError)
    for pattern, message, fix, *kind in (
        (
            r"the server doesn't have a resource type|could not find the requested resource"
            rf'|no matches for kind "DistributedTrainingJob" in version "{GROUP}/{VERSION}"',
            "this cluster does not know DistributedTrainingJobs",
            "install the operator, or choose another cluster with --context",
        ),
        (
            r'no matches for kind "(?P<kind>[^"]*)" in version "(?P<version>[^"]*)"',
            "this cluster has no {kind} of {version}",
            f"correct apiVersion and kind (a job is of {GROUP}/{VERSION}), or install what brings them",
        ),
        (
            r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<kind>[^"]*)"',
            "{user} may not {verb} {kind} here",
            "ask for a role that allows {verb} on {kind}, such as edit",
            ForbiddenError,
        ),
        (
            r'context (?:"|was not found for specified context: )(?P<name>[^"\s]+)',
            "there is no context {name} in the kubeconfig",
            "kubectl config get-contexts lists them",
        ),
        (
            r'unknown field "(?P<fields>[^"]*)"',
            "the API of this cluster has no field {fields}",
            "correct the name; or update the operator and its CRD, if they are older than the job",
        ),
        (  # of the CRD's pattern for the amounts of resources and volumes
            r'Invalid value: (?P<value>"[^"]*"): (?P<field>\S+) in body should match .*\[numkMGTPE\]',
            "{field}: {value} is not an amount",
            "write a number, or such as 500m of a CPU, 16Gi or 16G of memory",
        ),
        (  # a rule of the CRD; some have the fix behind a semicolon
            r'The DistributedTrainingJob "[^"]*" is invalid: '
            r"(?P<field>[^\s:*]+): Invalid value: (?:\S+: )?(?P<why>[^;\n]+)(?:; (?P<todo>[^\n]+))?$",
            "{why}",
            "{todo}",
        ),
        (
            r'"(?P<name>[^"]*)" already exists',
            "{name} exists already",
            "choose another name, or delete it first",
            ExistsError,
        ),
        (
            r'namespaces "(?P<name>[^"]*)" not found',
            "there is no namespace {name}",
            "choose one with --namespace; kubectl get namespaces lists them",
        ),
        (
            r"must be logged in to the server|asked for the client to provide credentials",
            "the cluster does not accept the login in the kubeconfig",
            "log in again; kubectl get pods must work",
        ),
        (  # such as gke-gcloud-auth-plugin
            r"getting credentials: exec: executable (?P<name>\S+) not found",
            "kubectl cannot log in without the program {name}, which is not on the PATH",
            "install {name}; kubectl get pods must work",
        ),
        (  # by the program that gets a token, of a cloud or of single sign-on; without a network it fails too
            r"(?s)\A(?P<before>.*?)(?:Unable to connect to the server: )?"
            r"getting credentials: (?P<why>[^\n]+)",
            "kubectl cannot log in: {before}{why}",
            "log in again; kubectl get pods must work",
            UnreachableError,
        ),
        (
            r'Error from server: (?:error dialing backend|Get "https://[^/"]+/containerLogs/[^"]*"): '
            "(?P<why>.+)",
            "the node of the pod gives no answer: {why}",
            "kubectl get nodes shows whether it is Ready; the operator replaces the pods of a lost node",
            SilentNodeError,
        ),
        (
            r'failed calling webhook "(?P<name>[^"]+)": (?P<why>.+)',
            "the cluster's webhook {name} gives no answer: {why}",
            "ask an administrator of the cluster",
        ),
        (
            r"^error: stat (?P<path>.+): no such file or directory",
            "there is no kubeconfig {path}",
            "correct --kubeconfig or the variable KUBECONFIG",
        ),
        (
            r"current-context is not set|current-context must exist",
            "the kubeconfig has no current context",
            "kubectl config use-context NAME chooses one, kubectl config get-contexts lists them",
        ),
        (
            r"localhost:8080",  # where kubectl looks without a kubeconfig
            "kubectl has no kubeconfig that names a cluster",
            "copy that of your cluster to ~/.kube/config, or name it with --kubeconfig or KUBECONFIG",
            UnreachableError,
        ),
        (  # kubectl create advises to switch validation off, which would not help
            r"failed to download openapi: (?P<why>[^;]+)",
            "kubectl cannot reach a cluster: {why}",
            _CHOOSE,
            UnreachableError,
        ),
        (  # the connection ended behind the question; kubectl calls that unable to connect, too
            r"(?:read|write) tcp |http2: |while awaiting headers|: EOF$|handshake timeout",
            "the API server gave no answer: {said}",
            "try again",
            UnansweredError,
        ),
        (
            r"connection refused|was refused|no such host|i/o timeout|no configuration has been provided"
            r"|^Unable to connect to the server",
            "kubectl cannot reach a cluster: {said}",
            _CHOOSE,
            UnreachableError,
        ),
        (
            r"[Tt]oo ?[Mm]any ?[Rr]equests",
            "the API server has too much to do: {said}",
            "try again",
            UnreachableError,
        ),
        (
            r"etcdserver: |currently unable to handle the request"
            r"|connection reset|connection lost|unexpected EOF|Timeout: request did not complete"
            # HTTP 504; and 500 or 502, of a load balancer before API servers that restart
            r"|in the time allotted|prevented the request from succeeding",
            "the API server gave no answer: {said}",
            "try again",
            UnansweredError,
        ),
    )
]


@dataclass(frozen=True, kw_only=True)
class Kubectl:
    """kubectl with the options that choose cluster and namespace.

    options   such as --context=a and --namespace=b; kubectl's own defaults without them
    program   name or path of kubectl
    """

    options: tuple[str, ...] = ()
    program: str = "kubectl"

    def __post_init__(self) -> None:
        """Raise ClientError on Windows, which lacks what reading from several processes needs."""
        if sys.platform == "win32":
            raise ClientError("the client does not run on Windows itself", "install and run it in WSL")

    def command(self, *words: str) -> list[str]:
        """Return the whole command line. Raises ClientError if there is no kubectl."""
        found = shutil.which(self.program)
        if found is None:
            raise ClientError(
                "kubectl is not on the PATH", "install kubectl; kubectl dtj uses its logins and contexts"
            )
        return [found, *self.options, *words]

    @property
    def _given(self) -> dict[str, str]:
        """The options by name; the last one of a name counts."""
        return dict(each.removeprefix("--").split("=", 1) for each in self.options)

    @property
    def chosen(self) -> str:
        """The user's options, for a command that may be copied: " --namespace team"; or nothing."""
        return "".join(f" --{name} {shlex.quote(value)}" for name, value in self._given.items())

    def in_namespace(self, namespace: str) -> "Kubectl":
        """Return a kubectl for this namespace, unless it is empty or the user chose one."""
        return self if "namespace" in self._given or not namespace else self.elsewhere(namespace)

    def elsewhere(self, namespace: str) -> "Kubectl":
        """Return a kubectl for this namespace, whatever the user chose."""
        return replace(self, options=(*self.options, f"--namespace={namespace}"))  # the last one wins

    def start(
        self, *words: str, as_preferred: bool = False, is_deaf: bool = False, **how: Any
    ) -> "subprocess.Popen[bytes]":
        """Start kubectl; `how` is for Popen. Raises ClientError if that is impossible.

        as_preferred  with the options that the user has set in kuberc
        is_deaf       Ctrl-C does not stop it
        """
        command = [*(_DEAF if is_deaf else ()), *self.command(*words)]
        try:
            return subprocess.Popen(command, env=None if as_preferred else environment(), **how)
        except OSError as error:
            fix = "end other programs, or follow fewer replicas" if error.errno in _NO_ROOM else ""
            raise ClientError(f"kubectl cannot be started: {error.strerror}", fix) from error

    def run(self, *words: str, given: str | None = None) -> str:
        """Return what kubectl prints; `given` is its standard input. Raises ClientError if it fails."""
        # A command with an input changes the cluster: what became of it should be known. In a session of its
        # own, a program that logs the user in could not ask on the terminal.
        with (
            heard() as said,
            self.start(
                *words,
                as_preferred=words[0] == "apply",  # the user's own objects
                stdin=None if given is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said.fileno(),
                is_deaf=given is not None,
            ) as process,
        ):
            try:
                out, _ = process.communicate(None if given is None else given.encode())
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            raise self.error(said.text)
        return out.decode(errors="replace")  # as text, Python would read \r as the end of a line

    def send(self, data: bytes, *words: str, progress: Progress = ignore) -> None:
        """Run kubectl with the bytes as its standard input. Raises ClientError if it fails."""
        with (
            heard() as said,
            self.start(
                *words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said.fileno()
            ) as process,
        ):
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has failed, or needs no more
                for start in range(0, len(data), _BLOCK):
                    process.stdin.write(data[start : start + _BLOCK])
                    progress(min(start + _BLOCK, len(data)), len(data))
            process.communicate()
        if process.returncode:
            raise self.error(said.text)

    def may(self, verb: str, kind: str) -> bool:
        """Whether the user has a right in the namespace, such as to get pods/log.

        Raises ClientError if kubectl cannot say.
        """
        kind, _, part = kind.partition("/")  # kubectl takes what follows a slash for the name of an object
        options = [f"--subresource={part}"] if part else []
        words = ("auth", "can-i", verb, kind, *options)
        with self.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            out, said = process.communicate()
        if process.returncode and not out.startswith(b"no"):
            raise self.error(said)
        return process.returncode == 0

    def namespace(self) -> str:
        """The chosen namespace; in a pod without a kubeconfig that of the pod, as for kubectl."""
        if given := self._given.get("namespace"):
            return given
        try:
            field = "jsonpath={.contexts[0].context.namespace}"
            return self.run("config", "view", "--minify", "-o", field) or "default"
        except ClientError:
            if not _OF_THIS_POD.is_file():
                raise
            return _OF_THIS_POD.read_text()

    def context(self) -> str:
        """The chosen context; empty if there is none, as within a cluster."""
        try:
            return self._given.get("context") or self.run("config", "current-context").strip()
        except ClientError:
            return ""

    def show(self, *words: str) -> None:
        """Let kubectl print to the terminal. Raises ClientError if it fails, BrokenPipeError if no one reads.

        Its notes, such as that there is nothing to list, come last.
        """
        with heard() as said, self.start(*words, as_preferred=True, stderr=said.fileno()) as process:
            process.wait()
        if process.returncode == -signal.SIGPIPE:  # as in: kubectl dtj get -o yaml | head
            raise BrokenPipeError(errno.EPIPE, "the reader has closed the pipe")
        if process.returncode:
            raise self.error(said.text)
        said.show()

    def job(self, name: str) -> Json:
        """Return a job."""
        return self._object("get", KIND, name, "-o", "json")

    def jobs(self) -> list[Json]:
        """Return all jobs in the namespace."""
        return self.items(KIND)

    def job_names(self) -> list[str]:
        """Return the names of all jobs in the namespace."""
        return [line.partition("/")[2] for line in self.run("get", KIND, "-o", "name").split()]

    def pods(self, name: str) -> list[Json]:
        """Return the pods of a job, by index."""
        found = {index_of(pod, name): pod for pod in self.labelled("pods", selector(name))}
        return [pod for index, pod in sorted(found.items()) if index >= 0]

    def labelled(self, kind: str, selector: str) -> list[Json]:
        """Return the objects of a kind that a label selector matches."""
        return self.items(kind, f"--selector={selector}")

    def items(self, kind: str, *options: str) -> list[Json]:
        """Return the objects of a kind."""
        found: list[Json] = self._object("get", kind, *options, "-o", "json")["items"]
        return found

    def create(self, manifest: Json) -> Json:
        """Create an object and return it as the API server stored it."""
        return self._object("create", "-f", "-", "-o", "json", given=json.dumps(manifest))

    def apply(self, manifest: Json) -> str:
        """Create an object or change it; return what kubectl says about it."""
        text = json.dumps(manifest)
        how = ["--server-side"] if len(text) > _COPIED else []
        return self.run("apply", *how, "-f", "-", given=text).strip()

    def delete(self, kind: str, name: str) -> None:
        """Delete an object, without waiting until it is gone."""
        self.run("delete", kind, name, "--wait=false")

    def patch(self, kind: str, name: str, change: Json) -> None:
        """Merge a change into an object."""
        self.run("patch", kind, name, "--type=merge", "-p", json.dumps(change))

    def _object(self, *words: str, given: str | None = None) -> Json:
        answer: Json = json.loads(self.run(*words, given=given))
        return answer

    def error(self, stderr: bytes) -> ClientError:
        """What kubectl said, in one sentence, with the fix if it is known."""
        return self._error(stderr.decode(errors="replace").strip())

    def _error(self, said: str) -> ClientError:
        # A program that logs the user in is run several times, and says the same each time.
        said = "\n".join(dict.fromkeys(_LOGGED.sub("", said).splitlines()))
        said = _ONLY_ONE.sub(": ", _NOT_CHECKED.sub("", said))
        if missing := _NOT_FOUND.search(said):
            return GoneError(
                f"there is no job {missing['name']} in this namespace", self._near(missing["name"])
            )
        for pattern, message, fix, kind in _EXPLAINED:
            if found := pattern.search(said):
                words = {"said": said, **found.groupdict("")}
                if "fields" in words:  # of all matches
                    words["fields"] = ", ".join(each["fields"] for each in pattern.finditer(said))
                return kind(message.format_map(words), fix.format_map(words))
        return ClientError(_PREFIX.sub("", said) or "kubectl failed without a message")

    def _near(self, name: str) -> str:
        try:
            near = difflib.get_close_matches(name, self.job_names())
        except ClientError:  # no right to list them
            near = []
        return (
            f"did you mean {' or '.join(near)}?" if near else f"kubectl dtj get{self.chosen} lists the jobs"
        )


def selector(job: str, replicas: Collection[int] | None = None) -> str:
    """What selects the pods of a job; None: of all its replicas."""
    chosen = "" if replicas is None else f",dtj.dev/replica-index in ({','.join(map(str, sorted(replicas)))})"
    return f"dtj.dev/job-name={job}{chosen}"


def phase_of(pod: Json) -> str:
    """Phase of a pod; empty if the API server has none yet."""
    return str((pod.get("status") or {}).get("phase") or "")


def index_of(pod: Json, job: str) -> int:
    """Index of a pod's replica; -1 for other pods with the job's label, such as a copy for debugging."""
    end = str(pod["metadata"]["name"]).removeprefix(f"{job}-")
    return int(end) if end.isdecimal() else -1


def container_of(job: Json) -> str:
    """The container that runs the ranks: as in the contract, the one with this name, else the first."""
    names = [str(each["name"]) for each in job["spec"]["template"]["spec"]["containers"]]
    return TRAINER if TRAINER in names else names[0]


def parse_indices(text: str) -> set[int]:
    """The replicas or ranks of a list such as 0-3,7. Raises ClientError."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)  # more would fill the memory
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else ()
        if not numbers:
            raise ClientError(f"{text!r} is not a list of numbers", "write numbers and ranges, such as 0-3,7")
        found.update(numbers)
    return found


def replicas_of(job: Json, wanted: set[int] | None) -> Sequence[int]:
    """The replicas to show. Raises ClientError for one that the job does not have."""
    every = range(int(job["spec"].get("replicas", 1)))
    unknown = sorted((wanted or set()) - set(every))
    if unknown:
        last = every[-1] if every else 0
        raise ClientError(f"job {job['metadata']['name']} has no replica {unknown[0]}", f"it has 0 to {last}")
    return every if wanted is None else sorted(wanted)
