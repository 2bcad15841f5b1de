"""Parts of a configuration that comparisons and streams share: methods, their changes, and seeds."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, ValidationError

from rankfall._suggestions import did_you_mean
from rankfall._yaml_config import ConfigError, Section, explain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Validated = TypeVar("Validated", bound=Section)


def _check_seeds(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds {seeds} contain a seed twice")
    return seeds


Seeds = Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1), AfterValidator(_check_seeds)]
Methods = dict[str, dict[str, Any] | None]  # changes to the configuration, by the name of a method


def validated(section: type[Validated], content: dict[str, Any], where: str) -> Validated:
    """Return a section of a configuration, or raise a ConfigError that names `where` and the key."""
    try:
        return section.model_validate(content)
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from None


@contextmanager
def errors_of(where: str) -> Iterator[None]:
    """Context of checks whose errors name keys only: each line of them gets a prefix, such as the path of the file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError("\n".join(f"{where}: {line}" for line in str(error).splitlines())) from None


def check_keys(found: Iterable[str], allowed: Sequence[str], where: str) -> None:
    """Raise a ConfigError for a key that is not allowed."""
    for key in found:
        if key not in allowed:
            raise ConfigError(f"{where}.{key}: unknown{did_you_mean(key, allowed)}; allowed are {', '.join(allowed)}")
