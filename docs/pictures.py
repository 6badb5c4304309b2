"""Regenerate the pictures of docs/how-to/reports.md: measure an example, open its reports in a browser.

    python docs/pictures.py

Needs the packages of the tests and Debian's packages chromium and chromium-driver. Takes a quarter of a minute.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.browser import PHONE, Browser, Missing  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
EXAMPLE = "examples/litellm_story/budget_story.py"
LARGEST = 200_000  # bytes


def main() -> None:
    """Write every picture."""
    try:
        browser = Browser()
    except Missing as missing:
        sys.exit(str(missing))
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        report, flamegraph = measured(Path(folder))
        try:
            browser.open(report, size=(1280, 1000))
            taken(browser, "report-light")
            browser.open(report, fragment="m1", size=(1280, 1000), scheme="dark")
            taken(browser, "report-dark")
            browser.open(report, fragment="m1-stack", size=PHONE, scale=1.5)
            taken(browser, "report-phone")
            browser.open(flamegraph, size=(1280, 700))
            taken(browser, "flamegraph")
        finally:
            browser.close()


def measured(folder: Path) -> tuple[Path, Path]:
    """Return the paths of the example's report, and of the flamegraph of its request over budget."""
    report, data = folder / "report.html", folder / "result.json"
    options = (f"--mw-budget-html={report}", f"--mw-budget-json={data}", f"--mw-budget-dir={folder / 'profiles'}")
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--mw-budget", *options, EXAMPLE)
    status = subprocess.run(command, cwd=ROOT, check=False).returncode  # noqa: S603
    if status != 1:  # one test of the example is meant to fail
        sys.exit(f"pytest ended with status {status} and not, as it should with one test over budget, with 1")
    measurements: list[dict[str, Any]] = json.loads(data.read_text(encoding="utf-8"))["measurements"]
    profiles = [measurement["profile"] for measurement in measurements if measurement["profile"]]
    if not profiles:
        sys.exit("no flamegraph was written; is pyinstrument installed?")
    return report, ROOT / profiles[0]["flamegraph"]


def taken(browser: Browser, name: str) -> None:
    """Save a screenshot of the browser; exit if the file is too large or the page complains or loads anything."""
    path = PICTURES / f"{name}.png"
    browser.picture(path)
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size:,} bytes")
    if size > LARGEST or browser.complaints() or browser.requests():
        sys.exit(f"{name}: at most {LARGEST:,} bytes, no complaint, no request; {browser.complaints()}")


if __name__ == "__main__":
    main()
