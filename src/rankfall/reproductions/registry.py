"""What can be reproduced. No experiment is imported here: to list them shall cost nothing."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.reproductions.task import Report, Task

PAPERS = {
    "ARF": "Wang et al., Adaptive Neural Ranking Framework, WWW 2024",
    "LambdaLoss@K": "Jagerman et al., On Optimizing Top-K Metrics for Neural Ranking Models, SIGIR 2022",
    "PiRank": "Swezey et al., PiRank: Scalable Learning To Rank via Differentiable Sorting, NeurIPS 2021",
    "LCRON": "Learning Cascade Ranking as One Network, ICML 2025",
    "DFTopK": "Differentiable Fast Top-K Selection for Large-Scale Recommendation, 2025",
}


@dataclass(frozen=True, slots=True)
class Experiment:
    """A published table or figure. Its times are estimates for two cores and the data it runs on by default."""

    name: str
    paper: str  # a key of PAPERS
    shows: str
    quick: str
    full: str
    data: Literal["lists", "impressions"] = "lists"  # what it runs on

    def load(self) -> Callable[[Task], Report]:
        """Import the experiment."""
        module = importlib.import_module(f"rankfall.reproductions.{self.name.replace('-', '_')}")
        run: Callable[[Task], Report] = module.run
        return run


_LISTS = (
    Experiment("arf-table2", "ARF", "nine losses on Recall@30@15, NDCG@15 and NDCG", "30 s", "5 min"),
    Experiment("arf-table6", "ARF", "L_Relax by temperature", "25 s", "3 min"),
    Experiment("arf-table7", "ARF", "NeuralSort (L_Global) by temperature", "25 s", "3 min"),
    Experiment("arf-table8", "ARF", "ARF by temperature", "25 s", "4 min"),
    Experiment("arf-figure2", "ARF", "Recall@m@k trained for one cut, evaluated on another", "40 s", "3 min"),
    Experiment(
        "lambdaloss-table1", "LambdaLoss@K", "LambdaLoss@K against five losses on NDCG@1, @5, all", "40 s", "4 min"
    ),
    Experiment(
        "lambdaloss-table2", "LambdaLoss@K", "the cut-off in LambdaRank, the heuristic, LambdaLoss", "30 s", "4 min"
    ),
    Experiment("lambdaloss-figure1", "LambdaLoss@K", "six losses by learning rate", "1 min", "4 min"),
    Experiment("pirank-table1", "PiRank", "six losses on OPA, ARP, MRR and NDCG", "40 s", "4 min"),
    Experiment(
        "pirank-figure5", "PiRank", "relaxed against hard NDCG@10 over training, by temperature", "15 s", "20 s"
    ),
    Experiment("pirank-figure6", "PiRank", "size of training lists against size of test lists", "25 s", "1 min"),
    Experiment(
        "pirank-figure7", "PiRank", "time of a sort in one piece (depth 1) and in a tree (depth 3)", "15 s", "25 s"
    ),
)
_IMPRESSIONS = (
    ("arf-table3", "ARF", "nine losses on industrial lists of 10 and 20 ads", "40 s", "10 min"),
    ("arf-table5", "ARF", "DiffSort in three losses on the same lists", "20 s", "5 min"),
    ("lcron-table2", "LCRON", "thirteen ways to train a cascade of two stages", "1 min", "60 min"),
    ("lcron-table3", "LCRON", "LCRON without each of its two losses", "20 s", "15 min"),
    ("lcron-table4", "LCRON", "LCRON by the weight of L_single", "25 s", "15 min"),
    ("lcron-table6", "LCRON", "ten ways to train a cascade of three stages", "45 s", "50 min"),
    ("lcron-table7", "LCRON", "soft sorts by themselves and in LCRON, quotas in L_e2e", "30 s", "25 min"),
    ("lcron-table8", "LCRON", "LCRON by temperature", "30 s", "15 min"),
    ("lcron-table9", "LCRON", "nine objectives at learning rate 1e-3, batches of 512", "1 min", "20 min"),
    ("lcron-table10", "LCRON", "nine objectives at learning rate 1e-3, batches of 2048", "40 s", "20 min"),
    ("lcron-table11", "LCRON", "nine objectives at learning rate .02, batches of 512", "1 min", "20 min"),
    ("lcron-table12", "LCRON", "nine objectives at learning rate .02, batches of 2048", "30 s", "20 min"),
    ("dftopk-table1", "DFTopK", "seven operators in LCRON, tested on lists of 200", "40 s", "35 min"),
    ("dftopk-table5", "DFTopK", "DFTopK in LCRON by temperature, lists of 200", "25 s", "20 min"),
    ("dftopk-table6", "DFTopK", "seven operators by random negatives in training, lists of 200", "2 min", "40 min"),
)
EXPERIMENTS = {experiment.name: experiment for experiment in _LISTS} | {
    row[0]: Experiment(*row, data="impressions") for row in _IMPRESSIONS
}


def find_experiment(name: str) -> Experiment:
    """The experiment of that name; another name is a `ValueError` with the closest ones."""
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    close = get_close_matches(name, EXPERIMENTS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(EXPERIMENTS)}"
    raise ValueError(f"there is no experiment {name!r}; {hint}")
