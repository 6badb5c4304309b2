"""Looking for layers runs no code of the app, and fails for no app, whatever its framework has become."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from pytest_mwbudget.asgi.callables import MOST_REACHED, functions_called, reached
from pytest_mwbudget.asgi.frameworks import reading
from pytest_mwbudget.asgi.frameworks.seam import FRAMEWORKS, seam_of

# The attributes at which the modules look, deeper ones below.
TOP = (
    *("_middleware", "_unprepared_middleware", "_middleware_chain", "_view_middleware", "middlewares", "router"),
    *("before_request_funcs", "teardown_appcontext_funcs", "request_middleware", "response_middleware"),
    *("_router", "_sink_and_static_routes", "view_functions"),
)


def app_of(framework: str, attributes: dict[str, Any]) -> Any:
    return type("App", (), {"__module__": f"{framework}.app", **attributes})()


def raises(self: Any, name: str | None = None) -> Any:
    raise AssertionError("code of the app runs")


class Untouchable:
    """Fails if an attribute of it is asked for."""

    __getattribute__ = raises  # type: ignore[assignment]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    "value",
    [None, 1, "text", (), [None], [(None,)], [[1, None]], {}, {None: [1]}, {"a": {"b": 1}}, object(), type, len],
)
def test_other_insides_give_no_layers(framework: str, value: Any) -> None:
    seam = seam_of(app_of(framework, dict.fromkeys(TOP, value)))
    assert seam is None or all(any(functions_called(call)) for layer in seam.layers for call in layer.calls)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_code_of_the_app_runs(framework: str) -> None:
    assert seam_of(app_of(framework, {**dict.fromkeys(TOP, property(raises)), "__getattr__": raises})) is None
    for holds in ([Untouchable()], {None: [Untouchable()]}, Untouchable()):
        assert seam_of(app_of(framework, dict.fromkeys(TOP, holds))) is None


def test_other_apps_have_no_seam() -> None:
    assert seam_of(object()) is None
    assert seam_of(app_of("starlette", {})) is None
    assert seam_of(type("WithoutModule", (), {"__module__": None})()) is None


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_module_imports_no_framework(framework: str) -> None:
    module = importlib.import_module(f"pytest_mwbudget.asgi.frameworks.{framework}")
    assert not [name for name, value in vars(module).items() if getattr(value, "__name__", "").startswith(framework)]


def test_what_is_read() -> None:
    class Slots:
        __slots__ = ("empty", "inner")

    slots = Slots()
    slots.inner = slots  # type: ignore[attr-defined]
    assert reading.read(slots, "inner", "inner") is slots
    assert reading.read(slots, "empty") is None
    assert reading.read(slots, "missing") is None
    assert reading.items({1}) == ()
    assert reading.mapped([1]) == {}
    assert reading.defined("a.module.that.is.not.imported", "name") is None


def test_what_is_held_at_any_depth_is_reached_once_and_nearest_first() -> None:
    held = {"app": ["outer", "other"], "outer": ["inner", "app"], "other": ["inner"], "inner": ["app"]}
    looked_into: list[object] = []

    def inside(value: Any) -> list[str]:
        looked_into.append(value)
        return held[value]

    values = reached(["app"], inside)
    assert [next(values), next(values)] == ["app", "outer"]
    assert looked_into == ["app"]
    assert [*values] == ["other", "inner"]


def test_no_more_is_reached_than_a_stack_holds() -> None:
    objects = [object() for _ in range(2 * MOST_REACHED)]
    assert [*reached(objects[:1], lambda value: objects)] == objects[:MOST_REACHED]
