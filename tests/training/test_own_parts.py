"""Components of users in training: their sources, errors in their code, and what a run stores of them."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from rankfall._config import ConfigError
from rankfall.cascade import Cascade
from rankfall.models.build import tables_of
from rankfall.registry.references import Source, SourceError, check_present
from rankfall.storage.files import checksum
from rankfall.studies.comparison_plan import check_comparison, validated
from rankfall.studies.evaluate import evaluate_run
from rankfall.training.config.load_config import merge, validate_any
from rankfall.training.methods import method_of
from rankfall.training.run_directory import OwnCodeError, Stopped, TrainingError, sources_of, stored_sources
from rankfall.training.train_cascade import load_run
from support.interrupted import train
from support.own_parts import PARTS, cascade, write_parts
from support.planted import config_for

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    return write_parts(tmp_path / "code")


def changed(path: Path, old: str, new: str) -> None:
    """Replace a text of the components."""
    assert old in PARTS
    path.write_text(PARTS.replace(old, new))


# --- what a configuration names -------------------------------------------------------------------------------------


def test_sources_are_those_of_all_components(parts: Path, log: Path, data: Path) -> None:
    nested = {"objective": {"name": "per_stage", "loss": {"name": f"{parts}:squared"}}}
    configs = [
        cascade(log, parts),
        cascade(log, parts, **nested, stage_metrics=[f"{parts}:first@1"]),
        ranker(data, parts),
    ]
    found = {
        (one.kind, one.name.rpartition(":")[2].partition("@")[0])
        for config in configs
        for one in sources_of(validate_any(config))
    }
    assert found == {
        *(("model", name) for name in ("Tower", "Rows")),
        ("objective", "Mine"),
        ("operator", "soft"),
        ("loss", "squared"),
        ("metric", "first"),
    }
    (source, *_) = sources_of(validate_any(configs[0]))
    assert source == Source("model", f"{parts.resolve()}:Tower", str(parts.resolve()), checksum(parts))


def test_what_is_built_in_has_no_source(data: Path) -> None:
    assert sources_of(validate_any(config_for(data))) == []


def ranker(data: Path, parts: Path, **changes: Any) -> dict[str, Any]:
    base = config_for(
        data,
        model={"kind": f"{parts}:Rows", "scale": 0.5},
        loss={"name": f"{parts}:squared", "margin": 0.1},
        training={"epochs": 1},
    )
    base["metrics"] = ["ndcg@10", f"{parts}:first@2"]
    return merge(base, changes)


# --- runs -----------------------------------------------------------------------------------------------------------


def test_a_cascade_is_trained_stored_and_loaded(parts: Path, log: Path, tmp_path: Path) -> None:
    train(cascade(log, parts), tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "components.json").read_text())
    assert {(one["kind"], one["sha256"]) for one in stored} == {
        (kind, checksum(parts)) for kind in ("model", "objective", "operator")
    }
    _, loaded = load_run(tmp_path / "run")
    weights = loaded.models["ranking"].state_dict()
    assert type(loaded.models["ranking"]).__name__ == "Tower"
    evaluation = evaluate_run(tmp_path / "run")
    assert 0 < evaluation.summary().metrics["joint_recall"] <= 1
    again = Cascade.load(tmp_path / "run" / "checkpoints" / "best.safetensors").models["ranking"].state_dict()
    assert all(weights[name].equal(again[name]) for name in weights)


def test_a_ranker_is_trained_and_evaluated(parts: Path, data: Path, tmp_path: Path) -> None:
    train(ranker(data, parts), tmp_path / "run")
    means = evaluate_run(tmp_path / "run").summary().metrics
    (own,) = (value for name, value in means.items() if "first@2" in name)
    assert 0 <= own <= 3
    assert means["ndcg@10"] > 0.3


def test_a_loss_of_logits_needs_a_model_with_grades(parts: Path, data: Path, tmp_path: Path) -> None:
    train(ranker(data, parts, loss={"name": f"{parts}:graded"}, model={"kind": "linear"}), tmp_path / "run")
    assert evaluate_run(tmp_path / "run").summary().metrics["ndcg@10"] > 0.3
    with pytest.raises(ConfigError, match=r"one logit per label grade, but .*Rows has no parameter `grades`"):
        train(ranker(data, parts, loss={"name": f"{parts}:graded"}), tmp_path / "other")


def test_an_operator_of_ones_own_equals_the_built_in_that_it_calls(parts: Path, log: Path, tmp_path: Path) -> None:
    both = {"own": f"{parts}:soft", "ours": "lapsum_topk"}
    for name, operator in both.items():
        train(cascade(log, parts, objective={"name": "lcron", "topk": {"name": operator, "tau": 5.0}}), tmp_path / name)
    own, ours = (json.loads((tmp_path / name / "metrics.jsonl").read_text()) for name in both)
    assert own["parts"] == pytest.approx(ours["parts"], rel=1e-5)  # ours is computed in log space


def test_a_loss_without_weights_cannot_weight_items(parts: Path, log: Path, tmp_path: Path) -> None:
    objective = {"name": "per_stage", "loss": {"name": f"{parts}:squared"}}
    config = cascade(log, parts, objective=objective, weight={"of": "relevance"})
    train(config, tmp_path / "run")
    changed(parts, "mask=None, weight=None, margin", "mask=None, margin")
    with pytest.raises(ConfigError, match="objective: weight: the loss has no parameter `weight`"):
        train(config, tmp_path / "other")


def test_a_first_stage_of_ones_own_scores_all_items(parts: Path, log: Path, tmp_path: Path) -> None:
    config = cascade(log, parts)
    config["stages"][0]["model"] = {"kind": f"{parts}:Tower"}
    train(config, tmp_path / "run")
    summary = evaluate_run(tmp_path / "run", overrides=["data.length=all"]).summary()
    assert summary.lists is not None
    assert summary.lists.all_items
    assert 0 <= summary.metrics["joint_recall"] <= 1
    own = f"stage_metrics=[{parts}:first@1]"  # overrides are the caller's, so that their code needs no trust
    assert any("first@1" in name for name in evaluate_run(tmp_path / "run", overrides=[own]).summary().metrics)


# --- code that changes or is missing --------------------------------------------------------------------------------


def test_a_changed_model_is_refused_and_a_changed_objective_is_noted(parts: Path, log: Path, tmp_path: Path) -> None:
    run, before = tmp_path / "run", checksum(parts)
    objective = write_parts(tmp_path / "objective")
    train(cascade(log, parts, objective={"name": f"{objective}:Mine"}), run)
    changed(objective, "one soft top-k", "a soft top-k")
    other = cascade(log, parts, objective={"name": f"{objective}:Mine"}, training={"seed": 1})
    train(other, tmp_path / "other")  # so that the new content is trusted
    heard: list[str] = []
    evaluate_run(run, on_notice=heard.append)
    assert heard[0].startswith(
        f"the objective Mine has changed since training: {objective} had sha256 {before[:12]} and"
    )
    changed(parts, "A linear model", "A model")
    untrusted = rf"(?s){parts}.*have not trained with this file as it is now.*\nnote: the model Tower has changed since"
    with pytest.raises(ConfigError, match=untrusted):
        evaluate_run(run)
    train(merge(other, {"training": {"seed": 2}}), tmp_path / "third")
    after = checksum(parts)
    with pytest.raises(
        SourceError, match=rf"Tower has changed.*{before[:12]} and has sha256 {after[:12]}.*train again"
    ):
        evaluate_run(run)
    evaluate_run(run, trust=True, on_notice=heard.append)
    assert any("the model Tower has changed since training" in text for text in heard)


def test_missing_code_is_named_with_its_hash(parts: Path, log: Path, tmp_path: Path) -> None:
    train(cascade(log, parts), tmp_path / "run")
    digest = checksum(parts)
    parts.unlink()
    with pytest.raises(SourceError, match=rf"run was trained with code that does not exist: {parts} .*{digest[:12]}"):
        evaluate_run(tmp_path / "run", trust=True)


def test_a_module_that_is_not_found_from_here(parts: Path) -> None:
    source = Source("loss", "parts_elsewhere:squared", str(parts), checksum(parts))
    with pytest.raises(
        SourceError, match=rf"parts_elsewhere is not found from here; it was {parts}.*in {parts.parent}"
    ):
        check_present([source], "runs/first")
    registered = Source("loss", "of_a_notebook", str(parts), checksum(parts))
    with pytest.raises(SourceError, match=rf"'of_a_notebook' was defined in {parts} .* neither registered in this"):
        check_present([registered], "runs/first")


def test_resuming_with_other_code_is_refused(parts: Path, log: Path, tmp_path: Path) -> None:
    config = cascade(log, parts, training={"epochs": 2, "checkpoint_every": 0})
    with pytest.raises(Stopped):
        train(config, tmp_path / "run", stop=lambda: True)
    changed(parts, "width: int = 4", "width: int = 5")
    with pytest.raises(ConfigError, match=rf"was started with other code: {parts} had sha256 .* and has .*--force"):
        train(config, tmp_path / "run", resume=True)
    write_parts(parts.parent)
    train(config, tmp_path / "run", resume=True)
    train(config, tmp_path / "whole")
    whole, resumed = (load_run(tmp_path / name)[1].state_dict() for name in ("whole", "run"))
    assert all(whole[key].equal(resumed[key]) for key in whole)


def test_the_name_of_a_run_depends_on_the_code_and_not_on_its_place(log: Path, tmp_path: Path) -> None:
    from rankfall.studies.comparison_plan import ComparisonConfig, make_plan

    def name(parts: Path) -> str:
        config = cascade(log, parts)
        content = {**config, "methods": {"own": {}}, "seeds": [0]}
        plan = make_plan(validated(ComparisonConfig, content, "test"), tmp_path / "out")
        ((run,),) = plan.trials().values()
        return run.directory.name

    parts = write_parts(tmp_path / "one")
    first = name(parts)
    assert first.startswith("Mine-")
    assert name(write_parts(tmp_path / "two")) == first
    changed(parts, "A linear model", "A model")
    assert name(parts) != first


# --- errors in users' code ------------------------------------------------------------------------------------------


def line_of(text: str) -> int:
    return PARTS.splitlines().index(text) + 1


def test_wrong_output_of_a_model_is_refused_before_training(parts: Path, log: Path, tmp_path: Path) -> None:
    def refused(old: str, new: str) -> str:
        changed(parts, old, new)
        with pytest.raises(ValueError, match=r"Tower") as raised:
            train(cascade(log, parts), tmp_path / "run")
        assert not (tmp_path / "run").exists()
        return str(raised.value)

    shape = refused("squeeze(-1).masked_fill(~batch.mask, 0.0)", "mean(1)")
    assert f"the model of ranking, {parts}:Tower, returned the shape (2, 1), expected (B, N), (2, " in shape
    assert "returned tuple, expected a tensor" in refused("return self.out(items)", "return 1, self.out(items)")
    assert "NaN or infinite" in refused("return self.out(items)", "return torch.nan * self.out(items)")
    assert "expected floating-point" in refused("masked_fill(~batch.mask, 0.0)", "long()")
    labels = refused("self.out(items).squeeze(-1)", "batch.grade")
    assert "a batch has no 'grade' for models, which read user, context, " in labels
    assert (
        f"{parts}, line {line_of('        return self.out(items).squeeze(-1).masked_fill(~batch.mask, 0.0)')}" in labels
    )


def test_wrong_output_of_a_ranker_is_refused(parts: Path, data: Path, tmp_path: Path) -> None:
    changed(parts, "self.out(rows).squeeze(-1)", "self.out(rows)")
    with pytest.raises(ConfigError, match=r"Rows returned the shape \(3, 1\), expected \(rows,\), \(3,\) here"):
        train(ranker(data, parts), tmp_path / "run")
    changed(parts, "/ real.sum()", "/ real.sum(-1)")
    with pytest.raises(ConfigError, match=r"squared returned the shape \(1,\), expected one number"):
        train(ranker(data, parts, model={"kind": "linear"}), tmp_path / "run")


def test_a_model_without_weights_is_a_warning(parts: Path, log: Path, tmp_path: Path) -> None:
    text = PARTS.replace("self.out = nn.Linear(width + 1, 1)", "").replace("self.table = nn.Embedding", "nn.Embedding")
    write_parts(
        parts.parent, text.replace("items = torch.cat", "return batch.items['price']\n        items = torch.cat")
    )
    heard: list[str] = []
    train(cascade(log, parts), tmp_path / "run", on_notice=heard.append)
    assert any("Tower, has no weights, so that training does not change it" in text for text in heard)
    config = cascade(log, parts)
    config["stages"] = [config["stages"][1]]
    with pytest.raises(ConfigError, match="no model has weights"):
        train(config, tmp_path / "other", on_notice=heard.append)


@pytest.mark.parametrize("error", ["RuntimeError", "ValueError", "SystemExit"])
def test_errors_name_the_component_and_the_line(error: str, parts: Path, log: Path, data: Path, tmp_path: Path) -> None:
    raised = f"raise {error}('no idea')"
    changed(parts, "return self.scale * self", f"if len(rows) != 3: {raised}\n        return self.scale * self")
    with pytest.raises(ValueError, match=rf"no idea \({parts}, line \d+, in Rows.forward\)"):
        train(ranker(data, parts), tmp_path / "ranker")
    changed(parts, "truth = batch.truth", f"{raised}; truth = batch.truth")
    line = line_of("        truth = batch.truth(self.relevant)")
    with pytest.raises(ValueError, match=rf"no idea \({parts}, line {line}, in Mine.terms\)"):
        train(cascade(log, parts), tmp_path / "cascade")
    with pytest.raises(ConfigError, match=rf"config: .*no idea \({parts}, line {line}, in Mine.terms\)"):
        method_of(validate_any(cascade(log, parts))).check_components()


def test_errors_of_a_metric_name_it(parts: Path, data: Path, tmp_path: Path) -> None:
    changed(
        parts, "    real = scores if mask is None", "    raise KeyError('no idea')\n    real = scores if mask is None"
    )
    with pytest.raises(OwnCodeError, match=rf"first: KeyError: 'no idea' \({parts}, line \d+, in first\)"):
        train(ranker(data, parts), tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()  # before any training


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("return 0.5", "found float, expected a tensor, one value per list"),
        ("return scores", r"found values of shape \(2, 4\), expected one value per list, \(2,\)"),
    ],
)
def test_metrics_that_return_something_else_are_refused_before_training(
    parts: Path, log: Path, data: Path, tmp_path: Path, line: str, message: str
) -> None:
    changed(parts, "    real = scores if mask is None", f"    {line}\n    real = scores if mask is None")
    with pytest.raises(ConfigError, match=f"metric .*first@2: {message}"):
        train(ranker(data, parts), tmp_path / "ranker")
    with pytest.raises(ConfigError, match=f"metric .*first@1: {message}"):
        train(cascade(log, parts, stage_metrics=[f"{parts}:first@1"]), tmp_path / "cascade")


def test_a_loss_without_a_gradient_is_refused(parts: Path, log: Path, data: Path, tmp_path: Path) -> None:
    changed(parts, "return (((scores - labels)", "return (((scores.detach() - labels)")
    with pytest.raises(TrainingError, match="the loss has no gradient"):
        train(ranker(data, parts), tmp_path / "ranker")
    changed(parts, "-(truth * log_p).sum(-1).mean()", "-(truth * log_p).sum(-1).mean().detach()")
    with pytest.raises(TrainingError, match="the loss has no gradient"):
        train(cascade(log, parts), tmp_path / "cascade")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "        return terms\n",
            "        return {}\n",
            "Mine.terms returned an empty dictionary, expected",
        ),
        (
            "        return terms\n",
            "        return truth.sum()\n",
            "Mine.terms returned Tensor, expected a dictionary",
        ),
        (
            ".sum(-1).mean()",
            ".sum(-1)",
            r"Mine.terms returned the shape \(1,\) as 'stage1/kept'",
        ),
        (".sum(-1).mean()", ".sum(-1).mean().item()", "Mine.terms returned float as 'stage1/kept', expected"),
        (
            "super().__init__(stages)\n        self.relevant,",
            "self.relevant,",
            r"Mine has no number of stages, expected super\(\).__init__\(stages\)",
        ),
        (
            "return rf.ops.lapsum_topk(scores, k, mask=mask, tau=tau)",
            "return scores - 5",
            "soft returned values from -5 to -3 .* expected inclusion probabilities from 0 to 1",
        ),
        (
            "return rf.ops.lapsum_topk(scores, k, mask=mask, tau=tau)",
            "return scores * float('nan')",
            "soft returned values from nan to nan",
        ),
    ],
)
def test_wrong_output_of_an_objective_or_operator_is_refused(
    old: str, new: str, message: str, parts: Path, log: Path
) -> None:
    changed(parts, old, new)
    with pytest.raises(ConfigError, match=f"config: objective: {message}"):
        method_of(validate_any(cascade(log, parts))).check_components()


def test_names_without_a_colon_are_recognised(parts: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match=r"found 'my.losses.focal', did you mean 'my.losses:focal'"):
        validate_any(ranker(data, parts, loss={"name": "my.losses.focal"}))
    with pytest.raises(ConfigError, match=rf"found '{parts}', did you mean '{parts}:NAME'"):
        validate_any(ranker(data, parts, model={"kind": str(parts)}))


def test_an_error_of_somebody_else_stays_as_it_is(parts: Path, log: Path, tmp_path: Path) -> None:
    def broken(step: object) -> None:
        raise KeyError("not the user's")

    with pytest.raises(KeyError, match="not the user's"):
        train(cascade(log, parts), tmp_path / "run", progress=broken)


def test_a_comparison_refuses_what_raises_when_it_is_called(parts: Path, log: Path) -> None:
    from rankfall.studies.comparison_plan import ComparisonConfig

    changed(parts, "truth = batch.truth", "truth = batch.nothing")
    content = {**cascade(log, parts), "methods": {"own": {}}, "seeds": [0]}
    with pytest.raises(ConfigError, match=r"methods.own: .*'nothing'.*in Mine.terms"):
        check_comparison(validated(ComparisonConfig, content, "test"))


def test_a_state_directory_that_cannot_be_written_is_a_warning(
    parts: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="later commands will ask for --trust"):
        train(ranker(data, parts), tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [one.kind for one in stored_sources(tmp_path / "run")] == ["model", "loss", "metric"]


def test_shared_tables_of_own_models(parts: Path, log: Path, tmp_path: Path) -> None:
    table = 'self.table = nn.Embedding(features.tables["video"], width)'
    embedding = "self.embedding = rf.models.FeatureEmbedding(features, dim=width, tables=tables)"
    text = PARTS.replace("features, *, width: int = 4", "features, *, tables=None, width: int = 4")
    text = text.replace(table, f"{embedding}\n        self.table = self.embedding.tables['video']")
    write_parts(parts.parent, text)
    config = cascade(log, parts, share=["video"])
    config["stages"][1]["model"]["width"] = 4
    train(config, tmp_path / "run")
    _, loaded = load_run(tmp_path / "run")
    first, second = (tables_of(model)["video"] for model in loaded.models.values())
    assert first is second


def test_own_code_error_is_a_value_error() -> None:
    assert issubclass(OwnCodeError, ValueError)
