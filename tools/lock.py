"""Write the lock files: the versions of the environment that the tests ran in, with the hashes of their files.

``make lock`` writes two files from the versions that are installed in ``.venv``:

- ``requirements.lock``: what the package and its extras for users need,
- ``requirements-dev.lock``: all of the environment in which ``make test`` ran.

The hashes are those that the package index states (PEP 503), of the source distribution and of all wheels for CPython
3.11 and 3.12. No file names an index. torch is left out, because its builds for one version differ by platform and
accelerator, and each needs other packages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urldefrag

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGE, TORCH = "rankfall", "torch"
EXTRAS = ("lightgbm", "report", "tune", "serve", "track")
TOOLS = {PACKAGE, TORCH, "pip", "setuptools", "wheel", "atheris"}  # not part of the environment of the tests
_WHEELS = re.compile(r"-(py3|py2\.py3|cp311|cp312|cp3\d+-abi3)\S*\.whl$|\.tar\.gz$|\.zip$")


def main() -> None:
    """Write both files."""
    installed: dict[str, str] = {canonicalize_name(one.name): one.version for one in metadata.distributions()}
    everything = {name: version for name, version in installed.items() if name not in TOOLS}
    users = {name: everything[name] for name in needed(PACKAGE, set(EXTRAS)) if name in everything}
    index = package_index()
    with ThreadPoolExecutor(8) as pool:
        found = dict(
            zip(everything, pool.map(lambda name: hashes(index, name, everything[name]), everything), strict=True)
        )
    write(ROOT / "requirements.lock", users, found, f"{PACKAGE} and its extras {', '.join(EXTRAS)}")
    write(ROOT / "requirements-dev.lock", everything, found, f"the tests of {PACKAGE}")


def needed(name: str, extras: set[str], seen: set[str] | None = None) -> set[str]:
    """Return the names of all installed distributions that a distribution and its extras need."""
    seen = set() if seen is None else seen
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        marker, other = requirement.marker, canonicalize_name(requirement.name)
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            continue
        if other not in seen:
            seen.add(other)
            needed(other, requirement.extras or {""}, seen)
    return seen


def package_index() -> str:
    """Return the address of the package index that pip uses."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    found = re.search(r"^(?:\S*\.)index-url='(.+)'$", listed.stdout, re.MULTILINE)
    return os.environ.get("PIP_INDEX_URL") or (found[1] if found else "https://pypi.org/simple")


class _Links(HTMLParser):
    """The hashes of the files on a page of a package index."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address, fragment = urldefrag(dict(attrs).get("href") or "")
        if tag == "a" and fragment.startswith("sha256="):
            self.files[unquote(address.rpartition("/")[2])] = fragment.removeprefix("sha256=")


def hashes(index: str, name: str, version: str) -> list[str]:
    """Return the hashes of the files of a version; raise LookupError if the index has none."""
    request = urllib.request.Request(f"{index.rstrip('/')}/{name}/", headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=180) as answer:
        links = _Links()
        links.feed(answer.read().decode())
    of_version = re.compile(rf"[\w.-]+?-{re.escape(version)}(-|\.tar\.gz$|\.zip$)")
    found = {digest for file, digest in links.files.items() if of_version.match(file) and _WHEELS.search(file)}
    if not found:
        raise LookupError(f"{name}: the package index states no hash of a file of version {version}")
    return sorted(found)


def write(path: Path, versions: dict[str, str], found: dict[str, list[str]], what: str) -> None:
    """Write a lock file."""
    python = ".".join(map(str, sys.version_info[:2]))
    torch = metadata.version(TORCH).partition("+")[0]
    lines = [
        f"# Versions that were tested together, on Linux with Python {python}: {what}.",
        f"# Written by `make lock`. Install torch {torch} first, which has a build per platform, then:",
        f"#   pip install --require-hashes --no-deps -r {path.name}",
    ]
    for name in sorted(versions):
        lines += [f"{name}=={versions[name]} \\", " \\\n".join(f"    --hash=sha256:{digest}" for digest in found[name])]
    path.write_text("\n".join(lines) + "\n")
    sys.stdout.write(f"{path.name}: {len(versions)} packages\n")


if __name__ == "__main__":
    main()
