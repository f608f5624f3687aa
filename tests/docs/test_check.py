"""The checks of `make lint` find what is wrong with a page, and find nothing wrong with ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import api_reference, loop_lines, site
from tests.docs.blocks import ROOT, blocks, lines, pages
from tests.docs.check import problems

BROKEN = [
    pytest.param("```sh\nls\nkubeclt get dtj\n```", ":3: there is no program kubeclt", id="program"),
    pytest.param("```sh\necho 'a\n```", "EOF while looking for matching", id="open quote"),
    pytest.param("```sh\ndtj train --nprocs 2 a:b\n```", ":2: No such option '--nprocs'", id="flag of dtj"),
    pytest.param("```sh\ndtj trian a:b\n```", ":2: dtj has no command 'trian'", id="command of dtj"),
    pytest.param(
        "```sh\nkubectl apply -f examples/no.yaml\n```", ":2: there is no examples/no.yaml", id="file"
    ),
    pytest.param("```sh\npip install ./trainer\n```", ":2: pip is not run by tests", id="marker is missing"),
    pytest.param("```sh not-run:\nls\n```", ":2: unknown marker", id="reason is missing"),
    pytest.param("```yaml\nspec: {replicas: 2}\n```", ":2: not a whole manifest", id="part of a manifest"),
    pytest.param(
        "```yaml\napiVersion: a\nkind: B\nspec: [{image: a/trainer:1, args: [train, digits]}]\n```",
        ":2: 'digits' does not name a recipe",
        id="recipe of a manifest",
    ),
    pytest.param("```yaml\na: [\n```", ":2: while parsing", id="no YAML"),
    pytest.param("```python\nx = 1\nfor\n```", ":3: invalid syntax", id="no Python"),
    pytest.param("```bash\nls\n```", ":2: a code block with 'bash'", id="another language"),
    pytest.param("text\n\n    ls\n", ":3: a code block with no language", id="indented block"),
]


@pytest.mark.parametrize(("text", "problem"), BROKEN)
def test_broken_page_is_reported_with_file_and_line(tmp_path: Path, text: str, problem: str):
    page = tmp_path / "page.md"
    page.write_text(text)

    (found,) = problems(page)

    assert found.startswith(f"{page}:")
    assert problem in found


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_page_has_no_problems(page: Path):
    assert list(problems(page)) == []


def test_page_of_all_fields_is_that_of_the_crd():
    assert api_reference.PAGE.read_text() == api_reference.page(), "run make format"


def test_links_of_the_site_lead_to_places_of_the_site():
    texts = {path: site.page(path) for path in site.reachable() if site.place(path).endswith(".md")}

    assert "](client.md)" in texts["README.md"]
    assert "](files/CONTRIBUTING.md)" in texts["README.md"]
    assert "](files/examples/index.md)" in texts["README.md"]
    assert "](digits-ddp.yaml)" in texts["examples"]
    assert "```sh not-run" not in texts["CONTRIBUTING.md"]


def test_every_page_is_in_the_menu_of_the_site():
    menu = re.findall(r'"([\w/.-]+\.md)"', (ROOT / "zensical.toml").read_text())
    docs = {site.place(str(page.relative_to(ROOT))) for page in (ROOT / "docs").rglob("*.md")}

    assert {page for page in docs if not page.startswith("decisions/")} <= set(menu)


def test_front_page_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_files_and_folders_named_in_contributing_exist():
    words = re.findall(r"`([\w./-]+(?:\.py|\.md|\.yaml|/))`", (ROOT / "CONTRIBUTING.md").read_text())
    roots = [ROOT, ROOT / "operator/src/dtj_operator", ROOT / "trainer/src/dtj"]

    assert [word for word in words if not any((root / word).exists() for root in roots)] == []
    assert len(words) > 50


def test_lines_are_split_into_commands(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\n# a comment\nA=1 ls -l \\\n  'a b' && kubectl get dtj | head -3  # more\ncd x\n```\n"
    )
    (block,) = blocks(page)

    first, second = lines(block)

    assert first.commands == [["ls", "-l", "a b"], ["kubectl", "get", "dtj"], ["head", "-3"]]
    assert (first.place, second.place) == (f"{page}:3", f"{page}:5")
    assert not first.on_cluster


def test_lines_of_the_loops_are_those_on_the_page():
    page = loop_lines.PAGE.read_text()
    assert loop_lines.renewed(page) == page, "run make format"


def test_lines_are_those_with_code():
    source = """'''A docstring.'''

# A comment.
x = f(  # 1, in three lines
    1,
)


def g():
    '''Of two
    lines.'''
"""
    assert loop_lines.code_lines(source) == 4
