"""The architecture page names files that exist and all packages, and module names are unambiguous."""

from __future__ import annotations

import re
from collections import Counter

from support.paths import ROOT

SOURCE = ROOT / "src" / "rankfall"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PARTS = re.findall(r"`([a-z_0-9/]+(?:/|\.py))`", PAGE)

# verbs: the command and the function it calls have the same name; and readers that have a verb
VERBS = {path.name for path in (SOURCE / "commands").rglob("*.py")}

# chapters that two packages have; the page names them with their package
CHAPTERS = {"arrays.py", "build.py", "checks.py", "encoding.py", "files.py", "funnel.py", "inspection.py"}


def test_every_path_exists() -> None:
    assert len(PARTS) > 80
    names = {path.name for path in SOURCE.rglob("*.py")}
    missing = [part for part in PARTS if not ((SOURCE / part).exists() or part in names or (ROOT / part).exists())]
    assert not missing
    assert not [part for part in PARTS if part.split("/")[-1] in CHAPTERS and not (SOURCE / part).is_file()]


def test_every_package_and_module_is_listed() -> None:
    table = PAGE.partition("## Packages")[2].partition("\n## ")[0]
    listed = {part.split("/")[0] for part in re.findall(r"`([a-z_0-9/]+(?:/|\.py))`", table)}
    found = {path.name for path in SOURCE.iterdir() if not path.name.startswith("_") and path.suffix in ("", ".py")}
    assert found <= listed


def test_no_two_modules_share_a_name() -> None:
    modules = (path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
    counts = Counter(path.name for path in modules)
    assert {name for name, count in counts.items() if count > 1} <= VERBS | CHAPTERS
