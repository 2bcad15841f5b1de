"""Several processes that train together do what one of them would do alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import rankfall.__main__
from rankfall.data.lists.list_loader import Lists
from rankfall.data.lists.ranking_data import RankingData
from rankfall.registry import names
from rankfall.training.checkpoint import Checkpoints
from rankfall.training.config.load_config import set_option
from rankfall.training.distributed.group import ONE_BY_ONE, Group, LostError, Processes
from rankfall.training.run_directory import check_same_on_all_processes
from support import own_parts, torchrun_program
from support.command_line import run as command
from support.components import required_options
from support.interrupted import cascade_content, outcome, ranker_content, train
from support.logs import random_log
from support.paths import PYTHONPATH
from support.planted import plant
from support.torchrun_program import NORMED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from support.forks import Fork, Forks

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH}
DEADLINE = 600  # seconds, for a machine that is busy
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("torchrun")]  # a group, because tests share what is trained
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# which need options
LOSSES: dict[str, dict[str, int]] = {
    "relax_loss": {"m": 3, "k": 2},
    "arf": {"m": 3, "k": 2},
    "topk_bce_loss": {"k": 2},
    "arf_v2": {"k": 2},
    "lambda_recall_loss": {"m": 3, "k": 2},
}
TOPK = ("dftopk", "lapsum_topk", "sparse_topk", "sigmoid_topk", "hard_topk", "soft_sort", "diff_sort", "pirank_sort")


def objectives() -> list[dict[str, Any]]:
    """Every objective, LCRON with every operator and weight, and every loss of a stage."""
    return [
        *({"name": name} for name in names("objective") if name != "per_stage"),
        *({"name": "lcron", "topk": name, "e2e_weight": "learned", "quotas": [4, 2]} for name in TOPK),
        {"name": "lcron", "e2e_weight": 0},
        {"name": "lcron", "single_weight": 0},
        {"name": "bce", "min_depth": 0, NORMED: True},
        {"name": "lcron", "topk": "dftopk", NORMED: True},
        *(
            {"name": "per_stage", "loss": {"name": name, **(LOSSES.get(name) or required_options("loss", name))}}
            for name in names("loss")
            if name != "grade_softmax_loss"
        ),
    ]


def trainings(directory: Path, data: Path) -> dict[str, dict[str, Any]]:
    """Cascades and a ranker without noise, with shares that differ and are empty."""
    still: dict[str, Any] = {"training": {"epochs": 2, "checkpoint_every": 1e9}}
    normed = {"dim": 4, "hidden": [8], "batch_norm": True}
    names = ("retrieval", "ranking")
    return {
        "bce": cascade_content(directory / "log", **still) | {"objective": {"name": "bce", "min_depth": 0}},
        "lcron": cascade_content(directory / "log", **still)
        | {"objective": {"name": "lcron", "e2e_weight": "learned", "topk": "dftopk"}, "optimizer": {"clip": 0.05}},
        "normed": cascade_content(directory / "log", **still)
        | {
            "objective": {"name": "bce", "min_depth": 0},
            "optimizer": {"name": "sgd", "lr": 0.05},
            "stages": [
                {"name": name, "quota": 6 - 3 * place, "model": {"kind": "mlp", **normed}}
                for place, name in enumerate(names)
            ],
        },
        "own": own_parts.cascade(directory / "log", own_parts.write_parts(directory / "code"))
        | {"training": {"epochs": 2, "batch": 16, "checkpoint_every": 1e9}},
        "ranker": ranker_content(
            data,
            model={"kind": "mlp", "hidden": [8], "dropout": [0.0]},
            loss={"name": "arf_v2", "k": 5, "tau": 5.0},
            training={"epochs": 2, "batch": 27, "checkpoint_every": 1e9},
        ),
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("together")
    random_log(directory / "log", impressions=17)
    for name, content in trainings(directory, plant(directory / "planted")).items():
        (directory / f"train-{name}.json").write_text(json.dumps(content))
    (directory / "gradients.json").write_text(json.dumps(objectives()))
    return directory


@pytest.fixture(scope="module")
def found(place: Path) -> dict[str, Any]:
    """What two processes found."""
    done = subprocess.run(
        [*LAUNCH, torchrun_program.__file__, str(place)], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((place / "found.json").read_text())
    assert result["world"] == [0, 1]
    return result


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


# --- the same as one ------------------------------------------------------------------------------------------------


def test_gradients_of_shares_are_those_of_the_batch(found: dict[str, Any]) -> None:
    differences = dict(zip(map(str, objectives()), found["gradients"], strict=True))
    assert {name: worst for name, worst in differences.items() if not worst < 1e-9} == {}


@pytest.mark.parametrize("name", ["bce", "lcron", "normed", "own", "ranker"])
def test_two_processes_train_what_one_does(name: str, found: dict[str, Any], place: Path, tmp_path: Path) -> None:
    train(json.loads((place / f"train-{name}.json").read_text()), tmp_path)
    one, two = lines(tmp_path), lines(place / "together" / name)
    # Sums of 32 bits in another order: a few units of their last digit a batch.
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=1e-5)
    measured = "metric" if name == "ranker" else "validation"
    assert [line[measured] for line in two] == [line[measured] for line in one]
    for run_one, run_two in zip(one, two, strict=True):
        for key, value in run_one["trained"].items():
            assert run_two["trained"][key] == pytest.approx(value, rel=1e-4)
    weights, others = (
        load_file(run / "checkpoints" / "last.safetensors") for run in (tmp_path, place / "together" / name)
    )
    for key in weights:
        # Shifted scores change nothing for these losses, so the gradient of a last bias is 0 but for rounding, of which
        # Adam makes steps of full length.
        if name in ("lcron", "own", "ranker") and key.endswith("out.bias"):
            continue
        torch.testing.assert_close(others[key], weights[key], rtol=1e-3, atol=1e-4)
    assert sorted(path.name for path in (place / "together" / name).rglob("*")) == sorted(
        path.name for path in tmp_path.rglob("*")
    )


def test_every_process_has_the_same_statistics_of_batch_norm(found: dict[str, Any]) -> None:
    first, second = found["statistics"]
    assert first == second
    assert any("running_mean" in name for name in first)


def test_every_process_has_noise_of_its_own(found: dict[str, Any]) -> None:
    first, second = found["noise"]
    torch.manual_seed(0)
    assert first == [torch.rand(2).tolist() for _ in range(3)]  # as if nobody else was there
    assert second[1] == second[2] != second[0]
    assert second[0] not in first


def test_gradients_are_reduced_one_by_one_if_some_are_sparse(found: dict[str, Any]) -> None:
    for dense, sparse in found["threads"]:
        assert dense > 1  # which is faster
        assert sparse == 1  # as more of them corrupt memory


def test_what_one_refuses_all_refuse(found: dict[str, Any]) -> None:
    first, second = found["refused"]
    assert first == ["OSError: no 0", "PeerError: process 1 of 2: no 1", "OSError: no 0", ""]
    assert second == [
        "PeerError: process 0 of 2: no 0",
        "PeerError: process 1 of 2: no 1",
        "PeerError: process 0 of 2: no 0",
        "",
    ]


def test_all_processes_find_that_nothing_is_trained(found: dict[str, Any]) -> None:
    what = "the gradient of all weights of retrieval and of ranking was exactly 0 in all 4 batches of epoch 1"
    first, second = found["untrained"]
    assert first.startswith(f"TrainingError: per_stage: {what}")
    assert second.startswith(f"PeerError: process 0 of 2: per_stage: {what}")


def test_shares_of_a_batch_of_lists(place: Path) -> None:
    data = RankingData.load(place / "planted" / "data")
    lists = Lists([data["S1"]])
    whole = lists.batch(np.arange(7), rng=np.random.default_rng(0), max_list=12)
    scores = torch.randn(len(whole.rows))
    parts = [whole.part(slice(start, stop)) for start, stop in ((0, 0), (0, 3), (3, 7))]
    at = 0
    for part, count in zip(parts, (0, 3, 4), strict=True):
        assert len(part) == count
        own = scores[at : at + len(part.rows)]
        at += len(part.rows)
        padded = torch.cat([whole.pad(scores), whole.labels])  # what stands where, and with which label
        rows = slice(int(whole.lists.tolist().index(part.lists[0])), None) if count else slice(0, 0)
        assert torch.equal(part.pad(own), padded[: len(whole)][rows][:count])
        assert torch.equal(part.labels, whole.labels[rows][:count])
    assert at == len(scores)


def test_processes_must_have_same_config_and_data() -> None:
    one = ({"optimizer": {"lr": 0.1}, "data": {"path": "a"}}, {"day 1": "x"})
    check_same_on_all_processes([one, ({"optimizer": {"lr": 0.1}, "data": {"path": "b"}}, {"day 1": "x"})])
    with pytest.raises(ValueError, match=r"optimizer\.lr: found 0\.1 in process 0 and 0\.2 in process 2"):
        check_same_on_all_processes([one, one, ({"optimizer": {"lr": 0.2}, "data": {"path": "a"}}, {"day 1": "x"})])
    with pytest.raises(ValueError, match=r"data\.path: day 1 of process 1 differs from that of process 0"):
        check_same_on_all_processes([one, (one[0], {"day 1": "y"})])
    code = [(one[0], {**one[1], "the code /home/ada/loss.py": digest}) for digest in "ab"]
    with pytest.raises(ValueError, match=r"^the code /home/ada/loss\.py of process 1 differs from that of process 0"):
        check_same_on_all_processes(code)


# --- what is kept ---------------------------------------------------------------------------------------------------


class Twin(Group):
    """The first of two processes, the other of which has the same share of every batch, and may be lost."""

    world = 2

    def __init__(self, lost_after: int | None = None) -> None:
        self.left = lost_after

    def totals(self, numbers: Sequence[float]) -> list[float]:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise LostError("one of the 2 processes ended")
        return [2 * number for number in numbers]


@pytest.fixture(scope="module")
def noisy(place: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], Path]]:
    """Trainings with noise, batch norm, negatives and a schedule, and what comes of them."""
    batches = {"training": {"batch": 6}}  # so that no share is empty
    contents = {
        "cascade": cascade_content(place / "log", **batches),
        "ranker": ranker_content(place / "planted" / "data"),
    }
    runs = {name: tmp_path_factory.mktemp("noisy") / name for name in contents}
    for name, content in contents.items():
        train(set_option(content, "training.checkpoint_every", 1e9), runs[name], group=Twin())
    return {name: (content, runs[name]) for name, content in contents.items()}


@pytest.mark.parametrize("kind", ["cascade", "ranker"])
@pytest.mark.parametrize("lost_after", [2, 5, 7, 8, 13])  # exchanges, of which a batch has three
def test_what_was_trained_before_a_loss_is_kept(
    kind: str, lost_after: int, noisy: dict[str, tuple[dict[str, Any], Path]], tmp_path: Path
) -> None:
    content, whole = noisy[kind]
    content, run = set_option(content, "training.checkpoint_every", 1e9), tmp_path / "run"
    with pytest.raises(LostError, match=r"processes ended\. Training ended after batch \d of \d in epoch \d\. A check"):
        train(content, run, group=Twin(lost_after))
    assert newest(run) == (lost_after + 1) // 3  # two exchanges come before the weights change, one after it
    train(content, run, resume=True, group=Twin())
    assert outcome(run) == outcome(whole)


def test_what_is_lost_before_anything_was_trained(
    noisy: dict[str, tuple[dict[str, Any], Path]], tmp_path: Path
) -> None:
    with pytest.raises(LostError, match=r"ended before the first batch\. There is no checkpoint yet: once the cause"):
        train(noisy["ranker"][0], tmp_path / "run", group=Twin(0))


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """A group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield Processes(torch.device("cpu"), timeout=7)
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("gloo: Connection reset by peer"), "one of the 1 processes ended"),
        (RuntimeError("gloo: Timed out waiting 7000ms"), "did not answer for 7 seconds"),
        (dist.DistStoreError("wait timeout after 7000ms"), "did not answer for 7 seconds"),
    ],
)
def test_it_is_said_whether_a_process_ended_or_is_silent(error: Exception, said: str, processes: Processes) -> None:
    with pytest.raises(LostError, match=said), processes.watching():
        raise error


