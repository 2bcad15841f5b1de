"""``rankfall init``, ``simulate``, ``data`` and ``examination``: logs, from a draft of their spec to their figures."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from annotated_types import Ge, Le

from rankfall import api
from rankfall._errors import RankfallError
from rankfall.api.shared import Display, stepper
from rankfall.commands.prepare import TABLE, existing_source, lists_table, skipped_lines
from rankfall.commands.terminal import (
    print_error,
    print_json,
    print_message,
    print_result,
    progress,
    table,
)
from rankfall.commands.verb import Call, command, verb
from rankfall.option_types import LARGEST_COUNT, Count, Seed
from rankfall.storage.manifests import verification

if TYPE_CHECKING:
    from rich.table import Table

    from rankfall.api import SimulatedLog
    from rankfall.data.sources.draft.draft_files import Draft


_DAYS = {"metavar": "DAY or FIRST..LAST"}


@command(
    sources={"argument": "SRC...", "parser": existing_source}, role={"metavar": "ROLE=COLUMN"}, items=TABLE, users=TABLE
)
def init(
    sources: list[str],
    out: Path = Path(),
    role: list[str] | None = None,
    items: str | None = None,
    users: str | None = None,
    as_json: bool = False,
) -> None:
    """Draft spec.yaml and config.yaml from the columns of your log.

    Roles of columns are guessed from their names and values. The drafts have comments that say what was guessed from
    what. Existing files are never replaced. If a role cannot be decided, nothing is written; --role decides it.

    Options:
        sources: Files of rows (.csv, .jsonl, .parquet, .feather, .arrow, .ipc) or a directory of them, a Delta table,
            s3://, gs:// and file:// URLs of rows, a prepared log, prepared lists, or LETOR text files.
        role: The role of a column, if it cannot be guessed (repeatable): request, item, user, time, day, stage, flag,
            rank, position, label, feedback, sequence, user_feature, context_feature, item_feature, ignore.
        items: A table with features of items.
        users: A table with features of users.
        out: Directory of the drafts.

    Examples:
        rankfall init shop.csv
        rankfall init 2024-*.parquet --out drafts
        rankfall init shop.csv --role request=sid --role label=bought --role ignore=debug
        rankfall init log/ --items videos.csv --users users.csv
        rankfall init log
        rankfall init train.txt vali.txt test.txt
    """
    from rankfall._config import parse_yaml
    from rankfall.data.impressions.spec import validate_spec
    from rankfall.data.sources.draft.draft_files import CONFIG, SPEC, draft_files
    from rankfall.storage.disk import make_directory
    from rankfall.storage.files import write_file
    from rankfall.training.config.load_config import validate_any

    if (out / CONFIG).exists():  # it is written last
        raise _exists(out / CONFIG)
    with Display() as display:
        draft = draft_files(sources, out, roles=role or (), items=items, users=users, on_progress=stepper(display.show))
    if not draft.problems:
        if SPEC in draft.files:  # no draft is written that the next command would refuse
            validate_spec(parse_yaml(draft.files[SPEC], SPEC), where=SPEC)
        validate_any(parse_yaml(draft.files[CONFIG], CONFIG), where=CONFIG)
        contents = {out / name: text for name, text in draft.files.items()}
        for path, text in contents.items():  # a process may have died between its two drafts
            if path.exists() and path.read_bytes() != text.encode():
                raise _exists(path)
        make_directory(out)
        for path, text in contents.items():
            write_file(path, text)
    if as_json:
        print_json(_as_json(draft, out))
    else:
        _print(draft, out)
    if draft.problems:
        for problem in draft.problems:
            print_error(problem)
        raise typer.Exit(1)


def _exists(path: Path) -> ValueError:
    return RankfallError(f"{path} exists already and is not replaced; --out names another directory")


def _print(draft: Draft, out: Path) -> None:
    if draft.guesses is not None:
        print_result(_table(draft))
    for check in draft.checks:
        print_message(f"check: {check}")
    for name in draft.files:
        typer.echo(f"wrote {out / name}")
    if draft.next:  # lines that can be copied, so they are not wrapped
        typer.echo("\n".join(["next:", *(f"  {command}" for command in draft.next)]))


def _table(draft: Draft) -> Table:
    assert draft.guesses is not None
    assert draft.sample is not None
    rows = []
    for name, guess in draft.guesses.of.items():
        facts = draft.sample.facts[name]
        values = f"{facts.kind}: {', '.join(facts.examples)}" if facts.examples else facts.kind
        rows.append((name, values, guess.role, guess.confidence, guess.why))
    return table(["column", "values", "role", "confidence", "guessed from"], rows)


def _as_json(draft: Draft, out: Path) -> dict[str, Any]:
    from rankfall.data.sources.draft.column_facts import as_json

    columns = [] if draft.guesses is None else [as_json(guess) for guess in draft.guesses.of.values()]
    return {
        "files": [str(out / name) for name in draft.files],
        "columns": columns,
        "problems": draft.problems,
        "checks": draft.checks,
        "next": draft.next,
    }


@verb(api.simulate, out={"argument": "OUT"}, relevant={"metavar": "FEEDBACK"})
def simulate(call: Call, as_json: bool = False) -> None:
    """Simulate a platform and write the full-stage log of its cascade.

    Interests of users drift, items are uploaded and expire, and an imperfect cascade serves requests day by day. The
    memory used does not grow with requests; it grows with days only by the data of items. A longer log begins with the
    same days as a shorter one.

    Options:
        layout: An impression log for training, or RecFlow's files for 'rankfall prepare recflow'.

    Examples:
        rankfall simulate log --preset tiny
        rankfall simulate log --preset recflow-like --days 22 --requests-per-day 3000 --seed 1
        rankfall simulate log --preset recflow-like-3 --truth
        rankfall simulate clicks --preset recflow-like --relevant effective_view
        rankfall simulate RecFlow --preset recflow-like --layout recflow
        rankfall simulate ads --preset industry-hard
        rankfall simulate log --preset tiny --days 5 --append
    """
    log: SimulatedLog = call()
    summary = log.to_json()
    if as_json:
        print_json(summary)
        return
    print_result(
        f"{call['out']}: {log.preset}, {log.days} days, {log.impressions:,} impressions, {log.rows:,} rows, "
        f"{summary['megabytes']:,} MB, {summary['seconds']} s"
    )
    print_result(_stages(summary))


def _stages(summary: dict[str, Any]) -> Table:
    columns = ["stage", ">rows logged", ">per request"]
    if any("kept" in counts for counts in summary["stages"].values()):
        columns += [">kept in impressions", ">per request"]
    rows = [
        [name, *(text for count in counts.values() for text in (f"{count:,}", f"{count / summary['impressions']:.1f}"))]
        for name, counts in summary["stages"].items()
    ]
    return table(columns, rows)


@command(path={"argument": "DIR"}, days=_DAYS, verify={"flag": "verify/--no-verify"})
def data(path: Path, days: list[str] | None = None, verify: bool | None = None, as_json: bool = False) -> None:
    """Show the content of prepared data, and warn about common mistakes.

    For an impression log: days, stages, labels, features and behaviour sequences, then warnings with the days, features
    and figures concerned. Warnings do not change the exit code; data that cannot be read are an error. For ranking
    data: its splits, and warnings about lists from which nothing can be learned or measured.

    Options:
        path: An impression log, or ranking data of 'prepare letor'.
        days: Only these days of a log (repeatable). Default: all days.
        verify: Compare all files with their checksums first, or none. Default: each file when it is read.

    Examples:
        rankfall data log
        rankfall data log --days 2024-01-13..2024-01-19
        rankfall data log --verify --json
        rankfall data mslr
    """
    from rankfall.data.impressions.log import is_log
    from rankfall.data.lists.ranking_data import is_prepared

    if is_log(path):
        with verification(on_notice=_note):
            _log(path, days, verify=verify, as_json=as_json)
    elif is_prepared(path):
        if days:
            raise typer.BadParameter(f"{path} is ranking data, which has no days", param_hint="--days")
        with verification(on_notice=_note):
            _ranking_data(path, verify=verify, as_json=as_json)
    else:
        raise RankfallError(
            f"path: {path} {_described(path)}; expected an impression log (see 'rankfall prepare' and 'rankfall "
            "simulate') or ranking data (see 'rankfall prepare letor')"
        )


def _note(text: str) -> None:
    print_message(f"note: {text}")


def _described(path: Path) -> str:
    if not path.is_dir():
        return "is a file" if path.exists() else "does not exist"
    if not (path / "manifest.json").exists():
        return "is an unfinished log" if (path / "days").is_dir() else "has no manifest.json"
    return "has a damaged manifest.json, or one of another format"


def _ranking_data(path: Path, *, verify: bool | None, as_json: bool) -> None:
    from rankfall.data.inspect.checks import find_list_warnings as find_warnings
    from rankfall.data.lists.ranking_data import RankingData
    from rankfall.reporting.inspection import warning_blocks

    ranking_data = RankingData.load(path, verify=verify)
    warnings = find_warnings(ranking_data)
    if as_json:
        print_json({**ranking_data.manifest, "warnings": [asdict(warning) for warning in warnings]})
    else:
        print_result(lists_table(ranking_data.manifest, path))
        print_result(warning_blocks(warnings))


def _log(path: Path, days: list[str] | None, *, verify: bool | None, as_json: bool) -> None:
    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.inspect import inspect

    log = ImpressionLog.load(path, verify=verify)
    chosen = log.choose(days) if days else list(log.days.values())
    with progress() as bar:
        task = bar.add_task("days", total=len(chosen))
        inspection = inspect(log, days=chosen, on_day=lambda _: bar.advance(task))
    if as_json:
        print_json(inspection.to_json())
        return
    from rankfall.reporting.inspection import inspection_blocks

    print_result(list(inspection_blocks(inspection)))
    if inspection.skipped:
        for line in skipped_lines(inspection.skipped):
            print_result(line)


@command(path={"argument": "LOG"}, given={"metavar": "NAME"}, days=_DAYS, out={"metavar": "FILE"})
def examination(
    path: Path,
    feedback: str,
    method: Literal["pairs", "em", "naive"] = "pairs",
    given: list[str] | None = None,
    days: list[str] | None = None,
    positions: Count = 30,
    resamples: Annotated[int, Ge(2), Le(LARGEST_COUNT)] = 100,
    seed: Seed = 0,
    out: Path | None = None,
    force: bool = False,
    verify: bool = True,
    as_json: bool = False,
) -> None:
    """Estimate how often users examine each position, relative to the first one.

    Users click only what they examine. A curve turns clicks into weights for training: clicks at positions that are
    seldom examined count more. The page 'Click bias' of the documentation says which method to use when, and what no
    method can correct.

    Options:
        path: An impression log with positions.
        feedback: Feedback that counts as a click where it is above 0.
        method: pairs compares equal items at different positions; em fits a logistic regression of relevance; naive is
            the click rate of each position.
        given: What describes the relevance of an item (repeatable): rank, item, or a feature such as user.age. Default:
            rank; for em also all features with few values.
        days: Only these days of a log (repeatable). Default: all days.
        positions: Largest number of positions.
        resamples: Number of bootstrap samples.
        out: File of the curve, for 'weight:' in configurations.

    Examples:
        rankfall examination log --feedback effective_view --out curve.json
        rankfall examination log --feedback effective_view --method em --days 2024-01-13..2024-01-19
        rankfall examination log --feedback click --given item --given user.segment --json
    """
    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.examination import estimate_examination
    from rankfall.reporting.inspection import examination_blocks

    if out is not None and out.exists() and not force:
        raise RankfallError(f"out: {out} exists already; --force replaces it")
    with verification(verify, _note), progress() as bar:
        log = ImpressionLog.load(path)
        tasks = {step: bar.add_task(step, total=None) for step in ("reading days", "estimating")}
        curve = estimate_examination(
            log,
            feedback,
            method=method,
            given=given,
            days=days,
            positions=positions,
            resamples=resamples,
            seed=seed,
            on_progress=lambda step, done, total: bar.update(tasks[step], completed=done, total=total),
        )
    if out is not None:
        curve.save(out)
    if as_json:
        print_json(curve.to_json())
        return
    print_result(examination_blocks(curve))
    if out is not None:
        print_message(f"wrote {out}")
