"""Evaluate a run and write the result into its directory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from rankfall._disk import make_directory
from rankfall._files import write_file
from rankfall._trust import stored_code
from rankfall.studies.results import SplitEvaluation
from rankfall.studies.stage_scores import collect_scores
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.evaluation_overrides import with_evaluation_overrides
from rankfall.training.evaluation import Evaluation, evaluate
from rankfall.training.measure_cascade import scorer_for
from rankfall.training.methods import CascadeMethod, method_of
from rankfall.training.per_list_table import values_table
from rankfall.training.run_directory import CONFIG, DATA, read_config, read_config_as, read_json
from rankfall.training.run_manifest import verify_run
from rankfall.training.scoring import measure, score

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rankfall.studies.stage_scores import StageScores

__all__ = ["Evaluation", "evaluate", "evaluate_run", "measure", "score", "scores_of_run"]


def evaluate_run(
    run_dir: Path,
    split: str = "test",
    *,
    data: str | None = None,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    trust: bool = False,
    on_impressions: Callable[[int, int], None] = lambda count, of: None,
    on_notice: Callable[[str], None] = lambda text: None,
) -> Evaluation:
    """Evaluate the best checkpoint of a run and write the result to :func:`result_directory`.

    Args:
        run_dir: Run directory.
        split: ``"train"``, ``"valid"`` or ``"test"`` of the configuration, or the name of a split or day.
        data: Directory of the prepared data, if they were moved.
        overrides: ``key=value`` strings that change what is measured, such as ``"data.length=all"``.
        out: Directory of the result. Default: the run directory, if the run is measured as its configuration says.
        trust: Import the code that the configuration of the run names; see :mod:`rankfall._trust`.
        on_impressions: Called, for a cascade, with the number of impressions measured since the last call, and of all.
        on_notice: Called with each note of the evaluation before measuring.
    """
    # overrides are the caller's: their code is imported in any case
    method = method_of(with_evaluation_overrides(read_config(run_dir, trust=trust), overrides))
    with stored_code(run_dir, trust=trust):
        evaluation = method.evaluate(run_dir, split, data=data, on_impressions=on_impressions, on_notice=on_notice)
        directory = result_directory(run_dir, data=data, overrides=overrides, out=out)
    if directory is not None:
        make_directory(directory)
        write_evaluation(directory, evaluation, split, overrides=overrides)
    return evaluation


def result_directory(
    run_dir: Path, *, data: str | None = None, overrides: Sequence[str] = (), out: Path | None = None
) -> Path | None:
    """Return the directory that an evaluation is written to.

    The files of a run directory are those of the run's own configuration and data. Every other evaluation is written to
    `out` alone, or not at all.

    Args:
        run_dir: Run directory.
        data: Directory of the prepared data, if it is not that of the configuration.
        overrides: Overrides of the configuration.
        out: Directory that the caller names.

    Raises:
        ValueError: If `out` holds a run, whose own evaluation would be replaced.
    """
    if out is not None:
        if (out / CONFIG).exists():
            raise ValueError(f"out: {out} holds a run, whose own evaluation would be replaced; name another directory")
        return out
    return run_dir if not overrides and (data is None or _is_same_data(run_dir, data)) else None


def _is_same_data(run_dir: Path, data: str) -> bool:
    """Return whether a directory holds the data that a run was trained on, perhaps at another place."""
    verify_run(run_dir, DATA)
    if not (run_dir / DATA).is_file():  # of a baseline
        return True
    config = with_evaluation_overrides(read_config(run_dir), [f"data.path={json.dumps(data)}"])
    method = method_of(config)
    try:
        found = method.checksums(method.open_data())
    except ValueError:
        return False
    return found == read_json(run_dir / DATA)


def scores_of_run(
    run_dir: Path,
    split: str = "test",
    *,
    data: str | None = None,
    overrides: Sequence[str] = (),
    reach: int | None = None,
    trust: bool = False,
    on_impressions: Callable[[int, int], None] = lambda count, of: None,
    on_notice: Callable[[str], None] = lambda text: None,
) -> tuple[CascadeConfig, StageScores]:
    """Score the lists of a split by all stages of a run's best checkpoint. Nothing is written.

    Args:
        run_dir: Run directory of a cascade.
        split: ``"train"``, ``"valid"`` or ``"test"`` of the configuration, or the name of a day.
        data: Directory of the log, if it was moved.
        overrides: ``key=value`` strings that change what is measured, such as ``"data.length=all"``.
        reach: With ``data.length: all``, the number of best items of the first stage that the lists keep. Default: its
            quota. Lists of a fixed length always hold all their items.
        trust: Import the code that the configuration of the run names; see :mod:`rankfall._trust`.
        on_impressions: Called with the number of impressions scored since the last call, and of all.
        on_notice: Called with each note about the log.

    Returns:
        The configuration of the measurement, and the scores.
    """
    config = with_evaluation_overrides(read_config_as(CascadeConfig, run_dir, trust=trust), overrides)
    assert isinstance(config, CascadeConfig)
    with stored_code(run_dir, trust=trust):
        opened = CascadeMethod(config).open_split(run_dir, split, data=data, on_notice=on_notice)
        total = opened.impressions
        with opened.refusing_new_ids():
            scores = collect_scores(
                scorer_for(opened.cascade, opened.loader, opened.config, reach=reach),
                opened.loader,
                stages=opened.cascade.names,
                relevant=config.relevant,
                on_batch=lambda count: on_impressions(count, total),
            )
    return opened.config, scores


def evaluation_files(run_dir: Path, split: str = "test") -> tuple[Path, Path]:
    """Return the paths of the means and of the values per list; splits other than test have their own files."""
    suffix = "" if split == "test" else f"-{split.replace('/', '_').replace(':', '_')}"
    return run_dir / f"evaluation{suffix}.json", run_dir / f"values{suffix}.parquet"


def write_evaluation(
    directory: Path, evaluation: Evaluation, split: str = "test", *, overrides: Sequence[str] = ()
) -> None:
    """Write the means and the values of every list to :func:`evaluation_files`; the values mark a tested run."""
    summary, values = evaluation_files(directory, split)
    SplitEvaluation(**vars(evaluation.summary()), split=split, overrides=list(overrides) or None).save(summary)
    table = values_table(pa.array(evaluation.qids, pa.string()), evaluation.values, evaluation.chance)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_file(values, sink.getvalue().to_pybytes())
