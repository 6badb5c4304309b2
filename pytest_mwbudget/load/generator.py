"""The load generator: a program that sends requests over keep-alive connections in a closed loop.

    python -I -S generator.py

It imports nothing but the standard library. The first line of standard input is a JSON object with `port`, `request`
(in latin-1), `bodiless` (whether responses have no body, as to HEAD), `core` (null for any) and `silent_s`. Each
further line asks for a burst: `clients`, `requests`, and how many of the first requests of each client are `skipped`.
Each client sends a request as soon as its last one is answered. If some are skipped, all clients go on until those
requests are answered that were under way when the number `requests` was, and later ones do not count.

The answer to a burst is one line: `request_ns`, the time between two responses, `all_ns` from the first request to the
last response, `statuses` with their numbers, `latencies_ns` of the requests that count, `gauges_ns` of a fixed piece of
work before and after, `waited_ns`, the time that this process was ready to run and had no core, and `worked_ns`, the
time that it worked; or `error`.

The program ends with its standard input, and with its parent, also if that is killed.
"""

from __future__ import annotations

import json
import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

LOOK_S = 1.0
# glibc maps larger buffers anew for each call, which takes more time than all the rest of a request.
CHUNK_BYTES = 1 << 16
GAUGE_CALLS, GAUGES = 500, 5
# The most heads of responses that are remembered: apps may send another one each time.
MOST_HEADS = 64
# The meaning of a head, in place of the length of a body.
CHUNKED, UNTIL_CLOSED = -1, -2


class BurstError(Exception):
    """The server did not answer as a server does."""


