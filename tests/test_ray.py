"""The Ray engine: the same files, results and errors as in a single process."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import yaml

from rankfall import _engine as _ray
from rankfall._engine import LOCAL, open_engine
from rankfall.data.impressions.spec import Spec, validate_spec
from rankfall.data.sources.recflow import prepare_recflow
from rankfall.data.sources.rows import raw_log as raw
from rankfall.data.sources.rows.prepare_rows import prepare_rows
from rankfall.reporting.files import write_comparison
from rankfall.simulation.simulate import Simulation, simulate_recflow
from rankfall.studies.compare import compare_methods
from rankfall.studies.comparison_plan import load_comparison
from rankfall.studies.search_space import load_search
from rankfall.studies.tune import tune
from rankfall.studies.workers import Failure, run_tasks
from support import failing_work
from support.command_line import run
from support.interrupted import outcome
from support.planted import config_for, plant
from support.ray_session import small_ray

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

if find_spec("ray") is None:
    pytest.skip("Ray is not installed (pip install 'rankfall[ray]')", allow_module_level=True)
pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]  # a group, so that Ray is started once
ray = _ray.import_ray()

SPEC: dict[str, Any] = {
    "request": "request",
    "item": "item",
    "user": "user",
    "time": {"column": "time", "unit": "s"},
    "stage": "stage",
    "rank": "rank",
    "stages": [{"name": "matched", "sample": 3}, {"name": "ranked", "sample": 2}],
    "relevant": {"column": "clicked"},
    "feedback": ["clicked"],
    "negatives": 2,
    "features": {
        "user": {
            "user": {"kind": "categorical", "vocabulary": True},
            "city": {"kind": "categorical", "num_buckets": 5},
        },
        "context": {"hour": {"kind": "time", "part": "hour"}, "load": {"kind": "dense", "standardise": True}},
        "item": {
            "item": {"kind": "categorical", "vocabulary": {"min_count": 2}},
            "author": {"kind": "categorical", "hash_bucket_size": 7},
            "price": {"kind": "dense", "log1p": True, "standardise": True},
            "bucket": {"kind": "dense", "column": "price", "bucketize": 4},
        },
    },
    "sequences": {"clicks": {"max_length": 4, "features": ["item", "author"], "feedback": "clicked"}},
}


@pytest.fixture(scope="module")
def engine() -> Iterator[_ray.Ray]:
    with small_ray() as opened:
        yield opened


def write_rows(directory: Path, *, requests: int = 150) -> None:
    """Three days of a log in files of two formats, and tables of items, users and requests."""
    chance = random.Random(0)
    rows = [
        {
            "request": f"r{request}",
            "item": f"i{item}",
            "stage": chance.choice(["matched", "ranked"]),
            "rank": chance.choice([None, 1, 2, 3]),
            "price": [-2.0, 0.0, 1.5, 40.0][item % 4],
            "clicked": int(chance.random() < 0.3),
        }
        for request in range(requests)
        for item in chance.sample(range(30), chance.randint(1, 9))
    ]
    chance.shuffle(rows)
    frame = pl.DataFrame(rows)
    (directory / "log").mkdir(parents=True)
    for number in range(4):
        part = frame[number::4]
        if number % 2:
            part.write_parquet(directory / "log" / f"{number}.parquet")
        else:
            part.write_csv(directory / "log" / f"{number}.csv")
    times = sorted(chance.randrange(3 * 86_400) for _ in range(requests))
    pl.DataFrame(
        {
            "request": [f"r{request}" for request in range(requests)],
            "time": times,
            "user": [f"u{chance.randrange(9)}" for _ in range(requests)],
            "load": [chance.gauss(0, 1) for _ in range(requests)],
        }
    ).write_parquet(directory / "requests.parquet")
    pl.DataFrame({"item": [f"i{item}" for item in range(25)], "author": list(range(25))}).write_csv(
        directory / "items.csv"
    )
    pl.DataFrame({"user": ["u0", "u1", "u7"], "city": [1, 2, 3]}).write_parquet(directory / "users.parquet")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("raw")
    write_rows(directory)
    return directory


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every file a separate part."""
    monkeypatch.setattr(raw, "_PART_BYTES", 1)


