"""The bundles that answer: `main`, and `other` to compare it with."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankfall._manifest import MANIFEST
from rankfall.serving.bundle import Bundle
from rankfall.serving.bundle_files import SEAL, is_bundle, why_no_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_log = logging.getLogger(__name__)
SLOTS = MAIN, OTHER = ("main", "other")
_NAME_LENGTH = 12  # characters of the seal by which a model is called
_UNFINISHED = ".unfinished"
_PARTS_OF_A_RUN = ("config.yaml", "checkpoints")


@dataclass(frozen=True, eq=False)
class Served:
    """A bundle that answers, and what its answers call it."""

    model: str
    bundle: Bundle

    def about(self) -> dict[str, Any]:
        """What a client may know of it."""
        manifest = self.bundle.manifest
        return {
            "model": self.model,
            "path": self.bundle.path.resolve().name,
            "items": len(self.bundle.items),
            "stages": [_about_stage(stage) for stage in manifest["stages"]],
            "made_by": manifest.get("made_by"),
            "metrics": manifest.get("source", {}).get("metrics"),
            "schema": self.bundle.schema(),
        }

    def __str__(self) -> str:
        """One line: the model and its funnel."""
        funnel = " -> ".join(f"{stage.name} {stage.quota:,}" for stage in self.bundle.stages)
        return f"model {self.model}, {len(self.bundle.items):,} items -> {funnel}"


def _about_stage(stage: Mapping[str, Any]) -> dict[str, Any]:
    known = {key: stage[key] for key in ("name", "quota", "kind", "index") if key in stage}
    return {**known, "model": stage.get("model", {}).get("kind")}


def model_name(manifest: Mapping[str, Any]) -> str:
    """What a model is called."""
    return str(manifest[SEAL])[:_NAME_LENGTH]


class Slots:
    """Which bundle answers for which name. A swap is one assignment: whoever came before keeps the old bundle."""

    def __init__(self) -> None:
        self._served: dict[str, Served | None] = dict.fromkeys(SLOTS)
        self.changes = 0  # how often anything was put

    def __getitem__(self, slot: str) -> Served | None:
        """The bundle of a slot, if there is one."""
        return self._served[slot]

    def put(self, slot: str, served: Served) -> None:
        """Answer with this one from now on."""
        self._served[slot] = served
        self.changes += 1

    def models(self) -> dict[str, str]:
        """The models by slot."""
        return {slot: served.model for slot, served in self._served.items() if served is not None}


def load_checked(path: Path) -> Served:
    """A bundle with the right checksums that answers its examples as at its export, and one request more."""
    try:
        bundle = Bundle.load(find_bundle(path))
        bundle.check()
        ranking = bundle.rank(_probe(bundle.manifest["request"]), explain=True)
    except (ValueError, OSError):
        raise
    except Exception as error:  # of any class: graphs and indices have their own
        raise ValueError(f"path: {path} cannot answer ({error!r})") from None
    if not ranking.ids:
        raise ValueError(f"path: {path} answers a request with nothing")
    return Served(model_name(bundle.manifest), bundle)


def _probe(rules: Mapping[str, Any]) -> dict[str, Any]:
    """A request with nothing but the numbers that must be given."""
    request: dict[str, Any] = {}
    for group in ("user", "context"):
        needed = {name: rule for name, rule in rules[group].items() if rule["kind"] == "dense"}
        request[group] = {name: 0.0 if rule["size"] == 1 else [0.0] * rule["size"] for name, rule in needed.items()}
    return request


def find_bundle(path: Path) -> Path:
    """A bundle, or in a directory of bundles the one whose manifest was written last."""
    strangers = list(find_strangers(path)) if path.is_dir() else []
    for bundle in find_bundles(path):
        for stranger, why in strangers:
            _log.warning("%s is passed over, though it is newer than every bundle: %s", stranger, why)
        return bundle
    hint = strangers[0][1] if strangers else "see 'rankfall export --help'"
    raise ValueError(f"path: {path} is a directory without bundles ({hint})")


def find_bundles(path: Path) -> Iterator[Path]:
    """A bundle, or those of a directory, the newest first; what can be neither is an error."""
    if is_bundle(path):
        yield path
        return
    if not path.exists():
        raise ValueError(f"path: {path} does not exist")
    if not path.is_dir():
        raise ValueError(f"path: {path} is a file, expected a bundle or a directory of bundles")
    if all((path / part).exists() for part in _PARTS_OF_A_RUN):
        raise ValueError(f"path: {path} is a run, expected a bundle; first: rankfall export {path} --out bundle")
    yield from filter(is_bundle, _by_age(path))


def find_strangers(path: Path) -> Iterator[tuple[Path, str]]:
    """What is newer in a directory than all of its bundles and has a manifest that is not a bundle's, and why."""
    if is_bundle(path):
        return
    for directory in _by_age(path) or ([path] if (path / MANIFEST).exists() else []):
        why = why_no_bundle(directory)
        if why is None:
            return
        yield directory, why


def _by_age(directory: Path) -> list[Path]:
    """The directories that have a manifest, the newest first; what is being written is left out."""
    ages: list[tuple[int, Path]] = []
    for path in directory.iterdir():
        if path.name.startswith(".") or path.name.endswith(_UNFINISHED):
            continue
        try:
            ages.append(((path / MANIFEST).stat().st_mtime_ns, path))
        except OSError:  # it has none, or is gone again
            continue
    return [path for _, path in sorted(ages, reverse=True)]


def fingerprint(path: Path) -> str:
    """What changes with any file of a directory; nothing is read."""
    parts = []
    for file in sorted(path.rglob("*")):
        try:
            about = file.stat()
        except OSError:  # gone while we look, so that the next look differs
            continue
        parts.append(f"{file}:{about.st_ino}:{about.st_size}:{about.st_mtime_ns}")
    return "\n".join(parts)
