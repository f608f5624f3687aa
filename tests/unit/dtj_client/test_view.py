"""A job in a notebook."""

from html.parser import HTMLParser

import pytest

from dtj_client.errors import ClientError
from dtj_client.job import Job
from dtj_client.kube.kubectl import Json, Kubectl
from dtj_client.show import view

HOSTILE = "</pre><script>alert(1)</script>"
JOB = {
    "metadata": {"name": "digits"},
    "spec": {"template": {"spec": {"containers": [{"name": "trainer"}]}}},
    "status": {"phase": "Running", "step": "120/2000", "message": HOSTILE},
}


class Elements(HTMLParser):
    """Collects the names of the elements, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


class Answers(Kubectl):
    """A cluster with one job, without pods."""

    def job(self, _name: str) -> Json:
        return JOB

    def pods(self, _name: str) -> list[Json]:
        return []


class Fails(Kubectl):
    """A cluster without it."""

    def job(self, name: str) -> Json:
        raise ClientError(f"there is no job {name} <b>")


def test_hostile_text_stays_text_and_the_bar_shows_the_progress() -> None:
    found = Elements(Job("digits", Answers())._repr_html_())
    assert [name for name, _ in found.found] == ["div", "progress", "pre"]
    assert found.found[1][1] | {"style": None} == {"value": "120", "max": "2000", "style": None}
    assert HOSTILE in found.text
    assert "digits: Running" in found.text


def test_command_that_is_suggested_finds_the_job() -> None:
    found = Job("digits", Answers(options=("--context=a", "--namespace=team")))
    options = "--context a --namespace team"
    assert found.report().endswith(f"next: kubectl dtj logs -f digits {options}")
    with pytest.raises(ClientError, match=f"kubectl dtj status digits {options} says why"):
        found.logs()


def test_error_of_the_cluster_is_shown_instead_of_a_traceback() -> None:
    found = Elements(Job("digits", Fails())._repr_html_())
    assert [name for name, _ in found.found] == ["div", "pre"]
    assert found.text == "there is no job digits <b>"


@pytest.mark.parametrize("step", ["", "120", "a/b", '1/2"><script>', "0/0"])
def test_progress_that_is_not_two_numbers_has_no_bar(step: str) -> None:
    assert "<progress" not in view.html({"status": {"step": step}}, "")
