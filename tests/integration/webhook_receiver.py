"""A receiver of webhooks as a process of its own, that a test can kill: `PORT LOG SECRET`; port 0 is any.

It prints its port. Each delivery is a line of LOG: `time pid got id text`, `forged` in place of `got` when the
signature is not that of SECRET, and then `answered`. A delivery with the text `crash` ends the process before the
answer, once: the process that starts after it answers.
"""

import base64
import hashlib
import hmac
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

port, log, secret = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].encode()
has_crashed = log.exists() and " crash" in log.read_text()


def note(*words: object) -> None:
    now = time.time()
    at = time.strftime("%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03}"
    with log.open("a") as file:
        print(at, os.getpid(), *words, file=file)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        number, at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        digest = hmac.digest(secret, f"{number}.{at}.".encode() + body, hashlib.sha256)
        is_signed = self.headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
        told = json.loads(body)["data"]
        note("got" if is_signed else "forged", number, f"job={told['job']}", told["text"])
        if told["text"] == "crash" and not has_crashed:
            os.kill(os.getpid(), signal.SIGKILL)
        self.send_response(200)
        self.end_headers()
        note("answered", number)

    def log_message(self, *_words: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
note("started")
print(server.server_port, flush=True)
server.serve_forever()
