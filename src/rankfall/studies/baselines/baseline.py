"""What baselines share: a configuration on prepared lists, and a run directory without checkpoints."""

from __future__ import annotations

import json
import shutil
import warnings
from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from rankfall._files import write_file
from rankfall._yaml_config import dump
from rankfall.studies.baselines.configs import BaselineConfig
from rankfall.training.methods import ListMethod
from rankfall.training.run_directory import CONFIG, RESULT

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.training.loop import OnNotice


Config = TypeVar("Config", bound=BaselineConfig)


class Baseline(ListMethod[Config]):
    """A method on prepared lists that is fitted as a whole and cannot be continued.

    Attributes:
        kind: Name of the baseline in comparisons.
    """

    @property
    def title(self) -> str:
        """The kind of the baseline."""
        return self.kind

    @property
    def metric(self) -> str:
        """The validation metric."""
        found: str = self.config.metric
        return found

    def complete(self, directory: Path, *, on_notice: OnNotice = warnings.warn) -> None:
        """Fit the baseline into a run directory. An unfinished run in it is deleted."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        write_file(directory / CONFIG, dump(self.config))
        best = self.fit(directory)
        write_file(directory / RESULT, json.dumps({"best_metric": best}) + "\n")

    @abstractmethod
    def fit(self, directory: Path) -> float:
        """Fit the model, write it into a directory, and return its validation metric."""
