"""Arguments of the `mw_budget` client, and the messages for invalid arguments."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.errors import MeasurementError, SettingError
from pytest_mwbudget.session.requests.client import MwBudget
from pytest_mwbudget.timing.looks import Environment

from .apps import echo, run_inside


def client() -> MwBudget:
    return MwBudget(app=echo, settings=Settings(lifespan=False), enforce=False, environment=Environment())


@pytest.mark.parametrize("method", [None, "", "G ET", b"GET", 5])
def test_a_method_that_is_none(method: Any) -> None:
    with pytest.raises(SettingError, match=r"the method of the request is .*; give the name of one, for example 'GET'"):
        client().request(method, "/")


@pytest.mark.parametrize("url", [None, 5, b"/"])
def test_a_url_that_is_none(url: Any) -> None:
    with pytest.raises(SettingError, match=r"the URL of the request is .*; give a path"):
        client().get(url)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"params": object()}, "httpx2? cannot build POST '/' from {'params': <object"),
        ({"params": 5}, "httpx2? cannot build POST '/' from {'params': 5}"),
        ({"cookies": 5}, "httpx2? cannot build POST '/' from {'cookies': 5}"),
        ({"headers": 5}, "httpx2? cannot build POST '/' from {'headers': 5}"),
        ({"json": object()}, "httpx2? cannot build POST '/' from {'json': <object"),
        ({"content": 5}, "httpx2? cannot build POST '/' from {'content': 5}"),
        ({"files": {"a": 5}}, "the body of POST http://testserver/ cannot be read: .*; give bytes, a str or a file"),
        ({"content": [1, 2]}, "the content of POST http://testserver/ has a piece 1; give bytes, a str"),
        ({"content": ["a"]}, "the content of POST http://testserver/ has a piece 'a'; give bytes, a str"),
        *(
            ({"expect_status": status}, "expect_status is .*; give an HTTP status code from 100 to 599")
            for status in (True, "abc", 99, 600, [200], 200.5, object())
        ),
    ],
)
def test_values_of_which_no_request_can_be_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        client().post("/", **options)


def test_cookies_are_sent() -> None:
    assert client().post("/", cookies={"a": "b"}, content=b"x").response.request.headers["cookie"] == "a=b"


def test_an_exception_of_what_yields_the_content_is_its_own() -> None:
    def content() -> Any:
        yield b"a"
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        client().post("/", content=content())


def test_a_request_below_a_running_loop_names_the_method_to_await() -> None:
    async def main(request: Callable[[], object]) -> None:
        request()

    for name, arguments in (("get", ("/",)), ("request", ("GET", "/")), ("load", ("/",))):
        with pytest.raises(MeasurementError, match=rf"mw_budget\.{name}\(.*write await mw_budget\.a{name}\("):
            asyncio.run(main(partial(getattr(client(), name), *arguments)))


def test_a_call_with_wrong_arguments_fails_by_its_own_name_before_a_loop_runs() -> None:
    made = client()
    for name, arguments in (("get", ()), ("request", ("GET",)), ("websocket", ("/",))):
        with pytest.raises(TypeError, match=rf"mw_budget\.{name}\(\.\.\.\): missing a required"):
            getattr(made, name)(*arguments)
    assert not made.tried


def test_each_method_of_an_event_loop_of_its_own_is_that_of_the_running_one() -> None:
    methods = {name for name in vars(MwBudget) if f"a{name}" in vars(MwBudget)}
    http = {"get", "options", "head", "post", "put", "patch", "delete"}
    assert methods == {*http, "request", "websocket", "load"}
    for name in methods:
        method = getattr(MwBudget, name)
        assert (method.__name__, method.__doc__) == (name, f"Do what `a{name}` does, on an event loop of its own.")
        assert inspect.signature(method) == inspect.signature(getattr(MwBudget, f"a{name}"))
        assert not inspect.iscoroutinefunction(method)
    for name in http - {"head"}:
        assert getattr(client(), name)("/").response.request.method == name.upper()


def test_what_a_repeated_request_raises_is_explained_and_what_the_first_raises_is_the_tests(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest

        class App:
            def __init__(self, answers):
                self.answers = answers
            async def __call__(self, scope, receive, send):
                self.answers -= 1
                if self.answers < 0:
                    raise ValueError("UNIQUE constraint failed: users.email")
                await send({"type": "http.response.start", "status": 201, "headers": []})
                await send({"type": "http.response.body", "body": b""})

        @pytest.fixture
        def mw_budget_app(request):
            return App(request.param)

        pytestmark = pytest.mark.mw_budget(us=50, lifespan=False)

        @pytest.mark.parametrize("mw_budget_app", [1], indirect=True)
        def test_repeated(mw_budget):
            mw_budget.post("/users")

        @pytest.mark.parametrize("mw_budget_app", [0], indirect=True)
        def test_first(mw_budget):
            with pytest.raises(ValueError, match="UNIQUE"):
                mw_budget.post("/users")
            pytest.skip("it was the app's own")
        """
    )
    result = run_inside(pytester, "--mw-budget")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["*POST /users: call 2 raised ValueError: UNIQUE constraint failed*; the calls before it answered 201. *"]
    )
