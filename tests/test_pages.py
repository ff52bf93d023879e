"""README and docs: their links lead somewhere, and the files that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "sglang_ext").rglob("*.md"))]
FOLDERS = ("", "benchmarks", "docs", "kernels/budget", "patches", "sglang_ext", "tests",
           *(f"sglang_ext/{name}" for name in ("bench", "bench/churn", "budget", "compat", "cpu", "double_query", "hf",
                                               "uag", "uag/text")))
"""Folders from which a page may name a file."""


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    for link in (link for link in links if not link.startswith("http")):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))],
                         ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`([\w/]+\.(?:py|txt))`", page.read_text())
    missing = {name for name in named if not any((ROOT / folder / name).exists() for folder in FOLDERS)}
    assert missing == set()
