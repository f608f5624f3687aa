"""Which versions of a package an advisory affects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

from tests.release import advisories, audit

FROM_1_TO_3 = [{"introduced": "1.0"}, {"fixed": "3.0"}]
TWICE = [{"introduced": "0"}, {"fixed": "1.5"}, {"introduced": "2.0rc1"}, {"last_affected": "2.4"}]


@pytest.mark.parametrize(
    ("events", "version", "inside"),
    [
        (FROM_1_TO_3, "0.9", False),
        (FROM_1_TO_3, "1.0", True),
        (FROM_1_TO_3, "2.10", True),
        (FROM_1_TO_3, "3.0rc1", True),
        (FROM_1_TO_3, "3.0", False),
        pytest.param(FROM_1_TO_3[::-1], "2.0", True, id="events in another order"),
        (TWICE, "1.4", True),
        (TWICE, "1.5", False),
        (TWICE, "2.4", True),
        (TWICE, "2.4.1", False),
    ],
)
def test_range(events: list[dict[str, str]], version: str, inside: bool):
    assert advisories.in_range(events, Version(version)) == inside


def test_versions_that_an_advisory_lists_are_affected_whatever_its_ranges():
    affected = {"versions": ["7.0"], "ranges": [{"type": "ECOSYSTEM", "events": FROM_1_TO_3}]}
    assert advisories.affects(affected, Version("7.0"))


def test_range_of_commits_says_nothing_about_versions():
    events = [{"introduced": "0"}, {"fixed": "33ccdfb0a12690af5bb49bda2319ec0907fa7827"}]
    assert not advisories.affects({"ranges": [{"type": "GIT", "events": events}]}, Version("1.0"))


def test_advisories_are_those_of_the_package(tmp_path: Path):
    for name in ("leaky", "leaky-other"):
        advisory: dict[str, Any] = {"id": name, "affected": [{"versions": ["1.0"]}]}
        folder = tmp_path / "vulns" / name
        folder.mkdir(parents=True)
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(advisory))
    assert [each["id"] for each in advisories.advisories(tmp_path, "leaky", Version("1.0"))] == ["leaky"]


def test_audited_files_lock_every_package_with_a_hash():
    assert {"dev.txt", "release.txt", "requirements.txt"} <= {path.name for path in audit.LOCKS}
    for path in audit.LOCKS:
        entries = re.split(r"\n(?=\w)", path.read_text().strip())
        assert [entry for entry in entries if "==" not in entry or "--hash=" not in entry] == [], path
