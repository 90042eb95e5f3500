"""A replica that waits for the test: it sends the first token immediately, and more only after a release."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_WAIT_S_MAX = 60.0
_BEGUN = b'data: {"choices":[{"index":0,"delta":{"content":"begun"},"finish_reason":null}]}\n\n'
_ENDED = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


@contextlib.contextmanager
def held_replica() -> Iterator[tuple[str, threading.Event]]:
    """Serve while inside; gives the base URL and what, once set, lets all answers end."""
    released = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(_BEGUN)
            released.wait(_WAIT_S_MAX)
            self.wfile.write(_ENDED)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="held replica")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1", released
        finally:
            released.set()
            server.shutdown()
            thread.join()