@pytest.mark.usefixtures("processes")
def test_sparse_gradients_go_through_the_network_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "missing0")
    with pytest.raises(RuntimeError, match="missing0"):
        dist.new_group(backend=ONE_BY_ONE)


# --- the command ----------------------------------------------------------------------------------------------------


def start(forks: Forks, config: Path, run: Path, *options: str, launch: tuple[str, ...] = ()) -> Fork:
    """Start torchrun, whose processes are forks, as importing torch in each would take longer than their training."""
    program = ["--start-method", "fork", "--run-path", rankfall.__main__.__file__, "train", str(config)]
    call = "torch.distributed.run:main"
    return forks.start(*LAUNCH[3:], *launch, *program, "--out", str(run), *options, call=call)


def wait_for(condition: Callable[[], bool], process: Fork) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def newest(run: Path) -> int:
    """After how many batches there is a checkpoint."""
    return max((int(path.stem.partition("-")[2]) for path in Checkpoints(run / "checkpoints", 9).paths()), default=0)


def kill_process(launcher: Fork, rank: int) -> None:
    """Kill one of the processes that torchrun started, which it does in the order of ranks."""
    children = launcher.children()
    assert len(children) == 2
    os.kill(children[rank], signal.SIGKILL)


@pytest.fixture(scope="module")
def config(place: Path) -> Path:
    """A training of some eighty batches, without checkpoints but those of epochs."""
    content = json.loads((place / "train-bce.json").read_text())
    (place / "config.yaml").write_text(json.dumps(set_option(content, "training.epochs", 20)))
    return place / "config.yaml"


