"""The published JSON Schema: it is valid, every document conforms, and other keys or values are rejected."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.resources import files
from itertools import chain
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from jsonschema import Draft202012Validator

from pytest_mwbudget.model.judged import Judged
from pytest_mwbudget.model.measured_run import MeasuredRun
from pytest_mwbudget.model.quantities import TRAITS, budgeted
from pytest_mwbudget.model.results import Advice, HotFunction, Profile, Result, SurveyRun
from pytest_mwbudget.storage import codec
from pytest_mwbudget.storage.records import Shape, bare, fields_of

from .canned import as_json, one_run
from .test_report_json import BUSY, GZIP_COUNTS, RESULT, RESULTS

PUBLISHED = json.loads((files("pytest_mwbudget.storage") / "schema.json").read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(PUBLISHED, format_checker=Draft202012Validator.FORMAT_CHECKER)

PROFILE = Profile(
    requests=400,
    samples=2100,
    request_us=410.5,
    flamegraph=".mw-budget/test_it-1.html",
    pyinstrument=".mw-budget/test_it-1.pyinstrument.html",
    speedscope=".mw-budget/test_it-1.speedscope.json",
    hottest={0: (HotFunction("spin", "shop.py", 12, 90.0, 95.5),), 2: ()},
)
PROFILED = replace(RESULT, profile=PROFILE)
# A result that gets advice.
ADVISED = replace(
    RESULT,
    layers=(replace(RESULT.layers[0], occupation=replace(BUSY, blocking=True), counts=GZIP_COUNTS), *RESULT.layers[1:]),
)
# A layer with every budget that it can have, but for that under load.
BOUNDED = replace(
    RESULT,
    layers=(
        replace(
            RESULT.layers[0],
            judged={name: Judged(1.0, "pass") for name in budgeted("layer") if TRAITS[name].source != "load"},
        ),
        *RESULT.layers[1:],
    ),
)
ALL = {**RESULTS, "profiled": PROFILED, "advised": ADVISED, "bounded": BOUNDED}


def misfits(found: Any) -> list[str]:
    """Return a document's violations of the schema."""
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(found)]


def written(*results: Result) -> Any:
    """Return the document as parsed from the file."""
    return as_json(one_run(*results, nodeid="test_overhead.py::test_health"))


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(PUBLISHED)


def test_it_is_that_of_this_version() -> None:
    assert PUBLISHED["properties"]["schema"]["const"] == codec.SCHEMA


@pytest.mark.parametrize("result", ALL.values(), ids=ALL)
def test_every_document_keeps_it(result: Result) -> None:
    assert misfits(written(result)) == []


def test_a_document_of_several_results_and_one_of_none_keep_it() -> None:
    assert misfits(written(*ALL.values())) == []
    assert misfits(written()) == []


def test_a_loop_may_have_any_name() -> None:
    assert misfits(written(replace(RESULT, loop="winloop"))) == []


def test_the_documents_here_have_a_profile_and_advice() -> None:
    assert written(PROFILED)["measurements"][0]["profile"]["hottest"]["0"][0]["function"] == "spin"
    assert [advice["rule"] for advice in written(ADVISED)["measurements"][0]["advice"]] == ["blocking"]


def at(found: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        found = found[key]
    return found


FULL = written(replace(ADVISED, profile=PROFILE))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "pytest-mwbudget/2"),
        (("created",), 5),
        (("measurements", 0, "verdict"), "maybe"),
        (("measurements", 0, "loop"), ""),
        (("measurements", 0, "status"), "200"),
        (("measurements", 0, "total_us", "low"), "1"),
        (("measurements", 0, "layers", 0, "kind"), "endpoint"),
        (("measurements", 0, "layers", 0, "busy_interval_us"), [1.0]),
        (("measurements", 0, "layers", 0, "budgets", "seconds"), {"bound": 1, "verdict": "pass", "reason": None}),
        (("measurements", 0, "layers", 0, "budgets", "us", "bound"), None),
        (("measurements", 0, "layers", 0, "objects", "types", "shop.Token"), "2"),
        (("measurements", 0, "layers", 0, "why", "weather"), "rain"),
        (("measurements", 0, "ledger", "total", "tasks"), None),
        (("measurements", 0, "profile", "hottest", "first"), []),
    ],
)
def test_a_value_of_another_kind_does_not_keep_it(path: tuple[Any, ...], value: object) -> None:
    other = copy.deepcopy(FULL)
    at(other, path[:-1])[path[-1]] = value
    assert not VALIDATOR.is_valid(other)


# ---- what the records give ---------------------------------------------------------------------------------------

# Where the codec decides what is null: every measured request is counted; the reasons and own types of a row.
DECIDED = ("ledger.requests", "ledger.outside", "ledger.total", "].why", ".own_types")
# The names that JSON has for types of fields.
TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}


