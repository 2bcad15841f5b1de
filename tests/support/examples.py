"""The examples that prepare public data sets with a function of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

import rankfall as rf
from rankfall.data.impressions.log import ImpressionLog
from support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def spec_of(example: str) -> dict[str, Any]:
    """Return the spec of an example, whose source has an absolute path."""
    spec: dict[str, Any] = yaml.safe_load((ROOT / "examples" / example / "spec.yaml").read_text())
    return spec | {"source": spec["source"] | {"name": str(ROOT / spec["source"]["name"])}}


def prepare_example(spec: dict[str, Any], out: Path, options: Mapping[str, Any], *, seed: int = 0) -> ImpressionLog:
    """Prepare an example with other options of its source."""
    spec = spec | {"source": {"name": spec["source"]["name"], **options}}
    log = rf.prepare(spec=spec, out=out, seed=seed, progress=False, on_notice=lambda notice: None).open()
    assert isinstance(log, ImpressionLog)
    return log
