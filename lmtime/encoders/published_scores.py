"""Scores that others published for sub-networks, with what is known of their noise.

DynaBERT's (Hou et al. 2020): 12 sub-networks of BERT-base on GLUE's development sets.
`data/published/README.md` says where they were read. Standard library only.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from lmtime.errors import unknown
from lmtime.records import data_file

# Ours: the paper's name, and examples in the development set (github.com/huggingface/datasets at
# 040102f, datasets/glue/dataset_infos.json)
TASKS = {
    "mnli": ("MNLI-m", 9_815),
    "mnli-mm": ("MNLI-mm", 9_832),
    "qqp": ("QQP", 40_430),
    "qnli": ("QNLI", 5_463),
    "sst2": ("SST-2", 872),
    "cola": ("CoLA", 1_043),
    "stsb": ("STS-B", 1_500),
    "mrpc": ("MRPC", 408),
    "rte": ("RTE", 277),
}
METRICS = {"accuracy": "accuracy", "matthews_corr": "matthews", "spearman_corr": "spearman"}
BACKBONES = ("bert-base", "roberta-base")
N_LAYERS, N_HEADS, FFN_SIZE = 12, 12, 3_072  # of both backbones
ACCEPTABLE = 719 / 1_043  # share of CoLA's development set


@dataclass(frozen=True)
class PublishedScore:
    """The score of one sub-network in points: the best of a training run, with one seed.

    width: share of the heads and of the feed-forward units of every layer; depth: of the layers.
    """

    width: Fraction
    depth: Fraction
    score: float
    metric: str
    n_examples: int

    @property
    def n_heads(self) -> int:
        """Attention heads a layer."""
        return int(N_HEADS * self.width)

    @property
    def ffn_size(self) -> int:
        """Feed-forward units a layer."""
        return int(FFN_SIZE * self.width)

    @property
    def n_layers(self) -> int:
        """Layers that are left."""
        return int(N_LAYERS * self.depth)

    @property
    def standard_error(self) -> float:
        """Of the score, in points, over development sets of this size; see STANDARD_ERRORS."""
        return 100 * STANDARD_ERRORS[self.metric](self.score / 100, self.n_examples)

    def samples(self) -> list[float]:
        """(n_examples,) values in points whose mean is the score, and its resamples as noisy.

        For fronts with their uncertainty, resampled UNPAIRED. An accuracy gives 100 for each
        example that was right and 0 for the others. A correlation is no mean of examples: two
        values stand in for it, at the distance that gives its standard error. No outcome of a
        single example was published, so that it is not known which ones two networks both got
        right: the noise of their difference is overstated, and a front less sure than it was.
        """
        n = self.n_examples
        if self.metric == "accuracy":
            n_right = round(self.score / 100 * n)
            return [100.0] * n_right + [0.0] * (n - n_right)
        half = n // 2
        reach = self.standard_error * n / math.sqrt(2 * half)
        return [self.score + reach] * half + [self.score - reach] * half + [self.score] * (n % 2)


def _of_accuracy(share: float, n: int) -> float:
    """Of a binomial share."""
    return math.sqrt(share * (1 - share) / n)


def _of_matthews(phi: float, n: int) -> float:
    """Of the correlation of two classes (Bishop, Fienberg and Holland 1975, 11.3), approximately.

    The shares of both classes among the predictions were not published: those of CoLA's labels
    are taken for them.
    """
    p = ACCEPTABLE
    skew = (2 * p - 1) ** 2 / (p * (1 - p))
    variance = 1 - phi**2 + phi * (1 + phi**2 / 2) * skew - 1.5 * phi**2 * skew
    return math.sqrt(variance / n)


def _of_spearman(rho: float, n: int) -> float:
    """Of a correlation of ranks (Bonett and Wright 2000), approximately."""
    return (1 - rho**2) * math.sqrt((1 + rho**2 / 2) / (n - 3))


STANDARD_ERRORS = {
    "accuracy": _of_accuracy,
    "matthews": _of_matthews,
    "spearman": _of_spearman,
}


def dynabert(task: str, *, backbone: str = "bert-base") -> list[PublishedScore]:
    """The 12 sub-networks, widest first; one that was misprinted (RoBERTa's CoLA) is left out."""
    rows = _rows(task, backbone, "DynaBERT")
    return [_score(row, task) for row in rows if row["dev_score"]]


def baseline(task: str, *, backbone: str = "bert-base") -> PublishedScore:
    """The full network, fine-tuned on the task alone."""
    (row,) = _rows(task, backbone, "fine-tuned baseline")
    return _score(row, task)


def _rows(task: str, backbone: str, model: str) -> list[dict[str, str]]:
    if task not in TASKS:
        raise unknown("task", task, list(TASKS))
    if backbone not in BACKBONES:
        raise unknown("backbone", backbone, list(BACKBONES))
    wanted = {"backbone": backbone, "task": TASKS[task][0], "model": model}
    rows = _read(data_file("published", "dynabert_glue.csv"))
    return [row for row in rows if wanted.items() <= row.items()]


def _read(path: Path) -> list[dict[str, str]]:
    """Rows of a table whose first lines are comments."""
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def _score(row: dict[str, str], task: str) -> PublishedScore:
    return PublishedScore(
        width=Fraction(row["m_w"] or 1),
        depth=Fraction(row["m_d"] or 1),
        score=float(row["dev_score"]),
        metric=METRICS[row["metric"]],
        n_examples=TASKS[task][1],
    )
