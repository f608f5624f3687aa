"""The HTTP server of `kubectl dtj ui`.

It listens on 127.0.0.1, where other users and pages in the user's browser can connect too. So every address
starts with a secret token, a request under another host name is refused (DNS rebinding), and nothing can be
changed.
"""

import secrets
import socket
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dtj_client.errors import ClientError
from dtj_client.ui.cluster import Cluster

HOST = "127.0.0.1"
_STATIC = Path(str(files("dtj_client.ui") / "static"))
_HEADERS = {
    # Only our own files; no inline script or style, and no HTML made from text (Trusted Types).
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "X-Content-Type-Options": "nosniff",
}


def serve(cluster: Cluster, port: int, announce: Callable[[str], None]) -> None:
    """Serve until Ctrl-C. Raises ClientError if the jobs cannot be read or the port is taken.

    port      0: a free one
    announce  gets the address of the page
    """
    token = secrets.token_urlsafe(24)
    with listen(port) as listener:
        cluster.start()
        try:
            announce(f"http://{HOST}:{listener.getsockname()[1]}/{token}/")
            config = uvicorn.Config(
                application(cluster, token), log_level="warning", access_log=False, lifespan="off", ws="none"
            )
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            cluster.stop()


def application(cluster: Cluster, token: str) -> Starlette:
    """The pages below /TOKEN/."""

    def page(_: Request) -> Response:
        return FileResponse(_STATIC / "index.html")

    def jobs(request: Request) -> Response:
        after = request.query_params.get("after", "")
        found = cluster.jobs(int(after) if after.isdecimal() else -1)
        return Response(status_code=204) if found is None else JSONResponse(found)

    def job(request: Request) -> Response:
        return JSONResponse(cluster.job(**request.path_params))

    def log(request: Request) -> Response:
        after = request.query_params.get("after", "")
        replicas = request.query_params.get("replicas", "")
        known = request.query_params.get("log", "")
        number = int(after) if after.isdecimal() else 0
        found = cluster.log(**request.path_params, replicas=replicas, known=known, after=number)
        return JSONResponse(found)

    def refused(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error.args[0])}, status_code=404)

    routes = [
        Route("/", page),
        Route("/api/jobs", jobs),
        Route("/api/job/{namespace}/{name}", job),
        Route("/api/job/{namespace}/{name}/log", log),
        Mount("/static", StaticFiles(directory=_STATIC)),
    ]
    return Starlette(
        routes=[Mount(f"/{token}", routes=routes)],
        exception_handlers={ClientError: refused, LookupError: refused},
        middleware=[
            Middleware(_Guard, token=token),
            Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"], www_redirect=False),
        ],
    )


class _Guard:
    """Refuses an address without the token, and sets the headers of each answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        given = scope["path"].split("/")[1].encode()
        app: ASGIApp = self._app
        if not secrets.compare_digest(given, self._token):
            said = "Open the address that kubectl dtj ui printed: it has a token, which this one lacks.\n"
            app = PlainTextResponse(said, status_code=403)
        await app(scope, receive, send_with_headers)


def listen(port: int) -> socket.socket:
    """Take a port of 127.0.0.1; 0: a free one. Raises ClientError if it is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()  # from now on connections wait until the server runs
    except OSError as error:
        listener.close()
        raise ClientError(
            f"cannot listen on port {port} of {HOST}: {error.strerror}",
            "choose another port with --port, or leave --port out for a free one",
        ) from error
    return listener
