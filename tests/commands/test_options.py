"""Help texts of verbs and options: every one has help, and a flag is described in one way."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
import typer

from rankfall.cli import app

if TYPE_CHECKING:
    from collections.abc import Iterator

# Options with another meaning in each verb, or with a meaning that needs its own words.
VERB_SPECIFIC = {
    "--data",  # reproduce: the name of a data set
    "--append",  # to the log that is simulated, or to a named one
    "--bundles",  # how many to keep, or where to find them
    "--days",  # a number, or a range of dates
    "--follow",  # each verb waits for something else
    "--grow",  # by days of files, or by joined days
    "--items",  # a file, or a number
    "--kind",  # of methods, or of a schema
    "--out",  # report: a file
    "--poll",  # of days, or of records
    "--quick",  # each verb reduces something else
    "--recall",  # of an index, or of a plan
    "--seed",  # train: the seed of the configuration; tune: of the search
    "--skip-bad",  # rows and whole requests, or lines
    "--split",  # evaluate measures on it, plan plans on it
    "--threads",  # of the service, or of the parser
    "--timeout",  # of processes, or of a search
    "--workers",  # of Ray, or of the service
    "--users",  # all features, or those that requests lack
}


def commands(command: Any, name: str = "rankfall") -> Iterator[tuple[str, Any]]:
    """Yield every command of the command line with its full name."""
    yield name, command
    for verb, subcommand in getattr(command, "commands", {}).items():
        yield from commands(subcommand, f"{name} {verb}")


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help(name: str) -> None:
    command = COMMANDS[name]
    title = command.help.split("\n\n")[0]
    assert title.endswith(".")
    assert "\n" not in title, "the first line is shown in the list of commands"
    for parameter in command.params:
        assert (parameter.help or "").endswith((".", ")")), f"{name}: {parameter.opts}"


def test_a_flag_has_the_same_help_in_every_verb() -> None:
    texts: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, command in COMMANDS.items():
        for parameter in command.params:
            for flag in parameter.opts:
                if flag.startswith("--"):
                    texts[flag][parameter.help].append(name)
    differing = {flag: dict(by_text) for flag, by_text in texts.items() if len(by_text) > 1}
    assert differing.keys() <= VERB_SPECIFIC, {flag: differing[flag] for flag in differing.keys() - VERB_SPECIFIC}
    assert differing.keys() >= VERB_SPECIFIC, f"no longer differ: {VERB_SPECIFIC - differing.keys()}"


def test_verbs_are_listed_in_the_order_of_the_work() -> None:
    panels: dict[str, list[str]] = defaultdict(list)
    for verb in COMMANDS["rankfall"].list_commands(None):
        panels[COMMANDS[f"rankfall {verb}"].rich_help_panel].append(verb)
    assert list(panels) == ["Get data", "Train and compare", "Serve", "Results", "Explore"]
    assert panels["Get data"] == ["init", "simulate", "prepare", "data", "examination"]
    assert [verb for verbs in panels.values() for verb in verbs] == COMMANDS["rankfall"].list_commands(None)
