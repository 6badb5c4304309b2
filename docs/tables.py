"""Write the generated tables of docs/reference: options, settings and the keys of the JSON result.

    python docs/tables.py

The tables come from the plugin's help texts and from the JSON Schema of its result. A test holds the pages equal.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pytest_mwbudget import plugin  # noqa: E402

PAGES = tuple(ROOT / "docs" / "reference" / name for name in ("options.md", "json.md"))
BLOCK = re.compile(r"(<!-- begin: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Recorder:
    """Stands in for pytest's parser, and notes which options and settings the plugin adds."""

    def __init__(self) -> None:
        self.options: list[tuple[str, str]] = []
        self.settings: list[tuple[str, str]] = []

    def getgroup(self, *names: str) -> Recorder:
        """Return the one group there is."""
        return self

    def addoption(self, name: str, *, help: str, metavar: str | None = None, **others: Any) -> None:  # noqa: A002
        """Note a command-line option."""
        self.options.append((f"{name}={metavar}" if metavar else name, help))

    def addini(self, name: str, help: str, **others: Any) -> None:  # noqa: A002
        """Note a configuration key."""
        self.settings.append((name, help))


def main() -> None:
    """Write every page again."""
    for page in PAGES:
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")


def renewed(text: str) -> str:
    """The text of a page with its generated blocks made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n{found[3]}", text)


def options() -> str:
    """The table of command-line options."""
    return _table(("option", "meaning"), _recorded().options)


def settings() -> str:
    """The table of configuration keys."""
    return _table(("key", "meaning"), _recorded().settings)


def keys() -> str:
    """A table for each kind of object in the JSON result."""
    schema = json.loads((files("pytest_mwbudget") / "report" / "schema.json").read_text(encoding="utf-8"))
    kinds = {"result": schema, **schema["$defs"]}
    parts = []
    for name, kind in kinds.items():
        if kind.get("properties"):
            rows = [(key, _type(about), about.get("description", "")) for key, about in kind["properties"].items()]
            parts.append(f"## {_words(name).capitalize()}\n\n{_table(('key', 'type', 'meaning'), rows)}")
    return "\n".join(parts)


def _recorded() -> Recorder:
    recorder = Recorder()
    plugin.pytest_addoption(recorder)  # type: ignore[arg-type]
    return recorder


def _type(about: dict[str, Any]) -> str:
    """What a value is, in a word or two."""
    if "$ref" in about:
        return _words(about["$ref"].rpartition("/")[2])
    if "oneOf" in about:
        return " or ".join(_type(one) for one in about["oneOf"])
    if "const" in about:
        return f"`{json.dumps(about['const'])}`"
    if "enum" in about:
        return ", ".join(f"`{json.dumps(one)}`" for one in about["enum"])
    if about.get("type") == "array":
        return f"array of {_type(about['items'])}" if "items" in about else "array"
    kinds = about.get("type", "")
    return " or ".join(kinds) if isinstance(kinds, list) else kinds


def _words(name: str) -> str:
    """`countOfTypesOrNull` as words."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    for schema, plain in (("number of", "integer"), ("not negative", "number"), ("sentence", "string")):
        words = words.replace(schema, plain)
    return words


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for first, *others in rows:
        cells = [cell.replace("|", r"\|") for cell in (f"`{first}`", *others)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


BLOCKS = {"options": options, "settings": settings, "json": keys}

if __name__ == "__main__":
    main()
