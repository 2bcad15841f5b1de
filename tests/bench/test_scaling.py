"""Tests of `benchmarks.scaling`: rows computed from samples, and the samples of one process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks import scaling
from benchmarks.scaling import Case, Sample
from rankfall.benchmarks import loader
from rankfall.data.impressions.loader import ImpressionLoader

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def test_efficiency_and_communication_are_computed_from_medians() -> None:
    case = Case(1000, sparse=True)
    samples = {
        (0, 1): [Sample([0.1, 0.1, 0.9], [0.1, 0.1, 0.1], [0.1, 0.1, 0.9], 4 << 20, 1 << 19)],
        # two launches: half of a step is communication, and CPU time is a quarter of wall time
        (0, 2): [Sample([0.2], [0.1], [0.05], 4 << 20, 1 << 19), Sample([0.2], [0.1], [0.05], 4 << 20, 1 << 19)],
    }
    one, two = scaling._rows([case], samples, 50)
    assert [one.processes, one.impressions_per_second, one.efficiency] == pytest.approx([1, 500, 1])
    assert [two.processes, two.impressions_per_second, two.efficiency] == pytest.approx([2, 500, 0.5])
    assert [one.communication, two.communication] == pytest.approx([0, 0.5])
    assert [two.dense_mb, two.sparse_mb, two.cpu] == pytest.approx([4, 0.5, 0.25])


def test_a_process_counts_the_gradients_of_its_batch(tmp_path: Path) -> None:
    log = tmp_path / "50"
    log.mkdir()
    loader.write_log(log, 64, 50)
    (tmp_path / "settings.json").write_text(
        json.dumps({"cases": [{"rows": 50, "sparse": True}, {"rows": 50, "sparse": False}], "batch": 8, "steps": 2})
    )
    assert scaling.main(["--process", str(tmp_path)]) == 0
    sparse, dense = (Sample(**sample) for sample in json.loads((tmp_path / "samples.json").read_text()))
    assert [len(sparse.together), len(sparse.apart), len(sparse.cpu)] == [2, 2, 2]
    tables = len(loader.USER) + len(loader.ITEM)
    assert dense.sparse_bytes == 0
    # two stages; each table has 52 rows of 8 floats of 4 bytes
    assert dense.dense_bytes - sparse.dense_bytes == 2 * tables * 52 * 8 * 4
    # two warm-up turns use batches 0 to 3; the steps without communication use batches 5 and 7
    batches = list(ImpressionLoader(log, loader.DAY, batch=8))
    rows = [_distinct_rows(batches[number]) for number in (5, 7)]
    assert sparse.sparse_bytes == round(sum(2 * count * (8 * 4 + 8) for count in rows) / 2)


def _distinct_rows(batch: object) -> int:
    """Count the distinct rows of all tables of a stage, with a loop over the features."""
    count = 0
    for name in (*loader.USER, *loader.ITEM):
        ids = getattr(batch, "user" if name in loader.USER else "items")[name]
        distinct = set(ids.flatten().tolist())
        if name in loader.EVENT:
            distinct |= set(batch.sequences["history"][name].flatten().tolist())  # type: ignore[attr-defined]
        count += len(distinct)
    return count


def test_the_report_has_a_row_for_each_number_of_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def launch(directory: Path, cases: Sequence[Case], processes: int, batch: int, steps: int) -> list[Sample]:
        assert all((directory / str(case.rows)).is_dir() for case in cases)
        return [Sample([0.1] * steps, [0.05] * steps, [0.1] * steps, 1 << 20, 0) for _ in cases]

    monkeypatch.setattr(scaling, "_launch", launch)
    assert scaling.main(["--quick"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["processes"] for row in rows] == [1, 2] * len(scaling.QUICK_CASES)
    assert (rows[0]["rows"], rows[-1]["gradients"]) == (1000, "sparse")
