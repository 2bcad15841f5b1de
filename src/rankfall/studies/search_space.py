"""Search space: a training configuration, and the values to try for some of its keys.

.. code-block:: yaml

    data: ...                                      # and the other sections of a training configuration
    search:
      optimizer.lr: {low: 1e-4, high: 1e-1, log: true}
      objective.topk.tau: {low: 0.1, high: 10.0, log: true}
      model.hidden.0: {low: 32, high: 256, step: 32}
      loss: [{name: softmax_loss}, {name: lambda_loss, k: 10}]
    trials: 30
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, ValidationError, model_validator

from rankfall._config import ConfigError, Section, explain, read_source, shown
from rankfall._errors import RankfallError
from rankfall.registry.references import absolute_references
from rankfall.training.config.component_checks import names_first
from rankfall.training.config.load_config import (
    TrainConfig,
    apply_overrides,
    set_option,
    validate_any,
    with_absolute_path,
)
from rankfall.training.config.sections import Count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optuna.distributions import BaseDistribution

    from rankfall._config import ConfigLike
    from rankfall.studies.results import Settings
    from rankfall.training.methods import TrainingMethod

COMPLETIONS = 20  # tries to find a configuration in which a value is allowed
_MEASURED = (
    "data.path, data.valid, data.length, data.length_from, relevant, training.metric and the names and quotas of stages"
)


class Range(Section):
    """Numbers from low to high, continuous or in steps.

    Attributes:
        low: Smallest value.
        high: Largest value.
        log: Draw uniformly on a logarithmic scale.
        step: Distance of the values; whole numbers are drawn if low, high and step are whole.
    """

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.low >= self.high:
            raise RankfallError(f"found low {self.low} and high {self.high}, expected a low below high")
        if self.log and (self.low <= 0 or self.step is not None):
            raise RankfallError("log: true takes a low above 0 and no step")
        if self.step is not None:
            steps = (self.high - self.low) / self.step if self.step > 0 else 0.5
            if not math.isfinite(steps) or abs(steps - round(steps)) > 1e-9:
                raise RankfallError(
                    f"found step {self.step}, expected a step that divides the range from {self.low} to {self.high}"
                )
        return self

    @property
    def ends(self) -> list[Any]:
        """Values that are checked before the search starts."""
        return [self.low, self.high] if self._is_whole() else [float(self.low), float(self.high)]

    def _is_whole(self) -> bool:
        return all(isinstance(number, int) for number in (self.low, self.high, self.step))

    def distribution(self) -> BaseDistribution:
        """Return the distribution for Optuna."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self._is_whole():
            return IntDistribution(int(self.low), int(self.high), step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def read(self, drawn: Any) -> Any:
        """Return the value that Optuna drew, as it is configured."""
        return drawn

    def hint(self) -> str:
        """Return a hint for messages about refused values."""
        whole = isinstance(self.low, int) and isinstance(self.high, int) and self.step is None
        return "; whole numbers are drawn with a step, step: 1" if whole else ""


@dataclass(frozen=True)
class Choices:
    """Values of any type, without an order."""

    ends: list[Any]

    def distribution(self) -> BaseDistribution:
        """Return the distribution for Optuna, which accepts neither lists nor dictionaries."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution([json.dumps(value) for value in self.ends])

    def read(self, drawn: Any) -> Any:
        """Return the value that Optuna drew, as it is configured.

        Raises:
            ValueError: If a stored search holds a value that is not among its choices, which may name untrusted code.
        """
        values = {json.dumps(value): value for value in self.ends}
        if drawn not in values:
            raise RankfallError(f"found the stored value {drawn}, expected one of {', '.join(values)}")
        return values[drawn]

    def hint(self) -> str:
        """Return an empty hint."""
        return ""


Dimension = Range | Choices


class _SearchSections(Section):
    """Sections of a search besides those of a training configuration.

    Attributes:
        search: Values or a range for each dotted key.
        trials: Number of trials in total.
    """

    search: dict[str, Any] = Field(min_length=1)
    trials: Count = 20


@dataclass(frozen=True)
class Search:
    """A training configuration and its search space."""

    content: dict[str, Any]
    space: dict[str, Dimension]
    trials: int
    where: str  # for messages

    def config(self, settings: Mapping[str, Any], where: str | None = None) -> TrainConfig:
        """Return the training configuration with these settings."""
        where = where or self.where
        content: dict[str, Any] = self.content
        # A whole section is set before its parts. Naming another loss or model drops the options of the old one, so
        # names are set before options.
        for key in sorted(settings, key=lambda key: (key.count("."), not key.endswith((".name", ".kind")))):
            content = set_option(content, key, settings[key], where=where)
        return validate_any(content, where=where)

    def read(self, drawn: Mapping[str, Any]) -> Settings:
        """Return the settings that Optuna drew, in the order of the file."""
        return {key: dimension.read(drawn[key]) for key, dimension in self.space.items() if key in drawn}

    def first(self) -> TrainConfig:
        """Return one configuration of the search, always the same."""
        key, dimension = next(iter(self.space.items()))
        return self._with(key, dimension.ends[0])

    def written(self) -> dict[str, Any]:
        """Return the search as a configuration file, with an absolute data path."""
        space = {
            key: one.model_dump(exclude_defaults=True) if isinstance(one, Range) else one.ends
            for key, one in self.space.items()
        }
        return with_absolute_path(self.content) | {"search": absolute_references(space), "trials": self.trials}

    def check(self) -> None:
        """Raise for values that no configuration allows, and for values that change the measurement."""
        values = [(key, value) for key, dimension in self.space.items() for value in dimension.ends]
        names_first(lambda: [self._with(key, value, build=False) for key, value in values])()
        measured = _measured(self.first())
        for key, value in values:
            if _measured(self._with(key, value)) != measured:
                raise ConfigError(
                    f"{self.where}: search.{key}: {shown(value)} changes what is measured, and trials could not be "
                    f"compared; a search must not change {_MEASURED}"
                )

    def _with(self, key: str, value: Any, *, build: bool = True) -> TrainConfig:
        """Return a configuration in which a value is allowed; some values are allowed only with some others.

        Args:
            key: Dotted key.
            value: Its value.
            build: Whether components must accept their options together, too.
        """
        draw = random.Random(0)
        refused = None
        for number in range(COMPLETIONS):
            others = {name: draw.choice(one.ends) if number else one.ends[0] for name, one in self.space.items()}
            where = f"{self.where}: search.{key}: {shown(value)}"
            try:
                config = self.config({**others, key: value}, where=where)
                if build:
                    _method_of(config).check_components(where)
                return config
            except ConfigError as error:
                refused = refused or error
        raise ConfigError(f"{refused}{self.space[key].hint()}")


def load_search(path: ConfigLike, overrides: Sequence[str] = ()) -> Search:
    """Read a search from a YAML file, or from its content, and apply ``key=value`` overrides."""
    found, where = read_source(path)
    content = apply_overrides(found, overrides)
    own = {name: content.pop(name) for name in _SearchSections.model_fields if name in content}
    try:
        sections = _SearchSections.model_validate(own)
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from None
    space = {key: _dimension(value, f"{where}: search.{key}") for key, value in sections.search.items()}
    search = Search(content, space, sections.trials, where)
    search.check()
    return search


def _dimension(value: Any, where: str) -> Dimension:
    if isinstance(value, list):
        if len(value) < 2 or any(value.count(one) > 1 for one in value):
            raise ConfigError(f"{where}: found {shown(value)}, expected two or more different values")
        return Choices(value)
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: found {shown(value)}, expected a list of values or {{low: ..., high: ...}}")
    try:
        return Range.model_validate(value)
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from None


def _measured(config: TrainConfig) -> list[Any]:
    return _method_of(config).measured()


def _method_of(config: TrainConfig) -> TrainingMethod[Any, Any]:
    from rankfall.training.methods import method_of  # needs torch, without which values can be checked

    return method_of(config)
