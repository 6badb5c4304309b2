"""The command `mwbudget`: pages of messages, files and tables of a stored result, and errors without a traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pytest_mwbudget.session.artifacts
from pytest_mwbudget.__main__ import main
from pytest_mwbudget.messages import pages
from pytest_mwbudget.model.changes import Change
from pytest_mwbudget.model.measured_run import MeasuredRun
from pytest_mwbudget.model.results import Judged, Profile
from pytest_mwbudget.report.markdown import render as markdown
from pytest_mwbudget.report.overview import together
from pytest_mwbudget.report.terminal import run
from pytest_mwbudget.storage.codec import RECORDS

from .canned import RUN, as_json, one_run
from .test_report_json import RESULT, RESULTS, UNTIMED

NODEID = "tests/test_shop.py::test_health"
STORED = MeasuredRun(RUN, ((NODEID, RESULT), ("other", UNTIMED)))
DATA = as_json(STORED)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a results file in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("mw.json").write_text(json.dumps(DATA), encoding="utf-8")
    return "mw.json"


def test_without_a_file_to_write_the_tables_are_printed(
    stored: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    assert main(["render", stored]) == 0
    shown = run(STORED.measured, RUN.interpreter, 70)
    below = together(None, [RESULT, UNTIMED], [], 70)
    assert capsys.readouterr().out.splitlines() == [line.text for line in [*shown, *below]]


def test_every_file_that_is_asked_for_is_written_and_nothing_printed(
    stored: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render", stored, "--markdown", "out/mw.md", "--benchmark-json=out/mw.bench.json"]) == 0
    assert Path("out/mw.md").read_text(encoding="utf-8") == markdown(STORED)
    fullnames = [one["fullname"] for one in json.loads(Path("out/mw.bench.json").read_text())["benchmarks"]]
    assert fullnames == [f"{NODEID} GET /health?q=ü {name}" for name in ("GZipMiddleware", "(total)")]
    assert capsys.readouterr() == ("", "")


def test_a_page_is_written(stored: str) -> None:
    pytest.importorskip("jinja2")
    assert main(["render", stored, "--html", "mw.html"]) == 0
    assert NODEID in Path("mw.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_can_be_rendered(name: str, stored: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(stored).write_text(json.dumps(as_json(one_run(RESULTS[name], nodeid=NODEID))), encoding="utf-8")
    assert main(["render", stored]) == 0
    assert capsys.readouterr().out.startswith(f"{NODEID} GET /health?q=ü ")


def without(data: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != key}


def whose_first(**rest: Any) -> dict[str, Any]:
    """Return the document with other values in its first measurement."""
    first, *others = DATA["measurements"]
    return {**DATA, "measurements": [{**first, **rest}, *others]}


PROFILE = RECORDS.plain(Profile(400, 2100, 410.5, "a.html", "b.html", "c.json", {99: ()}))
CHANGE = RECORDS.plain(Change("GZipMiddleware", "beauty", "new"))
JUDGED = RECORDS.plain(Judged(1.0, "fail"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "'mw.json' cannot be read: [Errno 2] No such file or directory: 'mw.json'"),
        (b"{", "'mw.json' is not JSON: Expecting property name enclosed in double quotes"),
        (b"\xff\xfe", "'mw.json' is not JSON: 'utf-8' codec can't decode byte 0xff"),
        ([], "'mw.json' has the schema None, and this version reads 'pytest-mwbudget/1'; give a file that"),
        ({**DATA, "schema": "pytest-mwbudget/9"}, "'mw.json' has the schema 'pytest-mwbudget/9', and this version"),
        (without(DATA, "measurements"), "'mw.json' is not a whole result (KeyError: 'measurements'); give a file as"),
        (without(DATA, "environment"), "'mw.json' is not a whole result (KeyError: 'environment'); give a file as"),
        (
            {**DATA, "environment": without(DATA["environment"], "loop")},
            "'mw.json' is not a whole result (KeyError: 'l",
        ),
        (b"[" * 100_000, "'mw.json' is not JSON: "),
        (whose_first(seconds="long"), "'mw.json' is not a whole result (TypeError: 'long' is not of type float); give"),
        (whose_first(nodeid=None), "'mw.json' is not a whole result (TypeError: None is not of type str); give"),
        (whose_first(verdict="maybe"), "'mw.json' is not a whole result (ValueError: 'maybe' is none of ("),
        ({**DATA, "created": "2026-11-23T10:00:00"}, "'mw.json' is not a whole result (ValueError: created is '20"),
        ({**DATA, "created": "yesterday"}, "'mw.json' is not a whole result (ValueError: Invalid isoformat string"),
        (
            whose_first(total_us={"estimate": 10**400, "low": 1, "high": 10**400}),
            "'mw.json' is not a whole result (ValueError: 10",
        ),
        ({**DATA, "environment": None}, "'mw.json' is not a whole result (TypeError: "),
        ({**DATA, "measurements": [5]}, "'mw.json' is not a whole result (TypeError: 5 is not of type dict); give"),
        (whose_first(notes="odd"), "'mw.json' is not a whole result (TypeError: 'odd' is not of type list); give"),
        (
            whose_first(profile=PROFILE),
            "'mw.json' is not a whole result (ValueError: the profile has functions of layer",
        ),
        (
            whose_first(changes=[CHANGE]),
            "'mw.json' is not a whole result (ValueError: a change has the quantity 'beauty'",
        ),
        (
            whose_first(layers=[{**DATA["measurements"][0]["layers"][0], "budgets": {"beauty": JUDGED}}]),
            "'mw.json' is not a whole result (ValueError: 'beauty' is none of ('us', ",
        ),
        ({**DATA, "measurements": [{"nodeid": "t"}]}, "'mw.json' is not a whole result (KeyError: 'request'); give"),
    ],
)
def test_a_file_that_cannot_be_rendered_is_explained_and_nothing_is_written(
    content: Any, message: str, stored: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is None:
        Path(stored).unlink()
    else:
        Path(stored).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    assert main(["render", stored, "--markdown", "mw.md"]) == 2
    out, error = capsys.readouterr()
    assert (out, error.splitlines()[0][: len(message) + 7]) == ("", f"error: {message}")
    assert error.splitlines()[1:] == ["More: mwbudget explain file"]
    assert not Path("mw.md").exists()


@pytest.mark.parametrize(
    "other", [["--markdown=mw.json"], ["--markdown=./mw.json"], ["--markdown=mw.md", "--benchmark-json=mw.md"]]
)
def test_no_file_is_written_over_the_result_or_another(
    other: list[str], stored: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(stored).read_bytes()
    assert main(["render", stored, *other]) == 2
    assert "is the same file as" in capsys.readouterr().err
    assert Path(stored).read_bytes() == before
    assert not Path("mw.md").exists()


def test_a_file_that_cannot_be_written_is_explained(stored: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", stored, "--markdown", "."]) == 2
    assert capsys.readouterr().err.startswith("error: --markdown='.' cannot be written: ")


def test_a_disk_that_is_full_is_explained(
    stored: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_text(path: Path, text: str, encoding: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", write_text)
    assert main(["render", stored, "--markdown", "mw.md"]) == 2
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device: 'mw.md'\n"


def test_a_missing_package_is_named_with_its_extra(
    stored: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytest_mwbudget.session.artifacts, "find_spec", lambda name: None)
    assert main(["render", stored, "--html", "mw.html"]) == 2
    assert 'pip install "pytest-mwbudget[html]"' in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["render"], ["draw", "mw.json"], ["render", "mw.json", "--pdf", "mw.pdf"]])
def test_a_command_line_that_says_something_else_is_explained(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: mwbudget ")


# ---- explain ----------------------------------------------------------------------------------------------------


def test_without_an_id_every_message_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == pages.ids()
    assert "slow-machine           The machine ran slower than at its best." in lines
    assert max(map(len, lines)) < 80


def test_a_page_says_what_was_seen_why_and_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["explain", "not-entered"]) == 0
    assert capsys.readouterr().out == (
        "# not-entered\n"
        "\n"
        "The request did not reach the layer.\n"
        "\n"
        "**What was seen.** The layer is part of the app, but no\n"
        "message of this request reached it. A budget names it, so\n"
        "the verdict is undecided.\n"
        "\n"
        "**Why.** A layer outside it answered: authentication, a\n"
        "redirect, a cache, CORS for a preflight request.\n"
        "\n"
        "**What to do.** Send the headers that the outer layers\n"
        "require, so that the request reaches this layer. Or remove\n"
        "the budget of this layer from this test.\n"
    )


@pytest.mark.parametrize("message_id", pages.ids())
def test_a_terminal_shows_neither_links_nor_tables(message_id: str) -> None:
    text = pages.shown(message_id, 79)
    assert "](" not in text
    assert "|--" not in text
    assert "```" not in text
    prose = [line for line in text.splitlines() if not line.startswith("    ")]
    assert max(map(len, prose)) < 80


def test_lists_quotes_tables_and_code_keep_their_form() -> None:
    text = pages.shown("pass-through", 79)
    assert "\n    MetricsAuthBefore needs 1 task" in text
    assert "\nin `dispatch`: in a pure ASGI class\n- `request.headers`, " in text
    assert "\n        async def dispatch(self, request: Request," in text
    assert "**What to do.**\n- If the message names a number of" in re.sub(
        r"\n\n", "\n", pages.shown("near-budget", 79)
    )


def test_an_unknown_id_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "pass-trough"]) == 2
    assert capsys.readouterr() == (
        "",
        "error: no message has the id 'pass-trough'. Did you mean 'pass-through'? `mwbudget explain` lists all ids.\n",
    )


def command(*arguments: str, stdout: int = subprocess.PIPE, **variables: str) -> subprocess.CompletedProcess[str]:
    package = Path(pytest_mwbudget.session.artifacts.__file__).parent
    return subprocess.run(
        [sys.executable, "-m", "pytest_mwbudget", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(package.parent), **variables},
    )


def test_it_is_a_command_of_the_package(stored: str) -> None:
    process = command("render", "missing.json")
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith("error: 'missing.json' cannot be read: ")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("arguments", "status"), [(("render",), 0), (("compare",), 141)])
def test_a_reader_that_has_seen_enough_is_no_error_and_no_verdict(
    stored: str, arguments: tuple[str, ...], status: int, unbuffered: str
) -> None:
    gone, stdout = os.pipe()
    os.close(gone)  # before the process starts, so that it cannot write sooner
    try:
        files = [stored] * (1 + (arguments == ("compare",)))
        process = command(*arguments, *files, stdout=stdout, PYTHONUNBUFFERED=unbuffered)
    finally:
        os.close(stdout)
    assert (process.returncode, process.stderr) == (status, "")
