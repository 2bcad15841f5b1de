"""The reference of the commands, from the same help texts as ``--help``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from docs_site.markdown import code, page, table

if TYPE_CHECKING:
    from collections.abc import Iterator

# "[default: local; x>=1]" at the end of a help text
_FACTS = re.compile(r"\s+\[((?:default|required|env var|x)\b[^\[\]]*)\]$")


def commands_page() -> str:
    """Return the Markdown of all verbs, with their options and examples."""
    from typer.main import get_command

    from rankfall.cli import app

    return page(*(part for verb in verbs(get_command(app)) for part in _verb(*verb)))


def verbs(group: Any, name: str = "rankfall") -> Iterator[tuple[str, Any]]:
    """Yield the name and the command of every verb of a group, in the order of the help page."""
    for key in group.list_commands(None):
        command = group.commands[key]
        if hasattr(command, "commands"):
            yield from verbs(command, f"{name} {key}")
        else:
            yield f"{name} {key}", command


def _verb(name: str, command: Any) -> Iterator[str]:
    """Yield the parts of one verb: title, usage, description, options, examples."""
    context = command.context_class(command, info_name=name)
    usage = " ".join(command.get_usage(context).removeprefix("Usage:").split())
    yield f"## {name}"
    yield f"```text\n{usage}\n```"
    yield _unescaped(command.help or "")
    rows = [_row(parameter.get_help_record(context)) for parameter in command.params if not parameter.hidden]
    yield table(["argument or option", "default", "meaning"], rows)
    examples = re.findall(r"^- `(.*)`$", command.epilog or "", re.MULTILINE)
    if examples:
        yield "\n".join(["```sh", *map(_unescaped, examples), "```"])


def _row(record: tuple[str, str]) -> list[str]:
    """Return the cells of an option from its line of the help page."""
    name, text = record
    found = _FACTS.search(text)
    facts = found[1].split("; ") if found else []
    defaults = [fact.removeprefix("default: ").strip("()") for fact in facts if fact.startswith("default: ")]
    ranges = [fact for fact in facts if fact.startswith("x") or "<=x" in fact]
    default = "needed" if "required" in facts else "; ".join(defaults)
    meaning = _unescaped(text[: found.start()] if found else text)
    return [code(name), default, " ".join([meaning, *(f"({fact})" for fact in ranges)])]


def _unescaped(text: str) -> str:
    r"""Return a text without the escapes of the terminal's markup (``\[ray]``)."""
    return text.replace("\\[", "[")
