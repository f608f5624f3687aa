"""What a container says cannot change what a terminal shows, wherever the text ends up."""

import json
import logging

import pytest

from dtj_operator.kube import pods
from dtj_operator.log import JsonLines, Text
from dtj_operator.model import agent_status, exit_report
from dtj_operator.model.names import Key
from dtj_operator.model.printable import printable
from dtj_operator.model.views import ContainerView

param = pytest.param
SAYS, SHOWN = "a\x1b[2Jb\rc", "a\\x1b[2Jb\\rc"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        param("loss 1,5 → ü 日本 🙂", "loss 1,5 → ü 日本 🙂", id="text of any language"),
        param("Traceback:\n\tx", "Traceback:\n\tx", id="lines and tabs"),
        param(SAYS, SHOWN, id="escape sequences and carriage returns"),
        param("\0\x7f\x9b", "\\x00\\x7f\\x9b", id="other control characters"),
        param(
            "\u202eab\u2066c\u2069\u202c",
            "\\u202eab\\u2066c\\u2069\\u202c",
            id="another order of the letters",
        ),
        param("\ud800", "\\ud800", id="half a surrogate pair, which UTF-8 cannot encode"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def container(**state: object) -> ContainerView:
    status = {"containerStatuses": [{"name": "trainer", "state": state}]}
    return pods.PODS.decode(json.dumps({"metadata": {"name": "x"}, "status": status}).encode()).containers[0]


def test_messages_of_containers_are_escaped_when_a_pod_is_decoded() -> None:
    assert container(terminated={"exitCode": 1, "message": SAYS}).message == SHOWN
    assert container(waiting={"reason": "CreateContainerError", "message": SAYS}).message == SHOWN


def test_reports_are_escaped_when_they_are_parsed() -> None:
    assert exit_report.parse(json.dumps({"reason": SAYS, "message": SAYS})) == exit_report.ExitReport(
        reason=SHOWN, message=SHOWN
    )
    answer = {
        "job": "j",
        "jobUid": "u",
        "replica": 0,
        "attempt": 0,
        "failure": {"message": SAYS, "reason": SAYS},
        "hang": {"message": SAYS},
    }
    progress = agent_status.parse(json.dumps(answer).encode(), Key("ns", "j"), "u", 0.0, "10.0.0.1", ranks=1)
    assert progress.incident is not None
    assert progress.hang is not None
    assert (progress.incident.message, progress.incident.reason) == (SHOWN, SHOWN)
    assert progress.hang.message == SHOWN


@pytest.mark.parametrize("form", [Text(), JsonLines()])
def test_log_line_is_one_line_whatever_its_values_are(form: logging.Formatter) -> None:
    record = logging.makeLogRecord({"msg": f"{SAYS}\nx", "why": f"{SAYS}\n2026 INFO became leader"})
    line = form.format(record)

    assert "\n" not in line
    assert "\x1b" not in line
    assert "\r" not in line
