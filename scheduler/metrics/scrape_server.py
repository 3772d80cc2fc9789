"""The HTTP server of `drover metrics`, with limits of the time and number of its connections, each a thread."""

import socket
import sys
import threading
from contextlib import suppress
from typing import Any, Final

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer, _SilentHandler

SILENCE_S: Final = 10.0  # of a client, within a request or answer
MOST_CONNECTIONS: Final = 50


class ScrapeServer(ThreadingWSGIServer):
    """Serves metrics. Of too many connections the oldest is closed, so half requests keep no scrape away."""

    request_queue_size = MOST_CONNECTIONS

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        """Listen. Errors: OSError."""
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._lock = threading.Lock()
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        super().__init__((host, port), _SilentHandler)
        self.set_app(make_wsgi_app(registry))

    def process_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(SILENCE_S)
        with self._lock:
            if len(self._open) >= MOST_CONNECTIONS:
                self._end(next(iter(self._open)))
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, unless it is that of a client that went away or was too slow."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def _end(self, oldest: socket.socket) -> None:
        """Wake the thread of the oldest connection, which closes it."""
        del self._open[oldest]
        with suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)
