"""The program that writes code into a claim, fed by a kubectl that runs it on this machine."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from pathlib import Path

import pytest

from dtj_client.errors import ClientError
from dtj_client.in_pod import upload as pod_upload
from dtj_client.kube.kubectl import Kubectl

DATA = os.urandom(600_000)
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def kubectl(tmp_path: Path) -> Kubectl:
    """Return a kubectl that runs the words after --."""
    program = tmp_path / "kubectl"
    program.write_text(
        f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift 2\nexec {shlex.quote(sys.executable)} "$@"\n'
    )
    program.chmod(0o755)
    return Kubectl(program=str(program))


def send(kubectl: Kubectl, target: Path, data: bytes = DATA) -> list[int]:
    """Send as the client does; return the numbers of sent bytes that it reported."""
    reported: list[int] = []
    source = Path(pod_upload.__file__).read_text()
    words = ("exec", "-i", "pod", "--", "python3", "-c", source, str(target), DIGEST)
    kubectl.send(data, *words, progress=lambda done, _of: reported.append(done))
    return reported


def test_archive_appears_whole_or_not_at_all(kubectl: Kubectl, tmp_path: Path) -> None:
    target = tmp_path / "claim/.dtj/code/1.tar.gz"
    with pytest.raises(ClientError, match="the archive arrived incomplete"):
        send(kubectl, target, DATA[:-1])
    assert list(target.parent.iterdir()) == []
    assert send(kubectl, target)[-1] == len(DATA)
    assert target.read_bytes() == DATA
    assert list(target.parent.iterdir()) == [target]


def test_archive_that_is_there_is_not_written_again(kubectl: Kubectl, tmp_path: Path) -> None:
    target = tmp_path / "1.tar.gz"
    target.write_bytes(DATA)
    before = target.stat().st_ino
    send(kubectl, target)
    assert target.stat().st_ino == before


def test_archive_that_another_job_has_changed_is_replaced(kubectl: Kubectl, tmp_path: Path) -> None:
    target = tmp_path / "1.tar.gz"
    target.write_bytes(b"of another job")
    send(kubectl, target)
    assert target.read_bytes() == DATA


def test_claim_that_cannot_be_written_is_one_line(kubectl: Kubectl) -> None:
    with pytest.raises(ClientError) as raised:
        send(kubectl, Path("/proc/claim/1.tar.gz"))
    assert "\n" not in raised.value.message
