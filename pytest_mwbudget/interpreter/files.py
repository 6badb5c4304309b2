"""The real file system, whatever a test puts in its place.

pyfakefs replaces `os`, `io`, `fcntl` and their functions wherever a module has them as globals, also in `pathlib`. So
these are attributes of an object.
"""

from __future__ import annotations

import io
import os
import sys
from types import SimpleNamespace

if sys.platform == "win32":
    import msvcrt as locking
else:
    import fcntl as locking

REAL = SimpleNamespace(os=os, open=io.open, locking=locking)


def faked() -> bool:
    """Return whether a fake file system is in place."""
    return os is not REAL.os
