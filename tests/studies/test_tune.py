"""Searches: what is drawn, what is ended early, what fails, what goes on, and that test data are left alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from rankfall._config import ConfigError, read_yaml
from rankfall.reporting.charts import save
from rankfall.reporting.inspection import search_chart, search_points
from rankfall.storage.disk import intercepted
from rankfall.studies import tune as tuning
from rankfall.studies.results import SearchResult, TrialResult
from rankfall.studies.search_space import load_search
from rankfall.studies.tune import DEATHS, tune
from rankfall.studies.workers import Failure
from rankfall.training import trackers as track
from rankfall.training.methods import TrainingMethod
from rankfall.training.run_directory import EnvironmentFailure, Step, Stopped, TrainingError, TrainResult
from support.command_line import run as command
from support.interrupted import cascade_content, train
from support.logs import DAYS
from support.planted import config_for, plant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rankfall.training.config.load_config import TrainConfig
    from support.forks import Forks

    Fake = Callable[[TrainConfig], list[float]]  # the validations of a training, an epoch each

LR = {"optimizer.lr": {"low": 1e-4, "high": 1.0, "log": True}}


@pytest.fixture
def write(data: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write the search of a ranker with these sections."""

    def to_file(search: dict[str, Any] = LR, trials: int = 5, **sections: Any) -> Path:
        path = tmp_path / "search.yaml"
        content = config_for(data, **sections) | {"search": search, "trials": trials}
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    return to_file


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fake], list[TrainConfig]]:
    """Trainings that take no time: the loop's steps with given validations. Returns what was trained."""

    def install(validations: Fake) -> list[TrainConfig]:
        trained: list[TrainConfig] = []

        def run(
            method: TrainingMethod[Any, Any],
            directory: Path,
            *,
            progress: Callable[[Step], None],
            on_notice: Callable[[str], None],
            stop: Callable[[], int],
        ) -> TrainResult:
            config = method.config
            trained.append(config)
            metric = config.training.metric
            values = validations(config)
            known: dict[str, float] = {}
            for epoch, value in enumerate(values, 1):
                progress(Step(epoch, len(values), 1, 1, {"loss": 1.0}, known, 1.0))
                if stop():
                    raise Stopped
                known = {metric: value}
            best = max(values)
            return TrainResult(best, values.index(best) + 1, len(values), 0.5, 10)

        monkeypatch.setattr(TrainingMethod, "complete", run)
        return trained

    return install


def peak(config: TrainConfig) -> list[float]:
    """Best at a learning rate of 0.01."""
    return [-abs(float(np.log10(config.optimizer.lr)) + 2)]


def states(result: SearchResult) -> list[str]:
    return [trial.state for trial in result.trials]


def drawn(result: SearchResult) -> list[Any]:
    return [(trial.settings, trial.state, trial.value) for trial in result.trials]


# --- what is searched ---------------------------------------------------------------------------------------------


def test_settings_come_from_their_ranges(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path
) -> None:
    space = {
        "optimizer.lr": {"low": 1e-4, "high": 1.0, "log": True},
        "optimizer.weight_decay": {"low": 0.0, "high": 0.5, "step": 0.25},
        "model.hidden.0": {"low": 8, "high": 32, "step": 8},
        "model.dropout": {"low": 0.1, "high": 0.4},
        "model.activation": ["relu", "tanh"],
        "loss": [{"name": "softmax_loss"}, {"name": "lambda_loss", "k": 3}],
        "optimizer.clip": [None, 1.0],
    }
    path = write(space, trials=25, model={"kind": "mlp", "hidden": [4, 4]})
    trained = fake(lambda config: [0.5])
    result = tune(load_search(path), tmp_path / "out")
    settings = [trial.settings for trial in result.trials]
    rates = [one["optimizer.lr"] for one in settings]
    assert 1e-4 <= min(rates) < 1e-3 < 0.1 < max(rates) <= 1
    assert 4 < sum(rate < 1e-2 for rate in rates) < 21  # half of the orders of magnitude, 1 % of the numbers
    assert {one["optimizer.weight_decay"] for one in settings} == {0.0, 0.25, 0.5}
    assert {one["model.hidden.0"] for one in settings} == {8, 16, 24, 32}
    assert all(0.1 <= one["model.dropout"] <= 0.4 for one in settings)
    assert {one["model.activation"] for one in settings} == {"relu", "tanh"}
    assert {one["optimizer.clip"] for one in settings} == {None, 1.0}
    for config, one in zip(trained, settings, strict=True):
        content = config.model_dump()
        assert content["optimizer"]["lr"] == one["optimizer.lr"]
        assert content["model"]["hidden"] == [one["model.hidden.0"], 4]
        assert content["loss"] == one["loss"]


