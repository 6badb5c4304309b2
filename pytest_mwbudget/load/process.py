"""The process of the load generator, and the commands to it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from ..asgi import loops
from ..asgi.request import RequestTemplate
from ..errors import MeasurementError
from ..model.estimate import Seconds
from ..processes import started

PROGRAM = Path(__file__).with_name("generator.py")
# How much of what the process printed an error shows.
SHOWN_CHARACTERS = 2000


@dataclass
class Generator:
    """A running load generator, which writes its errors to the file `errors`."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    def tell(self, message: dict[str, Any]) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the answer tells that the process has ended
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    async def burst(self, clients: int, requests: int, skipped: int) -> dict[str, Any]:
        """Make a burst, and return its figures. Raises MeasurementError if the process has ended.

        The first `skipped` requests of each client do not count, nor do those that are sent when `requests` have been
        answered.
        """
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[bytes] = loop.create_future()

        def read() -> None:
            assert self.process.stdout is not None
            line = b""
            with suppress(ValueError):  # the pipe was closed
                line = self.process.stdout.readline()
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(_answer, answered, line)

        # A thread, because no loop can wait for a pipe on all systems. It does not run during the burst.
        threading.Thread(target=read, daemon=True, name="mw-budget-load").start()
        self.tell({"clients": clients, "requests": requests, "skipped": skipped})
        line = await answered
        if not line:
            with loops.unwatched():
                raise self._ended()
        figures: dict[str, Any] = json.loads(line)
        return figures

    def _ended(self) -> MeasurementError:
        """Return the error for a process that has closed its output, with the end of what it printed."""
        error = MeasurementError(
            f"the load generator ended with status {self.process.wait()}; run the test again, and report this if it"
            " comes back",
            message_id="load-generator",
        )
        self.errors.seek(0)
        if printed := self.errors.read().decode(errors="replace").strip():
            error.add_note(f"It printed:\n{printed[-SHOWN_CHARACTERS:]}")
        return error


def _answer(answered: asyncio.Future[bytes], line: bytes) -> None:
    if not answered.done():
        answered.set_result(line)


@contextmanager
def generator(port: int, template: RequestTemplate, core: int | None, silent_s: Seconds) -> Iterator[Generator]:
    """Run a load generator in the block. It reports a server that is silent for `silent_s`."""
    plan = {
        "port": port,
        "request": request_bytes(template, port).decode("latin-1"),
        "bodiless": template.line.method == "HEAD",
        "core": core,
        "silent_s": silent_s,
    }
    with loops.unwatched_ends(_planned(plan)) as made:
        yield made


@contextmanager
def _planned(plan: dict[str, Any]) -> Iterator[Generator]:
    command, pipe = [sys.executable, "-I", "-S", str(PROGRAM)], subprocess.PIPE
    with TemporaryFile() as errors, started(command, stdin=pipe, stdout=pipe, stderr=errors) as process:
        made = Generator(process, errors)
        made.tell(plan)
        yield made


def request_bytes(template: RequestTemplate, port: int) -> bytes:
    """Return the request as it goes over the wire, to the host that the template names.

    With `connection: close` each request has a connection of its own.
    """
    scope = template.scope(None)
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    body = b"".join(template.body)
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name != b"transfer-encoding" and (name != b"connection" or value.lower() == b"close")
    ]
    names = {name for name, _ in headers}
    if b"host" not in names:
        headers.insert(0, (b"host", f"127.0.0.1:{port}".encode()))
    if body and b"content-length" not in names:
        headers.append((b"content-length", str(len(body)).encode()))
    lines = [scope["method"].encode() + b" " + target + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join([*lines, b"", b""]) + body
