"""A whole file: a paper, its reproductions, and what it states beside its tables."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from rankfall._config import Section
from rankfall.reproductions.paper_schema import on_impressions, on_lists, on_operators
from rankfall.reproductions.paper_schema.methods import Options
from rankfall.reproductions.paper_schema.reproduction import PublishedOnly, Reproduction


class Statement(Section):
    """An equation, a protocol or a claim of a paper, and where we have it.

    Attributes:
        place: Where it is in the paper: ``eq. 11``, ``appendix B.2``.
        kind: An equation, a protocol of data or training, or a claim in the text.
        what: What it states.
        state: "done"; "differs" if ours deviates, which `note` explains; "unavailable" if it needs data or traffic that
            is not public.
        where: A name of the library, an option of the configuration, or a command.
        note: How ours differs, or what was found.
    """

    place: str
    kind: Literal["equation", "protocol", "claim"]
    what: str
    state: Literal["done", "differs", "unavailable"] = "done"
    where: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _state_is_explained(self) -> Statement:
        if self.state == "done" and not self.where:
            raise ValueError(f"{self.place}: expected `where` for a statement that is done")
        if self.state != "done" and not self.note:
            raise ValueError(f"{self.place}: expected a note for the state {self.state!r}")
        return self


class PaperFile(Section):
    """Content of a file; each of its `reproductions` is checked by the model of its driver."""

    paper: str
    reference: str
    protocols: dict[str, Options] = Field(default_factory=dict)
    methods: list[Options] = Field(default_factory=list)
    reproductions: list[Options] = Field(min_length=1)
    statements: list[Statement] = Field(default_factory=list)


def _driver_of(model: type[Reproduction]) -> str:
    driver: str = get_args(model.model_fields["driver"].annotation)[0]
    return driver


def _models(*modules: Any) -> list[type[Reproduction]]:
    """Return the models that a module defines; those of its imports and shared bases have no driver of their own."""
    return [
        model
        for module in modules
        for model in vars(module).values()
        if isinstance(model, type)
        and issubclass(model, Reproduction)
        and get_args(model.model_fields["driver"].annotation)
    ]


_MODELS: list[type[Reproduction]] = [*_models(on_lists, on_impressions, on_operators), PublishedOnly]
DRIVERS = {_driver_of(model): model for model in _MODELS}
