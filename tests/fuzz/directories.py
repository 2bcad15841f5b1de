"""Damages to directories: logs, prepared lists and bundles, with and without matching checksums.

A case is a JSON object: ``{"file": name, "bytes": changes}`` damages the bytes of a file, ``{"file": name, "values":
changes}`` the values of a JSON file; ``"sealed": true`` updates sizes and checksums afterwards, as somebody would who
wants the damage to be read.
"""

from __future__ import annotations

import json
import os
import shutil
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from fuzz.damage import byte_changes, changed, damaged, structure_changes
from fuzz.readers import refused_by_name
from rankfall.data.impressions.loader import ImpressionLoader
from rankfall.data.impressions.log import ImpressionLog
from rankfall.data.lists.ranking_data import RankingData
from rankfall.serving.bundle import Bundle
from rankfall.serving.request_encoder import RequestError
from rankfall.storage.files import checksum
from rankfall.storage.manifests import verification

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

MANIFEST = "manifest.json"
SEAL, DAY_SEAL = "sha256", "seal"  # keys of seals in the manifest of a directory, and in that of a day of a log


def directory_cases(original: Path) -> st.SearchStrategy[bytes]:
    """Return a strategy of damages to one of the files of a directory."""
    names = sorted(path.relative_to(original).as_posix() for path in original.rglob("*") if path.is_file())
    damages = [st.fixed_dictionaries({"file": st.sampled_from(names), "bytes": byte_changes(most=2)})]
    structured = [name for name in names if name.endswith(".json")]
    if structured:
        damages.append(
            st.fixed_dictionaries({"file": st.sampled_from(structured), "values": structure_changes(most=2)})
        )
    cases = st.builds(lambda case, sealed: {**case, "sealed": sealed}, st.one_of(*damages), st.booleans())
    return cases.map(lambda case: json.dumps(case).encode())


def damaged_copy(original: Path, content: bytes, folder: Path) -> Path:
    """Return a copy of a directory with the damage of a case; other files are links to those of the original."""
    case: dict[str, Any] = json.loads(content)
    copy = folder / "damaged"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy, copy_function=os.link)
    file = copy / case["file"]
    before = file.read_bytes()
    file.unlink()  # the link, not the original
    if "bytes" in case:
        file.write_bytes(damaged(before, case["bytes"]))
    else:
        file.write_text(json.dumps(changed(json.loads(before), case["values"])))
    if case.get("sealed"):
        reseal(copy, case["file"], before)
    return copy


def reseal(copy: Path, file: str, before: bytes) -> None:
    """Write size, checksum and seals into the manifests of a directory, as far as they can be read."""
    old, new = [len(before), sha256(before).hexdigest()], [(copy / file).stat().st_size, checksum(copy / file)]
    for path in sorted(copy.rglob(MANIFEST), key=lambda path: -len(path.parts)):
        try:
            content = json.loads(path.read_text())
        except ValueError:
            continue
        if not isinstance(content, dict):
            continue
        content = _replaced(content, dict(zip(old, new, strict=True)))
        key = DAY_SEAL if path.parent != copy else SEAL
        if key in content:
            others = {name: value for name, value in content.items() if name != key}
            content[key] = sha256(json.dumps(others, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        path.unlink()
        path.write_text(json.dumps(content))


def _replaced(content: Any, changes: dict[Any, Any]) -> Any:
    if isinstance(content, dict):
        return {key: _replaced(value, changes) for key, value in content.items()}
    if isinstance(content, list):
        return [_replaced(value, changes) for value in content]
    return changes.get(content, content) if type(content) in (int, str) else content


# --- logs and lists -------------------------------------------------------------------------------------------------


def read_log(content: bytes, folder: Path, original: Path) -> None:
    """Open a damaged log and load all of its batches."""
    copy = damaged_copy(original, content, folder)
    with refused_by_name(copy), _notes_allowed():
        log = ImpressionLog.load(copy)
        loader = ImpressionLoader(log, list(log.days), batch=16)
        for batch in loader:
            assert len(batch.time) <= 16
    with refused_by_name(copy), _notes_allowed():
        ImpressionLog.load(copy, verify=True)


def read_lists(content: bytes, folder: Path, original: Path) -> None:
    """Open damaged lists and read all of their arrays."""
    copy = damaged_copy(original, content, folder)
    with refused_by_name(copy), _notes_allowed():
        data = RankingData.load(copy, verify=True)
        for name in data:
            split = data[name]
            assert np.asarray(split.features).shape[0] == np.asarray(split.labels).shape[0] == split.offsets[-1]


def _notes_allowed() -> AbstractContextManager[None]:
    """Return the context of code that may note that a manifest has no seal."""
    return verification(on_notice=str)


# --- bundles --------------------------------------------------------------------------------------------------------


def read_bundle(content: bytes, folder: Path, original: Path) -> None:
    """Load a damaged bundle. One that is accepted answers its examples or refuses the requests."""
    copy = damaged_copy(original, content, folder)
    with refused_by_name(copy):
        bundle = Bundle.load(copy)
        bundle.check()
        requests: list[Any] = [{}, *(example["request"] for example in bundle.examples()[:2])]
        for request in requests:
            try:
                ranking = bundle.rank(request)
            except RequestError:
                continue
            assert len(ranking.ids) == len(ranking.scores) <= bundle.quotas[-1]
