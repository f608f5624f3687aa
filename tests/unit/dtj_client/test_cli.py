"""How the command line is read."""

import contextlib
import errno
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import yaml

from dtj_client.cli.commands import main
from dtj_client.cli.shared import Duration, ended
from dtj_client.doctor.checks import TRY, Finding, Result
from dtj_client.errors import ClientError, ForbiddenError, GoneError, UnreachableError
from dtj_client.job import Job, Status
from dtj_client.kube.kubectl import Json, Kubectl
from dtj_client.show.logs import Line
from dtj_client.submission.template import Template


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_windows_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert run("get") == 1
    assert capsys.readouterr().err == (
        "error: the client does not run on Windows itself\n  fix: install and run it in WSL\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit", "--replcas", "4", "--", "train.py"], "option: --replcas. Did you mean --replicas?"),
        (["submit", "--nproc=4", "--", "train.py"], "--nproc. Options of dtj run stand behind its name"),
        (["submit", "--dry-run"], "name a program"),
        (["submit", "train.py", "--lr=1", "--dry-run"], "--dry-run stands behind train.py, so it would be"),
        (["submit", "--gpus", "2", "train.py", "--replicas=2"], "--replicas stands behind train.py"),
        (["submit", "train.py", "-n", "team"], "-n stands behind train.py"),
        (["submit", "--env", "=1", "--", "train.py"], "--env =1: write NAME=VALUE"),
        (["submit", "-f", "job.yaml", "--", "train.py"], "the file has the command"),
        (["submit", "-f", "job.yaml", "--gpus", "2"], "--gpus does not go with -f"),
        (
            ["wait", "digits", "--timeout=10 minutes"],
            "'10 minutes' is not a duration: write seconds, or such as",
        ),
        (["wait", "digits", "--timeout=-1"], "'-1' is not a duration"),
        (["logs", "digits", "--previous", "--rank", "0"], "--previous goes with no other option"),
        (["logs", "digits", "--previous", "--tail", "0"], "--previous goes with no other option"),
        (["logs", "digits", "--tail", "9", "--rank", "0"], "--tail counts the lines of a replica"),
        (["logs", "digits", "-f", "--since", "5x"], "'5x' is not a duration"),
        (["delete"], "name the job; kubectl dtj get lists them"),
        (["stop"], "name the job; kubectl dtj get lists them"),
        (["doctor", "--template", "h100"], "--image and --template go with --try"),
        (["delete", "a", ""], "name the job; kubectl dtj get lists them"),
        (["wait", ""], "name the job; kubectl dtj get lists them"),  # not the newest one: as $JOB, not set
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert run(*words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("0", 0), ("1.5", 1.5), ("90s", 90), ("1h30m", 5400), ("1d", 86400)]
)
def test_timeout_is_a_duration(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


def test_help_is_a_whole_sentence_a_verb(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run("--help") == 0
    _, verbs = capsys.readouterr().out.split("Commands:\n")
    assert not [line for line in verbs.splitlines() if not line.endswith(".") or line.endswith("...")]


def test_dry_run_of_a_file_takes_the_name_of_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("submit", "-f", "examples/checkpointed.yaml", "--name", "second", "--dry-run") == 0
    claim, job = yaml.safe_load_all(capsys.readouterr().out)
    (given,) = [
        each
        for each in yaml.safe_load_all(Path("examples/checkpointed.yaml").read_text())
        if each["kind"] == "DistributedTrainingJob"
    ]
    assert claim["metadata"]["name"] == "checkpointed"
    assert job == {**given, "metadata": {"name": "second"}}


@pytest.mark.parametrize("words", [("--", "train.py", "--gpus=2"), ("train.py", "--", "--gpus=2")])
def test_option_of_the_program_may_have_the_name_of_one_of_submit(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("submit", "--no-code", "--dry-run", *words) == 0
    job = yaml.safe_load(capsys.readouterr().out)
    (trainer,) = job["spec"]["template"]["spec"]["containers"]
    assert trainer["command"][-1] == "--gpus=2"
    assert "resources" not in trainer


TEMPLATE = "spec: {template: {spec: {containers: [{name: trainer, image: me/train:1}]}}}"


@pytest.mark.parametrize("options", [(), ("-o", "yaml"), ("-o", "json")])
def test_dry_run_says_what_would_go_along_and_where_each_field_comes_from(
    options: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    part = Template(name="a", shared=False, description="", text=TEMPLATE)
    monkeypatch.setattr("dtj_client.cli.submit.find", lambda _kubectl, _name: part)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / ".env").touch()
    for number in range(12):
        (tmp_path / f"link{number:02}").symlink_to("train.py")
    assert run("submit", "--template=a", "--dry-run", *options, "train.py", "--lr", "1") == 0
    shown = capsys.readouterr()
    assert shown.err == (
        "sending 1 file, 0 KiB, in a ConfigMap\nnot sent, because they look like secrets: .env\n"
        f"not sent, because they are links: {', '.join(f'link{n:02}' for n in range(10))} and 2 more\n"
    )
    origin = "# spec.template.spec.containers[trainer].image: template a\n"
    assert (origin in shown.out) is ("json" not in options)
    *_, made = yaml.safe_load_all(shown.out)
    job = made["items"][1] if "json" in options else made
    (trainer,) = job["spec"]["template"]["spec"]["containers"]
    assert trainer["command"] == ["dtj", "run", "train.py", "--lr", "1"]


@pytest.mark.parametrize(
    ("created", "code", "said"),
    [
        ({"b": "2026-01-02T00:00:00Z", "a": "2026-01-01T00:00:00Z"}, 0, "b is the newest job\n"),
        ({}, 1, "error: there is no job in this namespace\n  fix: kubectl dtj submit"),
    ],
)
def test_verb_that_only_reads_takes_the_newest_job(
    created: dict[str, str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [{"metadata": {"name": name, "creationTimestamp": at}} for name, at in created.items()]
    monkeypatch.setattr(Kubectl, "jobs", lambda _: jobs)
    monkeypatch.setattr(Job, "report", lambda job: f"report of {job.name}")
    assert run("status") == code
    shown = capsys.readouterr()
    assert shown.err.startswith(said)
    assert shown.out == ("report of b\n" if created else "")


@pytest.mark.parametrize("kind", ["distributedtrainingjob", "distributedtrainingjobs.dtj.dev", "dtj"])
def test_job_is_named_as_kubectl_and_submit_print_it(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Job, "report", lambda job: f"report of {job.name}")
    assert run("status", f"{kind}/digits") == 0
    assert capsys.readouterr().out == "report of digits\n"


def test_letters_that_the_locale_lacks_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    monkeypatch.setattr(Job, "report", lambda _job: "caf\u00e9 \u2588\u2588")
    assert run("status", "digits") == 0
    sys.stdout.flush()
    assert written.getvalue() == b"caf\xe9 ??\n"


QUEUED = {"type": "Suspended", "status": "True", "reason": "Queued", "message": "the job waits in queue a"}


@pytest.mark.parametrize(
    ("suspend", "conditions", "said"),
    [
        (True, [], "resumed"),
        (False, [], "is not suspended"),
        (False, [QUEUED], "is not suspended by a user: the job waits in queue a"),
    ],
)
def test_job_that_is_held_by_its_queue_is_not_called_resumed(
    suspend: bool,
    conditions: list[Json],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Job, "resume", lambda _job: None)
    job = {"spec": {"suspend": suspend}, "status": {"conditions": conditions}}
    monkeypatch.setattr(Job, "manifest", job)
    assert run("resume", "digits") == 0
    assert capsys.readouterr().out == f"digits: {said}\n"


@pytest.mark.parametrize("words", [("suspend",), ("resume",), ("scale", "4")])
def test_job_that_has_finished_is_not_steered(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Job, "manifest", {"spec": {}, "status": {"phase": "Succeeded"}})
    assert run(words[0], "digits", *words[1:]) == 1
    assert capsys.readouterr().err == "error: digits has succeeded\n  fix: submit it again as a new job\n"


UNSAVED = "it has no spec.checkpoint: its 7 steps are lost, unless the program saves elsewhere"


@pytest.mark.parametrize(
    ("verb", "done"), [("delete", "deleted"), ("suspend", f"suspended; {UNSAVED}"), ("resume", "resumed")]
)
def test_several_jobs_are_changed_although_one_cannot_be(
    verb: str, done: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(job: Job) -> None:
        if job.name == "lost":
            raise GoneError("there is no job lost in this namespace")

    job = {"spec": {"suspend": verb == "resume"}, "status": {"phase": "Running", "step": "7/9"}}
    monkeypatch.setattr(Job, "manifest", job)
    monkeypatch.setattr(Job, verb, change)
    yes = ["--yes"] if verb == "delete" else []
    assert run(verb, *yes, "digits", "text", "lost", "last") == 1
    said = capsys.readouterr()
    assert said.out == f"digits: {done}\ntext: {done}\nlast: {done}\n"
    assert said.err == "error: there is no job lost in this namespace\n"


def test_other_jobs_are_left_alone_if_the_cluster_does_not_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete(_job: Job) -> None:
        raise UnreachableError("no answer")

    monkeypatch.setattr(Job, "manifest", {"spec": {}, "status": {}})
    monkeypatch.setattr(Job, "delete", delete)
    assert run("delete", "--yes", "digits", "text") == 1
    assert capsys.readouterr().err == "error: no answer\n"


@pytest.mark.parametrize(
    ("checkpoint", "replicas", "more"),
    [
        (None, 3, "; it grows once it can save, and it has no spec.checkpoint"),
        (None, 5, f"; {UNSAVED}"),
        ({"volume": {}}, 5, ""),
    ],
)
def test_scaling_says_what_a_job_that_cannot_save_loses(
    checkpoint: Json | None,
    replicas: int,
    more: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Job, "scale", lambda _job, _replicas: None)
    job = {
        "spec": {"checkpoint": checkpoint, "replicas": replicas},
        "status": {"phase": "Running", "step": "7/9"},
    }
    monkeypatch.setattr(Job, "manifest", job)
    assert run("scale", "digits", "4") == 0
    assert capsys.readouterr().out == f"digits: asked for 4 replicas{more}\n"


def test_log_without_a_line_says_what_the_pods_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status = {"initContainerStatuses": [{"name": "packages", "state": {"running": {}}}]}
    monkeypatch.setattr(Job, "logs", lambda _job, **_options: iter(()))
    monkeypatch.setattr(Kubectl, "pods", lambda _kubectl, _name: [{"metadata": {}, "status": status}] * 2)
    assert run("logs", "digits") == 0
    assert capsys.readouterr().err.startswith(
        "no lines so far; pods: packages runs; kubectl dtj status digits"
    )


@pytest.mark.parametrize(
    ("world", "why"),
    [(4, "only programs under dtj do"), (2, "the job has 0 to 1 at this moment"), (None, "only programs")],
)
def test_log_without_a_line_of_a_rank_says_why(
    world: int | None, why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An elastic job may have fewer ranks now than it can have."""
    monkeypatch.setattr(Job, "logs", lambda _job, **_options: iter(()))
    monkeypatch.setattr(Job, "manifest", {"status": {"worldSize": world}})
    assert run("logs", "digits", "--rank", "3") == 0
    assert capsys.readouterr().err.startswith(f"no line names these ranks: {why}")


@pytest.mark.parametrize("follow", [[], ["-f"]])
def test_last_lines_are_what_kubectl_is_asked_for(
    follow: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_kubectl: Kubectl, _pods: object, _job: object, *flags: str, **_: object) -> Iterator[Line]:
        yield Line("", 0, flags[-1])

    pod = {"metadata": {"name": "digits-0"}}
    spec = {"template": {"spec": {"containers": [{"name": "trainer"}]}}}
    monkeypatch.setattr(Job, "manifest", {"spec": spec, "status": {"phase": "Succeeded"}})
    monkeypatch.setattr(Kubectl, "pods", lambda *_: [pod])
    monkeypatch.setattr("dtj_client.job.snapshot", read)
    monkeypatch.setattr("dtj_client.job.follow_job", lambda *given, **_: read(*given))
    assert run("logs", "digits", "--tail", "9", *follow) == 0
    assert click.unstyle(capsys.readouterr().out) == "0| --tail=9\n"


def test_follow_says_what_it_waits_for_until_the_first_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = iter(["", "0 of 2 pods are scheduled", "0 of 2 pods are scheduled", "pull access denied"])
    shown = threading.Event()

    def job(_kubectl: Kubectl, _name: str) -> dict[str, object]:
        message = next(messages, None)
        if message is None:
            shown.set()
        if message == "":  # no operator has seen it
            return {}
        return {"status": {"phase": "Pending", "message": message or "pull access denied"}}

    def logs(_job: Job, **_options: object) -> Iterator[Line]:
        assert shown.wait(60)
        yield Line("2026-01-01T00:00:00Z", 0, "first")

    pods = [{"metadata": {}, "status": {"phase": "Pending"}}] * 2
    monkeypatch.setattr("dtj_client.cli.shared.WAIT_S", 0)
    monkeypatch.setattr(Kubectl, "job", job)
    monkeypatch.setattr(Kubectl, "pods", lambda _kubectl, _name: pods)
    monkeypatch.setattr(Job, "logs", logs)
    assert run("logs", "-f", "digits") == 1
    said = capsys.readouterr()
    assert said.out == "0| first\n"
    assert said.err.splitlines()[:3] == [
        "digits: New: the operator has not seen this job yet; pods: 2 Pending",
        "digits: Pending: 0 of 2 pods are scheduled",
        "digits: Pending: pull access denied",
    ]


def test_ctrl_c_while_following_says_that_the_job_continues(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_job: Job, **_options: object) -> Iterator[Line]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "logs", interrupt)
    assert run("logs", "-f", "digits") == 130
    assert capsys.readouterr().err.startswith("digits continues; kubectl dtj stop digits ends it\n")


def test_end_of_a_failed_job_says_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = {"phase": "Failed", "message": "init container packages: no such package"}
    monkeypatch.setattr(Kubectl, "job", lambda _kubectl, _name: {"status": failed})
    assert run("wait", "digits") == 1
    assert capsys.readouterr().out.startswith("digits: Failed\n  init container packages: no such package\n")


def test_end_is_asked_for_again_if_there_is_no_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[str | None] = ["Succeeded", None, "Succeeded"]

    def job(*_: object) -> dict[str, dict[str, str]]:
        if (phase := answers.pop(0)) is None:
            raise UnreachableError("the API server gave no answer")
        return {"status": {"phase": phase}}

    monkeypatch.setattr(Kubectl, "job", job)
    monkeypatch.setattr("dtj_client.errors._RETRY_S", 0.0)
    assert run("wait", "digits") == 0
    assert capsys.readouterr().out == "digits: Succeeded\n"


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> list[ClientError | None]:
    """A running job without pods; the list says what its deletions raise."""
    errors: list[ClientError | None] = []

    def delete(*_: object) -> None:
        if errors and (error := errors.pop(0)):
            raise error

    monkeypatch.setattr(Job, "manifest", {"spec": {}, "status": {"phase": "Running"}})
    monkeypatch.setattr(Job, "suspend", lambda _: None)
    monkeypatch.setattr(Kubectl, "pods", lambda *_: [])
    monkeypatch.setattr(Kubectl, "delete", delete)
    monkeypatch.setattr("dtj_client.errors._RETRY_S", 0.0)
    return errors


@pytest.mark.parametrize("then", [None, GoneError("there is no job digits")])
def test_stop_deletes_again_if_there_is_no_answer(
    then: ClientError | None, stopping: list[ClientError | None]
) -> None:
    stopping[:] = [UnreachableError("no answer"), then]
    assert run("stop", "--yes", "digits") == 0
    assert not stopping


def test_stop_that_may_not_delete_says_that_the_job_is_suspended(
    stopping: list[ClientError | None], capsys: pytest.CaptureFixture[str]
) -> None:
    stopping[:] = [ForbiddenError("alice may not delete it here")]
    assert run("stop", "--yes", "digits") == 1
    said = "error: alice may not delete it here; job digits is suspended and was not deleted\n  fix: kubectl"
    assert capsys.readouterr().err.startswith(said)


def test_ctrl_c_during_stop_says_that_the_job_stays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_job: Job, _timeout: float | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "stop", interrupt)
    monkeypatch.setattr(Job, "manifest", {"spec": {}, "status": {"phase": "Succeeded"}})
    assert run("stop", "digits") == 130
    assert capsys.readouterr().err.startswith("digits: not deleted; if it is suspended, kubectl dtj resume")


@pytest.mark.parametrize(("number", "is_full"), [(errno.ENOSPC, True), (errno.EBADF, False)])
def test_output_on_a_full_disk(
    number: int, is_full: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `kubectl dtj logs >file` on a full disk."""

    def report(_self: Job) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Job, "report", report)
    with contextlib.nullcontext() if is_full else pytest.raises(OSError, match="Bad file"):
        assert run("status", "digits") == 1
        assert capsys.readouterr().err == "error: cannot write: No space left on device\n"


def test_reader_that_has_enough_is_not_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `kubectl dtj get -o yaml | head`: the signal ends kubectl."""
    monkeypatch.setattr(Kubectl, "command", lambda _self, *words: list(words))
    ended = SimpleNamespace(returncode=-signal.SIGPIPE, wait=lambda: None)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: contextlib.nullcontext(ended))
    assert run("get", "-o", "yaml") == 1
    assert capsys.readouterr().err == ""


def test_live_table_outlasts_a_cluster_that_gives_no_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[str | BaseException] = ["digits", UnreachableError("a"), "text", KeyboardInterrupt()]

    def jobs(_: Kubectl) -> list[dict[str, dict[str, str]]]:
        if isinstance(answer := answers.pop(0), BaseException):
            raise answer
        return [{"metadata": {"name": answer}}]

    monkeypatch.setattr(Kubectl, "jobs", jobs)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert run("top") == 130
    lines = click.unstyle(capsys.readouterr().out).splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "digits", "the", "NAME", "digits", "NAME", "text"]


def test_doctor_that_tries_does_not_advise_to_try(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trial(_kubectl: Kubectl, _image: str, _template: Json | None) -> Iterator[Finding]:
        yield Finding(Result.GOOD, "tried")

    def examine(_kubectl: Kubectl) -> Iterator[Finding]:
        yield from (Finding(Result.UNKNOWN, "network", TRY), Finding(Result.UNKNOWN, "queues", "ask"))

    monkeypatch.setattr("dtj_client.cli.commands.examine", examine)
    monkeypatch.setattr("dtj_client.cli.commands.trial", trial)
    for options, said in (([], ["network", "queues"]), (["--try"], ["queues", "tried"])):
        assert run("doctor", *options) == 0
        lines = [line.split()[-1] for line in capsys.readouterr().out.splitlines() if "fix:" not in line]
        assert lines == said


@pytest.mark.parametrize("verb", ["delete", "stop"])
def test_verb_that_is_not_confirmed_says_how_to_do_without_a_question(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Job, "manifest", {"spec": {}, "status": {"phase": "Running", "step": "7/9"}})
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert run(verb, "digits") == 130
    said = capsys.readouterr()
    assert said.out.startswith(f"digits is Running; {UNSAVED}; ")
    assert said.err == "\ndigits: not confirmed, nothing was done; --yes does not ask\n"


def test_script_with_a_comment_in_latin_1_is_converted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "job.sh").write_bytes(
        b"#!/bin/sh\r\n#SBATCH --nodes=2\r\n# gr\xfc\xdfe\r\nsrun python \\\r\n  a.py\r\n"
    )
    assert run("convert", str(tmp_path / "job.sh")) == 0
    (job,) = yaml.safe_load_all(capsys.readouterr().out)
    assert job["spec"]["replicas"] == 2
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["python", "a.py"]


def test_ui_without_its_packages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "dtj_client.ui.server", raising=False)
    assert run("ui") == 1
    said = capsys.readouterr().err
    assert said.startswith("error: kubectl dtj ui needs the package uvicorn\n  fix: pip install")


@pytest.mark.parametrize(("kept", "code"), [("LAST SEEN ...", 0), ("", 1)])
def test_events_of_a_deleted_job_are_shown_if_there_are_some(
    kept: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(_kubectl: Kubectl, name: str) -> None:
        raise GoneError(f"there is no job {name} in this namespace")

    shown: list[tuple[str, ...]] = []
    monkeypatch.setattr(Kubectl, "job", gone)
    monkeypatch.setattr(Kubectl, "run", lambda *_: kept)
    monkeypatch.setattr(Kubectl, "show", lambda _, *words: shown.append(words))
    assert run("events", "digits") == code
    assert shown == ([] if code else [("events", "--for=distributedtrainingjobs.dtj.dev/digits")])
    assert ("there is no job digits" in capsys.readouterr().err) is bool(code)


def test_end_of_a_deleted_job_points_at_its_events(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(_kubectl: Kubectl, name: str) -> None:
        raise GoneError(f"there is no job {name} in this namespace")

    monkeypatch.setattr(Job, "status", Status(phase="Failed", message="no restarts left"))
    monkeypatch.setattr(Kubectl, "job", gone)
    assert ended(Job("digits")) == 1
    assert "kubectl dtj events digits shows more" in capsys.readouterr().out
