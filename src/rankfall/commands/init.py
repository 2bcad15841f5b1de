"""``rankfall init``: draft the description of a log and the configuration of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall._progress import steps
from rankfall.commands.options import AsJson, existing_source, table_option
from rankfall.commands.terminal import examples, print_error, print_json, print_message, print_result

if TYPE_CHECKING:
    from rich.table import Table

    from rankfall.data.sources.draft.draft_files import Draft

EXAMPLES = examples(
    "rankfall init shop.csv",
    "rankfall init 2024-*.parquet --out drafts",
    "rankfall init shop.csv --role request=sid --role label=bought --role ignore=debug",
    "rankfall init log/ --items videos.csv --users users.csv",
    "rankfall init log",
    "rankfall init train.txt vali.txt test.txt",
)


def init(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC...",
            parser=existing_source,
            help="Files of rows (.csv, .jsonl, .parquet, .feather, .arrow, .ipc) or a directory of them, a "
            "Delta table, s3://, gs:// and file:// URLs of rows, a prepared log, prepared lists, or LETOR text files.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Directory of the drafts.")] = Path(),
    role: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=COLUMN",
            help="The role of a column, if it cannot be guessed (repeatable): request, item, user, time, day, stage, "
            "flag, rank, position, label, feedback, sequence, user_feature, context_feature, item_feature, ignore.",
            show_default=False,
        ),
    ] = None,
    items: Annotated[str | None, table_option("A table with features of items.")] = None,
    users: Annotated[str | None, table_option("A table with features of users.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draft spec.yaml and config.yaml from the columns of your log.

    Roles of columns are guessed from their names and values. The drafts have comments that say what was guessed from
    what. Existing files are never replaced. If a role cannot be decided, nothing is written; --role decides it.
    """
    from rankfall.data.sources.draft.draft_files import CONFIG, draft_files
    from rankfall.storage.disk import make_directory
    from rankfall.storage.files import write_file

    if (out / CONFIG).exists():  # it is written last
        raise _exists(out / CONFIG)
    with steps() as on_progress:
        draft = draft_files(sources, out, roles=role or (), items=items, users=users, on_progress=on_progress)
    if not draft.problems:
        _check(draft.files)
        _check_free(out, draft.files)
        make_directory(out)
        for name, text in draft.files.items():
            write_file(out / name, text)
    if as_json:
        print_json(_as_json(draft, out))
    else:
        _print(draft, out)
    if draft.problems:
        for problem in draft.problems:
            print_error(problem)
        raise typer.Exit(1)


def _check_free(out: Path, files: dict[str, str]) -> None:
    """Refuse to replace a file, but continue after a process that died between its two drafts."""
    for path, text in ((out / name, text) for name, text in files.items()):
        if path.exists() and path.read_bytes() != text.encode():
            raise _exists(path)


def _exists(path: Path) -> ValueError:
    return ValueError(f"{path} exists already and is not replaced; --out names another directory")


def _check(files: dict[str, str]) -> None:
    """Check that drafts are valid, so that no draft is written that the next command would refuse."""
    from rankfall._config import parse_yaml
    from rankfall.data.impressions.spec import validate_spec
    from rankfall.data.sources.draft.draft_files import CONFIG, SPEC
    from rankfall.training.config.load_config import validate_any

    if SPEC in files:
        validate_spec(parse_yaml(files[SPEC], SPEC), where=SPEC)
    validate_any(parse_yaml(files[CONFIG], CONFIG), where=CONFIG)


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
    from rich.markup import escape
    from rich.table import Table

    assert draft.guesses is not None
    assert draft.sample is not None
    table = Table("column", "values", "role", "confidence", "guessed from", title=None)
    for name, guess in draft.guesses.of.items():
        facts = draft.sample.facts[name]
        values = f"{facts.kind}: {', '.join(facts.examples)}" if facts.examples else facts.kind
        table.add_row(*map(escape, (name, values, guess.role, guess.confidence, guess.why)))
    return table


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
