"""A job as HTML, for notebooks. Pure: all text of a job is text here, whatever it contains."""

from html import escape

from dtj_client.kubectl import Json


def html(job: Json, report: str) -> str:
    """The screen of `kubectl dtj status`, below a bar with the progress."""
    done, total = _steps((job.get("status") or {}).get("step", ""))
    bar = f'<progress value="{done}" max="{total}" style="width:100%"></progress>' if total else ""
    return f'<div class="dtj-job">{bar}<pre style="white-space:pre-wrap">{escape(report)}</pre></div>'


def failed(message: str) -> str:
    """What is shown if the cluster does not answer."""
    return f'<div class="dtj-job"><pre style="white-space:pre-wrap">{escape(message)}</pre></div>'


def _steps(text: str) -> tuple[int, int]:
    """Done and total steps of a status such as 120/2000; zeros if it is another text."""
    done, _, total = str(text).partition("/")
    return (int(done), int(total)) if done.isdecimal() and total.isdecimal() else (0, 0)
