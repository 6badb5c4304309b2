"""The mechanics of `bench/published.py`; its timings are not checked."""

from __future__ import annotations

import asyncio
import importlib
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import needs

pytestmark = pytest.mark.bench

httpx = pytest.importorskip("httpx", reason="the published apps are asked with httpx")
needs("fastapi", reason="the published apps are FastAPI's")
needs("uvicorn", reason="the upstream stands behind uvicorn")
needs("httptools", reason="uvicorn parses with httptools")


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "bench")
    return importlib.import_module("published")


def reading(case: str, us: float | None, total_us: float | None = None, **changed: Any) -> dict[str, Any]:
    total_us = us if total_us is None else total_us
    return {
        "case": case,
        "us": us and [us, us - 1, us + 1],
        "total_us": total_us and [total_us, total_us - 1, total_us + 1],
        "busy_us": us,
        "wait_us": 0.0,
        "cpu_us": us,
        "blocking": 0,
        "objects": 100,
        "tasks": 1,
        **changed,
    }


def every_reading(published: ModuleType) -> list[dict[str, Any]]:
    return [
        reading(name, 100.0 + number, wait_us=50_000.0 if "sleep" in name else 0.0)
        for number, name in enumerate(published.CASES)
    ]


def test_every_case_answers(published: ModuleType, tmp_path: Path) -> None:
    async def status(name: str) -> int:
        app = published.CASES[name].make(published.Place(tmp_path / "written"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testserver") as client:
            return (await client.get("/")).status_code

    names = [name for name in published.installed_cases() if "fetch" not in name and "100 ms" not in name]
    assert {name: asyncio.run(status(name)) for name in names} == dict.fromkeys(names, 200)
    assert (tmp_path / "written").stat().st_size == 2 * 5 * 15_000


def test_without_litestar_the_other_cases_stay(published: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "find_spec", lambda name: None)
    left_out = [name for name in published.CASES if name not in published.installed_cases()]
    assert left_out == ["records, Litestar, plain", "records, Litestar, ready"]
    monkeypatch.setattr(published, "find_spec", lambda name: object())
    assert published.installed_cases() == list(published.CASES)


def test_only_the_metrics_are_guarded(published: ModuleType) -> None:
    assert published.refusal("/health", None) is None
    assert published.refusal("/metrics", "Bearer key") is None
    assert published.refusal("/metrics", None).status_code == 401


def test_a_large_file_is_begun_anew(published: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "MOST_WRITTEN", 40_000)
    sizes = []
    for _ in range(4):
        asyncio.run(published.write(tmp_path / "written"))
        sizes.append((tmp_path / "written").stat().st_size)
    assert sizes == [15_000, 30_000, 0, 15_000]


def test_every_case_of_a_run_has_a_reading(published: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def nobody(file: str, **arguments: Any) -> Iterator[Any]:
        yield type("Served", (), {"ports": (1,)})

    def own_worker(file: str, **arguments: Any) -> Any:
        return json.loads(json.dumps(published.worker(**arguments)))

    monkeypatch.setattr(published, "served", nobody)
    monkeypatch.setattr(published, "fresh_process", own_worker)
    monkeypatch.setattr(published, "QUICK_CASES", ("hello", "1 A", "1 B"))
    monkeypatch.setattr(published, "QUICK_TIME_S", 0.2)
    readings = published.measure(quick=True)
    assert [reading["case"] for reading in readings] == ["hello", "1 A", "1 B"]
    assert [reading["tasks"] for reading in readings] == [0, 0, 1]
    text = str(published.report(readings))
    assert "1 B / 1 A" in text
    assert "Not measured in this run: 5 B;" in text


@pytest.mark.parametrize(("slowdowns", "kept"), [([1.0], 1.0), ([1.6, 1.14, 1.0], 1.14), ([1.6, 1.5, 1.4, 1.0], 1.4)])
def test_what_a_slow_machine_said_is_asked_again(
    published: ModuleType, monkeypatch: pytest.MonkeyPatch, slowdowns: list[float], kept: float
) -> None:
    later = iter(slowdowns)

    async def measured_case(app: Any, whole: bool, max_time_s: float, machine: Any) -> dict[str, Any]:
        assert machine.known_ns == 3000.0
        return {"slowdown": next(later)}

    monkeypatch.setattr(published, "measured_case", measured_case)
    assert published.worker("measure", "1 A", known_ns=3000.0)["slowdown"] == kept


def test_the_upstream_is_fetched_with_either_client(published: ModuleType) -> None:
    with published.served(published.__file__, role="upstream") as server:
        url = f"http://127.0.0.1:{server.ports[0]}/"

        async def answer(shared: bool) -> Any:
            app = published.fetching(url, shared)
            transport = httpx.ASGITransport(app)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://testserver") as client,
            ):
                return (await client.get("/")).json()

        assert [asyncio.run(answer(shared)) for shared in (False, True)] == [{"answer": 42}] * 2


def test_a_new_client_builds_an_ssl_context(published: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    built, create = [], ssl.create_default_context

    def counted(*args: Any, **options: Any) -> ssl.SSLContext:
        built.append(options)
        return create(*args, **options)

    monkeypatch.setattr(ssl, "create_default_context", counted)
    with published.served(published.__file__, role="upstream") as server:

        async def built_by_two_requests(shared: bool) -> int:
            app = published.fetching(f"http://127.0.0.1:{server.ports[0]}/", shared)
            transport = httpx.ASGITransport(app)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://testserver", trust_env=False) as client,
            ):
                before = len(built)
                for _ in range(2):
                    await client.get("/")
                return len(built) - before

        assert [asyncio.run(built_by_two_requests(shared)) for shared in (False, True)] == [2, 0]


def test_the_stored_readings_are_told(published: ModuleType) -> None:
    stored = Path(published.__file__).parent / "results" / "published.json"
    readings = importlib.import_module("stored").loads(stored.read_text(encoding="utf-8"))["readings"]
    report = published.report(readings)
    assert {row[0] for row in report.tables[0].rows} == {reading["case"] for reading in readings}
    assert "Ratios" in str(report)


def test_a_full_report_has_every_case_ratio_and_reason(published: ModuleType) -> None:
    report = published.report(every_reading(published))
    beside, ratios = report.tables
    assert [row[0] for row in beside.rows] == list(published.CASES)
    assert len(ratios.rows) == len(published.RATIOS)
    assert len(report.notes) == len(published.REASONS)
    assert str(report)


def test_ratios_are_of_what_was_added(published: ModuleType) -> None:
    made = [reading("hello", 50.0), reading("1 B", 150.0, 200.0), reading("5 B", 600.0, 650.0)]
    (row,) = published.report(made).tables[1].rows
    assert row == ["5 B / 1 B", "added", "10.37", "4.00"]


def test_processes_are_taken_together(published: ModuleType) -> None:
    made = [reading("hello", 50.0), reading("hello", 60.0)]
    (row,) = published.report(made).tables[0].rows
    assert row[4:6] == ["55 in all", "49 … 61"]


def test_notes_say_what_the_readings_show(published: ModuleType) -> None:
    made = [
        reading("5 B", 500.0),
        reading("5 A", 1.0),
        reading("5 B, file", 700.0),
        reading("5 A, file", 101.0, busy_us=80.0, wait_us=21.0, cpu_us=60.0, blocking=2),
        reading("CORS, auth B", 180.0, 300.0, objects=600),
        reading("CORS, auth A", 20.0, 100.0, objects=70, tasks=0),
        reading("fetch, client per request", 8000.0),
        reading("fetch, shared client", 1000.0),
    ]
    file, auth, intermediate, fetch, _ = published.report(made).notes
    assert "Five writes of 15 kB were published with 373 µs (B) and 388 (A)" in file
    assert "ours take 200 (198 … 202) and 100 (98 … 102)" in file
    assert "Under A 80 µs hold the event loop, 60 of them on the processor, 21 are a wait" in file
    assert "a file of at most 16 MB" in file
    assert "for 100 clients at a time, may have waited for a disk" in file
    assert "2 of five layers are told to block" in file
    assert "1.74 as published, with a server's share in both, and 3.00 in ours" in auth
    assert "8.00 ms and one with a shared client 1.00, 8.0 times as much" in fetch
    assert "3.4 times" in fetch
    assert "A new httpx client builds an SSL context" in fetch
    assert "7 intermediate objects and tasks" in intermediate
    assert "saves 530 objects, of every type and however soon they are gone, and 1 task." in intermediate


def test_objects_that_cannot_be_counted_are_not_compared(published: ModuleType) -> None:
    made = [reading("CORS, auth B", 180.0, objects=None), reading("CORS, auth A", 20.0, objects=None, tasks=0)]
    assert "intermediate" not in str(published.report(made))


@pytest.mark.parametrize(
    ("case", "rps", "told"),
    [
        (
            "5 A",
            2000,
            "The text gives 76 µs for one pure layer that does nothing and 333 µs for five,"
            " so four more add about 257 µs",
        ),
        ("blog", 5000, "two runs of 200 and 98 µs"),
        ("1 pure, buffering", 5000, "two runs of 92 and 200 µs"),
        ("5 A, file", 1000, "373 µs (B) and 754 (A)"),
        ("CORS, auth A", 10_000, "saved 164 µs per request as published"),
    ],
)
def test_what_was_published_is_told_from_the_cases(
    published: ModuleType, monkeypatch: pytest.MonkeyPatch, case: str, rps: int, told: str
) -> None:
    monkeypatch.setitem(published.CASES, case, replace(published.CASES[case], us=published.rps(rps)))
    assert told in str(published.report(every_reading(published)))


def test_how_far_the_bare_app_moved_is_told(published: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "BARE_RPS", (5000, 10_000))
    made = [reading("1 A", 1.0), reading("5 A", 2.0)]
    assert "moved between 5,000 and 10,000 RPS, by 100 µs" in published.report(made).notes[0]


def test_layers_that_sleep_too_long_are_told(published: ModuleType) -> None:
    made = [
        reading("5 B, sleep 100 ms", None, objects=2836, tasks=5),
        reading("5 A, sleep 100 ms", 502_000.0, busy_us=1200.0, wait_us=500_800.0),
    ]
    note = published.report(made).notes[0]
    assert (
        "5 B, sleep 100 ms: too slow for an interval in 60 s, and only its 2836 objects and 5 tasks are counted;"
        " the sleeps alone take 500000 µs, 5000 at least with 100 clients, published 5435."
    ) in note
    assert "5 A, sleep 100 ms: 502000 µs, 1200 of them busy; 5020 at least with 100 clients, published 5464." in note


def test_what_is_missing_is_said(published: ModuleType) -> None:
    made = [reading("1 A", None), reading("1 B", None), reading("5 B", 600.0)]
    report = published.report(made)
    assert "too few requests" in str(report)
    assert report.tables[1].rows == [["5 B / 1 B", "added", "10.37", "-"], ["1 B / 1 A", "added", "1.68", "-"]][::-1]
    assert published.report([]).notes == ["Nothing was measured."]
