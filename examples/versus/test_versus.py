"""Both versions answer alike, and the comparison charges the tracing to the layer that it patches."""

import sys

import httpx
import pytest

from pytest_mwbudget.__main__ import main

from .shop import create_app

APP = "examples.versus.shop:create_app"


def test_switched_on_it_is_told_by_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    if sys.version_info < (3, 13):
        pytest.skip("objects are counted on CPython 3.13 and newer")
    apps = ["--app-a", f"{APP}(False)", "--app-b", f"{APP}(True)"]
    status = main(["versus", *apps, "--fail", "objects:0", "/products"])
    out, err = capsys.readouterr()
    assert status == 1, out + err
    (failure,) = [line for line in out.splitlines() if line.startswith("fail:")]
    assert failure.startswith("fail: CORSMiddleware in GET /products:")


async def _answer() -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app()), base_url="http://test") as client:
        return await client.get("/products")


@pytest.mark.anyio
async def test_it_answers() -> None:
    assert (await _answer()).json() == {"1": "tea"}
