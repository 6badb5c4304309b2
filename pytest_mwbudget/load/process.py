"""The process of the load generator, and the commands to it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..asgi import loops
from ..asgi.request import RequestTemplate
from ..errors import MeasurementError
from ..model.estimate import Seconds

PROGRAM = Path(__file__).with_name("generator.py")
# How long the process may take to end before it is killed.
END_S: Seconds = 1.0


class Generator:
    """A running load generator."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def tell(self, message: dict[str, Any]) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the answer tells that the process has ended
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    async def burst(self, clients: int, requests: int) -> dict[str, Any]:
        """Make a burst, and return its figures. Raises MeasurementError if the process has ended."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[str] = loop.create_future()

        def read() -> None:
            assert self.process.stdout is not None
            line = ""
            with suppress(ValueError):  # the pipe was closed
                line = self.process.stdout.readline()
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(_answer, answered, line)

        # A thread, because no loop can wait for a pipe on all systems. It does not run during the burst.
        threading.Thread(target=read, daemon=True, name="mw-budget-load").start()
        self.tell({"clients": clients, "requests": requests})
        line = await answered
        if not line:
            raise MeasurementError(
                f"the load generator ended with status {self.process.wait(END_S)}; run the test again, and report"
                " this if it comes back",
                message_id="load-generator",
            )
        figures: dict[str, Any] = json.loads(line)
        return figures


def _answer(answered: asyncio.Future[str], line: str) -> None:
    if not answered.done():
        answered.set_result(line)


@contextmanager
def generator(port: int, template: RequestTemplate, core: int | None, silent_s: Seconds) -> Iterator[Generator]:
    """Run a load generator in the block. It reports a server that is silent for `silent_s`."""
    with loops.unwatched():
        process = subprocess.Popen(  # noqa: S603 - a program of this package
            [sys.executable, "-I", "-S", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        made = Generator(process)
        made.tell(
            {
                "port": port,
                "request": request_bytes(template, port).decode("latin-1"),
                "bodiless": template.line.method == "HEAD",
                "core": core,
                "silent_s": silent_s,
            }
        )
    try:
        yield made
    finally:
        with loops.unwatched():
            process.kill()  # it has nothing to finish
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(OSError):
                    pipe.close()


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
