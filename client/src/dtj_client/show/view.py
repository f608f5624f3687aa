"""A job as HTML, for notebooks. Pure: all text of a job is text here, whatever it contains."""

from html import escape

from dtj_client.kube.kubectl import Json
from dtj_client.show.report import steps


def html(job: Json, report: str) -> str:
    """The screen of `kubectl dtj status`, below a bar with the progress."""
    done, total = steps((job.get("status") or {}).get("step"))
    bar = f'<progress value="{done}" max="{total}" style="width:100%"></progress>' if total else ""
    return f'<div class="dtj-job">{bar}<pre style="white-space:pre-wrap">{escape(report)}</pre></div>'


def failed(message: str) -> str:
    """What is shown if the cluster does not answer."""
    return f'<div class="dtj-job"><pre style="white-space:pre-wrap">{escape(message)}</pre></div>'
