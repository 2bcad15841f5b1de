"""The trials of a search: which are left, who does which, and what is known of them."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rankfall._files import LockedError, locked, write_file
from rankfall._settings import ConfigError, leaves, shown, to_yaml
from rankfall.studies.compare import higher_is_better
from rankfall.studies.optuna_journal import load_optuna, open_journal
from rankfall.training.config.overrides import dump_absolute
from rankfall.training.run_directory import CHECKPOINTS, RESUME_MUTABLE_KEYS

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from optuna import Study as OptunaStudy
    from optuna import Trial
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from rankfall.studies.search_space import Search

    Entry = dict[str, Any]  # what is said of a trial

JOURNAL, TRIALS, RESULTS, BEST, CONFIG = "study.journal", "trials", "trials.json", "best.yaml", "tune.yaml"
DEATHS = 3  # of the processes of a trial, after which it is given up
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "running"}


class Study:
    """All trials of a directory. A trial that is being done is locked by its process, however that ends."""

    def __init__(self, search: Search, out: Path) -> None:
        optuna = load_optuna()
        self.search, self.out = search, out
        self.metric = search.first().training.metric
        self.higher_is_better = higher_is_better(self.metric)
        (out / TRIALS).mkdir(parents=True, exist_ok=True)
        with self.alone():
            self._storage: BaseStorage = open_journal(out / JOURNAL)
            self._study: OptunaStudy = optuna.create_study(
                storage=self._storage,
                study_name="rankfall",
                direction="maximize" if self.higher_is_better else "minimize",
                pruner=optuna.pruners.MedianPruner(),
                load_if_exists=True,
            )

    @contextmanager
    def alone(self) -> Generator[None]:
        """While this process looks what is left and takes it, no other does. A training is not waited for."""
        with locked(self.out / ".lock", wait=True):
            yield

    # --- what is searched ---------------------------------------------------------------------------------------

    def begin(self, begun: dict[str, Any]) -> None:
        """Say what is searched, or refuse to go on with another search."""
        with self.alone():
            before = self.begun()
            if before is None:
                self._study.set_user_attr("begun", begun)
                write_file(self.out / CONFIG, to_yaml(self.search.written()))
            else:
                self._check_same(leaves(before), leaves(begun))

    def begun(self) -> dict[str, Any] | None:
        """What the search was begun with."""
        return self._study.user_attrs.get("begun")

    def _check_same(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        ignored = {f"config.{key}" for key in (*RESUME_MUTABLE_KEYS, *self.search.space)}
        differences = [
            f"{key.removeprefix('config.')} was {shown(before.get(key))} and is {shown(now.get(key))}"
            for key in before | now
            if before.get(key) != now.get(key) and not any(key == one or key.startswith(f"{one}.") for one in ignored)
        ]
        if differences:
            raise ConfigError(
                f"{self.out} holds another search: {', '.join(differences)}. Go on with that, or name another directory"
            )

    # --- which trials are left ----------------------------------------------------------------------------------

    def done(self) -> int:
        """How many trials have ended."""
        return sum(trial.state.is_finished() for trial in self._trials())

    def left(self, trials: int) -> int:
        """How many of so many trials nobody has done or is doing."""
        self.take_back()
        return trials - sum(trial.state.name != "WAITING" for trial in self._trials())

    def deaths(self) -> int:
        """How many processes have died in the midst of a trial."""
        return sum(trial.user_attrs.get("deaths", 0) for trial in self._trials())

    def take_back(self, *, died: bool = True) -> None:
        """Give back what processes have left behind, to be done by others."""
        for trial in self._trials():
            if trial.state.name != "RUNNING" or not self._is_free(trial.number):
                continue
            deaths = trial.user_attrs.get("deaths", 0) + died
            self._storage.set_trial_user_attr(trial._trial_id, "deaths", deaths)
            if deaths < DEATHS:
                self._give_back(trial._trial_id)
            else:
                error = f"the process that did it ended {DEATHS} times, by lack of memory or from outside"
                self._storage.set_trial_user_attr(trial._trial_id, "error", error)
                self._study.tell(trial.number, state=_state("FAIL"))

    def _give_back(self, trial_id: int) -> None:
        """Put a trial first in the queue, as it is."""
        self._storage.set_trial_state_values(trial_id, state=_state("WAITING"))

    def _is_free(self, number: int) -> bool:
        try:
            with locked(self.lock(number)):
                return True
        except LockedError:
            return False

    # --- one trial ----------------------------------------------------------------------------------------------

    def ask(self, seed: int) -> Trial:
        """The trial to do next, which gets all its settings."""
        # Draws depend on the trials so far and not on which process makes them or how often it was begun.
        numbers = np.random.SeedSequence([seed, len(self._trials())]).generate_state(1)
        self._study.sampler = load_optuna().samplers.TPESampler(seed=int(numbers[0]))
        return self._study.ask({key: dimension.distribution() for key, dimension in self.search.space.items()})

    def complete(self, trial: Trial, value: float, result: dict[str, Any]) -> None:
        """A trial has come to its end."""
        trial.set_user_attr("result", result)
        self._study.tell(trial, value)

    def prune(self, trial: Trial) -> None:
        """A trial was ended early."""
        self._study.tell(trial, state=_state("PRUNED"))

    def fail(self, trial: Trial, error: str) -> None:
        """A trial has no value."""
        trial.set_user_attr("error", error)
        self._study.tell(trial, state=_state("FAIL"))

    def postpone(self, trial: Trial) -> None:
        """A trial is to be continued before others begin."""
        self._give_back(trial._trial_id)

    def reported(self, trial: Trial) -> set[int]:
        """Of which epochs a trial has told the value."""
        return set(self._trials()[trial.number].intermediate_values)

    def directory(self, number: int) -> Path:
        """Of the run of a trial."""
        return self.out / TRIALS / f"{number:04}"

    def lock(self, number: int) -> Path:
        """Of a trial that is being done; not in its directory, which is that of a run."""
        return self.out / TRIALS / f".{number:04}.lock"

    # --- results ------------------------------------------------------------------------------------------------

    def write_results(self) -> dict[str, Any]:
        """Write what is known so far, and forget the weights of all trials but the best."""
        with self.alone():
            best = self._best()
            result = {
                "metric": self.metric,
                "higher_is_better": self.higher_is_better,
                "search": self.search.written()["search"],
                "best": None if best is None else self.entry(best.number),
                "trials": [self.entry(trial.number) for trial in self._trials()],
            }
            if best is not None:
                write_file(self.out / BEST, dump_absolute(self.search.config(self.search.read(best.params))))
            write_file(self.out / RESULTS, json.dumps(result, indent=2, allow_nan=False) + "\n")
            for trial in self._trials():
                if trial.state.is_finished() and (best is None or trial.number != best.number):
                    shutil.rmtree(self.directory(trial.number) / CHECKPOINTS, ignore_errors=True)
                    self.lock(trial.number).unlink(missing_ok=True)
            return result

    def _best(self) -> FrozenTrial | None:
        """The first of those that are best; an early end is no result."""
        complete = [trial for trial in self._trials() if trial.state.name == "COMPLETE"]
        sign = 1 if self.higher_is_better else -1
        return max(complete, key=lambda trial: sign * cast("float", trial.value), default=None)

    def entry(self, number: int) -> Entry:
        """What is said of a trial."""
        trial = self._trials()[number]
        result = trial.user_attrs.get("result", {})
        return {
            "trial": number,
            "state": _STATES[trial.state.name],
            "value": trial.value,
            "settings": self.search.read(trial.params),
            "best_epoch": result.get("best_epoch"),
            "seconds": result.get("seconds"),
            "error": trial.user_attrs.get("error"),
            "directory": str(self.directory(number).relative_to(self.out)),
        }

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)


def _state(name: str) -> Any:
    return load_optuna().trial.TrialState[name]
