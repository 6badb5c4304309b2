"""Write the generated parts of the docs: options, settings, keys of the JSON result, advice and messages.

    python docs/tables.py

The sources are the plugin's help texts, the JSON Schema of its result, and the pages of `mwbudget explain`. A test
checks that the docs are up to date.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pytest_mwbudget import plugin  # noqa: E402
from pytest_mwbudget.messages import pages  # noqa: E402
from pytest_mwbudget.model.quantities import TRAITS  # noqa: E402
from pytest_mwbudget.report.advice import RULES  # noqa: E402

ADVICE, MESSAGES, UNDECIDED = "advice.md", "reference/messages.md", "how-to/undecided.md"
PAGES = tuple(
    ROOT / "docs" / name
    for name in ("reference/options.md", "reference/json.md", "reference/counts.md", ADVICE, MESSAGES, UNDECIDED)
)
# The ids of reasons, the most frequent ones first.
REASONS = (
    "near-budget",
    "below-detection-limit",
    "slow-machine",
    "machine-tail",
    "other-process",
    "too-few-requests",
    "contradicted",
    "merged",
    "other-way",
    "changing-stack",
    "not-entered",
    "not-bypassed",
    "one-core",
    "generator-limit",
    "no-budget",
    "left-out",
    "active-tool",
    "varying-count",
    "uncountable",
)
BLOCK = re.compile(r"(<!-- begin: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Recorder:
    """A stand-in for pytest's parser that records the options and settings of the plugin."""

    def __init__(self) -> None:
        self.options: list[tuple[str, str]] = []
        self.settings: list[tuple[str, str]] = []

    def getgroup(self, *names: str) -> Recorder:
        """Return this recorder as the group."""
        return self

    def addoption(self, name: str, *, help: str, metavar: str | None = None, **others: Any) -> None:  # noqa: A002
        """Record a command-line option."""
        self.options.append((f"{name}={metavar}" if metavar else name, help))

    def addini(self, name: str, help: str, **others: Any) -> None:  # noqa: A002
        """Record a configuration key."""
        self.settings.append((name, help))


def main() -> None:
    """Rewrite every page."""
    for page in PAGES:
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")


def renewed(text: str) -> str:
    """Return the text of a page with its blocks generated again."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n{found[3]}", text)


def options() -> str:
    """Return the table of command-line options."""
    return _table(("option", "meaning"), _recorded().options)


def settings() -> str:
    """Return the table of configuration keys."""
    return _table(("key", "meaning"), _recorded().settings)


def quantities() -> str:
    """Return the table of figures."""
    rows = [
        (name, traits.meaning, f"`{name}`" if traits.holders else "", traits.needs) for name, traits in TRAITS.items()
    ]
    return _table(("figure", "meaning", "budget", "needs"), rows)


def keys() -> str:
    """Return a table for each kind of object in the JSON result."""
    schema = json.loads((files("pytest_mwbudget") / "storage" / "schema.json").read_text(encoding="utf-8"))
    kinds = {"result": schema, **schema["$defs"]}
    parts = []
    for name, kind in kinds.items():
        if kind.get("properties"):
            rows = [(key, _type(about), about.get("description", "")) for key, about in kind["properties"].items()]
            parts.append(f"## {_words(name).capitalize()}\n\n{_table(('key', 'type', 'meaning'), rows)}")
    return "\n".join(parts)


def rules() -> str:
    """Return the table of the rules of advice."""
    return _contents("rule", RULES, ADVICE)


def advice() -> str:
    """Return a section for each rule of advice."""
    return "\n".join(_section(one, ADVICE) for one in RULES)


def ids() -> str:
    """Return the table of all other messages that have an id."""
    return _contents("id", _others(), MESSAGES)


def messages() -> str:
    """Return a section for each of the messages in `ids`."""
    return "\n".join(_section(one, MESSAGES).replace("## ", "### ", 1) for one in _others())


def reasons() -> str:
    """Return the table of the reasons for an undecided verdict."""
    return _contents("id", REASONS, UNDECIDED)


def _others() -> list[str]:
    return [one for one in pages.ids() if one not in RULES]


def _contents(head: str, ids: Iterable[str], home: str) -> str:
    rows = [f"| [`{one}`]({_target(f'#{one}', home)}) | {pages.summary(one)} |\n" for one in ids]
    return f"| {head} | meaning |\n|---|---|\n{''.join(rows)}"


def _section(message_id: str, home: str) -> str:
    """Return a page of `mwbudget explain` as a section of the page `home`."""
    return "#" + pages.LINK.sub(lambda link: f"[{link[1]}]({_target(link[2], home)})", pages.page(message_id))


def _target(link: str, home: str) -> str:
    """Return a link of a page relative to `home`. Both are below docs."""
    if link.startswith("#"):
        link = f"{ADVICE if link[1:] in RULES else MESSAGES}{link}"
    path, sign, anchor = link.partition("#")
    return f"#{anchor}" if path == home else posixpath.relpath(path, posixpath.dirname(home) or ".") + sign + anchor


def _recorded() -> Recorder:
    recorder = Recorder()
    plugin.pytest_addoption(recorder)  # type: ignore[arg-type]
    return recorder


def _type(about: dict[str, Any]) -> str:
    """Describe the type of a value in a few words."""
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
    """Split a name such as `countOfTypesOrNull` into words."""
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


BLOCKS = {
    "options": options,
    "settings": settings,
    "json": keys,
    "quantities": quantities,
    "rules": rules,
    "advice": advice,
    "ids": ids,
    "messages": messages,
    "reasons": reasons,
}

if __name__ == "__main__":
    main()
