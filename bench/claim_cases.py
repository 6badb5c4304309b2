"""The claims of `claims.py`: what six texts published, and which of our figures stands beside each of theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, inf, log
from typing import TypeAlias

from pytest_mwbudget.model.estimate import ZERO, Estimate, independent_sum

RATIO, SAVING, TIME, SAME = 1.25, 1.5, 2.0, 1.1
CHUNKS, MANY, HOPS = 50, 400, 50
WORK_S = 0.023

# ---- figures --------------------------------------------------------------------------------------------------------

Figures: TypeAlias = Mapping[tuple[str, str], Estimate]
# Raises KeyError if a figure is missing, or a part of a ratio is not above 0.
Term: TypeAlias = Callable[[Figures], Estimate]


def of(name: str, key: str = "total_us") -> Term:
    """Name a figure of an app."""
    return lambda figures: figures[name, key]


def less(more: Term, fewer: Term, parts: float = 1) -> Term:
    """Subtract figures of different processes, and divide by a number of parts."""
    return lambda figures: independent_sum(more(figures), -fewer(figures)) / parts


def over(above: Term, below: Term) -> Term:
    """Divide figures of different processes; both are above 0. Source of the interval: as `independent_sum`."""

    def quotient(figures: Figures) -> Estimate:
        up, down = (logarithm(term(figures)) for term in (above, below))
        ratio = independent_sum(up, -down)
        return Estimate(*(exp(end) for end in (ratio.estimate, ratio.low, ratio.high)))

    return quotient


def related(above: Term, below: Term) -> Term:
    """Divide figures that share a process: the interval holds if both intervals hold. The lower figure is above 0."""

    def quotient(figures: Figures) -> Estimate:
        up, down = above(figures), below(figures)
        sides = [side / end for side, end in product((up.low, up.high), (down.low, down.high)) if end > 0]
        return Estimate(up.estimate / down.estimate, min(sides), max(sides) if down.low > 0 else inf)

    return quotient


def logarithm(figure: Estimate) -> Estimate:
    """Return the logarithm of a figure."""
    if figure.estimate <= 0:
        raise KeyError("not above 0")
    return Estimate(log(figure.estimate), log(figure.low) if figure.low > 0 else -inf, log(figure.high))


def per_cent(part: Term, whole: Term) -> Term:
    """Return a share in per cent."""
    return lambda figures: over(part, whole)(figures) * 100


def saved(before: Term, after: Term) -> Term:
    """Return the share of the first time that the second one saves, in per cent."""
    return lambda figures: constant(100)(figures) - per_cent(after, before)(figures)


def added_up(terms: Sequence[Term]) -> Term:
    """Add figures that share a process."""
    return lambda figures: sum((term(figures) for term in terms), ZERO)


def constant(value: float) -> Term:
    """Make a term of a number."""
    return lambda figures: Estimate(value, value, value)


# ---- claims ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """A published figure or range, our figure, and the factor within which they agree; None for no verdict."""

    what: str
    published: float | tuple[float, float]
    ours: Term
    within: float | None = None
    unit: str = "µs"

    def measured(self, figures: Figures) -> Estimate | None:
        """Return our figure, None if a part of it is missing."""
        try:
            return self.ours(figures)
        except KeyError:
            return None

    def verdict(self, figures: Figures) -> str:
        """Compare the interval of our figure with the allowed range."""
        ours = self.measured(figures)
        if ours is None or self.within is None:
            return "not measured" if ours is None else "-"
        low, high = self.published if isinstance(self.published, tuple) else (self.published,) * 2
        low, high = low / self.within, high * self.within
        if low <= ours.low and ours.high <= high:
            return "agrees"
        return "differs" if ours.high < low or ours.low > high else "undecided"

    def cells(self, figures: Figures) -> list[str]:
        """Write the cells of the row."""
        ours = self.measured(figures)
        ends = self.published if isinstance(self.published, tuple) else (self.published,)
        return [
            self.what,
            f"{' to '.join(f'{end:,g}' for end in ends)} {self.unit}".strip(),
            "-" if ours is None else f"{number(ours.estimate)} {self.unit}".strip(),
            "-" if ours is None else f"{number(ours.low)} … {number(ours.high)}",
            "-" if self.within is None else f"{self.within:g}",
            self.verdict(figures),
        ]


@dataclass(frozen=True)
class Case:
    """A text: its setting and ours, its claims, and a remark that is made of our figures."""

    title: str
    source: str
    setting: str
    ours: str
    claims: Sequence[Claim]
    remark: Callable[[Figures], str]


def number(value: float) -> str:
    """Format a figure of ours: two decimals below 10, one below 100, none above or if it is a whole number."""
    digits = 0 if float(value).is_integer() else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"


def shown(term: Term, figures: Figures) -> str:
    """Write a figure for a sentence."""
    return number(term(figures).estimate)


# ---- five layers ----------------------------------------------------------------------------------------------------


def pair(what: str, name: str, before: float, after: float) -> list[Claim]:
    """Return the claims of five layers and of one: both times, and what the one saves."""
    five, one = of(f"five, {name}"), of(f"one, {name}")
    share = saved(five, one)
    return [
        Claim(f"five layers, {what}", before, five),
        Claim(f"one layer, {what}", after, one),
        Claim(f"saved, {what}", round(100 * (1 - after / before)), share, SAVING, "%"),
    ]


CHUNK_OF_FIVE, CHUNK_OF_ONE = (
    less(of(f"{name}, headers, {MANY}"), of(f"{name}, headers, 1"), MANY - 1) for name in ("five", "one")
)


def of_collapsing(figures: Figures) -> str:
    return (
        "Two of the five layers wrap `send`; the one layer wraps it once. The second wrapper takes"
        f" {shown(less(CHUNK_OF_FIVE, CHUNK_OF_ONE), figures)} µs for each chunk here, and 0.05 µs as published."
        " Between two of our requests stands a server's work, which leaves caches cold, and the layers are written"
        " anew. This bench does not separate the effects of both and of the machine."
    )


# ---- instruments ----------------------------------------------------------------------------------------------------

# What each adds, in µs, as published.
PUBLISHED_US = {"logging": 0.1, "Prometheus": 17.5, "Sentry": 58.5, "OpenTelemetry": 120.1, "all": 217.1}
BARE_US = 15.8
ADDED = {name: less(of(name), of("bare")) for name in PUBLISHED_US}
SINGLE = [name for name in PUBLISHED_US if name != "all"]


def instruments() -> list[Claim]:
    """Return the claims of instruments: what each adds, and that in units of the app without instruments."""
    times = [Claim(f"{name}, added", us, ADDED[name]) for name, us in PUBLISHED_US.items()]
    units = [
        Claim(
            f"{name} / bare app",
            round(us / BARE_US, 2),
            less(over(of(name), of("bare")), constant(1)),
            RATIO,
            "",
        )
        for name, us in PUBLISHED_US.items()
    ]
    return [Claim("bare app", BARE_US, of("bare")), *times, *units]


def of_instruments(figures: Figures) -> str:
    order = sorted(SINGLE, key=lambda name: ADDED[name](figures).estimate)
    logging = ADDED["logging"](figures)
    return (
        f"Our bare app takes {shown(over(of('bare'), constant(BARE_US)), figures)} times as long as theirs, so the"
        f" verdicts are on what is added in units of the bare app. From cheap to expensive, ours are"
        f" {', '.join(order)}: {'the same' if order == SINGLE else 'another'} order as published."
        f" What logging adds lies between {number(logging.low)} and {number(logging.high)} µs. Processor, CPython,"
        " releases and exporter differ from theirs, and this bench does not separate their effects. Sentry patches"
        " functions of the frameworks and has no"
        " row, so only the total shows it."
    )


# ---- two BaseHTTPMiddlewares, under load ----------------------------------------------------------------------------


def under_load(name: str, key: str = "rps") -> Term:
    """Name a figure under load."""
    return of(f"{name}, load", key)


BEFORE, AFTER, NEITHER = (under_load(name) for name in ("two B", "two A", "neither"))
WORK_BEFORE, WORK_AFTER = under_load("two B, work"), under_load("two A, work")


def of_replacing(figures: Figures) -> str:
    return (
        "What two layers take of the requests per second depends on the rest of the request. Here they take"
        f" {shown(saved(AFTER, BEFORE), figures)} % of those of a route that does nothing, and"
        f" {shown(saved(WORK_AFTER, WORK_BEFORE), figures)} % of those of a route of {1000 * WORK_S:g} ms. As published"
        " they take 69 % of the first. How long the rest of their request takes, and what else their layers do, is not"
        " known here."
    )


# ---- a BaseHTTPMiddleware by chunk ----------------------------------------------------------------------------------

ON_ASYNCIO, ON_UVLOOP, FIRST = of("B, asyncio", "message_us"), of("B, uvloop", "message_us"), of("B", "layers_us")


def of_chunks(figures: Figures) -> str:
    return (
        f"On asyncio, each further chunk adds {shown(per_cent(ON_ASYNCIO, FIRST), figures)} % of the time of a request"
        " with one chunk; as published, 1.9 to 2.7 %. The speed of the machine cancels in this share, so it does not"
        " explain the difference. How the published benchmark made and sent its chunks is not known here."
    )


# ---- GZip -----------------------------------------------------------------------------------------------------------


def in_ms(name: str, key: str) -> Term:
    """Name a time of an app in milliseconds."""
    return over(of(name, key), constant(1000))


def of_gzip(figures: Figures) -> str:
    inline, thread = (shown(in_ms(name, "held_us"), figures) for name in ("GZip, inline", "GZip, thread"))
    return (
        f"Inline, compressing 1 MiB blocks the event loop for {inline} ms. In a thread, which is the default, it takes"
        f" {shown(in_ms('GZip, thread', 'layers_us'), figures)} ms and blocks the loop for {thread} ms. The figure"
        " for 10 MiB is ten times that of 1 MiB. The figures depend on the compressed text, and the authors did not"
        " publish theirs. Here, a hop includes the wait for a thread, on a machine with two cores."
    )


# ---- Django ---------------------------------------------------------------------------------------------------------


def hops(name: str) -> Term:
    """Name how often the middlewares of a request go to a thread."""
    return less(of(name, "threads"), of("Django", "threads"))


HOP = over(of("five Mixed", "layers_us"), hops("five Mixed"))


def of_django(figures: Figures) -> str:
    return (
        f"The number of hops of five middlewares is {shown(hops('five Mixed'), figures)}, for `process_request` and"
        f" `process_response` of each; sync-only it is {shown(hops('five SyncMixed'), figures)}. Their rows are"
        f" {shown(of('five Mixed', 'layers_us'), figures)} µs together before and"
        f" {shown(of('five SyncMixed', 'layers_us'), figures)} µs after. A hop here contains the middleware's own work"
        " and the wait for the thread, on a machine of two cores."
    )


# ---- the cases ------------------------------------------------------------------------------------------------------

CASES = (
    Case(
        "Five layers collapsed into one",
        "open-webui pull request 28179",
        "the middlewares of the app driven over ASGI, without a server; best of five runs",
        "five small layers with the same duties, and one with all of them, round an endpoint of plain ASGI; the whole"
        " request",
        [
            *pair("no security headers", "plain, 1", 4.30, 3.96),
            *pair("security headers", "headers, 1", 5.46, 4.41),
            *pair(f"{CHUNKS} chunks", f"headers, {CHUNKS}", 15.27, 11.90),
            *pair(f"{MANY} chunks", f"headers, {MANY}", 92.45, 69.75),
            Claim("a further chunk, one layer / five", 0.75, over(CHUNK_OF_ONE, CHUNK_OF_FIVE), RATIO, ""),
        ],
        of_collapsing,
    ),
    Case(
        "A stack of instruments",
        "lite-bootstrap issues 185 and 187, pull request 189",
        "FastAPI with each instrument alone, in-process; requests per second by ab with 16 clients; Apple M2, CPython"
        " 3.14; spans go to a local sink over HTTP",
        "the same instruments without lite-bootstrap: logging of the standard library, Sentry without tracing, spans in"
        " batches; nothing is sent over the network; the difference of two whole requests",
        [
            *instruments(),
            Claim("OpenTelemetry / Sentry", 2.05, related(ADDED["OpenTelemetry"], ADDED["Sentry"]), RATIO, ""),
            Claim(
                "all / sum of the four", 1.11, related(ADDED["all"], added_up([ADDED[n] for n in SINGLE])), RATIO, ""
            ),
            Claim("saved without spans of messages", 24, saved(of("OpenTelemetry"), of("excluding")), SAVING, "%"),
            Claim("RPS, bare app", 7978, under_load("bare"), None, ""),
            Claim("RPS, all", 2389, under_load("all"), None, ""),
            Claim("RPS, all / bare app", 0.3, over(under_load("all"), under_load("bare")), RATIO, ""),
        ],
        of_instruments,
    ),
    Case(
        "Two BaseHTTPMiddlewares replaced",
        "hindsight pull request 4235",
        "the real API in a container with 2 CPUs, 32 clients in four processes; two runs of each",
        "FastAPI's hello world in two layers that pass everything on, 32 clients on one core and the server on the"
        f" other; for the slow route 16 clients and an endpoint of plain ASGI, {1000 * WORK_S:g} ms of processor time",
        [
            Claim("RPS, two BaseHTTPMiddlewares", (2393, 2476), BEFORE, None, ""),
            Claim("RPS, two pure layers", (7545, 7917), AFTER, None, ""),
            Claim("RPS, after / before", 3.18, over(AFTER, BEFORE), RATIO, ""),
            Claim("RPS, no layers / two pure layers", 1, over(NEITHER, AFTER), SAME, ""),
            Claim("P99, two BaseHTTPMiddlewares", (106, 108), under_load("two B", "p99_ms"), None, "ms"),
            Claim("P99, two pure layers", (17, 20), under_load("two A", "p99_ms"), None, "ms"),
            Claim(
                "P99, before / after",
                5.8,
                over(under_load("two B", "p99_ms"), under_load("two A", "p99_ms")),
                RATIO,
                "",
            ),
            Claim("RPS of the slow route, after / before", 1, over(WORK_AFTER, WORK_BEFORE), SAME, ""),
        ],
        of_replacing,
    ),
    Case(
        "One BaseHTTPMiddleware, by request and by chunk",
        "codex-lb pull request 2046",
        "a micro-benchmark of the app's last BaseHTTPMiddleware, on both event loops",
        "a layer that passes everything on, round an endpoint of plain ASGI that sends without a wait: its row with one"
        f" chunk, and its µs per message with {CHUNKS}",
        [
            Claim("a request of one chunk", (130, 185), FIRST, TIME),
            Claim("a further chunk, uvloop", 1, ON_UVLOOP, TIME),
            Claim("a further chunk, asyncio", 3.5, ON_ASYNCIO, TIME),
            Claim("a further chunk, as planned", (12, 17), ON_ASYNCIO, TIME),
            Claim("a further chunk, asyncio / uvloop", 3.5, over(ON_ASYNCIO, ON_UVLOOP), RATIO, ""),
        ],
        of_chunks,
    ),
    Case(
        "GZip's move to a thread",
        "starlette pull request 3410",
        "level 9; a chunk of 128 KiB and more goes to a thread, where a response of 10 MiB blocked the event loop",
        "level 9; 1 MiB of words, with `thread_minimum_size` out of reach and by default; for the hop"
        f" {HOPS} chunks of 1 KiB, in a thread less inline",
        [
            Claim(
                "10 MiB inline, event loop held",
                (150, 310),
                over(of("GZip, inline", "held_us"), constant(100)),
                TIME,
                "ms",
            ),
            Claim("the hop of a chunk to a thread", 70, less(of("chunks, thread"), of("chunks, inline"), HOPS), TIME),
        ],
        of_gzip,
    ),
    Case(
        "Django's middlewares in a thread",
        "django pull requests 21465 and 21523",
        "no benchmark: the documentation said about a millisecond for a switch to a thread, and says tens of"
        " microseconds now; a change makes a chain of middlewares go to a thread once",
        "five `MiddlewareMixin`s with both methods round an asynchronous view, without a server: as they are, and with"
        " `async_capable = False`",
        [
            Claim("a hop, as documented now", (10, 99), HOP, 1),
            Claim("a hop, as documented before", 1000, HOP, TIME),
            Claim("hops of five middlewares, sync-only", 1, hops("five SyncMixed"), 1, ""),
        ],
        of_django,
    ),
)
