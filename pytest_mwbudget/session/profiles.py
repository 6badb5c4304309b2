"""Write the files of each profiled request to the directory of flamegraphs."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from ..engine import Publish
from ..errors import SettingError
from ..interpreter.files import faked
from ..model.results import Profile, Result
from ..profiling.sampling import Profiled

SLUG = 80


def check(folder: Path, option: str) -> None:
    """Check before the tests that files can be written below the directory, and leave nothing behind.

    `option` is the option as the user wrote it. Raises SettingError if nothing can be written there.
    """
    try:
        with TemporaryFile(dir=next(place for place in (folder, *folder.parents) if place.exists())):
            pass
    except OSError as error:
        raise _unwritable(option, error) from None


def ready(folder: Path) -> None:
    """Make the directory, which version control ignores; SettingError if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ignore = folder / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise _unwritable(str(folder), error) from None


def _unwritable(option_or_path: str, error: OSError) -> SettingError:
    return SettingError(
        f"{option_or_path} cannot be written: {error}; give the path of a directory for flamegraphs", message_id="file"
    )


@dataclass(frozen=True)
class Publisher:
    """Writes the profiles of one test. Messages give paths relative to `start`, if they are below it."""

    folder: Path
    nodeid: str
    start: Path

    def __call__(self, number: int) -> Publish:
        """Return the function that writes the profile of a request; files of an earlier run are overwritten."""
        return lambda profiled, result: self._published(f"{slug(self.nodeid)}-{number}", profiled, result)

    def _published(self, name: str, profiled: Profiled, result: Result) -> Profile:
        from ..report.flamegraph import FlamegraphRenderer, bounded, hottest, pyinstrument_page, speedscope, thinned

        if faked():
            raise SettingError("a fake file system is in place while the test runs", message_id="no-flamegraph")
        ready(self.folder)
        session = thinned(profiled.session)
        page = FlamegraphRenderer(result, self.nodeid, profiled.requests, profiled.request_us)
        over = [report.layer for report in result.layers if result.is_over(report)]
        return Profile(
            requests=profiled.requests,
            samples=profiled.samples,
            request_us=profiled.request_us,
            flamegraph=self._written(f"{name}.html", bounded(page.render, session)),
            pyinstrument=self._written(f"{name}.pyinstrument.html", bounded(pyinstrument_page, session)),
            speedscope=self._written(f"{name}.speedscope.json", bounded(speedscope, session)),
            hottest={layer.index: hottest(session, layer, profiled.requests) for layer in over},
        )

    def _written(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        return str(path.relative_to(self.start) if path.is_relative_to(self.start) else path)


def slug(nodeid: str) -> str:
    """Make a file name that is unique to the test."""
    readable = re.sub(r"[^\w.-]+", "-", nodeid, flags=re.ASCII).strip("-.")[-SLUG:].lstrip("-.")
    return f"{readable}-{hashlib.sha256(nodeid.encode(errors='backslashreplace')).hexdigest()[:8]}"
