"""Whatever the documents link to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "docs/*/*.md", "examples/*/*.md")
    for page in ROOT.glob(pattern)
    if page.is_file()
)
LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Those that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_stand_ins_are_async(page: Path) -> None:
    """FastAPI calls any other one in a thread, in every request, and the rows are those of the test."""
    text = page.read_text(encoding="utf-8")
    for stand_in in re.findall(r"dependency_overrides\[\w+\] = (\w+)", text):
        assert f"async def {stand_in}(" in text
