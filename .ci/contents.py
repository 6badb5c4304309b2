"""Check what wheels contain: the package with its data, extensions unless the wheel is for any platform, nothing else.

The links of the project page are absolute.

python .ci/contents.py WHEEL …
"""

import re
import sys
from pathlib import Path
from zipfile import ZipFile

# No C sources, no tests, and what the package reads at run time.
SUFFIXES = {".py", ".md", ".html", ".css", ".j2", ".js", ".json", ".typed"}
EXTENSIONS = {"_core", "_tracing", "_pipeline"}


def wrong(wheel: Path) -> list[str]:
    """Return what a wheel has that it should not have, or lacks."""
    with ZipFile(wheel) as archive:
        names = [Path(name) for name in archive.namelist() if not name.endswith("/")]
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        links = re.findall(r"\]\(([^)]+)\)", archive.read(metadata).decode())
    own = [name for name in names if name.parts[0] == "pytest_mwbudget"]
    found = {name.name.partition(".")[0] for name in own if name.suffix in (".so", ".pyd")}
    expected = set() if wheel.name.endswith("-none-any.whl") else EXTENSIONS
    faults = [f"an extension: {name}" for name in sorted(found ^ expected)]
    faults += [f"no part of the package: {name}" for name in own if name.suffix not in SUFFIXES | {".so", ".pyd"}]
    faults += ["no project page"] if not links else []
    faults += [f"a relative link: {link}" for link in links if not link.startswith(("https://", "#"))]
    others = {name.parts[0] for name in names} - {"pytest_mwbudget"}
    return faults + [f"a folder: {name}" for name in sorted(others) if not name.endswith(".dist-info")]


def main() -> None:
    """Print size and number of files of each wheel, and its faults."""
    failed = False
    for wheel in map(Path, sys.argv[1:]):
        faults = wrong(wheel)
        failed = failed or bool(faults)
        with ZipFile(wheel) as archive:
            number = len(archive.namelist())
        print(f"{wheel.name}: {wheel.stat().st_size / 1000:.0f} kB, {number} files {'; '.join(faults)}".rstrip())
    sys.exit(failed)


if __name__ == "__main__":
    main()
