"""Base of the models that check a reproduction."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator

from rankfall._config import ConfigError, Section, explain
from rankfall.reproductions.paper_schema.methods import Method, check_names
from rankfall.reproductions.paper_schema.printed import PublishedTable

if TYPE_CHECKING:
    from collections.abc import Sequence

# what a reproduction runs on: ranking lists, impressions of a cascade, operators alone (it needs no data), or nothing
Kind = Literal["lists", "impressions", "operators", "none"]


class Time(Section):
    """Estimated duration on two cores, with the data that are used by default."""

    quick: str
    full: str


class Reproduction(Section):
    """A published table or figure.

    Attributes:
        paper: Name of the paper, which the loader adds.
        id: Its name on the command line: ``lcron-table2``.
        title: Paper and number, as reports name it.
        place: Where it is in the paper.
        shows: What it shows, for ``--list``.
        time: How long it takes.
        driver: The module in ``drivers/`` that runs it.
        notes: Where our data or methods differ from those of the paper.
    """

    data: ClassVar[Kind] = "lists"

    paper: str
    id: str
    title: str
    place: str
    shows: str
    time: Time
    driver: str
    notes: list[str] = Field(default_factory=list)

    @property
    def has_improved(self) -> bool:
        """Whether there are better versions of its methods, which ``--improved`` adds."""
        return any(method.variant == "sound" for method in self._all_methods)

    def with_variants(self, *, improved: bool) -> Self:
        """Return a copy with the methods of the paper, and only if `improved` with our better versions of them."""
        if improved or not self.has_improved:
            return self
        published = [method for method in self._all_methods if method.variant != "sound"]
        return self.model_copy(update={"methods": published})

    def with_methods(self, own: Sequence[Method]) -> Self:
        """Return a copy that also runs methods of the user, after those of the paper.

        Raises:
            ConfigError: If it compares no methods, a name is that of one of its methods, or a method does not use the
                setting that the reproduction varies.
        """
        if not own:
            return self
        if not self._all_methods:
            raise ConfigError(f"methods: {self.id} compares no methods, so that none can be added")
        changed = self.model_copy(update={"methods": [*self._all_methods, *own]})
        try:
            return self.model_validate(changed.model_dump())
        except ValidationError as error:
            raise ConfigError(explain(error, self.id)) from None

    @property
    def _all_methods(self) -> list[Method]:
        """The methods; reproductions of operators have none."""
        methods: list[Method] = getattr(self, "methods", [])
        return methods


class TableOfMethods(Reproduction):
    """Methods beside a published table."""

    methods: list[Method] = Field(min_length=1)
    published: PublishedTable

    @model_validator(mode="after")
    def _methods_belong_to_printed_rows(self) -> Self:
        check_names(self.methods)
        rows = self.published.rows()
        for method in self.methods:
            if method.row is not None and method.row not in rows:
                raise ValueError(f"methods.{method.name}.row: found {method.row!r}, expected {', '.join(sorted(rows))}")
        return self


class PublishedOnly(Reproduction):
    """A published table that needs private traffic, such as the result of an A/B test. It is shown, not run.

    Attributes:
        reason: What it would take to measure it.
    """

    data: ClassVar[Kind] = "none"

    driver: Literal["published_only"]
    reason: str
    published: PublishedTable
    time: Time = Time(quick="-", full="-")
