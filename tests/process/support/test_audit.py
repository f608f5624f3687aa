"""`make audit` without PyPI: pip-audit reads a folder of advisories."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cluster.errors import ClusterError
from tests.release import advisories
from tests.release.audit import audit

LOCK = f"leaky-package==1.2 --hash=sha256:{'0' * 64}\nharmless==1.0 --hash=sha256:{'0' * 64}\n"


@pytest.mark.timeout(300)  # the first time, it installs pip-audit
@pytest.mark.parametrize(("fixed", "status"), [("1.3", 1), ("1.2", 0)], ids=["affected", "fixed"])
def test_audit_fails_only_if_a_locked_version_is_affected(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], fixed: str, status: int
):
    lock, folder = tmp_path / "lock.txt", tmp_path / "vulns/leaky-package"
    lock.write_text(LOCK)
    folder.mkdir(parents=True)
    events = [{"introduced": "0"}, {"fixed": fixed}]
    affected = {
        "package": {"name": "leaky-package", "ecosystem": "PyPI"},
        "ranges": [{"type": "ECOSYSTEM", "events": events}],
    }
    advisory = {"id": "PYSEC-2026-1", "details": "It leaks.", "affected": [affected]}
    (folder / "PYSEC-2026-1.yaml").write_text(yaml.safe_dump(advisory))

    with advisories.served(tmp_path) as url:
        assert audit([lock], "--vulnerability-service=osv", f"--osv-url={url}") == status

    printed = capfd.readouterr().out
    assert ("leaky-package 1.2     PYSEC-2026-1 1.3" in printed) == bool(status)
    assert "harmless" not in printed


def test_folder_without_advisories_is_refused(tmp_path: Path):
    with pytest.raises(ClusterError, match="no advisories in"), advisories.served(tmp_path):
        pass
