"""The bundles that are served: slot `main`, and slot `other` for comparison."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankfall._manifest import MANIFEST
from rankfall._seal import SEAL
from rankfall.serving.bundle import Bundle
from rankfall.serving.bundle_files import errors_name, is_bundle, why_no_bundle
from rankfall.serving.service.bundle_trial import try_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_log = logging.getLogger(__name__)
SLOTS = MAIN, OTHER = ("main", "other")
_MODEL_NAME_LENGTH = 12  # characters of the bundle's checksum
_UNFINISHED = ".unfinished"
_RUN_FILES = ("config.yaml", "checkpoints")


@dataclass(frozen=True, eq=False)
class ServedBundle:
    """A bundle and the name of its model in responses."""

    model: str
    bundle: Bundle

    def describe(self) -> dict[str, Any]:
        """Return the description of the bundle for clients."""
        manifest = self.bundle.manifest
        return {
            "model": self.model,
            "path": self.bundle.path.resolve().name,
            "items": len(self.bundle.items),
            "stages": [_describe_stage(stage) for stage in manifest["stages"]],
            "made_by": manifest.get("made_by"),
            "metrics": manifest.get("source", {}).get("metrics"),
            "measured": manifest.get("measured"),
            "display": manifest.get("display", []),
            "schema": self.bundle.schema(),
        }

    def __str__(self) -> str:
        """Return the model and its funnel in one line."""
        funnel = " -> ".join(f"{stage.name} {stage.quota:,}" for stage in self.bundle.stages)
        return f"model {self.model}, {len(self.bundle.items):,} items -> {funnel}"


def _describe_stage(stage: Mapping[str, Any]) -> dict[str, Any]:
    fields = {key: stage[key] for key in ("name", "quota", "kind", "index") if key in stage}
    return {**fields, "model": stage.get("model", {}).get("kind")}


def model_name(manifest: Mapping[str, Any]) -> str:
    """Return the name of a model, from the checksum of its bundle."""
    return str(manifest[SEAL])[:_MODEL_NAME_LENGTH]


class BundleSlots:
    """The served bundle of each slot.

    A bundle is replaced by a single assignment; requests in progress keep the old one.
    """

    def __init__(self) -> None:
        self._served: dict[str, ServedBundle | None] = dict.fromkeys(SLOTS)
        self.version = 0  # grows with every change

    def __getitem__(self, slot: str) -> ServedBundle | None:
        """Return the bundle of a slot, or None."""
        return self._served[slot]

    def put(self, slot: str, served: ServedBundle) -> None:
        """Serve a bundle in a slot."""
        self._served[slot] = served
        self.version += 1

    def models(self) -> dict[str, str]:
        """Return the model names by slot."""
        return {slot: served.model for slot, served in self._served.items() if served is not None}


def load_checked(path: Path, copies: Path | None = None) -> ServedBundle:
    """Try a bundle in a process with limits, load it, verify its checksums and examples, and rank a minimal request.

    Args:
        path: A bundle, or a directory of bundles.
        copies: Directory through which several workers share the memory of the files.

    Raises:
        ValueError: If the bundle is invalid, cannot rank, or needs too much memory or time.
        OSError: If its files cannot be read.
    """
    found = find_bundle(path)
    with errors_name(found):
        seal = try_bundle(found, copies)
    return load_untried(found, copies, seal)


def load_untried(path: Path, copies: Path | None, seal: str) -> ServedBundle:
    """Load and check the bundle with a seal at a path as :func:`load_checked` does, without limits."""
    try:
        bundle = Bundle.load(path, shared=copies, seal=seal)
        bundle.check()
        ranking = bundle.rank(_minimal_request(bundle.manifest["request"]), explain=True)
    except (ValueError, OSError):
        raise
    except Exception as error:  # onnxruntime and faiss raise their own classes
        raise ValueError(f"path: {path} cannot rank a request ({error!r})") from None
    if not ranking.ids:
        raise ValueError(f"path: {path} returns no items for a request")
    return ServedBundle(model_name(bundle.manifest), bundle)


def _minimal_request(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request with only the dense features, which are required."""
    request: dict[str, Any] = {}
    for group in ("user", "context"):
        dense = {name: rule for name, rule in rules[group].items() if rule["kind"] == "dense"}
        request[group] = {name: 0.0 if rule["size"] == 1 else [0.0] * rule["size"] for name, rule in dense.items()}
    return request


def find_bundle(path: Path) -> Path:
    """Return `path` if it is a bundle, or the bundle of that directory whose manifest was written last.

    Raises:
        ValueError: If there is no bundle.
    """
    invalid = list(find_newer_invalid(path)) if path.is_dir() else []
    for bundle in find_bundles(path):
        for directory, reason in invalid:
            _log.warning("%s is skipped, although it is newer than every bundle: %s", directory, reason)
        return bundle
    hint = invalid[0][1] if invalid else "see 'rankfall export --help'"
    raise ValueError(f"path: {path} is a directory without bundles ({hint})")


def find_bundles(path: Path) -> Iterator[Path]:
    """Yield `path` if it is a bundle, or the bundles of that directory, the newest first.

    Raises:
        ValueError: If the path is neither a bundle nor a directory that may contain bundles.
    """
    if is_bundle(path):
        yield path
        return
    if not path.exists():
        raise ValueError(f"path: {path} does not exist")
    if not path.is_dir():
        raise ValueError(f"path: {path} is a file, expected a bundle or a directory of bundles")
    if all((path / part).exists() for part in _RUN_FILES):
        raise ValueError(f"path: {path} is a run, expected a bundle; first run: rankfall export {path} --out bundle")
    yield from filter(is_bundle, _newest_first(path))


def find_newer_invalid(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield directories that are newer than all bundles and whose manifest is not that of a bundle, with the reason."""
    if is_bundle(path):
        return
    for directory in _newest_first(path) or ([path] if (path / MANIFEST).exists() else []):
        reason = why_no_bundle(directory)
        if reason is None:
            return
        yield directory, reason


def _newest_first(directory: Path) -> list[Path]:
    """Return the subdirectories that have a manifest, the newest first, without unfinished ones."""
    times: list[tuple[int, Path]] = []
    for path in directory.iterdir():
        if path.name.startswith(".") or path.name.endswith(_UNFINISHED):
            continue
        try:
            times.append(((path / MANIFEST).stat().st_mtime_ns, path))
        except OSError:  # it has no manifest, or was just removed
            continue
    return [path for _, path in sorted(times, reverse=True)]


def fingerprint(path: Path) -> str:
    """Return a text that changes with any file of a directory, without reading the files."""
    parts = []
    for file in sorted(path.rglob("*")):
        try:
            status = file.stat()
        except OSError:  # just removed; the next fingerprint will differ
            continue
        parts.append(f"{file}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}")
    return "\n".join(parts)
