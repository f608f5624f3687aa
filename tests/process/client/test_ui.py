"""The pages of `kubectl dtj ui` in Chromium."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from dtj_client.ui import views
from tests.process.client import made
from tests.process.client.conftest import Cluster, Page, errors

CONTROL, DELETE, ESCAPE = "\ue009", "\ue017", "\ue00c"  # keys as WebDriver writes them
HOSTILE = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\">"


def job(name: str, phase: str = "Running", **status: Any) -> dict[str, Any]:
    """A line of the list."""
    meta = {"namespace": "team", "name": name, "creationTimestamp": "2026-01-01T12:00:00Z"}
    return dict(views.row({"metadata": meta, "status": {"phase": phase, **status}}))


def test_list_is_live_and_driven_by_keys(page: Page, cluster: Cluster) -> None:
    cluster.set_jobs(job("digits"), job("mnist", "Failed", message="loss is not finite"), job("text"))
    page.open()
    page.until("tbody a", "digits", "mnist", "text")
    assert page.texts("td.phase") == ["Running", "Failed", "Running"]

    page.press("/")
    page.press("finite")
    page.until("tbody a", "mnist")
    page.press(CONTROL, "a")
    page.press(DELETE, ESCAPE)
    page.until("tbody a", "digits", "mnist", "text")
    page.press("j")
    page.press("j")
    assert page.driver.switch_to.active_element.text == "mnist"

    cluster.set_jobs(job("mnist", "Succeeded"), job("text"))
    page.refresh()
    page.until("tbody a", "mnist", "text")
    assert page.texts("td.phase") == ["Succeeded", "Running"]
    assert page.driver.switch_to.active_element.text == "mnist", "the focus stays with its job"


def test_hostile_text_stays_text(page: Page, cluster: Cluster) -> None:
    cluster.set_jobs(job("a", "Failed", message=f"{HOSTILE}\u202e\x1b[31m"))
    page.open()
    page.until(".problem", f"{HOSTILE}?[31m".replace("?", "??", 1))
    assert page.driver.title == "Training jobs"
    inserted = "document.body.innerHTML = '<b>x</b>'"
    assert page.run(f"try {{ {inserted} }} catch (error) {{ return error.name }}") == "TypeError"
    assert "TrustedHTML" in errors(page.driver)[0], "the browser refused to make HTML from a text"


def test_thousand_jobs_are_shown_in_pages(page: Page, cluster: Cluster) -> None:
    cluster.set_jobs(*(job(f"job-{number:04}") for number in range(1000)))
    page.open()
    page.until("section > p[role=status]", "1 to 100 of 1000 jobs")
    assert len(page.all("tbody tr")) == 100
    page.all(".pages button")[1].click()
    page.until("section > p[role=status]", "101 to 200 of 1000 jobs")
    assert page.texts("tbody a")[0] == "job-0100"


def test_page_says_that_the_list_is_old(page: Page, cluster: Cluster) -> None:
    cluster.set_jobs(job("digits"))
    page.open()
    page.until("#live", "live")
    cluster.problem = "kubectl cannot reach a cluster"
    page.refresh()
    page.until("#problem", "The list may be old: kubectl cannot reach a cluster")
    assert page.texts("#live") == ["not current"]
    cluster.problem = None
    page.refresh()
    page.until("#live", "live")
    assert page.texts("tbody a") == ["digits"]


def test_page_of_a_job(page: Page, cluster: Cluster) -> None:
    now = datetime.now(UTC)
    cluster.details["gpt-small"] = made.document(now, message=HOSTILE, lines=made.logged(now, 600))
    (last,) = cluster.details["gpt-small"]["failures"]
    cluster.details["gpt-small"] |= {"failures": [last, {**last, "at": made.at(now, 60)}], "events": []}
    cluster.lines = [
        {"number": 1, "at": made.at(now, 1), "replica": 0, "rank": 0, "text": HOSTILE},
        {"number": 2, "at": made.at(now, 1), "replica": 1, "rank": None, "text": "second line"},
    ]
    page.open("#/job/team/gpt-small")
    page.until("h1", "gpt-small")
    page.until(".marks strong", "Restarting", "Exception", "Started", "Created")
    assert len(page.all("path.curve")) == 2
    assert "slowest now: rank 5" in page.texts(".heat p")[0]
    assert page.texts("article pre")[0] == HOSTILE
    assert len(page.all("article table")[0].find_elements("css selector", "tbody tr")) == 4
    assert page.run("return [...document.querySelectorAll('article details')].map(each => each.open)") == [
        True,
        False,
        False,
    ], "of the failures only the latest is open, and not the manifest"
    assert {"Failures", "Events"} & set(page.texts(".contents button:not([hidden])")) == {"Failures"}
    page.run("document.querySelector('.skip').click()")
    assert page.driver.switch_to.active_element.get_attribute("id") == "main"

    assert page.run("return document.querySelector('.heat canvas').clientHeight") < 200
    cluster.details["gpt-small"]["job"] |= {"phase": "Succeeded", "ended": made.at(now, 5000)}
    page.refresh()
    page.until(".title .muted", "3d11h ago")

    page.run("document.querySelector('.log').scrollIntoView()")
    page.until(".log > div", f"0{HOSTILE}", "1second line")
    page.all("input[aria-label='Filter lines of the log']")[0].send_keys("second")
    page.until(".log > div:not([hidden])", "1second line")
    assert page.driver.title == "gpt-small – training job"

    page.run("document.activeElement.blur()")
    page.press(ESCAPE)
    page.until("h1")


def test_log_continues_after_the_server_has_stopped_reading_it(page: Page, cluster: Cluster) -> None:
    """It does while the page is hidden, and numbers the lines from 1 when it begins again."""

    def lines(*texts: str) -> list[dict[str, Any]]:
        return [
            {"number": number, "at": made.at(now, 1), "replica": 0, "rank": 0, "text": text}
            for number, text in enumerate(texts, 1)
        ]

    now = datetime.now(UTC)
    cluster.details["gpt-small"] = made.document(now, lines=[])
    cluster.lines = lines("one", "two", "three")
    page.open("#/job/team/gpt-small")
    page.until_there("article table tbody tr")  # the page grows with its data, which would move the log away
    page.run("document.querySelector('.log').scrollIntoView()")
    page.until(".log > div", "0one", "0two", "0three")
    cluster.lines, cluster.log_id = lines("three", "four"), "2"
    page.refresh()
    page.until(".log > div", "0three", "0four")


def test_thousand_replicas_are_squares_and_pages(page: Page, cluster: Cluster) -> None:
    cluster.details["gpt-small"] = made.document(
        datetime.now(UTC), replicas=1000, lines=made.logged(datetime.now(UTC), 600)
    )
    page.open("#/job/team/gpt-small")
    page.until_there(".squares span")
    assert len(page.all(".squares span")) == 1000
    assert page.texts("article table tbody tr td")[1] == "Pending", "what is wrong comes first"
    assert len(page.all("article table")[0].find_elements("css selector", "tbody tr")) == 50

    page.run(
        """const seen = new MutationObserver(found => { window.drawn = (window.drawn ?? 0) + found.length });
        for (const each of document.querySelectorAll('.squares, .heat, figure'))
            seen.observe(each, {attributes: true, childList: true, characterData: true, subtree: true})"""
    )
    cluster.details["gpt-small"] |= {"message": "asked again"}
    page.refresh()
    page.until(".message", "asked again")
    assert page.run("return window.drawn") is None, "what has not changed is not drawn again"


def test_narrow_screen_needs_no_scrolling_to_the_side(page: Page, cluster: Cluster) -> None:
    """Wide tables scroll within their part of the page."""
    cluster.set_jobs(job("a-name-that-is-longer-than-the-screen-of-a-telephone-is-wide-0123"))
    cluster.details["gpt-small"] = made.document(
        datetime.now(UTC), replicas=9, lines=made.logged(datetime.now(UTC), 400)
    )
    screen = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    try:
        for path, last in (("", "tbody a"), ("#/job/team/gpt-small", ".squares span")):
            page.open(path)
            page.until_there(last)
            assert page.run("return document.documentElement.scrollWidth") == 360
        text = "[...document.querySelectorAll('.tick text, text.tick')]"
        heights = page.run(f"return {text}.map(each => each.getBoundingClientRect().height)")
        assert min(heights, default=0) > 10, "numbers of curves can be read"
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_job_that_is_gone(page: Page) -> None:
    page.open("#/job/team/gone")
    page.until("#problem", "There is no job gone in team; it may have been deleted.")
    assert "404" in errors(page.driver)[0]
