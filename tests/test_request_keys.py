"""The names of measured requests that stay the same from run to run."""

from pytest_mwbudget.model.request_keys import keyed
from pytest_mwbudget.model.results import RequestLine, Result


def result(url: str, route: str | None = None, status: int = 200) -> Result:
    return Result(request=RequestLine("GET", url), status=status, route=route)


def test_a_request_is_named_by_its_route_or_url_and_its_status() -> None:
    measured = [("t", result("/items/7", "/items/{id}")), ("t", result("/a?b=1")), ("t", result("/a", status=404))]
    assert [key.request for key, _ in keyed(measured)] == ["GET /items/{id}", "GET /a?b=1", "GET /a 404"]


def test_requests_of_one_name_are_numbered_in_each_test() -> None:
    measured = [(nodeid, result("/")) for nodeid in ("one", "two", "one", "one")]
    assert [tuple(key) for key, _ in keyed(measured)] == [
        ("one", "GET /"),
        ("two", "GET /"),
        ("one", "GET / (2)"),
        ("one", "GET / (3)"),
    ]
