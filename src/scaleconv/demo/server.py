"""Serves the page: files from `static/`, and answers to small JSON requests. Python's own HTTP server, no framework.

One request is computed at a time. A few may wait; the others are refused at once with a message, as are bodies above
their limit, so that memory stays bounded whatever is sent. Where all connections are taken, those that send or read
slowly make room for others. Nothing is stored, and nothing outside of this package is loaded: the page works without a
network.
"""

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

import torch

from . import answers, filters, limits
from .answers import Answer
from .networks import Pair

Fields = Mapping[str, Any]
Route = Callable[[Fields], Answer]

FILES = {  # by path: the file under static/, and its type
    "/": ("index.html", "text/html; charset=utf-8"),
    "/demo.css": ("demo.css", "text/css; charset=utf-8"),
    "/demo.js": ("demo.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
PICTURE = "/api/picture"  # takes a file; all other questions are JSON
LOCAL = ("localhost", "127.0.0.1", "::1")
WAITING = 16  # requests that may wait for their turn
CONNECTIONS = 32  # at once; each may hold a picture of 8 MiB
QUEUE = 256  # connections that the system keeps for us meanwhile
SECONDS = 15  # that a connection may be silent
PATIENCE = 2  # seconds that a client may take to send or to read while others find no place
DRAINED = 2**28  # bytes of a refused body that are read, and forgotten, so that the refusal arrives
OFFERED = 3  # digits of each class
FIRST: dict[str, Fields] = {  # asked before the first visitor comes
    "/api/digit": {"index": 0, "scale": 1},
    "/api/curve": {"index": 0},
    "/api/scene": {"seed": 0, "digits": 4, "low": 0.5, "high": 2},
}


class RefusalError(Exception):
    """A request that is not answered, and why."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def make_routes(pairs: dict[str, Pair]) -> dict[str, Route]:
    """What each path answers; the fields are checked here."""
    layers = filters.find_layers(pairs)
    digits, scenes = pairs["digits"], pairs["scenes"]
    low, high = answers.SCALES[0], answers.SCALES[-1]

    def given(fields: Fields) -> tuple[torch.Tensor, int | None]:
        """The digit that was drawn; or picked, with its label."""
        if "drawing" in fields:
            drawn = limits.pixels(fields, "drawing", answers.CANVAS, answers.CANVAS)
            return answers.centred(drawn), None
        index = limits.whole(fields, "index", 0, len(digits.digits) - 1)
        return digits.digits[index], int(digits.labels[index])

    def classify(fields: Fields) -> Answer:
        return answers.classify(digits, given(fields)[0], limits.number(fields, "scale", low, high))

    def curve(fields: Fields) -> Answer:
        return answers.curve(digits, *given(fields))

    def respond(fields: Fields) -> Answer:
        height, width = (limits.whole(fields, name, filters.LEAST, filters.SIDE) for name in ("height", "width"))
        image = limits.pixels(fields, "pixels", height, width) / 255
        by = limits.choice(fields, "by", filters.TRANSFORMS)
        if "patch" in fields:
            return filters.of_patch(limits.pixels(fields, "patch", filters.PATCH, filters.PATCH) / 255, image, by)
        layer = layers[limits.choice(fields, "layer", layers)]
        return filters.of_network(layer, limits.whole(fields, "filter", 0, layer.filters - 1), image, by)

    def scene(fields: Fields) -> Answer:
        least = limits.number(fields, "low", *answers.SCENE_SCALES)
        largest = limits.number(fields, "high", least, answers.SCENE_SCALES[1])
        seed = limits.whole(fields, "seed", 0, limits.MOST_SEED)
        return answers.label_scene(scenes, seed, limits.whole(fields, "digits", 1, answers.MOST_DIGITS), least, largest)

    offered = {
        "digits": answers.offer(digits, OFFERED),
        "examples": filters.examples(scenes),
        "trained": {name: pair.trained for name, pair in pairs.items()},
        "layers": [{"name": name, "title": each.title, "filters": each.filters} for name, each in layers.items()],
    }
    return {
        "/api/offer": lambda _: offered,
        "/api/digit": classify,
        "/api/curve": curve,
        "/api/filter": respond,
        "/api/scene": scene,
    }


def read_picture(file: bytes) -> Answer:
    """An uploaded picture, as `/api/filter` takes it."""
    return filters.as_pixels(limits.picture(file, filters.SIDE))


class PageServer(ThreadingHTTPServer):
    """Listens at once; `serve_forever` answers.

    Args:
        host, port: where to listen; port 0 takes a free one.
        pairs: the networks, as `load_pairs` gives them.
    """

    daemon_threads = True
    request_queue_size = QUEUE

    def __init__(self, host: str, port: int, pairs: dict[str, Pair]) -> None:
        self.routes = make_routes(pairs)
        folder = resources.files(__package__).joinpath("static")
        self.files = {path: folder.joinpath(name).read_bytes() for path, (name, _) in FILES.items()}
        # One thread, so that the memory of a request is kept once; images are small, so it works alone.
        self.worker = ThreadPoolExecutor(1, "answers", initializer=torch.set_num_threads, initargs=(1,))
        self.waiting = threading.BoundedSemaphore(WAITING)
        self.connections = threading.BoundedSemaphore(CONNECTIONS)
        self.slow: dict[socket.socket, float] = {}  # connections on whose client we wait, and since when
        self.host = host
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), PageHandler)

    @property
    def address(self) -> str:
        """What to type into a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_address[1]}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        while not self.connections.acquire(timeout=0.02):
            self._drop_slowest()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slow.pop(request, None)
            self.connections.release()

    def _drop_slowest(self) -> None:
        """End the connection that has waited longest for its client, idle ones included, if that is too long."""
        waited = self.slow.copy()
        slowest = min(waited, key=lambda connection: waited[connection], default=None)
        if slowest and time.monotonic() - waited[slowest] > PATIENCE:
            self.slow.pop(slowest, None)
            with suppress(OSError):
                slowest.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke off is no error of ours."""


class PageHandler(BaseHTTPRequestHandler):
    """One connection."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version = "scaleconv"
    sys_version = ""
    timeout = SECONDS

    def handle_one_request(self) -> None:
        self._wait_for_client()
        super().handle_one_request()

    def do_GET(self) -> None:
        self._reply(self._file)

    def do_POST(self) -> None:
        self._reply(self._answer)

    def _file(self) -> tuple[bytes, str]:
        path = self.path.partition("?")[0]
        if path not in FILES:
            raise RefusalError(HTTPStatus.NOT_FOUND, f"there is no {path[:80]} here")
        return self.server.files[path], FILES[path][1]

    def _answer(self) -> tuple[bytes, str]:
        route = self.server.routes.get(self.path)
        if self.path == PICTURE:
            answer = self._compute(read_picture, limits.MOST_FILE)
        elif route is not None:
            answer = self._compute(lambda body: route(limits.parse(body)), limits.MOST_JSON)
        else:
            self._drain(self._length())
            raise RefusalError(HTTPStatus.NOT_FOUND, f"there is no {self.path[:80]} here")
        return json.dumps(answer).encode(), "application/json"

    def _compute(self, answer: Callable[[bytes], Answer], most: int) -> Answer:
        length = self._length()
        if length > most:
            self._drain(length)
            limit = f"{most // 2**20} MiB" if most >= 2**20 else f"{most // 2**10} KiB"
            raise RefusalError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"this is too large: at most {limit} are taken")
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionAbortedError("the client left before its request was whole")
        self.server.slow.pop(self.connection, None)
        if not self.server.waiting.acquire(blocking=False):
            raise RefusalError(HTTPStatus.TOO_MANY_REQUESTS, f"busy: {WAITING} requests are waiting already, try again")
        try:
            return self.server.worker.submit(answer, body).result()
        finally:
            self.server.waiting.release()

    def _length(self) -> int:
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"[0-9]{1,18}", length):
            self.close_connection = True
            raise RefusalError(HTTPStatus.LENGTH_REQUIRED, "the length of the request must be given")
        return int(length)

    def _drain(self, length: int) -> None:
        self.close_connection = length > DRAINED
        left = min(length, DRAINED)
        while left > 0 and (read := len(self.rfile.read(min(left, 2**16)))):
            left -= read

    def _reply(self, content: Callable[[], tuple[bytes, str]]) -> None:
        status = HTTPStatus.OK
        try:
            self._check_host()
            body, kind = content()
        except (RefusalError, ValueError) as error:
            status = error.status if isinstance(error, RefusalError) else HTTPStatus.BAD_REQUEST
            body, kind = json.dumps({"error": str(error)}).encode(), "application/json"
        except OSError:  # the connection
            raise
        except Exception as error:
            status, self.close_connection = HTTPStatus.INTERNAL_SERVER_ERROR, True
            body, kind = json.dumps({"error": f"unforeseen {type(error).__name__}"}).encode(), "application/json"
        self._send(status, body, kind)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the HTTP server itself refuses, such as another method, is answered as everything else is."""
        self.close_connection = True
        text = message or HTTPStatus(code).phrase
        self._send(HTTPStatus(code), json.dumps({"error": text}).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self._wait_for_client()
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _check_host(self) -> None:
        """Refuse names of others: a page elsewhere could lead its own name to this address."""
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:  # brackets without an address in them
            name = None
        if self.server.host in LOCAL and name not in LOCAL:
            self.close_connection = True
            raise RefusalError(HTTPStatus.FORBIDDEN, f"this page is served at {self.server.address}")

    def _wait_for_client(self) -> None:
        """From now on it depends on the client how long this takes."""
        self.server.slow[self.connection] = time.monotonic()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def start(host: str, port: int, pairs: dict[str, Pair]) -> PageServer:
    """A server that listens; its networks have answered once, so that the first visitor need not wait.

    Raises:
        OSError: the address cannot be taken.
    """
    try:
        server = PageServer(host, port, pairs)
    except OverflowError as error:
        raise ValueError(f"`port` must be from 0 to 65535, got {port}") from error
    except OSError as error:
        raise type(error)(
            f"cannot listen on {host}, port {port} ({error.strerror or error}): name another --host or --port"
        ) from None
    for path, fields in FIRST.items():
        server.worker.submit(server.routes[path], fields).result()
    return server
