"""Serves the page: the files under `static/`, and answers to small JSON requests. Nothing is stored.

One request is computed at a time, in a worker thread; a few may wait, and further ones are refused. starlette limits
bodies and checks the Host header, uvicorn limits connections and heads. `TimedProtocol` is the limit that both lack.
"""

import json
import socket
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch

try:
    import uvicorn
    from anyio import CapacityLimiter, to_thread
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise ImportError(f"the demo needs {error.name}: pip install 'scaleconv[demo]'") from None

from .answers import Answer
from .routes import OFFERED, ROUTES, Pairs, answer_json
from .uploads import read_photograph, read_picture

LOCAL = ("localhost", "127.0.0.1", "::1")
HEADERS = [
    ("Content-Security-Policy", "default-src 'self'; img-src 'self' data:"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
]
MOST_JSON, MOST_FILE = 2**16, 2**23  # bytes of a request and of a picture: 64 KiB, 8 MiB
WAITING = 16  # requests that may wait for the worker
CONNECTIONS = 64  # at once; each may hold a picture
SECONDS = 15  # between two complete answers on a connection


class TimedProtocol(H11Protocol):
    """Ends a connection on which no answer is complete for `SECONDS`: uvicorn limits idle time after an answer alone.

    The client may have sent nothing, half a head or half a body, or not have read its answer.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.deadline = self.loop.call_later(SECONDS, transport.abort)

    def on_response_complete(self) -> None:
        self.deadline.cancel()
        self.deadline = self.loop.call_later(SECONDS, self.transport.abort)
        super().on_response_complete()


class PageServer(uvicorn.Server):
    """Listens at once; `serve_forever` answers until Ctrl-C. The networks have run once before the first visitor.

    Raises:
        OSError: the address cannot be taken.
    """

    def __init__(self, host: str, port: int, pairs: Pairs) -> None:
        if not 0 <= port < 2**16:
            raise ValueError(f"`port` must be from 0 to 65535, got {port}")
        try:
            self.socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OSError(f"cannot listen on {host}, port {port} ({reason}): name another --host or --port") from None
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each answer waits 40 ms for an ACK
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self.socket.getsockname()[1]}/"
        # Served to this machine alone, the page has no other name: a page elsewhere could lead its own name here.
        allowed = ["localhost", "127.0.0.1", "[::1]"] if host in LOCAL else ["*"]
        app = TrustedHostMiddleware(make_app(pairs), allowed)
        config = uvicorn.Config(
            app, http=TimedProtocol, ws="none", headers=HEADERS, log_level="error", limit_concurrency=CONNECTIONS
        )
        super().__init__(config)
        torch.set_num_threads(1)  # images are small
        for path, name in product(("/offer", "/classify", "/curve", "/scene"), OFFERED):
            fields = {"pair": name, "index": 0, "scale": 1.0, "seed": 0, "digits": 4, "low": 0.5, "high": 2.0}
            answer_json(path, pairs, json.dumps(fields).encode())

    def serve_forever(self) -> None:
        self.run(sockets=[self.socket])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for connection in self.server_state.connections:
            connection.transport.abort()  # do not wait for clients
        await super().shutdown(sockets)


def make_app(pairs: Pairs) -> Starlette:
    """The files of the page and the routes under `/api`; computing takes turns in one worker thread."""
    worker = CapacityLimiter(1)

    async def respond(answer: Callable[[bytes], Answer], request: Request) -> JSONResponse:
        body = await request.body()
        if worker.statistics().tasks_waiting >= WAITING:
            raise HTTPException(429, f"busy: {WAITING} requests are waiting already, try again")
        async with worker:  # counts as waiting from here on, unlike with run_sync(limiter=worker)
            return JSONResponse(await to_thread.run_sync(answer, body))

    api = [Route(path, partial(respond, partial(answer_json, path, pairs)), methods=["POST"]) for path in ROUTES]
    for path, read in (("/picture", read_picture), ("/photograph", read_photograph)):
        api.append(Route(path, partial(respond, read), methods=["POST"], max_body_size=MOST_FILE))
    files = StaticFiles(packages=[(__package__, "static")], html=True)
    routes = [Mount("/api", routes=api, max_body_size=MOST_JSON), Mount("/", files)]
    return Starlette(routes=routes, exception_handlers={ValueError: refuse, ClientDisconnect: refuse})


async def refuse(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 400)
