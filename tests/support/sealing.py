"""Change what is sealed, and seal it again, as somebody would who forges a log, ranking data or a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rankfall.storage.files import checksum
from rankfall.storage.manifests import about_file, sealed

if TYPE_CHECKING:
    from pathlib import Path


def edit_manifest(file: Path, **changes: Any) -> None:
    """Change keys of a manifest and seal it again; `...` removes a key."""
    content = {**json.loads(file.read_text()), **changes}
    content = {key: value for key, value in content.items() if value is not ...}
    file.write_text(json.dumps(sealed(content, _key(content))))


def _key(content: dict[str, Any]) -> str:
    """The key "sha256" of a day is the checksum of its file."""
    return "seal" if "day" in content else "sha256"


def seal_again(path: Path) -> None:
    """Give the manifests of a directory the checksums that its files have now."""
    manifest = json.loads((path / "manifest.json").read_text())
    if "days" in manifest:
        _seal_log(path, manifest)
    elif manifest["format"] == "rankfall run":
        left = (name for name in manifest["files"] if (path / name).is_file())
        edit_manifest(path / "manifest.json", files={name: about_file(path / name) for name in left})
    else:
        edit_manifest(path / "manifest.json", files={name: checksum(path / name) for name in manifest["files"]})


def _seal_log(path: Path, manifest: dict[str, Any]) -> None:
    days = {}
    for name in manifest["days"]:
        file = path / "days" / name / "impressions.arrow"
        about = about_file(file)
        days[name] = about["sha256"]
        edit_manifest(file.with_name("manifest.json"), **about)
    edit_manifest(
        path / "manifest.json",
        days=days,
        items=manifest["items"] | {"sha256": checksum(path / "items.arrow")},
        vocabularies={name: checksum(path / "vocabularies" / f"{name}.arrow") for name in manifest["vocabularies"]},
    )
