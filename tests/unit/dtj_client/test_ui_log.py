"""The merged log of some replicas, read on."""

from __future__ import annotations

import pytest

from dtj_client.kube.kubectl import Kubectl
from dtj_client.ui.feed import Feed
from dtj_client.ui.log import Log


class Cluster(Kubectl):
    """Answers with what the test gives, and keeps the words of the last command."""

    def run(self, *words: str, given: str | None = None) -> str:
        asked.append(words)
        return answers.pop(0)


asked: list[tuple[str, ...]] = []
answers: list[str] = []
JOB = {
    "metadata": {"name": "digits", "namespace": "team", "uid": "u"},
    "spec": {"template": {"spec": {"containers": [{"name": "trainer"}]}}},
}


def test_each_line_is_shown_once_and_no_line_is_lost() -> None:
    def said(*lines: tuple[int, int, str]) -> str:
        return "".join(
            f"[pod/digits-{replica}/trainer] 2026-01-01T12:00:{second:02}.5Z {text}\n"
            for replica, second, text in lines
        )

    asked.clear()
    # The clock of replica 1 is behind.
    answers[:] = [
        said((0, 20, "9%\ra\r"), (1, 10, "b")),
        said((0, 20, "a"), (1, 10, "b"), (1, 12, "c"), (0, 21, "d"))
        + "[pod/digits-0/trainer] unable to retrieve container logs for containerd://1\nerror: of kubectl\n",
    ]
    containers = [{"name": "proxy"}, {"name": "trainer"}]
    job = {"metadata": {"name": "digits"}, "spec": {"template": {"spec": {"containers": containers}}}}
    log = Log(Cluster(), job, (0, 1), first=7)
    assert [(number, line.text) for number, line in log.after(0)] == [(1, "b"), (2, "a")]
    assert [(number, line.text) for number, line in log.after(2)] == [
        (3, "c"),
        (4, "d"),
        (5, "unable to retrieve container logs for containerd://1"),
    ]
    first, second = asked
    assert "dtj.dev/job-name=digits,dtj.dev/replica-index in (0,1)" in first
    assert "--tail=7" in first
    assert "--container=trainer" in first
    assert "--since-time=2026-01-01T11:59:50+00:00" in second
    assert "--tail=5000" in second, "with a selector kubectl prints only ten lines of each pod by default"


def test_reading_continues_after_an_answer_that_no_one_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed(Cluster(), JOB)
    statuses: list[dict[str, str] | None] = [None, {}]  # the second one cannot be read
    monkeypatch.setattr(feed._agent, "status", lambda: statuses.pop(0))
    monkeypatch.setattr(feed._steps, "see", lambda *_: 1 / 0)
    problems: list[str] = []

    def wait(_seconds: float) -> None:
        problems.append("; ".join(feed.problems()).partition(":")[0])
        if len(problems) == 2:
            feed.stop()

    monkeypatch.setattr(feed._stopped, "wait", wait)
    line = "[pod/digits-0/trainer] 2026-01-01T12:00:00.5Z step 1  loss 2.5  9 samples/s\n"
    answers[:] = [None, line]  # type: ignore[list-item]
    feed._keep_reading()
    assert [each.loss for each in feed.readings] == [2.5]
    assert problems == ["log of replica 0", "steps of the ranks"]


def test_page_that_knows_an_earlier_log_gets_all_lines() -> None:
    """The job's page was hidden, or the job was deleted and submitted again."""
    line = "[pod/digits-0/trainer] 2026-01-01T12:00:00.5Z a\n"
    answers[:] = [line, line, line]
    before = Feed(Cluster(), JOB).log((0,), "", 0)
    feed = Feed(Cluster(), JOB)
    now = feed.log((0,), before["log"], 250)
    assert [each["text"] for each in now["lines"]] == ["a"]
    assert feed.log((0,), now["log"], 1) == {"log": now["log"], "lines": []}
    assert now["log"] != before["log"]