def test_a_name_is_set_before_the_options_that_belong_to_it(write: Callable[..., Path]) -> None:
    space = {"loss.k": {"low": 2, "high": 4, "step": 1}, "loss.name": ["lambda_loss", "pirank_ndcg_loss"]}
    search = load_search(write(space, loss={"name": "relax_loss", "m": 20, "k": 10}))
    config = search.config({"loss.k": 3, "loss.name": "pirank_ndcg_loss"})
    assert config.model_dump()["loss"] == {"name": "pirank_ndcg_loss", "k": 3}


def test_a_stored_value_that_is_no_choice_is_refused(write: Callable[..., Path]) -> None:
    search = load_search(write({"loss.name": ["softmax_loss", "ranknet_loss"]}))
    assert search.read({"loss.name": '"ranknet_loss"'}) == {"loss.name": "ranknet_loss"}
    with pytest.raises(ValueError, match=r"found the stored value .*theirs\.py:loss"):
        search.read({"loss.name": '"theirs.py:loss"'})


def test_a_section_is_set_before_its_parts(write: Callable[..., Path]) -> None:
    space = {"loss.k": [1, 3], "loss": [{"name": "lambda_loss", "k": 5}, {"name": "lambda_loss", "k": 7}]}
    search = load_search(write(space))
    config = search.config({"loss.k": 3, "loss": {"name": "lambda_loss", "k": 5}})
    assert config.model_dump()["loss"]["k"] == 3


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({}, "search: found {}"),
        ({"optimizer.lr": 0.1}, "search.optimizer.lr: found 0.1, expected a list of values or {low: ..., high: ...}"),
        ({"optimizer.lr": [0.1]}, "search.optimizer.lr: found [0.1], expected two or more different values"),
        ({"optimizer.lr": [0.1, 0.1]}, "expected two or more different values"),
        ({"optimizer.lr": {"low": 1, "hihg": 2}}, "unknown key 'hihg', did you mean 'high'"),
        ({"optimizer.lr": {"low": 0.1}}, "search.optimizer.lr: high is missing"),
        ({"optimizer.lr": {"low": 2.0, "high": 1.0}}, "expected a low below high"),
        ({"optimizer.lr": {"low": 0.0, "high": 1.0, "log": True}}, "log: true takes a low above 0"),
        ({"optimizer.lr": {"low": 0.1, "high": 1.0, "log": True, "step": 0.1}}, "and no step"),
        ({"optimizer.lr": {"low": 0.1, "high": 1.0, "step": 0.4}}, "expected a step that divides the range from"),
        ({"optimizer.lr": {"low": 0.1, "high": 1.0, "step": -0.1}}, "found step -0.1"),
        ({"optimizer.rate": [0.1, 0.2]}, "optimizer: unknown key 'rate'"),
        ({"optimizer.lr": [0.1, -0.1]}, "search.optimizer.lr: -0.1: optimizer.lr: found -0.1"),
        ({"loss": [{"name": "softmax_loss"}, {"name": "softmx_loss"}]}, "did you mean 'softmax_loss'"),
        ({"training.batch": {"low": 8, "high": 16}}, "whole numbers are drawn with a step, step: 1"),
        ({"training.metric": ["ndcg@5", "ndcg@10"]}, "search.training.metric: 'ndcg@10' changes what is measured"),
        ({"data.valid": [["S3"], ["S4"]]}, "search.data.valid: ['S4'] changes what is measured"),
    ],
)
def test_invalid_search_is_refused(write: Callable[..., Path], search: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_search(write(search, data={"test": []}))
    assert message in str(refused.value)


def test_quotas_are_no_settings(log: Path, tmp_path: Path) -> None:
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump(cascade_content(log) | {"search": {"stages.0.quota": [6, 7]}}))
    with pytest.raises(ConfigError, match=r"must not change .*names and quotas of stages"):
        load_search(path)