def prepare(source: Path, out: Path, *, spec: Spec | None = None, **options: Any) -> dict[str, bytes]:
    """All files of the prepared log."""
    tables = {name: next(source.glob(f"{name}.*")) for name in ("items", "users", "requests")}
    options = {"portion_rows": 40, **tables, **options}
    prepare_rows(options.pop("files", [source / "log"]), out, spec or validate_spec(SPEC), **options)
    return content(out)


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# --- the engine -------------------------------------------------------------------------------------------------


@pytest.mark.trial
def test_results_come_in_order_from_other_processes_a_few_at_a_time(engine: _ray.Ray) -> None:
    drawn: list[int] = []
    done: list[int] = []
    processes: set[int] = set()

    def parts() -> Iterator[int]:
        for part in range(12):
            drawn.append(part)
            yield part

    for part, (square, process) in enumerate(engine.map(failing_work.squared, parts(), done.append)):
        assert square == part**2
        assert done == list(range(part + 1))
        assert len(drawn) - part <= 2 * engine.workers
        processes.add(process)
    assert len(processes) == engine.workers == 2


@pytest.mark.trial
def test_the_error_is_that_of_the_first_part(engine: _ray.Ray) -> None:
    for one in (LOCAL, engine):
        found = one.map(partial(failing_work.squared_unless, [5, 3]), range(9))
        assert [next(found) for _ in range(3)] == [0, 1, 4]
        with pytest.raises(ValueError, match=r"^part: found 3, expected another$"):
            next(found)


@pytest.mark.trial
def test_an_error_in_making_parts_comes_after_those_before_it(engine: _ray.Ray) -> None:
    def parts() -> Iterator[int]:
        yield from (0, 1, 2)
        raise OSError("the disk")

    for one in (LOCAL, engine):
        found = one.map(partial(failing_work.squared_unless, [9]), parts())
        assert [next(found) for _ in range(3)] == [0, 1, 4]
        with pytest.raises(OSError, match="the disk"):
            next(found)
        with pytest.raises(ValueError, match="found 2"):
            list(one.map(partial(failing_work.squared_unless, [2]), parts()))


@pytest.mark.trial
def test_a_mistake_of_ours_can_be_traced_back(engine: _ray.Ray) -> None:
    with pytest.raises(IndexError) as error:
        list(engine.map(failing_work.broken, [0]))
    assert "failing_work.py" in str(error.value.__cause__)


@pytest.mark.trial
def test_a_part_whose_worker_dies_is_done_again(engine: _ray.Ray, tmp_path: Path) -> None:
    work = partial(failing_work.squared_with_one_kill, tmp_path / "died")
    assert list(engine.map(work, range(6))) == [part**2 for part in range(6)]
    assert (tmp_path / "died").exists()


# --- sample building --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_parts")
def test_a_log_is_prepared_to_the_same_bytes(engine: _ray.Ray, source: Path, tmp_path: Path) -> None:
    steps: dict[str, list[tuple[str, int, int | None]]] = {"local": [], "ray": []}
    local = prepare(source, tmp_path / "local", on_progress=lambda *step: steps["local"].append(step))
    spread = prepare(source, tmp_path / "ray", engine=engine, on_progress=lambda *step: steps["ray"].append(step))
    assert spread == local
    assert sum("impressions.arrow" in name for name in local) == 3
    # progress may be coarser, but has the same total
    for name in dict.fromkeys(step for step, _, _ in steps["local"]):
        assert [last for last in steps["ray"] if last[0] == name][-1] == [
            last for last in steps["local"] if last[0] == name
        ][-1]


