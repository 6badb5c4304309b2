"""Write the generated parts of the docs: options, settings, keys of the JSON result, advice and messages.

    python docs/tables.py

The sources are the plugin's help texts, the JSON Schema of its result, and the pages of `mwbudget explain`. The schema
itself gets the keys and names of figures from the table of quantities, and the plugin's `settings.json` its options,
keys and keywords from the table of settings. A test checks that all is up to date.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pytest_mwbudget import plugin  # noqa: E402
from pytest_mwbudget.config import table  # noqa: E402
from pytest_mwbudget.messages import pages  # noqa: E402
from pytest_mwbudget.model.quantities import PROCESS_WIDE, TAILS, TRAITS, Traits, budgeted  # noqa: E402
from pytest_mwbudget.model.reasons import MEASURED  # noqa: E402
from pytest_mwbudget.model.results import Counts, ResultRow  # noqa: E402
from pytest_mwbudget.model.tails import Tails  # noqa: E402
from pytest_mwbudget.report.advice import RULES  # noqa: E402
from pytest_mwbudget.storage.codec import RECORDS  # noqa: E402

ADVICE, MESSAGES, UNDECIDED = "advice.md", "reference/messages.md", "how-to/undecided.md"
PAGES = tuple(
    ROOT / "docs" / name
    for name in ("reference/options.md", "reference/json.md", "reference/counts.md", ADVICE, MESSAGES, UNDECIDED)
)
SCHEMA = ROOT / "pytest_mwbudget" / "storage" / "schema.json"
FOR_PYTEST = ROOT / "pytest_mwbudget" / "settings.json"
# The objects of the schema that have figures, and the kinds of counts by the key of their types or names.
WITH_FIGURES = {"layer": ResultRow, "counts": Counts, "tails": Tails}
COUNTS = {None: "count", "types": "countOfTypes", "names": "countOfNames"}
WIDTH = 120
# The ids of reasons, the most frequent ones first.
REASONS = (
    "near-budget",
    "below-detection-limit",
    "slow-machine",
    "machine-tail",
    "other-process",
    "too-few-requests",
    "few-messages",
    "contradicted",
    "merged",
    "other-way",
    "changing-stack",
    "growing",
    "endpoint-closed",
    "not-entered",
    "not-bypassed",
    "one-core",
    "generator-limit",
    "no-budget",
    "no-limit",
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
    """Rewrite the settings for pytest, the schema and every page."""
    FOR_PYTEST.write_text(for_pytest(), encoding="utf-8")
    SCHEMA.write_text(completed(SCHEMA.read_text(encoding="utf-8")), encoding="utf-8")
    for page in PAGES:
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")


def renewed(text: str) -> str:
    """Return the text of a page with its blocks generated again."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n{found[3]}", text)


# ---- the settings for pytest -------------------------------------------------------------------------------------


def for_pytest() -> str:
    """Return the options and keys of pytest, each with its arguments, and the keywords of the marker."""
    options, keys = {}, {}
    for setting in table.SETTINGS.values():
        if table.OPTION in setting.places and setting.kind == table.SWITCH:
            options[setting.flag] = {"action": "store_true", "help": setting.text}
        elif table.OPTION in setting.places:
            action = "append" if setting.kind in table.REPEATED else "store"
            options[setting.flag] = {"action": action, "metavar": setting.kind, "help": setting.help}
        if table.INI in setting.places:
            kind = "linelist" if setting.kind in table.LISTS else None
            keys[setting.key] = {"type": kind, "help": f"{setting.kind}: {setting.help}"}
    keywords = [name for name, setting in table.SETTINGS.items() if table.MARKER in setting.places]
    return _laid_out({"keywords": keywords, "options": options, "keys": keys}) + "\n"


# ---- the schema --------------------------------------------------------------------------------------------------


def completed(text: str) -> str:
    """Return the schema with a key for each figure, with the names of figures, and with all keys of objects required.

    The descriptions of keys that it has already stay.
    """
    schema = json.loads(text)
    kinds = schema["$defs"]
    for name, record in WITH_FIGURES.items():
        known = kinds[name]["properties"]
        kinds[name]["properties"] = {key: known.get(key) or _figure(TRAITS[key]) for key in RECORDS.shape(record)}
    layer = kinds["layer"]["properties"]
    layer["why"]["propertyNames"]["enum"] = [*MEASURED]
    layer["budgets"]["propertyNames"]["enum"] = [name for name in budgeted("layer") if TRAITS[name].source != "load"]
    kinds["tails"]["properties"]["why"]["propertyNames"]["enum"] = [*TAILS]
    kinds["processWide"]["enum"] = [*PROCESS_WIDE]
    for kind in (schema, *kinds.values()):
        if "properties" in kind:
            kind["required"] = [*kind["properties"]]
    return _laid_out(schema) + "\n"


def _figure(traits: Traits) -> dict[str, str]:
    kind = COUNTS[traits.kinds] if traits.counted else "estimate"
    return {"description": f"{traits.meaning[0].upper()}{traits.meaning[1:]}.", "$ref": f"#/$defs/{kind}OrNull"}


def _laid_out(value: Any, depth: int = 0, before: int = 0) -> str:
    """Return JSON with a line for each value that fits on one. `before` is the length of the text before the value."""
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or (depth and depth + before + len(text) < WIDTH):
        return text
    line, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict):
        parts = [f'"{key}": {_laid_out(part, depth + 1, len(key) + 4)}' for key, part in value.items()]
        return f"{{{line}{f',{line}'.join(parts)}{end}}}"
    return f"[{line}{line.join(textwrap.wrap(text[1:-1], WIDTH - depth - 1))}{end}]"


# ---- the pages ---------------------------------------------------------------------------------------------------


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
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
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
