"""The frontend itself: its socket, the HTTP server on it, and an orderly end. Knows nothing of requests."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn

from corekit.api import EngineClient, Observer, Route

from .app import OWN_PATHS, build_app
from .drain import Drain, forgive
from .log import LOG
from .metrics import Meters
from .mounted import Mounted
from .options import HttpOptions
from .protocol import JsonErrorProtocol
from .shared import Shared

_BACKLOG = 2048
"""Connections that wait in the kernel to be accepted."""

_ACCEPTS = 128
"""Most connections accepted at one wake-up, and attempts that fail when descriptors run out."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_QUIET_SECONDS = 60.0


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: whoever runs the frontend decides when it ends."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)  # asyncio has one number for both and has set it to _ACCEPTS


class AcceptFailures:
    """The loop's errors while it serves: of those that say that no connection can be accepted, one warning a minute; the rest as before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._before = loop.get_exception_handler()
        self._quiet_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "socket" not in context or not isinstance(error, OSError) or error.errno not in _EXHAUSTED:
            if self._before is not None:
                self._before(loop, context)
            else:
                loop.default_exception_handler(context)
        elif loop.time() >= self._quiet_until:
            self._quiet_until = loop.time() + _QUIET_SECONDS
            LOG.warning("openai-http cannot accept connections: %s. They wait until others close. Allow more open files (ulimit -n)", error.strerror)


class OpenAiHttp:
    """Listens on one address. `serve` returns once it is cancelled and nothing is in flight any more."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._mounted = Mounted(OWN_PATHS)
        self._meters = Meters(options)
        self._listener: socket.socket | None = None

    def add_routes(self, routes: Sequence[Route], *, of: str) -> None:
        """Serves them beside its own, behind the same keys. Raises ValueError for a path that is taken, naming both."""
        self._mounted.add(routes, of=of)

    @property
    def observers(self) -> Sequence[Observer]:
        """What its metrics hear of the engine."""
        return (self._meters.ears,)

    @property
    def address(self) -> str | None:
        """The URL it listens on; None before `bind` and after the end."""
        if self._listener is None:
            return None
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def bind(self) -> None:
        """Takes the address; connections wait until `serve`. Raises OSError that names it when it cannot be had."""
        if self._listener is not None:
            return
        host, port = self._options.host, self._options.port
        listener = None
        try:
            family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            listener = socket.socket(family, kind, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(target)
            listener.listen(_BACKLOG)
        except (OSError, ValueError) as error:  # ValueError: what cannot be a host name at all
            if listener is not None:
                listener.close()
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            advice = "Another server probably listens there: stop it, or choose another port." if "in use" in reason else "Choose another host or port."
            raise OSError(getattr(error, "errno", errno.EINVAL), f"openai-http cannot listen on {host[:60]}:{port}: {reason}. {advice}") from None
        listener.setblocking(False)
        self._listener = listener

    async def serve(self, client: EngineClient) -> None:
        """Serves until cancelled, lets the requests in flight have their time, and returns."""
        self.bind()
        assert self._listener is not None
        if self._options.host not in ("127.0.0.1", "::1", "localhost") and not (self._options.keys or self._options.api_keys):
            LOG.warning("openai-http listens on %s without keys: whoever reaches this address can use it", self.address)
        drain = Drain()
        loop = asyncio.get_running_loop()
        before = loop.get_exception_handler()
        loop.set_exception_handler(AcceptFailures(loop))
        self._meters.attach(client, drain)
        lag = asyncio.create_task(self._meters.lag.watch())
        server = _Server(self._config(build_app(Shared(client, self._options, self._meters, drain), self._mounted)))
        running = asyncio.create_task(server.serve(sockets=[self._listener]))
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            forgive()
            await drain.run(self._options.shutdown_seconds)
        finally:
            server.should_exit = True
            while not running.done():  # soon: uvicorn gives up after timeout_graceful_shutdown, and being told once more changes nothing
                try:
                    await asyncio.wait({running})
                except asyncio.CancelledError:
                    forgive()
            for connection in list(server.server_state.connections):  # of clients that do not read what was sent
                connection.transport.abort()
            self._listener.close()
            self._listener = None
            lag.cancel()
            loop.set_exception_handler(before)
        running.result()

    def _config(self, app: object) -> uvicorn.Config:
        return uvicorn.Config(
            app,  # type: ignore[arg-type]
            http=partial(JsonErrorProtocol, options=self._options),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # what goes wrong is logged by this frontend, with its request id
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
            backlog=_ACCEPTS,
        )
