"""Trials of a search: their queue, their locks and their results."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rankfall._disk import delete, delete_tree, make_directory
from rankfall._files import LockedError, locked, write_file
from rankfall._yaml_config import ConfigError, leaves, shown, to_yaml
from rankfall.studies.optuna_journal import load_optuna, open_journal
from rankfall.studies.results import SearchResult, TrialResult
from rankfall.training.config.cascade_metric_names import higher_is_better
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

JOURNAL, TRIALS, RESULTS, BEST, CONFIG = "study.journal", "trials", "trials.json", "best.yaml", "tune.yaml"
DEATHS = 3  # a trial fails when its process has died this many times
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "running"}


class Study:
    """All trials of a directory. A running trial is locked by its process, and unlocked when the process ends."""

    def __init__(self, search: Search, out: Path) -> None:
        optuna = load_optuna()
        self.search, self.out = search, out
        self.metric = search.first().training.metric
        self.higher_is_better = higher_is_better(self.metric)
        make_directory(out / TRIALS)
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
        """Lock the queue of trials for this process; the lock is not held while a trial runs."""
        with locked(self.out / ".lock", wait=True):
            yield

    # --- configuration of the search ----------------------------------------------------------------------------

    def begin(self, begun: dict[str, Any]) -> None:
        """Store the configuration of the search, or raise if the directory holds another search."""
        with self.alone():
            before = self.begun()
            if before is None:
                write_file(self.out / CONFIG, to_yaml(self.search.written()))
                self._study.set_user_attr("begun", begun)  # last: a search that has begun has all its files
            else:
                self._check_same(leaves(before), leaves(begun))

    def begun(self) -> dict[str, Any] | None:
        """Return the configuration that the search was started with, or None."""
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
                f"{self.out} holds another search: {', '.join(differences)}. Continue it, or name another directory"
            )

    # --- queue --------------------------------------------------------------------------------------------------

    def done(self) -> int:
        """How many trials have ended."""
        return sum(trial.state.is_finished() for trial in self._trials())

    def left(self, trials: int) -> int:
        """Return how many of `trials` are neither finished nor running."""
        self.take_back()
        return trials - sum(trial.state.name != "WAITING" for trial in self._trials())

    def deaths(self) -> int:
        """Return the number of processes that died while they ran a trial."""
        return sum(trial.user_attrs.get("deaths", 0) for trial in self._trials())

    def take_back(self, *, died: bool = True) -> None:
        """Put abandoned trials back into the queue."""
        for trial in self._trials():
            if trial.state.name != "RUNNING" or not self._is_free(trial.number):
                continue
            deaths = trial.user_attrs.get("deaths", 0) + died
            self._storage.set_trial_user_attr(trial._trial_id, "deaths", deaths)
            if deaths < DEATHS:
                self._give_back(trial._trial_id)
            else:
                error = f"the process of the trial ended {DEATHS} times, killed or out of memory"
                self._storage.set_trial_user_attr(trial._trial_id, "error", error)
                self._study.tell(trial.number, state=_state("FAIL"))

    def _give_back(self, trial_id: int) -> None:
        """Put a trial at the front of the queue, unchanged."""
        self._storage.set_trial_state_values(trial_id, state=_state("WAITING"))

    def _is_free(self, number: int) -> bool:
        try:
            with locked(self.lock(number)):
                return True
        except LockedError:
            return False

    # --- one trial ----------------------------------------------------------------------------------------------

    def ask(self, seed: int) -> Trial:
        """Return the next trial, with its settings."""
        # Draws depend on the number of trials, not on the process or on how often the search was restarted.
        numbers = np.random.SeedSequence([seed, len(self._trials())]).generate_state(1)
        self._study.sampler = load_optuna().samplers.TPESampler(seed=int(numbers[0]))
        return self._study.ask({key: dimension.distribution() for key, dimension in self.search.space.items()})

    def complete(self, trial: Trial, value: float, result: dict[str, Any]) -> None:
        """Record the value of a trial."""
        trial.set_user_attr("result", result)
        self._study.tell(trial, value)

    def prune(self, trial: Trial) -> None:
        """Record that a trial was pruned."""
        self._study.tell(trial, state=_state("PRUNED"))

    def fail(self, trial: Trial, error: str) -> None:
        """Record that a trial failed."""
        trial.set_user_attr("error", error)
        self._study.tell(trial, state=_state("FAIL"))

    def postpone(self, trial: Trial) -> None:
        """Put an interrupted trial back into the queue."""
        self._give_back(trial._trial_id)

    def reported(self, trial: Trial) -> set[int]:
        """Return the epochs whose value was reported."""
        return set(self._trials()[trial.number].intermediate_values)

    def directory(self, number: int) -> Path:
        """Return the run directory of a trial."""
        return self.out / TRIALS / f"{number:04}"

    def lock(self, number: int) -> Path:
        """Return the lock file of a trial, which lies outside its run directory."""
        return self.out / TRIALS / f".{number:04}.lock"

    # --- results ------------------------------------------------------------------------------------------------

    def write_results(self) -> SearchResult:
        """Write and return the results, and delete the weights of all trials but the best."""
        with self.alone():
            best = self._best()
            result = SearchResult(
                metric=self.metric,
                higher_is_better=self.higher_is_better,
                search=self.search.written()["search"],
                best=None if best is None else self.result(best.number),
                trials=[self.result(trial.number) for trial in self._trials()],
            )
            if best is not None:
                write_file(self.out / BEST, dump_absolute(self.search.config(self.search.read(best.params))))
            result.save(self.out / RESULTS)
            for trial in self._trials():
                if trial.state.is_finished() and (best is None or trial.number != best.number):
                    delete_tree(self.directory(trial.number) / CHECKPOINTS, missing_ok=True)
                    delete(self.lock(trial.number), missing_ok=True)
            return result

    def _best(self) -> FrozenTrial | None:
        """Return the first of the best complete trials."""
        complete = [trial for trial in self._trials() if trial.state.name == "COMPLETE"]
        sign = 1 if self.higher_is_better else -1
        return max(complete, key=lambda trial: sign * cast("float", trial.value), default=None)

    def result(self, number: int) -> TrialResult:
        """Return the result of a trial."""
        trial = self._trials()[number]
        trained = trial.user_attrs.get("result", {})
        return TrialResult(
            trial=number,
            state=_STATES[trial.state.name],
            value=trial.value,
            settings=self.search.read(trial.params),
            best_epoch=trained.get("best_epoch"),
            seconds=trained.get("seconds"),
            error=trial.user_attrs.get("error"),
            directory=str(self.directory(number).relative_to(self.out)),
        )

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)


def _state(name: str) -> Any:
    return load_optuna().trial.TrialState[name]
