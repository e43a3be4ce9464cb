"""Trials of output layers: the same network trained with each under one budget, and judged.

A trial's row holds the likelihood of every held-out document, so that two of them are compared
document by document. Rows stand in `results/<device>/perplexity.jsonl`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from lmtime import corpora, models
from lmtime.config import GCNConfig, HuggingFaceConfig, ModelConfig, configuration_of
from lmtime.errors import UsageError
from lmtime.models import training
from lmtime.models.training import Budget
from lmtime.records import append_jsonl, document, read_jsonl, results_root
from lmtime.timing.conditions import device_folder, load_average, provenance

NAME = "perplexity"
Say = Callable[[str], None]


def trial(
    model: str,
    config: ModelConfig,
    budget: Budget,
    seed: int,
    *,
    corpus: str | None = None,
    say: Say = lambda text: None,
) -> dict[str, object]:
    """Train one network on one seed and judge it; the row, without its conditions.

    corpus: the model's own where none is named. Weights, and where in the text training begins,
    follow the seed.
    """
    if isinstance(config, HuggingFaceConfig):
        raise UsageError(f"{model} has no output layers to choose from: train gcn")
    name = corpus or config.corpus
    text = corpora.load(name, vocab_size=config.vocab_size)
    network = models.build(config, seed=seed)
    losses = training.train(network, text, budget, seed=seed, say=say)
    documents = training.held_out(network, text, budget.held_out_tokens)
    return {
        "model": model,
        "config": dataclasses.asdict(config),
        "budget": dataclasses.asdict(budget),
        "seed": seed,
        "corpus": {"name": text.name, "sha256": text.sha256, "note": text.note},
        "perplexity": documents.perplexity,
        "n_tokens": int(documents.n_tokens.sum()),
        "document_nll": [round(float(nll), 3) for nll in documents.nll],
        "document_tokens": documents.n_tokens.tolist(),
        "losses": [round(loss, 4) for loss in losses],
    }


def trial_document(
    model: str, config: ModelConfig, budget: Budget, seed: int, *, command: str, **more: Any
) -> dict[str, object]:
    """The JSON document of one trial; more: as `trial` takes it."""
    load = load_average()
    row = trial(model, config, budget, seed, **more)
    conditions = provenance(command, "cpu", corpus=row["corpus"], load_average=load)
    return document("train", dataclasses.asdict(conditions), [row])


def in_words(row: dict[str, object]) -> str:
    """What a trial found, in one sentence."""
    return (
        f"{row['model']} with {title_of(row['config'])}: perplexity {row['perplexity']:.1f} on "
        f"{row['n_tokens']:,} held-out tokens of {row['corpus']['name']}, after "
        f"{row['budget']['n_tokens']:,} tokens of training, seed {row['seed']}."
    )


def run_missing(
    wanted: list[tuple[str, GCNConfig, int]],
    budget: Budget,
    *,
    command: str,
    corpus: str | None = None,
    say: Say = lambda text: None,
) -> Path:
    """Every (model, configuration, seed) that has no row under this budget yet; their file.

    corpus: the model's own where none is named.
    """
    folder = results_root() / device_folder("cpu")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{NAME}.jsonl"
    with FileLock(folder / ".trials.lock"):
        for i, (model, config, seed) in enumerate(wanted, 1):
            title = f"{NAME} {i}/{len(wanted)}: {title_of(dataclasses.asdict(config))}, seed {seed}"
            if _has(path, model, config, budget, seed, corpus or config.corpus):
                say(f"{title}: already trained")
                continue
            say(title)
            load = load_average()
            row = trial(model, config, budget, seed, corpus=corpus, say=say)
            conditions = provenance(command, "cpu", corpus=row["corpus"], load_average=load)
            append_jsonl(folder / "provenance.jsonl", [dataclasses.asdict(conditions)])
            append_jsonl(path, [{"run_id": conditions.run_id, **row}])
    return path


def _has(path: Path, model: str, config: GCNConfig, budget: Budget, seed: int, corpus: str) -> bool:
    wanted = (model, dataclasses.asdict(budget), seed, corpus)
    return any(
        (row["model"], row["budget"], row["seed"], row["corpus"]["name"]) == wanted
        and configuration_of(row["config"]) == config
        for row in read_jsonl(path)
    )


def title_of(config: dict[str, object]) -> str:
    """An output layer in words."""
    parts = [str(config["output_layer"])]
    if "adaptive" in parts[0]:
        parts.append(f"[{', '.join(map(str, config['cutoffs']))}]")
        if config.get("tail_widths"):
            parts.append(f"widths {', '.join(map(str, config['tail_widths']))}")
        parts += [
            f"{name.replace('_', ' ')} {config[name]}"
            for name in ("head_rank", "shared_rank")
            if config.get(name)
        ]
    return " ".join(parts)
