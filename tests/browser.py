"""A real browser for the pages that the plugin writes: headless Chromium without a network, driven by selenium.

The fixture `page` opens a file and returns the browser. At the end of the test, the page must have made no requests
and logged no warnings or errors. Without selenium or Chromium these tests skip and name the missing package;
MWBUDGET_REQUIRE_BROWSER=1 turns that into a failure.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
DRIVER = ("chromedriver",)
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # containers run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # No network: no host name resolves, and nothing listens at the proxy's port.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=127.0.0.1:9",
    "--proxy-bypass-list=<-loopback>",
)
DESKTOP, PHONE = (1280, 900), (360, 740)


class Missing(Exception):
    """Error for a missing program or package, which the message names."""


def command(names: tuple[str, ...], package: str) -> str:
    """Return the path of the first of these programs that is installed."""
    for name in names:
        if path := shutil.which(name):
            return path
    raise Missing(f"there is no {names[0]}; install Debian's package {package}")


class Browser:
    """A browser window, in which pages are opened one after another."""

    def __init__(self) -> None:
        try:
            from selenium import webdriver
            from selenium.webdriver.chrome.service import Service
        except ImportError:
            raise Missing("there is no selenium; install it with pip install selenium") from None
        options = webdriver.ChromeOptions()
        options.binary_location = command(CHROMIUM, "chromium")
        for flag in FLAGS:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver: Chrome = webdriver.Chrome(options, Service(command(DRIVER, "chromium-driver")))
        self._url = ""
        self._complaints: list[str] = []
        self._requests: list[str] = []

    def close(self) -> None:
        """Quit the browser."""
        self.driver.quit()

    def open(
        self,
        path: Path,
        *,
        fragment: str = "",
        size: tuple[int, int] = DESKTOP,
        scale: float = 1,
        scheme: Literal["light", "dark"] = "light",
        media: Literal["screen", "print"] = "screen",
        reduced_motion: bool = True,
    ) -> Browser:
        """Load a file from disk, in a window of this size, on a system with these preferences."""
        width, height = size
        self.cdp("Network.enable")
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        self.cdp(
            "Emulation.setEmulatedMedia",
            media=media,
            features=[
                {"name": "prefers-color-scheme", "value": scheme},
                {"name": "prefers-reduced-motion", "value": "reduce" if reduced_motion else "no-preference"},
            ],
        )
        self.driver.get("about:blank")  # so that a page of the same file is reloaded, not only scrolled
        self._read_logs()
        self._url = path.resolve().as_uri()
        self._complaints, self._requests = [], []
        self.driver.get(f"{self._url}#{fragment}" if fragment else self._url)
        return self

    def cdp(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Run a command of the Chrome DevTools Protocol."""
        answer: dict[str, Any] = self.driver.execute_cdp_cmd(method, parameters)
        return answer

    # ---- what the page did ---------------------------------------------------------------------------------------

    def complaints(self) -> list[str]:
        """List the console's warnings and errors since the page was opened, with exceptions and blocked requests."""
        self._read_logs()
        return self._complaints

    def requests(self) -> list[str]:
        """List the addresses requested since the page was opened, without the page itself and data URLs."""
        self._read_logs()
        return self._requests

    def _read_logs(self) -> None:
        """Read the new log entries; the logs return each entry once."""
        for entry in self.driver.get_log("browser"):  # type: ignore[no-untyped-call]
            if entry["level"] in ("WARNING", "SEVERE"):
                self._complaints.append(entry["message"])
        for entry in self.driver.get_log("performance"):  # type: ignore[no-untyped-call]
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                if not url.startswith(("data:", "blob:", "about:")) and url.split("#")[0] != self._url:
                    self._requests.append(url)

    # ---- contents of the page ------------------------------------------------------------------------------------

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript and return its result; the script reads `arguments[0]` and so on."""
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        """Find all elements of a CSS selector."""
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> WebElement:
        """Find the only element of a CSS selector."""
        elements = self.all(selector)
        assert len(elements) == 1, f"{len(elements)} elements are {selector}"
        return elements[0]

    def texts(self, selector: str) -> list[str]:
        """List the texts of these elements, visible or not."""
        return [" ".join(str(element.get_property("textContent")).split()) for element in self.all(selector)]

    def style(self, selector: str, name: str) -> str:
        """Return a property of the computed style of an element."""
        return self.one(selector).value_of_css_property(name)

    def press(self, *keys: str) -> None:
        """Send keys to the focused element."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def hover(self, element: WebElement) -> None:
        """Move the mouse over the element."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).move_to_element(element).perform()

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        return int(self.run("return document.documentElement.scrollWidth - window.innerWidth"))

    def picture(self, path: Path, *, height: int | None = None) -> None:
        """Write a PNG of the window, or of the page from its top to `height` pixels."""
        clip = {}
        if height is not None:
            width = self.run("return document.documentElement.clientWidth")
            clip = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        answer = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=height is not None, **clip)
        path.write_bytes(base64.b64decode(answer["data"]))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The browser of this run, started when the first test needs it."""
    try:
        started = Browser()
    except Missing as missing:
        if os.environ.get("MWBUDGET_REQUIRE_BROWSER", "") not in ("", "0"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    yield started
    started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Callable[..., Browser]]:
    """A function that opens a file, see `Browser.open`; the page may make no requests and log no warnings."""
    yield browser.open
    assert browser.requests() == []
    assert browser.complaints() == []
