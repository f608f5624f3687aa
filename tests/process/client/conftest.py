"""The real server and pages of `kubectl dtj ui` in a real browser, with a cluster that a test fills."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster import debian
from tests.support.commands import DEADLINE_S

if TYPE_CHECKING:  # only the worker that runs a test of a page imports selenium
    from selenium import webdriver
    from selenium.webdriver.remote.webelement import WebElement

Json = dict[str, Any]
TOKEN = "token"
PACKAGES = ("chromium", "chromium-driver")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking")


@dataclass
class Cluster:
    """What the test says that the cluster has: the documents of the pages' questions."""

    jobs_found: list[Json] = field(default_factory=list)
    details: dict[str, Json] = field(default_factory=dict)
    lines: list[Json] = field(default_factory=list)
    log_id: str = "1"
    version: int = 0
    problem: str | None = None

    def set_jobs(self, *jobs: Json) -> None:
        self.jobs_found, self.version = list(jobs), self.version + 1

    def jobs(self, after: int) -> Json | None:
        if after == self.version and self.problem is None:
            return None
        place = {"context": "test", "namespace": "team", "problem": self.problem}
        return {"version": self.version, "jobs": self.jobs_found, **place}

    def job(self, namespace: str, name: str) -> Json:
        if name not in self.details:
            raise LookupError(f"There is no job {name} in {namespace}; it may have been deleted.")
        return self.details[name]

    def log(self, namespace: str, name: str, replicas: str, known: str, after: int) -> Json:
        new = [line for line in self.lines if line["number"] > after or known != self.log_id]
        return {"log": self.log_id, "lines": new}


@dataclass
class Page:
    """A page in the browser."""

    driver: webdriver.Chrome
    address: str

    def open(self, path: str = "") -> None:
        self.driver.get("about:blank")
        self.driver.get(f"{self.address}{path}")

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements, read at one moment."""
        script = "return [...document.querySelectorAll(arguments[0])].map(each => each.innerText.trim())"
        found: list[str] = self.driver.execute_script(script, selector)
        return found

    def until(self, selector: str, *texts: str) -> None:
        """Wait until these are the texts of the elements."""
        try:
            self._wait(lambda: self.texts(selector) == list(texts))
        except Exception as error:
            raise AssertionError(f"{selector}: {self.texts(selector)} instead of {texts}") from error

    def until_there(self, selector: str) -> None:
        """Wait until there is such an element."""
        self._wait(lambda: self.all(selector), f"no {selector}")

    def _wait(self, holds: Callable[[], object], message: str = "") -> None:
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, DEADLINE_S, 0.05).until(lambda _: holds(), message)

    def press(self, *keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(*keys)

    def refresh(self) -> None:
        """Let the page ask the server now, as it does every two seconds."""
        self.run("document.dispatchEvent(new Event('visibilitychange'))")

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    """Return Debian's Chromium; skip the test if there is none and we may not install it."""
    if not debian.can_install() and not all(map(debian.installed, PACKAGES)):
        pytest.skip(f"needs the Debian packages {' and '.join(PACKAGES)}, or root on Debian to install them")
    debian.install(*PACKAGES, why="the tests of kubectl dtj ui")
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    for each in OPTIONS:
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service("/usr/bin/chromedriver"))
    driver.set_window_size(1280, 900)
    yield driver
    driver.quit()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def page(browser: webdriver.Chrome, cluster: Cluster) -> Iterator[Page]:
    """Serve the cluster, and return a page that is not open yet. Errors on its console fail the test."""
    import uvicorn

    from dtj_client.ui import server

    with server.listen(0) as listener:
        application = server.application(cluster, TOKEN)  # type: ignore[arg-type]
        running = uvicorn.Server(uvicorn.Config(application, log_level="warning", lifespan="off", ws="none"))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Page(browser, f"http://{server.HOST}:{listener.getsockname()[1]}/{TOKEN}/")
        finally:
            browser.get("about:blank")
            running.should_exit = True
            thread.join()
    assert not errors(browser)


def errors(browser: webdriver.Chrome) -> list[str]:
    """What the browser has refused or missed since the last call."""
    said = browser.get_log("browser")  # type: ignore[no-untyped-call]
    return [each["message"] for each in said if each["level"] == "SEVERE"]
