"""Progress lines when standard error is no terminal."""

from __future__ import annotations

import io

from rich.console import Console

from rankfall._progress import progress


class Clock:
    """A clock that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def piped() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=80)


def lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_short_work_prints_nothing() -> None:
    console, clock = piped(), Clock()
    with progress(console=console, clock=clock) as bar:
        task = bar.add_task("training", total=10)
        for _ in range(10):
            clock.now += 0.4
            bar.advance(task)
    assert lines(console) == []


def test_the_first_line_comes_after_some_seconds_and_then_one_a_minute() -> None:
    console, clock = piped(), Clock()
    with progress(console=console, clock=clock) as bar:
        task = bar.add_task("training", total=1000)
        for _ in range(400):  # one step a second, so lines are due after 5, 65, 125, 185, 245, 305 and 365 seconds
            clock.now += 1
            bar.update(task, advance=1)
    found = lines(console)
    assert [line.split(" of ")[0] for line in found] == [
        f"training: {second}" for second in (5, 65, 125, 185, 245, 305, 365)
    ]
    assert found[-1] == "training: 365 of 1,000 (36%), 6 min so far, about 11 min left"


def test_tasks_of_one_command_share_the_minute() -> None:
    console, clock = piped(), Clock()
    with progress(console=console, clock=clock) as bar:
        one, other = bar.add_task("reading", total=None), bar.add_task("writing", total=None)
        clock.now += 6
        bar.update(one, completed=3)
        bar.update(other, completed=1)
        clock.now += 60
        bar.update(other, completed=2)
    assert lines(console) == ["reading: 3, 6 s so far", "writing: 2, 66 s so far"]


def test_brackets_of_a_description_are_printed_as_they_are() -> None:
    console, clock = piped(), Clock()
    with progress(console=console, clock=clock) as bar:
        task = bar.add_task("[bold]mine[/bold]", total=None)
        clock.now += 6
        bar.advance(task)
    assert lines(console) == ["[bold]mine[/bold]: 1, 6 s so far"]


def test_a_terminal_gets_bars_and_no_lines() -> None:
    console, clock = Console(file=io.StringIO(), force_terminal=True, width=80), Clock()
    with progress(console=console, clock=clock) as bar:
        task = bar.add_task("training", total=10)
        clock.now += 100
        bar.advance(task)
    assert "so far" not in "".join(lines(console))