@pytest.fixture(scope="module")
def whole(config: Path, place: Path) -> Path:
    """That training by one process, which nobody interrupts."""
    train(json.loads(config.read_text()), place / "whole")
    return place / "whole"


def assert_same_curve(run: Path, other: Path) -> None:
    """The first epochs of one training; later ones differ more as rounding adds up."""
    for one, two in zip(lines(run)[:4], lines(other)[:4], strict=True):
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-4)
    assert len(lines(run)) == len(lines(other))


def test_processes_are_lost_and_started_again(forks: Forks, config: Path, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    launcher = start(forks, config, run, launch=("--max-restarts", "1"))
    wait_for(lambda: newest(run) >= 4, launcher)
    kill_process(launcher, 0)
    before = lines(run)[: newest(run) // 4]  # an epoch is noted before its checkpoint is written
    wait_for(lambda: newest(run) >= 12, launcher)
    kill_process(launcher, 1)  # for which there is no further start
    said = launcher.communicate()[1]
    assert launcher.returncode == 1
    first, _, second = said.partition("error: one of the 2 processes ended. Training ended after batch ")[2].partition(
        "error: one of the 2 processes ended. Training ended after batch "
    )
    assert "The same command with --resume continues from the last checkpoint" in first  # of the one that was left
    assert f"A checkpoint was written; the same command with --resume continues {run} from there" in second
    assert "rankfall/training" not in said
    assert before
    assert lines(run)[: len(before)] == before  # the seconds of an epoch that came again would be others
    step = newest(run)
    assert not list(run.rglob("*.tmp"))

    steps: list[Any] = []
    heard: list[str] = []
    train(json.loads(config.read_text()), run, resume=True, on_notice=heard.append, progress=steps.append)
    assert [note for note in heard if "was started with processes 2, now 1" in note]
    assert (steps[0].epoch - 1) * steps[0].batches + steps[0].batch == step + 1
    assert_same_curve(run, whole)


def test_all_stop_after_the_same_batch(forks: Forks, config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    launcher = start(forks, config, run, "training.epochs=100000")
    wait_for(lambda: newest(run) >= 4, launcher)
    launcher.send_signal(signal.SIGTERM)
    said = launcher.communicate()[1]
    assert f"the same command with --resume continues {run} from there" in said
    assert "error: " not in said.partition("Traceback")[0]
    step = int(said.partition("stopped after batch ")[2].split()[0])
    assert newest(run) % 4 == step % 4


@pytest.mark.parametrize(("rank", "said"), [("0", "torchrun: compare runs in one process"), ("1", "")])
def test_other_commands_are_not_shared(
    rank: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": rank}.items():
        monkeypatch.setenv(name, value)
    assert command("compare", "config.yaml", "--out", "nowhere") == 1
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == (1 if said else 0)
