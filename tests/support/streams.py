"""Configurations of streams that use everything that a checkpoint stores, and the results that tests compare."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rankfall.reporting.files import write_stream
from rankfall.studies.stream.run_stream import stream_methods
from rankfall.studies.stream.stream_config import StreamConfig
from rankfall.training.config.load_config import merge
from support.interrupted import TIMES, cascade_content

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.studies.results import StreamResult


def stream_content(log: Path, **changes: Any) -> dict[str, Any]:
    """Return a stream of two methods that uses everything that a checkpoint stores except a changing temperature."""
    base = cascade_content(log)
    base["data"] = {"path": str(log), "negatives": 3}
    base["objective"]["topk"]["tau"] = 5.0
    base["training"].pop("epochs")
    base["methods"] = {"LCRON": {}, "BCE, all": {"objective": {"name": "bce", "min_depth": 0}}}
    return merge(base, changes)


def streamed(content: dict[str, Any], out: Path, **options: Any) -> StreamResult:
    """Run the stream of a configuration, and write its tables and page."""
    also = options.pop("on_result", lambda result: None)

    def on_result(result: StreamResult) -> None:
        write_stream(result, out)
        also(result)

    return stream_methods(StreamConfig.model_validate(content), out, on_result=on_result, **options)


def stream_outcome(out: Path) -> dict[str, Any]:
    """Return the results and files of a stream, without times and checkpoints for resuming."""
    result = json.loads((out / "stream.json").read_text())
    for run in result["runs"]:
        run.pop("seconds")
    return {"result": result, "runs": {run.name: run_outcome(run) for run in sorted((out / "runs").iterdir())}}


def run_outcome(run: Path) -> dict[str, Any]:
    """Return the weights, metrics and values per impression of a run."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [*run.glob("days/*"), *run.glob("checkpoints/[bl]*")]
    return {
        "files": {str(path.relative_to(run)): path.read_bytes() for path in kept},
        "metrics": [{key: value for key, value in line.items() if key not in TIMES} for line in lines],
    }
