"""The sections of a file of limits: a name for what counts depend on, and the choice of a section."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

PYTHON = r"(?P<implementation>\w+) (?P<minor>\d+\.\d+)\.(?P<patch>\d+)\S*"
NAME = re.compile(rf"{PYTHON}, (?P<loop>\w+), (?P<platform>.+)")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Implementation and full version of Python, event loop, operating system and machine."""

    implementation: str
    version: str
    loop: str
    platform: str

    @property
    def section(self) -> str:
        """The name of the section of these surroundings."""
        return f"{self.implementation} {self.version}, {self.loop}, {self.platform}"


def is_section(name: str) -> bool:
    """Whether this is the name of a section."""
    return NAME.fullmatch(name) is not None


def chosen(sections: Iterable[str], here: Surroundings) -> str | None:
    """Return the section to judge by: the one of `here`, else one that differs in Python's patch release only.

    Of several the nearest patch release is chosen, the later one of two. None if there is no such section.
    """
    own = _parts(here.section)
    near = [name for name in sections if _parts(name)[:4] == own[:4]]
    return min(near, key=lambda name: (name != here.section, *_distance(_parts(name)[4], own[4])), default=None)


def without_patch(name: str) -> str:
    """Return what sections have in common that differ in Python's patch release only."""
    return ", ".join(_parts(name)[:4])


def python_of(section: str) -> str:
    """Return the implementation and the version of a section's name."""
    return section.partition(",")[0]


def _parts(name: str) -> tuple[str, str, str, str, int]:
    match = NAME.fullmatch(name)
    assert match is not None, name
    return match["implementation"], match["minor"], match["loop"], match["platform"], int(match["patch"])


def _distance(patch: int, own: int) -> tuple[int, int]:
    return abs(patch - own), -patch
