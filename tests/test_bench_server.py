"""The mechanics of `bench/server.py`; its timings are not checked."""

from __future__ import annotations

import importlib
import itertools
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_mwbudget.asgi.http_library import httpx
from tests.conftest import needs

pytestmark = pytest.mark.bench

needs("fastapi", reason="the measured apps are FastAPI's")
needs("uvicorn", reason="the apps stand behind uvicorn")
needs("httptools", reason="uvicorn parses with httptools")

WRK = "  4000 requests in 1.00s, 0.60MB read\nRequests/sec:   4000.50\nTransfer/sec:    611.00KB\n"
AB = "Complete requests:      500\nFailed requests:        0\nRequests per second:    2500.25 [#/sec] (mean)\n"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "bench")
    return importlib.import_module("server")


def burst(us: float, **changed: Any) -> dict[str, Any]:
    return {"us": us, "cpu_us": us / 2, "collecting_us": us / 10, "waited": 0.01, **changed}


def pair(without_us: float, with_us: float, **changed: Any) -> dict[str, Any]:
    return {
        "kind": "pair",
        "layer": "CORS",
        "loop": "asyncio",
        "generator": "wrk",
        "concurrency": 100,
        "without": burst(without_us),
        "with": burst(with_us),
        "gauge_ns": 1000,
        **changed,
    }


def ours(us: list[float] | None, **changed: Any) -> dict[str, Any]:
    return {"kind": "ours", "layer": "CORS", "loop": "asyncio", "us": us, "suspensions": 0, "turn_us": 3.0, **changed}


def test_figures_are_read_from_what_the_load_generators_write(server: ModuleType) -> None:
    assert server.parsed(WRK) == server.Burst(4000.5, 4000)
    assert server.parsed(AB) == server.Burst(2500.25, 500)


@pytest.mark.parametrize(
    ("text", "complaint", "message"),
    [
        (WRK + "  Socket errors: connect 0, read 3, write 0, timeout 0", "", "Socket errors: connect 0, read 3"),
        (WRK + "  Non-2xx or 3xx responses: 7", "", "Non-2xx"),
        (AB.replace("requests:        0", "requests:        12"), "", "Failed requests:        12"),
        ("", "connection refused", "connection refused"),
        ("", "", "no figures"),
    ],
)
def test_failed_requests_are_no_burst(server: ModuleType, text: str, complaint: str, message: str) -> None:
    with pytest.raises(server.BurstError, match=message):
        server.parsed(text, complaint)


