"""An S3 server on loopback (moto's), which refuses or holds requests if a test asks for it.

moto takes a second to import: only the worker that starts a server does so.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

BUCKET = "bucket"
_REFUSAL = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
)


class Server:
    """The server; a request is a text such as "PUT run/step-1".

    before  called with each request; a test sets it. True: answer 503 instead
    environment  variables by which Amazon's libraries find the server
    """

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self.environment: dict[str, str] = {}
        self.before: Callable[[str], object] = lambda _: False
        self._app = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO'].removeprefix(f'/{BUCKET}').strip('/')}"
        if self.before(request):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            body = b"" if request.startswith("HEAD") else _REFUSAL
            start_response("503 Slow Down", [("Content-Length", str(len(body)))])
            return [body]
        found: Iterable[bytes] = self._app(environ, start_response)
        return found

    @contextlib.contextmanager
    def holding(self, is_held: Callable[[str], bool]) -> Iterator[threading.Event]:
        """Within the block, hold requests, refused at its end; the event is set once there is one."""
        reached, ended, before = threading.Event(), threading.Event(), self.before

        def hold(request: str) -> object:
            if not is_held(request):
                return before(request)
            reached.set()
            return ended.wait()

        self.before = hold
        try:
            yield reached
        finally:
            self.before = before
            ended.set()


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """A server with an empty bucket, which this process finds by its environment."""
    from werkzeug.serving import make_server

    server = Server()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not a line for each request
    http = make_server("127.0.0.1", 0, server, threaded=True)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("AWS_")]:
            patch.delenv(name)
        server.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{http.server_port}",
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "key",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        for name, value in server.environment.items():
            patch.setenv(name, value)
        thread.start()
        try:
            from s3fs import S3FileSystem

            S3FileSystem().mkdir(BUCKET)
            yield server
        finally:
            http.shutdown()
            thread.join()
            http.server_close()
