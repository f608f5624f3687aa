"""Advisories from a folder, for machines that do not reach PyPI: a checkout of PyPI's advisory database.

The folder has vulns/PACKAGE/ID.yaml, in the format of OSV. pip-audit can ask a server of OSV, so this serves
the folder on a loopback address.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from tests.cluster.errors import ClusterError

Json = dict[str, Any]


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Answer questions of pip-audit until the block ends; yield the URL.

    Raises ClusterError if the folder has no advisories.
    """
    if not any(folder.glob("vulns/*/*.yaml")):
        raise ClusterError(
            f"no advisories in {folder}",
            fix="name a checkout of PyPI's advisory database, with the folder vulns",
        )

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = advisories(folder, asked["package"]["name"], Version(asked["version"]))
            body = json.dumps({"vulns": found} if found else {}, default=str).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/query"
        finally:
            server.shutdown()


def advisories(folder: Path, package: str, version: Version) -> list[Json]:
    """Return the advisories that affect this version of a package, by its normalized name."""
    every = (yaml.safe_load(path.read_text()) for path in sorted(folder.glob(f"vulns/{package}/*.yaml")))
    return [each for each in every if any(affects(one, version) for one in each.get("affected", ()))]


def affects(affected: Json, version: Version) -> bool:
    """Whether a part of an advisory covers a version: by its list of versions, or by its ranges."""
    if str(version) in affected.get("versions", ()):
        return True
    ranges = [each["events"] for each in affected.get("ranges", ()) if each["type"] == "ECOSYSTEM"]
    return any(in_range(events, version) for events in ranges)


def in_range(events: list[dict[str, str]], version: Version) -> bool:
    """Whether a version is between the introduction of a fault and its fix; `events` in any order."""
    at = [(Version(number), kind) for event in events for kind, number in event.items()]
    inside = False
    for number, kind in sorted(at):
        if kind == "introduced" and version >= number:
            inside = True
        elif (kind == "fixed" and version >= number) or (kind == "last_affected" and version > number):
            inside = False
    return inside
