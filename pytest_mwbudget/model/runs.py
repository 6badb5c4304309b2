"""What a run was made of and where, as far as its figures depend on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# The machine in a text of platform.platform().
MACHINE = re.compile(r"-(x86_64|amd64|i\d86|aarch64|arm\w*|ppc64le|riscv64|s390x)\b", re.IGNORECASE)
# The name of a processor that does not say its model.
UNKNOWN_PROCESSOR = "unknown processor"


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the project. `uncommitted` says whether tracked files differed from it, None if that is unknown."""

    id: str
    uncommitted: bool | None = None

    def __str__(self) -> str:
        return f"{self.id[:10]} with uncommitted changes" if self.uncommitted else self.id[:10]


@dataclass(frozen=True, slots=True)
class Run:
    """A run: when it was made (ISO 8601), and what its figures depend on; None for what is unknown.

    `packages` has the versions of installed packages by name. `processor` is its name. `hash_seed` is a number, or
    `random`.
    """

    created: str
    python: str
    implementation: str
    platform: str
    loop: str
    packages: Mapping[str, str] = field(default_factory=dict)
    commit: Commit | None = None
    processor: str | None = None
    hash_seed: str | None = None

    @property
    def interpreter(self) -> str:
        """The implementation and the version of Python."""
        return f"{self.implementation} {self.python}"

    @property
    def machine(self) -> str:
        """The operating system and the machine without their versions, such as `Linux x86_64`."""
        # Debian's kernel release names a machine too. Python's own name of the machine comes last.
        return " ".join([self.platform.partition("-")[0], *MACHINE.findall(self.platform)[-1:]])