def alternatives(about: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what the schema allows for a value by JSON's type; that of words is `enum`."""
    if "$ref" in about:
        return alternatives(PUBLISHED["$defs"][about["$ref"].rpartition("/")[2]])
    if "oneOf" in about:
        return {kind: inner for alternative in about["oneOf"] for kind, inner in alternatives(alternative).items()}
    if "enum" in about:
        return {"enum": about} | ({"null": {}} if None in about["enum"] else {})
    kinds = about.get("type", "const")
    return dict.fromkeys(kinds if isinstance(kinds, list) else [kinds], about)


def typed(kind: Any, path: str) -> tuple[Any, list[bool]]:
    """Return the type of the value at a path of a record, or of its property, and which steps can be None."""
    nullable = []
    for step in path.split("."):
        if get_origin(kind) is Mapping:
            kind, none = bare(get_args(kind)[1]), True
        elif step in fields_of(kind):
            kind, none = fields_of(kind)[step]
        else:
            hint = get_type_hints(getattr(kind, step).fget)["return"]
            kind, none = bare(hint), type(None) in get_args(hint)
        nullable.append(none)
    return kind, nullable


def paths(shape: Shape) -> Iterator[str]:
    if isinstance(shape, str):
        yield shape
    elif shape is not None:
        yield from chain.from_iterable(map(paths, shape.values() if isinstance(shape, Mapping) else shape))


def differences(about: dict[str, Any], kind: Any, shape: Shape, steps: slice, where: str) -> Iterator[str]:
    """Yield what the schema says otherwise of a value: of one at a path, a list, or an object.

    `steps` are those of the path that can make it null: inside an object only the last one, else the object is null.
    """
    if isinstance(shape, str):
        inner, nullable = typed(kind, shape)
        yield from differing(about, inner, any(nullable[steps]), where)
        return
    allowed = alternatives(about)
    if ("null" in allowed) != all(any(typed(kind, path)[1]) for path in paths(shape)):
        yield f"{where} is {'never ' if 'null' in allowed else ''}null"
    if isinstance(shape, Mapping):
        yield from keys(allowed["object"], kind, shape, where, slice(-1, None))
    elif "array" not in allowed:
        yield f"{where} is a list"


def keys(
    about: dict[str, Any], kind: Any, shape: Mapping[str, Shape], where: str = "", steps: slice = slice(None)
) -> Iterator[str]:
    """Yield which keys of an object the schema has otherwise, and what it says of them."""
    if about.get("additionalProperties", True):
        yield f"{where} can have other keys"
    for name in ("properties", "required"):
        if set(about[name]) != set(shape):
            yield f"{where} has other {name}: {sorted(set(about[name]) ^ set(shape))}"
            return
    for key, part in shape.items():
        if part is not None:
            yield from differences(about["properties"][key], kind, part, steps, f"{where}.{key}".lstrip("."))


def differing(about: dict[str, Any], kind: Any, nullable: bool, where: str) -> Iterator[str]:
    """Yield what the schema says of a value otherwise than its type. A number may be null: it may be infinite."""
    allowed = alternatives(about)
    if nullable != ("null" in allowed) and not where.endswith(DECIDED) and (nullable or kind is not float):
        yield f"{where} is {'' if nullable else 'never '}null"
    if kind in TYPES:
        yield from [] if TYPES[kind] in allowed or "const" in allowed else [f"{where} is of type {TYPES[kind]}"]
    elif get_origin(kind) is Literal:
        words = {word for word in allowed.get("enum", {}).get("enum", get_args(kind)) if word is not None}
        yield from [] if words <= set(get_args(kind)) else [f"{where} has other words: {words}"]
    elif get_origin(kind) is tuple:
        yield from differing(allowed["array"]["items"], bare(get_args(kind)[0]), False, f"{where}[]")
    elif get_origin(kind) is Mapping:
        yield from differing(allowed["object"]["additionalProperties"], bare(get_args(kind)[1]), False, f"{where}{{}}")
    else:
        yield from keys(allowed["object"], kind, codec.RECORDS.shape(kind), where)


def test_the_schema_has_the_keys_and_types_that_the_records_give() -> None:
    assert [*keys(PUBLISHED, MeasuredRun, codec.RUN)] == []
    assert [*keys(PUBLISHED["$defs"]["measurement"], Result, codec.RESULT)] == []
    assert [*keys(PUBLISHED["$defs"]["advice"], Advice, codec.RECORDS.shape(Advice))] == []


def test_a_schema_that_differs_from_the_records_is_seen() -> None:
    survey = copy.deepcopy(PUBLISHED["$defs"]["survey"])
    survey["properties"] |= {"seconds": {"type": "string"}, "tests": {"type": ["integer", "null"]}}
    survey["required"].remove("unexamined")
    del survey["additionalProperties"]
    shape = codec.RECORDS.shape(SurveyRun)
    assert [*keys(survey, SurveyRun, shape)] == [" can have other keys", " has other required: ['unexamined']"]
    survey |= {"required": [*shape], "additionalProperties": False}
    assert [*keys(survey, SurveyRun, shape)] == ["seconds is of type number", "tests is never null"]


def descriptions(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        if isinstance(found.get("description"), str):
            yield found["description"]
        for value in found.values():
            yield from descriptions(value)


def test_descriptions_are_sentences() -> None:
    texts = list(descriptions(PUBLISHED))
    assert len(texts) > 50
    assert [text for text in texts if not text.endswith(".")] == []
