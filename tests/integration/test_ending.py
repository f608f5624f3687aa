"""A benchmark that gets SIGTERM leaves no server and no data behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest

PROGRAM = """
import asyncio, sys, tempfile
from pathlib import Path
from tests.integration import controlplane
from tests.support.ending import clean_up_on_sigterm

async def main():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder, controlplane.running(Path(folder)) as plane:
        print(plane.url, plane.etcd_url, flush=True)
        await asyncio.Event().wait()

clean_up_on_sigterm()
asyncio.run(main())
"""


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("shell", ["", "trap '' INT"], ids=["in front", "in the background of a shell"])
def test_sigterm_stops_all_started_servers(tmp_path: Path, shell: str):
    program = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    command = ["sh", "-c", f'{shell}\nexec "$@"', "sh", *program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        urls = process.stdout.readline().split()
        process.send_signal(signal.SIGTERM)

    assert process.returncode != 0
    assert len(urls) == 2, "it did not start"
    for url in urls:
        with pytest.raises(URLError, match="refused"):
            urllib.request.urlopen(f"{url}/healthz", timeout=5)
    assert list(tmp_path.iterdir()) == []