def test_values_that_go_with_some_others_only_are_allowed(write: Callable[..., Path]) -> None:
    """Two hidden layers take one or two dropouts; every value is possible, not every pair."""
    space: dict[str, Any] = {
        "model.hidden": [[8, 8], [8, 8, 8]],
        "model.dropout": [[0.1, 0.1], [0.1, 0.1, 0.1]],
    }
    search = load_search(write(space, model={"kind": "mlp"}))
    for hidden in space["model.hidden"]:
        for dropout in space["model.dropout"]:
            settings = {"model.hidden": hidden, "model.dropout": dropout}
            if len(hidden) == len(dropout):
                assert (
                    search.config(settings).model_dump()["model"].items()
                    >= {"hidden": hidden, "dropout": dropout}.items()
                )
            else:
                with pytest.raises(ConfigError, match=rf"dropout has {len(dropout)} values for {len(hidden)} hidden"):
                    search.config(settings)


# --- how it is searched -------------------------------------------------------------------------------------------


def test_draws_learn_from_trials(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path
) -> None:
    fake(peak)
    result = tune(load_search(write(trials=40)), tmp_path / "out")
    distances = [-(trial.value or 0.0) for trial in result.trials]
    assert np.median(distances[20:]) < 0.6  # by chance they are uniform from 0 to 2
    assert result.best is not None
    assert result.best.value == -min(distances)
    assert min(distances) < 0.05


def test_a_metric_for_which_lower_is_better(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path
) -> None:
    fake(lambda config: [-value for value in peak(config)])
    result = tune(load_search(write(trials=12, training={"metric": "arp"})), tmp_path / "out")
    assert result.higher_is_better is False
    assert result.best is not None
    assert result.best.value == min(trial.value for trial in result.trials if trial.value is not None)


