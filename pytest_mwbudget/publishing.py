"""Where profiles are kept: files of their own for each request that was profiled, below one directory."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from .errors import SettingError
from .model import Profile, Result
from .profiling import Profiled

SLUG = 80


def ready(folder: Path, said: str) -> None:
    """Make the directory, of which version control is to know nothing.

    `said` is the option as the user wrote it. Raises SettingError where nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ignore = folder / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{said} cannot be written: {error}; give the path of a directory for flamegraphs") from None


@dataclass
class Publisher:
    """Keeps the profiles of one test, in the order of its requests."""

    folder: Path
    nodeid: str
    published: int = field(default=0, init=False)

    def __call__(self, profiled: Profiled, result: Result) -> Profile:
        """Write the files of one request; a file of the same test in an earlier run is written over."""
        from .report.flamegraph import FlamegraphRenderer, bounded, hottest, pyinstrument_page, speedscope

        ready(self.folder, str(self.folder))
        self.published += 1
        page = FlamegraphRenderer(result, self.nodeid, profiled.requests, profiled.request_us)
        over = [report.layer for report in result.layers if report.verdict == "fail"]
        return Profile(
            requests=profiled.requests,
            samples=profiled.samples,
            request_us=profiled.request_us,
            flamegraph=self._written("html", bounded(page.render, profiled.session)),
            pyinstrument=self._written("pyinstrument.html", bounded(pyinstrument_page, profiled.session)),
            speedscope=self._written("speedscope.json", bounded(speedscope, profiled.session)),
            hottest={layer.index: hottest(profiled.session, layer, profiled.requests) for layer in over},
        )

    def _written(self, extension: str, text: str) -> str:
        path = self.folder / f"{slug(self.nodeid)}-{self.published}.{extension}"
        path.write_text(text, encoding="utf-8")
        here = os.getcwd() + os.sep
        return str(path).removeprefix(here)


def slug(nodeid: str) -> str:
    """A file name for a test that no other test has."""
    readable = re.sub(r"[^\w.-]+", "-", nodeid, flags=re.ASCII).strip("-.")[-SLUG:].lstrip("-.")
    return f"{readable}-{hashlib.sha256(nodeid.encode()).hexdigest()[:8]}"