class Client:
    """One connection: a request is under way from `send` until `receive` returns a status.

    Bodies are discarded. `_skip` is the number of bytes to discard from the next data, `_answer` the status that
    `receive` returns after the last of these bytes, and `_final` the status to return when the server has closed.
    """

    def __init__(self, port: int, request: bytes, heads: dict[bytes, tuple[int, int, bool]], *, bodiless: bool) -> None:
        self.port = port
        self.request = request
        self.heads = heads
        self.bodiless = bodiless
        self.socket: socket.socket | None = None
        self.sent_ns = 0
        self.reused = False
        # How many of the next requests of a burst do not count, and when the last one was answered.
        self.to_skip = 0
        self.answered_ns = 0
        # Whether the request under way counts.
        self.counts = False
        # What the socket has not taken yet of the request.
        self.unsent = memoryview(b"")
        self._data = b""
        self._chunk = self._skip = self._answer = self._final = 0

    def connect(self) -> bool:
        """Connect unless connected. Returns whether the connection is a new one."""
        if self.socket is not None:
            return False
        self.socket = socket.create_connection(("127.0.0.1", self.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.reused = False
        return True

    def send(self) -> None:
        """Begin to send the request. What is left of a large one is `unsent`."""
        self._data = b""
        self._chunk = self._skip = self._final = 0
        self.unsent = memoryview(self.request)
        self.sent_ns = time.perf_counter_ns()
        self.send_more()

    def send_more(self) -> None:
        """Send as much of the request as the socket takes."""
        assert self.socket is not None
        with suppress(BlockingIOError):
            while self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]

    def receive(self) -> tuple[int, bool]:
        """Return the status of the response, 0 if it has not ended, and whether the connection ends with it.

        A response after which the server closes ends when it has closed, as it does for `ab`. The status is -1 if the
        server closed a connection that it had kept alive before it got the request.
        """
        assert self.socket is not None
        try:
            data = self.socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return 0, False
        except ConnectionError:
            data = b""
        if not data:
            return self._at_end(), True
        if len(data) <= self._skip:
            self._skip -= len(data)
            return 0 if self._skip else self._answer, False
        data, self._skip = data[self._skip :], 0
        self._data = self._data + data if self._data else data
        return self._status(), False

    def _at_end(self) -> int:
        if self._final and not self._skip:
            return self._final
        if not self._data and self.reused:
            return -1
        raise BurstError("the server closed a connection in the middle of a response")

    def _head(self) -> tuple[int, int, bool, int] | None:
        """Return the status, the length of the body, whether the connection ends, and where the body begins."""
        while True:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return None
            head = self._data[:end]
            parsed = self.heads.get(head)
            if parsed is None:
                parsed = read_head(head, bodiless=self.bodiless)
                if len(self.heads) < MOST_HEADS:
                    self.heads[head] = parsed
            if parsed[0] >= 200:
                return (*parsed, end + 4)
            self._data = self._data[end + 4 :]

    def _status(self) -> int:
        head = self._head()
        if head is None:
            return 0
        status, length, closes, begin = head
        if length == CHUNKED:
            if not self._chunks_complete(begin):
                return 0
        else:
            self._skip = 0 if length == UNTIL_CLOSED else max(0, length - (len(self._data) - begin))
            self._data = self._data[:begin]
        self._answer, self._final = (0, status) if closes else (status, 0)
        return 0 if self._skip else self._answer

    def _chunks_complete(self, begin: int) -> bool:
        at = self._chunk or begin
        while True:
            end = self._data.find(b"\r\n", at)
            if end < 0:
                break
            size = int(self._data[at:end].partition(b";")[0], 16)
            if size == 0:
                return self._data.find(b"\r\n", end + 2) >= 0
            at = end + 2 + size + 2
            if len(self._data) < at:
                self._skip, self._answer = at - len(self._data), 0
                break
        self._data = self._data[:begin] + self._data[at:]
        self._chunk = begin
        return False

    def close(self) -> None:
        """Close the connection."""
        self.unsent = memoryview(b"")
        if self.socket is not None:
            self.socket.close()
            self.socket = None


def read_head(head: bytes, *, bodiless: bool) -> tuple[int, int, bool]:
    """Read the head of a response: its status, the length of its body, and whether the connection ends."""
    first, *lines = head.split(b"\r\n")
    try:
        version, status = first.split(b" ", 2)[0], int(first.split(b" ", 2)[1])
    except (IndexError, ValueError):
        raise BurstError(f"a response begins {first[:100]!r}") from None
    fields = {
        name.strip().lower(): value.strip().lower() for name, _, value in (line.partition(b":") for line in lines)
    }
    closes = fields.get(b"connection") == b"close" or version == b"HTTP/1.0"
    if bodiless or status in (204, 304) or status < 200:
        return status, 0, closes
    if fields.get(b"transfer-encoding") == b"chunked":
        return status, CHUNKED, closes
    if b"content-length" in fields:
        return status, int(fields[b"content-length"]), closes
    return status, UNTIL_CLOSED, True


class Generator:
    """Makes bursts with the connections of the ones before."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.parent = os.getppid()
        self.selector = selectors.DefaultSelector()
        self.heads: dict[bytes, tuple[int, int, bool]] = {}
        self.clients: list[Client] = []
        self.statuses: dict[int, int] = {}
        self.latencies: list[int] = []
        self.wanted = self.done = self.open = self.awaited = 0
        self.goes_on = False
        self.last_ns = self.cycles_ns = 0

    def burst(self, clients: int, requests: int, skipped: int) -> dict[str, Any]:
        """Make a burst, and return its figures."""
        gauges, waited, worked = [gauge_ns()], waited_ns(), time.process_time_ns()
        try:
            begin_ns = self._sent(clients, requests, skipped)
        except (BurstError, OSError) as error:
            for client in self.clients:
                self._close(client)
            return {"error": str(error) or type(error).__name__}
        worked = time.process_time_ns() - worked
        gauges.append(gauge_ns())
        return {
            "request_ns": self._request_ns(clients, requests, begin_ns),
            "all_ns": time.perf_counter_ns() - begin_ns,
            "statuses": self.statuses,
            "latencies_ns": self.latencies,
            "gauges_ns": gauges,
            "waited_ns": waited_ns() - waited,
            "worked_ns": worked,
        }

    def _request_ns(self, clients: int, requests: int, begin_ns: int) -> float:
        """Return the time between two responses.

        In a closed loop this is the mean time from one response of a client to its next, divided by the clients. So it
        does not contain that clients which begin at once wait for each other at first.
        """
        if self.goes_on:
            return self.cycles_ns / len(self.latencies) / clients
        return (self.last_ns - begin_ns) / requests

    def _sent(self, count: int, requests: int, skipped: int) -> int:
        """Send requests and take all their responses. Returns when the first was sent.

        No client idles while a slow response is awaited that counts, and none that counts meets fewer others at the
        end.
        """
        request, bodiless = self.plan["request"].encode("latin-1"), self.plan["bodiless"]
        while len(self.clients) < count:
            self.clients.append(Client(self.plan["port"], request, self.heads, bodiless=bodiless))
        group = self.clients[: min(count, requests)]
        for client, _ in ((key.data, events) for key, events in self.selector.select(0)):
            self._close(client)  # the server has ended it meanwhile
        for client in group:
            self._connect(client)
        self.goes_on = skipped > 0 and requests >= skipped * count and requests > skipped
        self.statuses, self.latencies, self.cycles_ns = {}, [], 0
        self.done, self.wanted, self.open, self.awaited = 0, requests, 0, 0
        begin_ns = time.perf_counter_ns()
        for client in group:
            # The first requests of a burst arrive all at once, and find no others before them.
            client.to_skip = skipped if self.goes_on else 0
            self._begin(client)
        self._all_taken()
        return begin_ns

    def _all_taken(self) -> None:
        """Take all responses that are awaited."""
        silent_s = self.plan["silent_s"]
        look_s, quiet_since = min(LOOK_S, silent_s), time.monotonic()
        while self.open:
            ready = self.selector.select(look_s)
            if ready:
                quiet_since = time.monotonic()
            elif os.getppid() != self.parent:
                sys.exit()
            elif time.monotonic() - quiet_since > silent_s:
                raise BurstError(f"the server was silent for {silent_s:g} s")
            for key, events in ready:
                if events & selectors.EVENT_WRITE:
                    self._send_more(key.data)
                if events & selectors.EVENT_READ:
                    self._take(key.data)

    def _take(self, client: Client) -> None:
        if not client.sent_ns:  # all its requests are answered, and the server has ended the connection
            self._close(client)
            return
        status, ends = client.receive()
        if not status:
            return
        if ends or client.unsent:  # an app may answer before it has read the body
            self._close(client)
        if status < 0:
            self._send(client)
            return
        now_ns = time.perf_counter_ns()
        client.reused = True
        latency_ns, client.sent_ns = now_ns - client.sent_ns, 0
        self.done += 1
        self.open -= 1
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.awaited -= client.counts
        if client.to_skip:
            client.to_skip -= 1
        elif client.counts:
            self.latencies.append(latency_ns)
            self.cycles_ns += now_ns - client.answered_ns
        client.answered_ns = self.last_ns = now_ns
        if (self.done < self.wanted or self.awaited) if self.goes_on else self.done + self.open < self.wanted:
            self._begin(client)

    def _begin(self, client: Client) -> None:
        """Send a request, which counts unless enough are answered."""
        self.open += 1
        client.counts = self.done < self.wanted
        self.awaited += client.counts
        self._send(client)

    def _send(self, client: Client) -> None:
        self._connect(client)
        try:
            client.send()
        except ConnectionError:
            if not client.reused:
                raise
            self._close(client)  # the server has ended it after the last response
            self._connect(client)
            client.send()
        if client.unsent:
            self._watch(client, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def _send_more(self, client: Client) -> None:
        if not client.unsent:  # it was closed by an event of the same look
            return
        with suppress(ConnectionError):  # the server may have answered before
            client.send_more()
        if not client.unsent:
            self._watch(client, selectors.EVENT_READ)

    def _watch(self, client: Client, events: int) -> None:
        assert client.socket is not None
        self.selector.modify(client.socket, events, client)

    def _connect(self, client: Client) -> None:
        if client.connect():
            assert client.socket is not None
            self.selector.register(client.socket, selectors.EVENT_READ, client)

    def _close(self, client: Client) -> None:
        if client.socket is not None:
            self.selector.unregister(client.socket)
            client.close()


def gauge_ns() -> int:
    """Time a fixed piece of work, in nanoseconds: the median of some."""
    taken = []
    for _ in range(GAUGES):
        begin = time.perf_counter_ns()
        for number in range(GAUGE_CALLS):
            same(number)
        taken.append(time.perf_counter_ns() - begin)
    return sorted(taken)[GAUGES // 2]


def same(number: int) -> int:
    """Return the argument."""
    return number


def waited_ns() -> int:
    """Return the time that this process was ready to run and had no core, 0 if the system does not say."""
    try:
        with open("/proc/self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def main() -> None:
    """Read commands and make bursts until the standard input ends."""
    # A terminal sends Ctrl-C to this process too. The parent hears it, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    commands: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            commands.put(line)
        os._exit(0)  # the parent has ended, or does not need this process any more

    threading.Thread(target=read, daemon=True).start()
    generator = Generator(json.loads(commands.get()))
    if generator.plan["core"] is not None:
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setaffinity(0, {generator.plan["core"]})
    while True:
        asked = json.loads(commands.get())
        print(json.dumps(generator.burst(**asked)), flush=True)


if __name__ == "__main__":
    main()
