"""ARF, table 3: nine losses of one ranking stage on industrial lists of ads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.industry import IndustrySet, compare_losses, loss

if TYPE_CHECKING:
    from rankfall.reproductions.cascade_setup import CascadeMethod
    from rankfall.reproductions.task import Report, Task

TAUS = (5.0, 1.0)  # of a soft sort
SOFTMAX_NOTE = (
    "The paper's Softmax classifies the label of each ad; a stage gives one score an ad, so ours is the softmax over "
    "the list, and is no part of the counted pairs."
)

FIGURES = {
    "easy": {
        "Softmax (n-class)": (0.893, 0.904, 0.971),
        "RankNet": (0.928, 0.924, 0.978),
        "ApproxNDCG": (0.935, 0.944, 0.984),
        "NeuralSort (L_Global)": (0.940, 0.945, 0.984),
        "LambdaLoss": (0.928, 0.938, 0.982),
        "LambdaLoss@K": (0.935, 0.948, 0.985),
        "Lambda-Recall@m@k": (0.931, 0.937, 0.979),
        "L_Relax": (0.942, 0.945, 0.981),
        "ARF": (0.958, 0.949, 0.985),
    },
    "hard": {
        "Softmax (n-class)": (0.854, 0.902, 0.972),
        "RankNet": (0.890, 0.932, 0.979),
        "ApproxNDCG": (0.893, 0.948, 0.984),
        "NeuralSort (L_Global)": (0.884, 0.947, 0.982),
        "LambdaLoss": (0.882, 0.939, 0.980),
        "LambdaLoss@K": (0.897, 0.950, 0.984),
        "Lambda-Recall@m@k": (0.902, 0.929, 0.978),
        "L_Relax": (0.910, 0.943, 0.983),
        "ARF": (0.917, 0.951, 0.989),
    },
}


def methods(of: IndustrySet) -> dict[str, CascadeMethod]:
    """The losses, those with cuts by the cuts of the set."""
    return {
        "Softmax (listwise)": loss("softmax_loss"),
        "RankNet": loss("ranknet_loss"),
        "ApproxNDCG": loss("approx_ndcg_loss", 1.0, 0.1),
        "NeuralSort (L_Global)": loss("sort_cross_entropy_loss", *TAUS),
        "LambdaLoss": loss("lambda_loss"),
        "LambdaLoss@K": loss("lambda_loss", k=of.k),
        "Lambda-Recall@m@k": loss("lambda_recall_loss", m=of.m, k=of.k),
        "L_Relax": loss("relax_loss", *TAUS, m=of.m, k=of.k),
        "ARF": loss("arf", *TAUS, m=of.m, k=of.k),
    }


def run(task: Task) -> Report:
    """Compare the nine losses."""
    return compare_losses(task, "arf-table3", "ARF, table 3", methods, FIGURES, [SOFTMAX_NOTE])