@pytest.mark.trial
@pytest.mark.usefixtures("small_parts")
def test_bad_rows_are_found_and_dropped_alike(engine: _ray.Ray, tmp_path: Path) -> None:
    write_rows(tmp_path / "raw", requests=20)
    (tmp_path / "raw" / "log" / "bad.csv").write_text(
        "request,item,stage,rank,price,clicked\nr1,i99,lost,,1,0\nr2,i99,ranked,,cheap,0\nr3,,ranked,,1,0\n"
    )
    local = prepare(tmp_path / "raw", tmp_path / "local", skip_bad=3)
    assert prepare(tmp_path / "raw", tmp_path / "ray", skip_bad=3, engine=engine) == local
    assert json.loads(local["manifest.json"])["about"]["skipped"]["rows"] == 3


@pytest.mark.trial
@pytest.mark.usefixtures("small_parts")
def test_a_worker_that_dies_changes_nothing_and_is_not_mentioned(
    engine: _ray.Ray, source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = sorted((source / "log").iterdir())
    local = prepare(source, tmp_path / "local")
    dies = failing_work.DyingFile(files[0], mark=str(tmp_path / "died"))
    assert prepare(source, tmp_path / "ray", files=[dies, *files[1:]], engine=engine) == local
    assert (tmp_path / "died").exists()
    assert capfd.readouterr() == ("", "")


@pytest.mark.trial
@pytest.mark.usefixtures("small_parts")
def test_errors_are_the_same_and_leave_nothing(engine: _ray.Ray, source: Path, tmp_path: Path) -> None:
    frame = pl.read_parquet(source / "log" / "3.parquet")
    late = pl.int_range(pl.len()) > len(frame) // 2
    frame.with_columns(price=pl.when(~late).then("price")).write_parquet(tmp_path / "bad.parquet")
    files = [*sorted((source / "log").iterdir())[:3], tmp_path / "bad.parquet"]
    messages = []
    for name, one in (("local", LOCAL), ("ray", engine)):
        with pytest.raises(ValueError, match=r"column 'price': found nothing, .* \(request 'r\d+'\)") as error:
            prepare(source, tmp_path / name, files=files, engine=one)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert [path.name for path in tmp_path.iterdir()] == ["bad.parquet"]


@pytest.mark.trial
def test_recflow_is_prepared_to_the_same_bytes(engine: _ray.Ray, tmp_path: Path) -> None:
    layout = tmp_path / "RecFlow"
    simulate_recflow(Simulation(preset="tiny", days=3, requests_per_day=40), layout)
    (layout / "others" / "id_cnt.pkl").unlink()  # so that ids are counted
    prepare_recflow(layout, tmp_path / "local")
    prepare_recflow(layout, tmp_path / "ray", engine=engine)
    assert content(tmp_path / "ray") == content(tmp_path / "local")


@pytest.mark.trial
def test_the_command_takes_an_engine(
    engine: _ray.Ray, source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.close()  # there is room for two workers
    monkeypatch.chdir(source)  # paths are relative to the directory of the command, not of the workers
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    tables = ["--items", "items.csv", "--users", "users.parquet", "--requests", "requests.parquet"]
    for name in ("local", "ray"):
        command = ["prepare", "rows", "log", *tables, "--spec", str(tmp_path / "spec.yaml"), "--engine", name]
        assert run(*command, "--out", str(tmp_path / name)) == 0
        printed = capfd.readouterr()
        assert printed.err.lower().count("ray") == (name == "ray")  # only the message that it starts
        assert f"{name}: 150 impressions" in printed.out
    assert content(tmp_path / "ray") == content(tmp_path / "local")


@pytest.mark.trial
def test_a_part_whose_workers_die_again_and_again_is_given_up(
    engine: _ray.Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.close()
    monkeypatch.setattr(_ray, "ATTEMPTS", 1)
    with (
        _ray.open_ray() as frail,
        pytest.raises(ValueError, match="failed to process a part in 1 attempt"),
    ):
        list(frail.map(failing_work.dead, [0]))


# --- comparisons and searches -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("lists"))


@pytest.mark.trial
def test_a_comparison_has_the_same_results(engine: _ray.Ray, lists: Path, tmp_path: Path) -> None:
    methods = {
        "softmax": {"loss": {"name": "softmax_loss"}, "tune": {"optimizer.lr": [0.01, 0.1]}},
        "wrong": {"loss": {"name": "softmax_loss"}, "tune": {"optimizer.lr": [1e30, 1e31]}},
    }
    content = config_for(lists, model={"kind": "mlp", "hidden": [4], "dropout": [0.2]}) | {"methods": methods}
    (tmp_path / "comparison.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    config = load_comparison(tmp_path / "comparison.yaml")
    local, spread = (
        compare_methods(config, tmp_path / name, engine=one) for name, one in (("local", LOCAL), ("ray", engine))
    )
    local.failed.sort(key=lambda failed: failed.run)
    spread.failed.sort(key=lambda failed: failed.run)
    assert len(local.failed) == 2
    assert spread == local
    for name, result in (("local", local), ("ray", spread)):
        write_comparison(result, tmp_path / name)
    for file in ("comparison.csv", "values.parquet"):
        assert (tmp_path / "ray" / file).read_bytes() == (tmp_path / "local" / file).read_bytes()
    finished = [path.parent.name for path in (tmp_path / "local" / "runs").glob("*/result.json")]
    assert len(finished) == 2
    for name in finished:
        assert outcome(tmp_path / "ray" / "runs" / name) == outcome(tmp_path / "local" / "runs" / name)


@pytest.mark.trial
def test_tasks_that_fail_leave_the_others_alone(engine: _ray.Ray) -> None:
    found = dict(run_tasks(failing_work.halved, [1, 2, 4], jobs=1, engine=engine))
    assert found == {1: Failure("task: found 1, expected an even number"), 2: 1, 4: 2}


@pytest.mark.trial
def test_a_search_does_its_trials(engine: _ray.Ray, lists: Path, tmp_path: Path) -> None:
    search = {"search": {"optimizer.lr": {"low": 1e-3, "high": 1.0, "log": True}}, "trials": 4}
    (tmp_path / "search.yaml").write_text(yaml.safe_dump(config_for(lists) | search))
    ended: list[int] = []
    result = tune(
        load_search(tmp_path / "search.yaml"),
        tmp_path / "out",
        engine=engine,
        on_trial=lambda trial: ended.append(trial.trial),
    )
    assert sorted(ended) == [trial.trial for trial in result.trials] == [0, 1, 2, 3]
    alone = tune(load_search(tmp_path / "search.yaml"), tmp_path / "alone", trials=1)
    # the first draw does not depend on others
    assert {key: getattr(alone.trials[0], key) for key in ("settings", "value")} == {
        key: getattr(result.trials[0], key) for key in ("settings", "value")
    }


# --- what is not there ------------------------------------------------------------------------------------------


def test_ray_is_not_imported_unless_asked_for() -> None:
    code = (
        "import sys, rankfall, rankfall.cli, rankfall.studies.compare, rankfall.studies.tune\n"
        "import rankfall.data.sources.recflow, rankfall.training.train_cascade, rankfall.benchmarks.serve\n"
        "from rankfall._engine import open_engine\n"
        "with open_engine('local') as engine: assert list(engine.map(lambda part, report: part, 'ab')) == ['a', 'b']\n"
        "assert 'ray' not in sys.modules and 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_ray_is_named_with_its_remedy(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    command = ["prepare", "rows", str(source / "log"), "--spec", str(tmp_path / "spec.yaml"), "--engine", "ray"]
    assert run(*command, "--out", str(tmp_path / "out")) == 1
    assert "pip install 'rankfall[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_ray.ADDRESS, "nowhere")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("connection refused\nand more")

    monkeypatch.setattr(ray, "init", refuse)
    message = r"^RAY_ADDRESS: no cluster responds at 'nowhere' \(connection refused\)$"
    with pytest.raises(ValueError, match=message), open_engine("ray"):
        pass
