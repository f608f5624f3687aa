"""`kubectl dtj ui`. The server is imported when it starts: other commands do not need its packages."""

import signal
import sys

import click

from dtj_client.cli.shared import for_kubectl
from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Kubectl


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="On 127.0.0.1. [default: a free one]")
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
@for_kubectl
@click.pass_obj
def ui(kubectl: Kubectl, port: int, all_namespaces: bool, opens: bool) -> None:
    """Show the jobs in a browser, live and read only, until Ctrl-C."""
    try:
        from dtj_client.ui.cluster import Cluster  # noqa: PLC0415 - see above
        from dtj_client.ui.server import serve  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ClientError(
            f"kubectl dtj ui needs the package {error.name}", "pip install './client[ui]' in the checkout"
        ) from error

    def announce(address: str) -> None:
        click.echo(f"jobs: {address}\nonly on this machine, with your rights; Ctrl-C ends it")
        if opens:
            click.launch(address)

    # Without a handler the process would end before it has ended its kubectl processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    serve(Cluster(kubectl, all_namespaces=all_namespaces), port, announce)
