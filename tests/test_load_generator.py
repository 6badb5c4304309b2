"""The load generator as a program: what it understands, and when it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import pytest

from pytest_mwbudget.load.generator import CHUNKED, UNTIL_CLOSED, BurstError, Client, read_head
from pytest_mwbudget.load.process import PROGRAM

REQUEST = "GET / HTTP/1.1\r\nhost: testserver\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Run a function with each client that connects, in a thread of its own. Yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]


@contextmanager
def answering(*answers: bytes, closing: bool = False) -> Iterator[int]:
    """Answer each request with the next of the answers, the last one again and again. Yields the port."""
    left = list(answers)

    def serve(client: socket.socket) -> None:
        with client, suppress(ConnectionError):
            while client.recv(65536):
                answer = left.pop(0) if len(left) > 1 else left[0]
                for byte in (answer[:40], answer[40:]):  # in two pieces
                    client.sendall(byte)
                    time.sleep(0.001)
                if closing:
                    return

    with listening(serve) as port:
        yield port


@contextmanager
def started(port: int, **changes: Any) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-I", "-S", str(PROGRAM)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        plan = {"port": port, "request": REQUEST, "bodiless": False, "core": None, "silent_s": 5.0} | changes
        tell(process, plan)
        try:
            yield process
        finally:
            process.kill()


def tell(process: subprocess.Popen[str], message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def burst(process: subprocess.Popen[str], clients: int, requests: int, skipped: int = 1) -> dict[str, Any]:
    tell(process, {"clients": clients, "requests": requests, "skipped": skipped})
    assert process.stdout is not None
    figures: dict[str, Any] = json.loads(process.stdout.readline())
    return figures


CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n7;x=y\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "closing"),
    [
        (OK, False),
        (CHUNKS, False),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", True),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", True),
        (OK, True),  # kept alive by its word, and closed all the same
    ],
    ids=["length", "chunks", "continue", "no content", "until closed", "closing", "closed"],
)
def test_it_counts_every_response(answer: bytes, closing: bool) -> None:
    with answering(answer, closing=closing) as port, started(port) as process:
        figures = burst(process, 3, 12)
        status = "204" if b" 204 " in answer else "200"
        # When the twelfth response comes, the two others await theirs, and this client goes on until they are there.
        assert [*figures["statuses"]] == [status]
        assert figures["statuses"][status] >= 14
        assert len(figures["latencies_ns"]) == 14 - 3
        assert 0 < max(figures["latencies_ns"]) <= figures["all_ns"]
        assert burst(process, 1, 2)["statuses"] == {status: 2}


BODY = b"x" * 30_000_000
LONG = b"x" * 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED_HEAD = HEAD + b"transfer-encoding: chunked\r\n\r\n"
LARGE = {
    "length": HEAD + b"content-length: %d\r\n\r\n" % len(LONG) + LONG,
    "chunk": CHUNKED_HEAD + b"%x\r\n" % len(LONG) + LONG + b"\r\n0\r\n\r\n",
    "chunks": CHUNKED_HEAD + (b"400\r\n" + b"x" * 1024 + b"\r\n") * 500 + b"0\r\n\r\n",
    "until closed": HEAD + b"\r\n" + LONG,
}


@pytest.mark.parametrize("form", LARGE)
@pytest.mark.parametrize("piece", [8000, 4097])
def test_large_bodies_are_read_and_not_kept(form: str, piece: int) -> None:
    ours, theirs = socket.socketpair()
    client = Client(0, REQUEST.encode(), {}, bodiless=False)
    client.socket = ours
    with ours, theirs:
        client.send()
        statuses, kept = [], []
        for start in range(0, len(LARGE[form]), piece):
            theirs.sendall(LARGE[form][start : start + piece])
            statuses.append(client.receive()[0])
            kept.append(len(client._data))
        if form == "until closed":
            theirs.close()
            statuses.append(client.receive()[0])
    assert statuses == [0] * (len(statuses) - 1) + [200]
    assert max(kept[:-1]) < 2000


LATE = OK.replace(b"200 OK", b"202 Late")


@contextmanager
def late_now_and_then(every: int, others: int, later_s: float) -> Iterator[int]:
    """Answer at once, but each `every`-th request only `later_s` after the response number `others`. Yields the port.

    The first request of a client is no late one: its latency does not count.
    """
    requests, answered, over = count(1), count(1), threading.Event()

    def serve(client: socket.socket) -> None:
        first = True
        with client, suppress(ConnectionError):
            while client.recv(65536):
                if not first and next(requests) % every == 0:
                    over.wait(10)
                    time.sleep(later_s)
                    client.sendall(LATE)
                else:
                    client.sendall(OK)
                    if next(answered) == others:
                        over.set()
                first = False

    with listening(serve) as port:
        yield port


def test_a_slow_response_neither_ends_the_burst_nor_counts_twice() -> None:
    """Latencies are those of all requests but the first of each client, whichever are answered first."""
    with late_now_and_then(40, 100, 0.5) as port, started(port) as process:
        figures = burst(process, 10, 100)
    # When the hundredth response comes, the nine other clients await theirs, two of them a late one.
    assert sum(figures["statuses"].values()) > 109
    assert len(figures["latencies_ns"]) == 109 - 10
    assert sum(latency_ns > 0.5e9 for latency_ns in figures["latencies_ns"]) >= 2
    assert figures["request_ns"] == pytest.approx(sum(figures["latencies_ns"]) / 99 / 10, rel=0.2)


def test_the_time_to_connect_is_in_the_time_between_two_responses() -> None:
    closing = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    with answering(closing, closing=True) as port, started(port) as process:
        figures = burst(process, 3, 30)
    counted = len(figures["latencies_ns"])
    assert figures["request_ns"] * 3 * counted > sum(figures["latencies_ns"]) + counted * 10_000


@pytest.mark.parametrize(("requests", "skipped", "slow"), [(12, 1, True), (12, 2, False), (7, 2, True), (4, 0, True)])
def test_the_first_requests_of_clients_are_in_no_time_if_others_follow(requests: int, skipped: int, slow: bool) -> None:
    """Clients that begin at once wait for each other at first."""
    with serving(lambda number: time.sleep(0.5 if number <= 8 else 0)) as port, started(port) as process:
        figures = burst(process, 4, requests, skipped)
    assert figures["all_ns"] > 0.4e9
    assert (figures["request_ns"] > 0.01e9) == slow


@contextmanager
def serving(before: Callable[[int], object], *, reading: bool = True) -> Iterator[int]:
    """Answer each request, after a call with its number and, if `reading`, after its body of BODY. Yields the port."""
    numbers = count(1)

    def serve(client: socket.socket) -> None:
        with client, suppress(ConnectionError):
            while data := client.recv(65536):
                before(next(numbers))
                left = len(BODY) if data.startswith(b"POST") and reading else 0
                left -= len(data.partition(b"\r\n\r\n")[2]) if left else 0
                while left > 0:
                    left -= len(client.recv(65536))
                client.sendall(OK)
                if not reading:
                    client.recv(1 << 30, socket.MSG_WAITALL)  # until the client closes

    with listening(serve) as port:
        yield port


UPLOAD = f"POST / HTTP/1.1\r\nhost: testserver\r\ncontent-length: {len(BODY)}\r\n\r\n" + BODY.decode()


def test_a_client_whose_body_is_not_read_holds_up_no_other() -> None:
    together = threading.Barrier(3)
    with serving(lambda number: together.wait(10)) as port, started(port, request=UPLOAD) as process:
        assert burst(process, 3, 3, 0)["statuses"] == {"200": 3}
        assert not together.broken


def test_a_connection_whose_body_was_not_read_is_not_used_again() -> None:
    with serving(lambda number: None, reading=False) as port, started(port, request=UPLOAD) as process:
        assert burst(process, 2, 2, 0)["statuses"] == {"200": 2}
        assert burst(process, 2, 2, 0)["statuses"] == {"200": 2}


def test_other_statuses_are_counted_apart() -> None:
    with answering(OK, OK, OK.replace(b"200 OK", b"429 Slow"), OK) as port, started(port) as process:
        assert burst(process, 1, 6)["statuses"] == {"200": 5, "429": 1}


def test_fewer_requests_than_clients() -> None:
    with answering(OK) as port, started(port) as process:
        figures = burst(process, 10, 4)
        assert figures["statuses"] == {"200": 4}
        assert len(figures["latencies_ns"]) == 4


def test_a_response_that_ends_early_is_an_error_and_the_next_burst_works() -> None:
    early = b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nok"
    with answering(early, OK, closing=True) as port, started(port) as process:
        assert "in the middle of a response" in burst(process, 1, 2)["error"]
        assert burst(process, 1, 2)["statuses"] == {"200": 2}


def test_a_response_after_which_the_server_closes_ends_when_it_has_closed() -> None:
    closing = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    with answering(closing) as port, started(port, silent_s=0.1) as process:
        assert burst(process, 1, 1)["error"] == "the server was silent for 0.1 s"
    early = closing.replace(b"length: 2", b"length: 20")
    with answering(early, closing=True) as port, started(port) as process:
        assert "in the middle of a response" in burst(process, 1, 1)["error"]


def test_a_silent_server_is_an_error() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        started(listener.getsockname()[1], silent_s=0.1) as process,
    ):
        assert burst(process, 1, 1)["error"] == "the server was silent for 0.1 s"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be pinned here")
def test_it_runs_where_it_cannot_have_the_core() -> None:
    with answering(OK) as port, started(port, core=100_000) as process:
        assert burst(process, 1, 2)["statuses"] == {"200": 2}


def test_no_server_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with started(port) as process:
        assert "error" in burst(process, 1, 1)


def test_it_ends_with_its_standard_input() -> None:
    with answering(OK) as port, started(port) as process:
        burst(process, 2, 4)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_it_leaves_an_interrupt_to_its_parent() -> None:
    with answering(OK) as port, started(port) as process:
        burst(process, 2, 4)
        process.send_signal(signal.SIGINT)
        assert burst(process, 2, 4)["statuses"]["200"] >= 5


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and signals")
def test_it_ends_when_its_parent_is_killed() -> None:
    parent = (
        "import subprocess, sys, time\n"
        f"process = subprocess.Popen([sys.executable, '-I', '-S', {str(PROGRAM)!r}], stdin=subprocess.PIPE)\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        os.kill(child, 0)
        process.send_signal(signal.SIGKILL)
    assert ended(child)


def ended(pid: int) -> bool:
    """Tell whether a process ends within a minute, or is a zombie whose parent has not read its status."""
    for _ in range(6000):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except OSError:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("head", "bodiless", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 12", False, (200, 12, False)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 12", True, (200, 0, False)),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked", False, (200, CHUNKED, False)),
        (b"HTTP/1.0 404 Not Found\r\ncontent-length: 3", False, (404, 3, True)),
        (b"HTTP/1.1 200", False, (200, UNTIL_CLOSED, True)),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9", False, (304, 0, False)),
    ],
)
def test_heads(head: bytes, bodiless: bool, expected: tuple[int, int, bool]) -> None:
    assert read_head(head, bodiless=bodiless) == expected


def test_what_is_no_response_is_an_error() -> None:
    with pytest.raises(BurstError, match="SSH-2"):
        read_head(b"SSH-2.0-OpenSSH", bodiless=False)