def test_every_setting_has_its_pairs_and_ours(server: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = server.Plan(layers=("CORS",), loops=("asyncio",), concurrencies=(1, 1000), processes=1, process_s=0.0)
    monkeypatch.setattr(server, "QUICK", plan)
    monkeypatch.setattr(server, "TURNS", 10)
    monkeypatch.setattr(server, "REST_S", 0.0)
    monkeypatch.setattr(server, "PATIENCE_S", 0.0)
    monkeypatch.setattr(server, "cores", lambda: (None, None))
    monkeypatch.setattr(server.shutil, "which", lambda name: name)
    monkeypatch.setattr(server, "burst", lambda generator, url, *rest: server.Burst(3000.0, 600))

    def own_worker(file: str, max_time_s: float, **arguments: Any) -> Any:
        return json.loads(json.dumps(server.worker(**arguments, max_time_s=0.2)))

    @contextmanager
    def nobody(file: str, **arguments: Any) -> Iterator[Any]:
        yield server.Served(-1, (1, 2))

    monkeypatch.setattr(server, "fresh_process", own_worker)
    monkeypatch.setattr(server, "served", nobody)
    readings = server.measure(quick=True)
    pairs = [(reading["generator"], reading["concurrency"]) for reading in readings if reading["kind"] == "pair"]
    assert pairs == [("wrk", 1), ("wrk", 1000), ("ab", 1), ("ab", 1000)]
    assert [reading["layer"] for reading in readings if reading["kind"] == "ours"] == ["CORS"]
    assert str(server.report(readings))


def test_settings_take_turns_while_there_is_time(server: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(server.time, "monotonic", lambda: next(ticks))
    plan = server.Plan(concurrencies=(1, 1000), process_s=4.0)
    assert list(server.turns(plan, ["wrk"])) == [("wrk", number) for number in (1, 1000, 1, 1000, 1)]


def test_a_pair_waits_for_a_quiet_moment_but_not_for_ever(server: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([1000.0, 1600.0, 1500.0, 1100.0, 1600.0])
    monkeypatch.setattr(server, "gauge", lambda on: next(taken))
    monkeypatch.setattr(server, "LOOK_S", 0.0)
    calm = server.Calm()
    assert [calm.wait((None,)), calm.wait((None,))] == [1000.0, 1100.0]
    calm.patience_s = 0.0
    assert calm.wait((None,)) == 1600.0


def test_a_burst_without_an_answer_is_a_failure(server: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "burst", lambda *_: server.Burst(0.0, 0))
    with pytest.raises(server.BurstError, match="no request was answered"):
        server.observed(server.Served(-1, (1, 2)), 0, "wrk", 1, 10, None)


def test_a_server_is_warmed_up_for_longer_if_the_first_burst_fails(
    server: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def sent(*arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 1:
            raise server.BurstError("no figures")
        return server.Burst(3000.0, 600)

    monkeypatch.setattr(server, "burst", sent)
    assert server.warm(server.Served(-1, (1, 2)), "wrk", 0, None) == 3000.0 * server.AB_S
    assert asked[1] == (*asked[0], server.CROWDED_WRK_S)


def test_what_a_burst_took_is_told_per_request(server: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter([server.Spent(0, 0, 0), server.Spent(300_000_000, 4_000_000, 60_000_000)])
    monkeypatch.setattr(server.Served, "spent", lambda self: next(spent))
    monkeypatch.setattr(server, "burst", lambda *_: server.Burst(2500.0, 1000))
    per_request = server.observed(server.Served(1, (1, 2)), 0, "ab", 1, 1000, None)
    assert per_request == {"us": 400.0, "cpu_us": 300.0, "collecting_us": 60.0, "waited": 0.01}


def test_a_served_app_answers_at_both_ports_until_the_block_ends(server: ModuleType) -> None:
    with (
        server.served(server.__file__, role="serve", layer="GZip", loop="asyncio", core=None) as served,
        httpx.Client(trust_env=False, headers=server.headers()) as client,
    ):
        answers = [client.get(f"http://127.0.0.1:{port}/") for port in served.ports]
        collecting_ns = [served.spent().collecting_ns, served.spent().collecting_ns]
    assert [answer.json() for answer in answers] == [{"message": "Hello World"}] * 2
    assert ["content-encoding" in answer.headers for answer in answers] == [False, True]
    assert 0 <= collecting_ns[0] <= collecting_ns[1]


def test_the_time_of_garbage_collection_is_kept(server: ModuleType) -> None:
    collecting = server.Collecting()
    collecting("start", {})
    collecting("stop", {})
    assert collecting.ns > 0


def test_a_core_is_kept_awake_until_the_block_ends(server: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    real = subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        started.append(real(["sleep", "60"], **options))
        return started[-1]

    monkeypatch.setattr(server.subprocess, "Popen", popen)
    with server.awake((None, 1)):
        assert [process.poll() for process in started] == [None]
    assert started[0].poll() is not None


def test_a_load_generator_runs_on_its_core_and_its_report_is_read(
    server: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen
    asked = []

    def popen(command: list[str], **options: Any) -> Any:
        asked.append(command)
        return real(["printf", "%s", AB], **options)

    monkeypatch.setattr(server.subprocess, "Popen", popen)
    assert server.burst("ab", "http://127.0.0.1:1/", 100, 50, None) == server.Burst(2500.25, 500)
    assert {"ab", "-c100", "-n200", "http://127.0.0.1:1/"} <= set(asked[0])


def test_missing_load_generators_are_reported(server: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "QUICK", server.Plan(layers=("CORS",), loops=("asyncio",), processes=1))
    monkeypatch.setattr(server.shutil, "which", lambda name: None)
    monkeypatch.setattr(server, "fresh_process", lambda *_, **__: {"us": None, "suspensions": 0, "turn_us": 3.0})
    text = str(server.report(server.measure(quick=True)))
    assert "wrk is skipped: it is not installed (Debian: wrk)" in text
    assert "ab is skipped: it is not installed (Debian: apache2-utils)" in text


def test_a_good_prediction_reaches_the_goal(server: ModuleType) -> None:
    report = server.report([ours([20.0, 19.0, 21.0]), *[pair(100.0, 120.0 + step / 10) for step in range(6)]])
    assert report.goals[0].met
    assert "1 of 1 settings" in report.goals[0].found
    assert "CORS" in str(report)


def test_a_bad_prediction_does_not(server: ModuleType) -> None:
    report = server.report([ours([10.0, 9.0, 11.0]), *[pair(100.0, 120.0 + step / 10) for step in range(6)]])
    assert not report.goals[0].met
    assert "0 of 1 settings" in report.goals[0].found


def test_what_the_load_generator_does_not_know_is_not_judged(server: ModuleType) -> None:
    wide = [pair(100.0, 110.0 + 5 * step) for step in range(6)]
    few = [pair(100.0, 120.0 + step / 10, concurrency=1) for step in range(2)]
    report = server.report([ours([20.0, 19.0, 21.0]), *wide, *few])
    assert not report.goals[0].met
    assert "0 of 0 settings" in report.goals[0].found
    assert "too few pairs" in str(report)
    assert "In 2 of 2 settings" in str(report)
    assert "1 of them have too few pairs for an interval" in str(report)
    assert "holds the prediction in 1 of 1" in str(report)
    assert "not known well enough" in str(report)


def test_what_is_off_wherever_the_drop_is_misses(server: ModuleType) -> None:
    wide = [pair(100.0, 130.0 + 5 * step) for step in range(6)]
    report = server.report([ours([10.0, 9.0, 11.0]), *wide])
    assert not report.goals[0].met
    assert "0 of 1 settings (CORS 0 of 1), -6" in report.goals[0].found
    assert "not known well enough" not in str(report)


def test_pairs_of_slow_moments_are_left_out(server: ModuleType) -> None:
    good = [pair(100.0, 120.0 + step / 10) for step in range(6)]
    slow = [pair(200.0, 900.0, gauge_ns=2000) for _ in range(2)]
    report = server.report([ours([20.0, 19.0, 21.0]), *good, *slow])
    assert report.goals[0].met
    assert "6 of 8 pairs were taken in quiet moments" in str(report)


def test_pairs_whose_server_had_to_wait_are_left_out(server: ModuleType) -> None:
    good = [pair(100.0, 120.0 + step / 10) for step in range(6)]
    waited = [pair(100.0, 0.0, **{"with": burst(900.0, waited=0.4)}) for _ in range(2)]
    report = server.report([ours([20.0, 19.0, 21.0]), *good, *waited])
    assert report.goals[0].met
    assert "6 of 8 pairs were taken in quiet moments" in str(report)


def test_the_drop_is_known_although_both_bursts_of_a_pair_are_slower(server: ModuleType) -> None:
    steps = [pair(100.0 + 10 * step, 200.0 + 20 * step) for step in range(6)]
    report = server.report([ours([125.0, 124.0, 126.0]), *steps])
    (row,) = report.tables[0].rows
    assert row[5:9] == ["50.0%", "50.0% … 50.0%", "50.0%", "+0%"]


def test_shared_turns_collecting_and_failed_pairs_are_told(server: ModuleType) -> None:
    crowd = [
        pair(150.0, 290.0 + step / 10, concurrency=1000, layer="BaseHTTPMiddleware", generator=generator)
        for generator in ("wrk", "ab")
        for step in range(6)
    ]
    own = ours([150.0, 149.0, 151.0], layer="BaseHTTPMiddleware", suspensions=8)
    text = str(server.report([own, *crowd, {"kind": "failed", "why": "timeout"}]))
    assert "gives way 8 times a request" in text
    assert "24 µs in all" in text
    assert "adds on asyncio, garbage" in text
    assert "takes 14.0 of 140.2 (ab, 1000), 14.0 of 140.2 (wrk, 1000)." in text
    assert "50% and 50% (wrk, 1000)" in text
    assert "1 pairs were left out because a request failed, the first with: timeout." in text


def test_what_the_readings_do_not_show_is_not_said(server: ModuleType) -> None:
    nothing = {"collecting_us": None, "cpu_us": None}
    pairs = [
        pair(100.0, 0.0, without=burst(100.0, **nothing), **{"with": burst(120.0 + step / 10, **nothing)})
        for step in range(6)
    ]
    text = str(server.report([ours([20.0, 19.0, 21.0], suspensions=8), *pairs]))
    for words in ("gives way", "garbage collection", "worked for this share"):
        assert words not in text


def test_without_ours_there_is_no_row(server: ModuleType) -> None:
    report = server.report([ours(None), pair(100.0, 120.0)])
    assert not report.tables
    assert "There is no pair to compare ours with." in str(report)
