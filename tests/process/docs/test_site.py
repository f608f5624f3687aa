"""The site of the docs is built without a warning: all links and anchors exist. It needs no other host."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.docs.blocks import ROOT
from tests.docs.site import SITE

LOADED = re.compile(r'<(?:script|img|iframe)[^>]* src="https?://|<link[^>]* href="https?://')
# Items of a list that are part of the paragraph above: the site needs an empty line before them.
SWALLOWED = re.compile(r"<p>(?:(?!</p>).)*\n[-*] ", re.DOTALL)


def test_site_is_built_and_loads_nothing_from_other_hosts():
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.site"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page.relative_to(SITE).as_posix(): page.read_text() for page in SITE.rglob("*.html")}
    assert {"index.html", "api.html", "reference/dtj.html", "files/examples/index.html"} <= pages.keys()
    assert "gradient" in pages["reference/dtj.html"]
    assert [page for page, text in pages.items() if LOADED.search(text)] == []
    assert [page for page, text in pages.items() if SWALLOWED.search(text)] == []
