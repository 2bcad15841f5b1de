"""What baselines share: a configuration on prepared lists, and a run directory without checkpoints."""

from __future__ import annotations

import json
import warnings
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rankfall._config import dump
from rankfall.storage.disk import delete_tree, make_directory
from rankfall.storage.files import sweep, write_file
from rankfall.studies.baselines.configs import BaselineConfig
from rankfall.training.methods import ListMethod
from rankfall.training.run_directory import CONFIG, RESULT, seal_run

if TYPE_CHECKING:
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
        if directory.is_dir():
            sweep(directory)  # with a note about files of a dead process
        delete_tree(directory, missing_ok=True)
        make_directory(directory)
        write_file(directory / CONFIG, dump(self.config))
        text = json.dumps({"best_metric": self.fit(directory)}) + "\n"
        seal_run(directory, filter(Path.is_file, directory.iterdir()), later={RESULT: text})
        write_file(directory / RESULT, text)

    @abstractmethod
    def fit(self, directory: Path) -> float:
        """Fit the model, write it into a directory, and return its validation metric."""