def test_the_seed_decides_the_draws(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path
) -> None:
    fake(peak)
    search = load_search(write(trials=4))
    one, again, other = (tune(search, tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert drawn(one) == drawn(again)
    assert drawn(one) != drawn(other)


def test_a_search_in_parts_is_a_search_in_one_go(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path
) -> None:
    def learning(config: TrainConfig) -> list[float]:
        return [value * epoch / 3 for epoch in (1, 2, 3) for value in [10 + peak(config)[0]]]

    fake(learning)
    search = load_search(write())
    whole = tune(search, tmp_path / "whole", trials=16)
    for trials in (3, 11, 11, 16):
        parts = tune(search, tmp_path / "parts", trials=trials)
        assert len(parts.trials) == trials
    assert drawn(parts) == drawn(whole)
    assert "pruned" in states(whole)


def test_trials_that_are_worse_than_half_are_ended_early(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path
) -> None:
    curves: list[list[float]] = []

    def noisy(config: TrainConfig) -> list[float]:
        curves.append(np.random.default_rng(len(curves)).random(4).tolist())
        return curves[-1]

    fake(noisy)
    result = tune(load_search(write(trials=20)), tmp_path / "out")
    complete: list[list[float]] = []
    for curve, trial in zip(curves, result.trials, strict=True):
        ends = None
        for epoch in (1, 2, 3):  # after the last there is nothing to save
            others = [one[epoch - 1] for one in complete]
            if len(complete) >= 5 and max(curve[:epoch]) < np.median(others):
                ends = epoch
                break
        assert trial.state == ("pruned" if ends else "complete")
        assert trial.value == (curve[ends - 1] if ends else max(curve))
        assert trial.best_epoch == (None if ends else curve.index(max(curve)) + 1)
        if not ends:
            complete.append(curve)
    assert states(result).count("pruned") > 3
    assert result.best is not None
    assert result.best.value == max(max(curve) for curve in complete)


# --- what goes wrong ----------------------------------------------------------------------------------------------


def test_a_trial_that_fails_is_recorded_and_the_search_goes_on(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path
) -> None:
    def fragile(config: TrainConfig) -> list[float]:
        if config.optimizer.lr > 0.1:
            raise TrainingError("the loss became NaN")
        if config.optimizer.lr > 0.01:
            raise RuntimeError("not enough memory")
        return peak(config)

    fake(fragile)
    result = tune(load_search(write(trials=12)), tmp_path / "out")
    for trial in result.trials:
        rate = trial.settings["optimizer.lr"]
        error = "the loss became NaN" if rate > 0.1 else "memory ran out: RuntimeError" if rate > 0.01 else None
        assert trial.state == ("failed" if error else "complete")
        assert (trial.error or "").startswith(error or "")
        assert (trial.value is None) == bool(error)
        traceback = tmp_path / "out" / trial.directory / "error.txt"
        assert traceback.is_file() == (error == "memory ran out: RuntimeError")
    assert {"failed", "complete"} == set(states(result))


@pytest.mark.parametrize("error", [OSError(28, "no space left"), EnvironmentFailure("no server")])
def test_environment_failure_does_not_consume_trial(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path, error: Exception
) -> None:
    search, attempts = load_search(write(trials=4)), 0

    def disturbed(config: TrainConfig) -> list[float]:
        nonlocal attempts
        attempts += 1
        if 2 <= attempts <= 3 + DEATHS:
            raise error
        return peak(config)

    fake(peak)
    whole = tune(search, tmp_path / "whole")
    fake(disturbed)
    for _ in range(2 + DEATHS):
        with pytest.raises(
            EnvironmentFailure, match=r"trial 1 was interrupted; run the command again: .*no (space|server)"
        ):
            tune(search, tmp_path / "out")
    assert drawn(tune(search, tmp_path / "out")) == drawn(whole)


def test_data_that_are_gone_use_up_no_trial(data: Path, tmp_path: Path) -> None:
    """A training refuses such data as it refuses settings."""
    here, gone = tmp_path / "data", tmp_path / "gone"
    shutil.copytree(data, here)
    content = config_for(here, training={"epochs": 1}, model={"kind": "mlp", "hidden": [4]})
    (tmp_path / "search.yaml").write_text(yaml.safe_dump(content | {"search": LR, "trials": 2}))
    search, out = load_search(tmp_path / "search.yaml"), tmp_path / "out"
    with pytest.raises(EnvironmentFailure, match=r"trial 1 was interrupted.*data\.path"):
        tune(search, out, on_trial=lambda trial: os.rename(here, gone))
    gone.rename(here)
    assert states(tune(search, out)) == ["complete"] * 2


def test_a_tracker_that_cannot_be_reached_uses_up_no_trial(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(*arguments: object) -> None:
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(track, "_TensorBoard", unreachable)
    path = write(trials=2, training={"epochs": 1})
    assert command("tune", str(path), "--out", str(tmp_path / "out"), "training.track=tensorboard") == 1
    said = "trial 0 was interrupted; run the command again: training.track: tensorboard cannot be reached"
    assert said in capsys.readouterr().err
    assert command("tune", str(path), "--out", str(tmp_path / "out"), "--json") == 0
    assert states(SearchResult.from_json(json.loads(capsys.readouterr().out))) == ["complete"] * 2


def test_what_a_training_has_to_say_is_shown_with_its_trial(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write(trials=2, training={"epochs": 1}), tmp_path / "out"
    batches = iter(range(10))
    with pytest.raises(Stopped):
        tune(load_search(path), out, stop=lambda: next(batches) == 0)
    for weights in (out / "trials" / "0000" / "checkpoints").glob("step-*"):
        weights.write_bytes(b"half")
    assert command("tune", str(path), "--out", str(out)) == 0
    err = capsys.readouterr().err
    assert f"note: trial 0: the checkpoints in {out}/trials/0000 are damaged: training starts again" in err
    assert "note: trial 1" not in err


def test_if_all_trials_fail_so_does_the_command(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write({"optimizer.lr": [1e30, 1e35]}, trials=2, training={"epochs": 1}, model={"kind": "mlp", "hidden": [4]})
    assert command("tune", str(path), "--out", str(tmp_path / "out"), "--json") == 1
    out, err = capsys.readouterr()
    result = SearchResult.from_json(json.loads(out))
    assert states(result) == ["failed", "failed"]
    assert result.best is None
    assert all("Try a smaller optimizer.lr" in (trial.error or "") for trial in result.trials)
    assert "no trial was completed, all 2 failed" in " ".join(err.split())
    assert not (tmp_path / "out" / "best.yaml").exists()


def test_a_combination_that_cannot_be_trained_is_a_failed_trial(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path
) -> None:
    space = {"model.hidden": [[8, 8], [8, 8, 8]], "model.dropout": [[0.1, 0.1], [0.1, 0.1, 0.1]]}
    fake(lambda config: [0.5])
    result = tune(load_search(write(space, trials=12, model={"kind": "mlp"})), tmp_path / "out")
    for trial in result.trials:
        fits = len(trial.settings["model.hidden"]) == len(trial.settings["model.dropout"])
        assert trial.state == ("complete" if fits else "failed")
        assert fits or "give one number, or one for each layer" in (trial.error or "")
    assert set(states(result)) == {"complete", "failed"}


def test_without_optuna_it_says_how_to_get_it(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert command("tune", str(write()), "--out", str(tmp_path / "out")) == 1
    assert "pip install 'rankfall[tune]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_optuna_is_not_imported_unless_it_is_needed() -> None:
    code = (
        "import sys, rankfall.cli, rankfall.studies.tune, rankfall.studies.search_space, rankfall.training.trackers\n"
    )
    code += "assert not {'optuna', 'mlflow', 'tensorboard'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_directory_that_holds_something_else_is_refused(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path
) -> None:
    fake(peak)
    out = tmp_path / "out"
    tune(load_search(write(trials=1)), out)
    with pytest.raises(ConfigError, match=r"search\.optimizer\.lr\.low was 0\.0001 and is 0\.001"):
        tune(load_search(write({"optimizer.lr": {"low": 1e-3, "high": 1.0, "log": True}})), out)
    with pytest.raises(ConfigError, match=r"training\.epochs was 3 and is 4\. Continue it, or name another"):
        tune(load_search(write(training={"epochs": 4})), out)
    tune(load_search(write(trials=2, training={"checkpoint_every": 1.0})), out)  # which changes no trial
    other = plant(tmp_path / "other", log1p=True)
    with pytest.raises(ConfigError, match=r"data\.S1.* was .* and is "):
        tune(load_search(write(data={"path": str(other)})), out)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    with pytest.raises(ValueError, match="holds other files and no search"):
        tune(load_search(write()), tmp_path / "full")
    with pytest.raises(ConfigError, match=r"data\.test: .*S9"):
        tune(load_search(write(data={"test": ["S9"]})), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_search_with_another_model_is_another_search(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path
) -> None:
    fake(peak)
    out, model = tmp_path / "out", {"kind": "mlp", "hidden": [4]}
    tune(load_search(write(trials=1, model=model)), out)
    assert len(tune(load_search(write(trials=2, model=model)), out).trials) == 2
    with pytest.raises(ConfigError, match=r"model\.init was 'default' and is 'he'"):
        tune(load_search(write(trials=2, model=model | {"init": "he"})), out)


def test_truncated_journal_line_is_removed(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path
) -> None:
    fake(peak)
    search, out = load_search(write()), tmp_path / "out"
    whole = tune(search, tmp_path / "whole", trials=4)
    tune(search, out, trials=2)
    journal = out / "study.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code":4,"worker_id":"x","study')  # no disk was left, or no time
    assert drawn(tune(search, out, trials=4)) == drawn(whole)
    lines = journal.read_bytes().splitlines()
    journal.write_bytes(b"\n".join([lines[0][:20], *lines[1:]]) + b"\n")
    with pytest.raises(ValueError, match=r"study\.journal is damaged"):
        tune(search, out, trials=5)


# --- what goes on -------------------------------------------------------------------------------------------------


def test_a_trial_that_was_stopped_goes_on_as_it_was(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path
) -> None:
    fake(peak)
    search = load_search(write())
    whole = tune(search, tmp_path / "whole", trials=4)
    batches = iter(range(1, 10**6))
    with pytest.raises(Stopped):
        tune(search, tmp_path / "out", trials=4, stop=lambda: next(batches) == 3)
    for _ in range(DEATHS):  # to be stopped is no death
        with pytest.raises(Stopped):
            tune(search, tmp_path / "out", trials=4, stop=lambda: True)
    stopped = SearchResult.load(tmp_path / "out" / "trials.json")
    assert drawn(stopped) == drawn(whole)[:2]
    assert drawn(tune(search, tmp_path / "out", trials=4)) == drawn(whole)


def test_a_trial_whose_process_died_goes_on_and_is_given_up_in_the_end(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path
) -> None:
    deadly: list[float] = []

    def dying(config: TrainConfig) -> list[float]:
        if len(deadly) < deaths:
            deadly.append(config.optimizer.lr)
            raise Killed
        return peak(config)

    fake(dying)
    search = load_search(write())
    for deaths, name in ((2, "twice"), (3, "thrice")):
        deadly.clear()
        for _ in range(deaths):
            with pytest.raises(Killed):
                tune(search, tmp_path / name, trials=2)
        result = tune(search, tmp_path / name, trials=2)
        assert len(result.trials) == 2
        first = result.trials[0]
        assert set(deadly) == {first.settings["optimizer.lr"]}
        assert first.state == ("complete" if deaths == 2 else "failed")
        assert deaths == 2 or "ended 3 times" in (first.error or "")


def test_running_trial_is_not_taken_over(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path
) -> None:
    """Inside of a trial another one works on the same search."""
    search = load_search(write())
    inner: list[SearchResult | None] = []

    def busy(config: TrainConfig) -> list[float]:
        if not inner:
            inner.append(None)
            inner[0] = tune(search, tmp_path / "out", trials=3)
        return peak(config)

    fake(busy)
    result = tune(search, tmp_path / "out", trials=3)
    assert inner[0] is not None
    assert states(inner[0]) == ["running", "complete", "complete"]
    assert states(result) == ["complete"] * 3
    assert len({trial.settings["optimizer.lr"] for trial in result.trials}) == 3


def test_no_trial_begins_when_time_is_up(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("tune", str(write()), "--out", str(tmp_path / "out"), "--timeout", "0") == 1
    assert "none was finished in time" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_jobs_share_the_trials(write: Callable[..., Path], tmp_path: Path) -> None:
    search = load_search(write(trials=5, training={"epochs": 1}))
    ended: list[int] = []
    result = tune(search, tmp_path / "out", jobs=2, on_trial=lambda trial: ended.append(trial.trial))
    assert states(result) == ["complete"] * 5
    assert sorted(ended) == [0, 1, 2, 3, 4]
    assert len({trial.settings["optimizer.lr"] for trial in result.trials}) == 5


class Killed(BaseException):
    """Nothing is told of it, as of a process that is killed."""


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What processes would do, one after the other in this one."""

    def run(work: Callable[[Any], Any], tasks: list[Any], **options: Any) -> Iterator[tuple[Any, Any]]:
        for task in tasks:
            try:
                yield task, work(task)
            except Killed:
                yield task, Failure("its process ended with exit code -9")

    monkeypatch.setattr(tuning, "run_tasks", run)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("deadly", [0, 2])
def test_a_trial_that_kills_its_processes_is_given_up_and_the_others_end(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path, deadly: int
) -> None:
    rates: list[float] = []

    def dying(config: TrainConfig) -> list[float]:
        if config.optimizer.lr not in rates:
            rates.append(config.optimizer.lr)
        if rates.index(config.optimizer.lr) == deadly:
            raise Killed
        return peak(config)

    trained = fake(dying)
    result = tune(load_search(write(trials=3)), tmp_path / "out", jobs=2)
    assert states(result) == ["failed" if number == deadly else "complete" for number in range(3)]
    assert "ended 3 times" in (result.trials[deadly].error or "")
    assert len(trained) == 2 + DEATHS


@pytest.mark.usefixtures("processes")
def test_all_processes_failing_is_an_error(write: Callable[..., Path], tmp_path: Path) -> None:
    def cannot(task: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "report_trial", cannot)
        with pytest.raises(
            ValueError, match="no trial could be finished: its process ended with exit code -9; run the same"
        ):
            tune(load_search(write()), tmp_path / "out", jobs=2)


@pytest.mark.usefixtures("processes")
def test_what_is_around_a_training_ends_all_processes(
    write: Callable[..., Path], fake: Callable[[Fake], list[TrainConfig]], tmp_path: Path
) -> None:
    def full(config: TrainConfig) -> list[float]:
        if len(trained) == 2:
            raise OSError(28, "no space left")
        return peak(config)

    trained = fake(full)
    search, out = load_search(write(trials=4)), tmp_path / "out"
    with pytest.raises(
        EnvironmentFailure, match=r"trial 1 was interrupted; run the command .* \[Errno 28\] no space left"
    ):
        tune(search, out, jobs=2)
    assert len(trained) == 2
    assert states(tune(search, out, jobs=2)) == ["complete"] * 4


@pytest.mark.slow
@pytest.mark.xdist_group("forks")
def test_a_search_that_was_killed_goes_on_from_its_checkpoint(
    forks: Forks, write: Callable[..., Path], tmp_path: Path
) -> None:
    path = write(trials=2, training={"epochs": 3, "checkpoint_every": 0}, model={"kind": "mlp", "hidden": [4]})
    search, out = load_search(path), tmp_path / "out"
    killed = forks.start(path, out, call="support.fork_tasks:tune_and_die")
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    heard: list[tuple[int, int, int]] = []
    result = tune(search, out, on_step=lambda number, step: heard.append((number, step.epoch, step.batch)))
    assert heard[0] == (1, 2, 3)  # the batch behind the last checkpoint
    assert drawn(result) == drawn(tune(search, tmp_path / "whole"))


# --- what comes of it ---------------------------------------------------------------------------------------------


def test_a_cascade_is_tuned_without_its_test_days(log: Path, tmp_path: Path) -> None:
    days = {"train": [DAYS[0]], "valid": [DAYS[1]], "test": [DAYS[2]]}
    content = cascade_content(log, data=days, training={"epochs": 1, "checkpoint_every": 300.0})
    space = {**LR, "objective.topk.tau": {"low": 0.1, "high": 10.0, "log": True}}
    path, out = tmp_path / "search.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(content | {"search": space, "trials": 3}))
    test_day = log / "days" / DAYS[2] / "impressions.arrow"
    content_of_day = test_day.read_bytes()
    test_day.write_bytes(b"?" * len(content_of_day))  # whoever reads it stumbles
    try:
        result = tune(load_search(path), out)
    finally:
        test_day.write_bytes(content_of_day)
    assert states(result) == ["complete"] * 3
    assert result.best is not None
    for trial in result.trials:
        run = out / trial.directory
        assert read_yaml(run / "config.yaml")["data"]["test"] == []
        line = json.loads((run / "metrics.jsonl").read_text())
        assert line["validation"]["joint_recall"] == trial.value
        assert (run / "checkpoints").exists() == (trial.trial == result.best.trial)
    best = read_yaml(out / "best.yaml")
    assert best["data"]["test"] == [DAYS[2]]
    assert best["optimizer"]["lr"] == result.best.settings["optimizer.lr"]
    assert best["objective"]["topk"]["tau"] == result.best.settings["objective.topk.tau"]
    # It trains as it stands, to the same weights.
    assert command("train", str(out / "best.yaml"), "--out", str(tmp_path / "run")) == 0
    weights = "checkpoints/best.safetensors"
    assert (tmp_path / "run" / weights).read_bytes() == (out / result.best.directory / weights).read_bytes()


def test_the_search_can_be_repeated_from_what_it_wrote(
    write: Callable[..., Path],
    fake: Callable[[Fake], list[TrainConfig]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    data: Path,
) -> None:
    fake(peak)
    monkeypatch.chdir(data.parent)
    result = tune(load_search(write(data={"path": data.name})), tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    assert drawn(tune(load_search(tmp_path / "out" / "tune.yaml"), tmp_path / "again")) == drawn(result)
    train(read_yaml(tmp_path / "out" / "best.yaml"), tmp_path / "run")


def test_the_command_reports_in_a_table_a_picture_and_json(
    write: Callable[..., Path],
    fake: Callable[[Fake], list[TrainConfig]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake(peak)
    out = tmp_path / "out"
    assert command("tune", str(write()), "--out", str(out), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((out / "trials.json").read_text())
    assert (out / "search.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "search.svg").read_text()
    assert command("tune", str(write()), "trials=3", "--out", str(out)) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["trial", "state", "ndcg@10", "optimizer.lr"]
    ranked = sorted(result["trials"], key=lambda trial: -trial["value"])
    assert [int(line[0]) for line in lines[2:]] == [trial["trial"] for trial in ranked]
    assert lines[2][3] == "<"
    assert float(lines[2][4]) == pytest.approx(result["best"]["settings"]["optimizer.lr"], rel=1e-3)


def trial(number: int, state: str, value: float | None, settings: dict[str, Any] | None = None) -> TrialResult:
    return TrialResult(number, state, value, settings or {}, None, None, None, "")


def test_the_picture_shows_the_best_so_far() -> None:
    trials = [("complete", 0.2), ("failed", None), ("pruned", 0.9), ("complete", 0.5), ("complete", 0.5)]
    found = [trial(i, state, value) for i, (state, value) in enumerate(trials)]
    points = search_points(found, higher_is_better=True)
    assert [(one.trial, best, kind) for one, kind, best in points] == [
        (0, 0.2, "complete"),
        (2, 0.2, "ended early"),
        (3, 0.5, "best"),
        (4, 0.5, "complete"),
    ]
    lowest = search_points(found, higher_is_better=False)
    assert [one.trial for one, kind, _ in lowest if kind == "best"] == [0]


def test_the_picture_has_a_panel_for_each_setting() -> None:
    space: dict[str, Any] = {"optimizer.lr": {"low": 1e-4, "high": 1.0, "log": True}, "loss": ["a", "b"]}
    trials = [
        trial(i, "complete", value, {"optimizer.lr": 10.0**-i, "loss": name})
        for i, (value, name) in enumerate(((0.1, "a"), (0.4, "b"), (0.3, "b")))
    ]
    chart = search_chart(SearchResult("m", True, space, trials[1], trials), "out")
    assert chart
    assert [panel.name for panel in chart.panels] == ["by trial", "optimizer.lr", "loss"]
    assert [strip.name for strip in chart.panels[2].strips] == ["a", "b", ""]
    drawn = [sum(part.startswith("<circle") for strip in one.strips for part in strip.parts) for one in chart.panels]
    assert drawn == [6, 3, 3]  # the first has the best until then, too
    assert search_chart(SearchResult("m", True, space, None, [trial(0, "failed", None)]), "out") is None


def test_a_picture_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    def full(operation: str, path: Path) -> None:
        if operation == "write":
            raise OSError(28, "no space left")

    (tmp_path / "search.png").write_bytes(b"whole")
    chart = search_chart(SearchResult("m", True, {}, None, [trial(0, "complete", 0.5)]), "out")
    assert chart
    with pytest.raises(OSError, match="no space left"), intercepted(full):
        save({"search": chart}, tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"search.png": b"whole"}
