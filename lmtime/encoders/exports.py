"""A sub-network of a super-network as a folder of its own, checked against what it was cut from.

The folder holds a smaller network (config.json, model.safetensors), its tokenizer, the same as an
ONNX file, and `subnetwork.json`: what it is, what it scored, what it was predicted and measured to
take. `load_encoder` reads it in a process that knows nothing of the super-network.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmtime.config import EncoderConfig, SubNetwork, name_of, sub_network
from lmtime.encoders.fronts import Place
from lmtime.encoders.layer_latency import judged_predictor
from lmtime.encoders.measuring import unsteady
from lmtime.encoders.plans import threads_of
from lmtime.encoders.searches import Scorer
from lmtime.encoders.supernets import Job
from lmtime.errors import UsageError
from lmtime.models.batches import TOKENIZER, batches
from lmtime.models.checkpoint import WEIGHTS, load_encoder, save_encoder
from lmtime.models.encoder import Encoder, cut
from lmtime.models.onnx_export import OnnxEncoder, export_onnx
from lmtime.pareto.space import from_key
from lmtime.records import write_text
from lmtime.timing.clock import clock_for
from lmtime.timing.conditions import threads
from lmtime.timing.encoder_calls import tokens_of
from lmtime.timing.pages import keep_pages
from lmtime.timing.rounds import interleaved

ONNX, CARD = "model.onnx", "subnetwork.json"
MOST_DIFFERENCE = 1e-5  # of a logit, between the super-network's slice and what was exported
N_CHECKED, N_ROUNDS = 64, 20
_NAME = re.compile(r"w([\d./]+) d([\d./]+)")


def named(text: str, full: EncoderConfig) -> SubNetwork:
    """The sub-network of a name, `w3/4 d5/6`, or of a key, `0,2,4|12,12,6|1536,768,384`."""
    if found := _NAME.fullmatch(text.strip()):
        try:
            return sub_network(full, *(_fraction(part) for part in found.groups()))
        except (ValueError, ZeroDivisionError) as error:
            raise UsageError(f"sub-network {text!r} has no such part ({error})") from None
    try:
        sub = from_key(text.strip())
    except (ValueError, TypeError):
        raise UsageError(
            f"sub-network {text!r}: write a width and a depth, as in 'w3/4 d5/6', or layers, heads "
            f"and widths, as in '0,2,4|12,12,6|1536,768,384'"
        ) from None
    sub.require_within(full)
    return sub


def _fraction(text: str) -> float:
    numerator, _, denominator = text.partition("/")
    return float(numerator) / float(denominator or 1)


@dataclass(frozen=True)
class Exported:
    """What was written. card: the content of subnetwork.json."""

    folder: Path
    card: dict[str, Any]


def export(
    job: Job, sub: SubNetwork, folder: str | Path, place: Place, *, with_onnx: bool = True
) -> Exported:
    """Write the folder, wholly or not at all, and check that it gives the same logits."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there and not empty: name a new folder to export to")
    if not folder.resolve().parent.is_dir():
        raise UsageError(f"{folder.resolve().parent} is no folder: make it first")
    scorer = Scorer.of(job)
    sub.require_within(scorer.network.config)
    with tempfile.TemporaryDirectory(dir=folder.resolve().parent, prefix=".export-") as made:
        partial = Path(made) / "folder"
        save_encoder(cut(scorer.network, sub), partial)
        shutil.copyfile(job.folder / TOKENIZER, partial / TOKENIZER)
        if with_onnx:
            export_onnx(load_encoder(partial), partial / ONNX)
        card = _card(job, sub, scorer, partial, place)
        write_text(partial / CARD, json.dumps(card, indent=1) + "\n")
        if folder.exists():
            folder.rmdir()
        shutil.move(partial, folder)
    return Exported(folder, card)


def _card(job: Job, sub: SubNetwork, scorer: Scorer, folder: Path, place: Place) -> dict:
    small = load_encoder(folder)
    differences = {"max_difference": _difference(scorer, sub, small)}
    if (folder / ONNX).is_file():
        runtime = OnnxEncoder(folder / ONNX)
        differences["onnx_max_difference"] = _difference(scorer, sub, runtime)
    if (worst := max(differences.values())) > MOST_DIFFERENCE:
        raise RuntimeError(f"the exported network differs from the super-network's by {worst:.2g}")
    samples = _samples(small, place)
    files = {p.name: p.stat().st_size for p in sorted(folder.iterdir())}
    return {
        "name": _name(sub, scorer.network.config),
        **{name: list(sizes) for name, sizes in sub.fields().items()},
        "network": job.network,
        "task": job.task,
        "seed": job.seed,
        "metric": scorer.metric,
        "score": round(scorer.score(sub), 4),
        "parameters": sum(p.numel() for p in small.parameters()),
        "bytes": files,
        "device": place.device,
        "engine": "torch",
        "batch_size": place.batch_size,
        "seq_len": place.seq_len,
        "predicted_ms": _predicted_ms(job.network, sub, place),
        "latency_ms": float(np.median(samples)),
        "latency_quality": unsteady(samples),
        **differences,
    }


def _name(sub: SubNetwork, full: EncoderConfig) -> str:
    """Its name where each kept layer has the same part of the heads and neurons, else its key."""
    width, depth = sub.heads[0] / full.heads[0], len(sub.layers) / full.n_layers
    alike = sub_network(full, width, depth)
    return name_of(width, depth) if alike == sub else sub.key


@torch.no_grad()
def _difference(scorer: Scorer, sub: SubNetwork, small: Encoder | OnnxEncoder) -> float:
    """Largest difference of a logit on development examples, from the super-network's slice."""
    data = scorer.data.part(np.arange(min(N_CHECKED, len(scorer.data))))
    worst = 0.0
    for batch in batches(data, 16):
        wanted = scorer.network(*batch.inputs, sub=sub).numpy()
        worst = max(worst, float(np.abs(wanted - np.asarray(small(*batch.inputs))).max()))
    return worst


def _samples(small: Encoder, place: Place) -> np.ndarray:
    """Latencies in ms of the exported network in torch, (N_ROUNDS,)."""
    cuda = place.device == "cuda"
    device = "cuda" if cuda else "cpu"
    tokens = tokens_of(small.config, place.batch_size, place.seq_len).to(device)
    small = small.to(device)

    def call() -> torch.Tensor:
        with torch.inference_mode():
            return small(tokens)

    keep_pages()  # as what a predictor is fitted on
    with threads(None if cuda else threads_of(place.device)):
        rng = np.random.default_rng(0)
        samples = interleaved([call], ["torch"], clock_for(device), N_ROUNDS, rng)[:, 0]
    small.to("cpu")
    return samples


def _predicted_ms(network: str, sub: SubNetwork, place: Place) -> float | None:
    """By the latency predictor of this place; None where too little was measured for one."""
    try:
        return round(judged_predictor(network, place).predictor.predict(sub), 4)
    except UsageError:
        return None


def in_words(doc: dict[str, Any]) -> str:
    """What was exported, in two sentences."""
    card = doc["rows"][0]
    predicted = card["predicted_ms"]
    beside = "" if predicted is None else f", {predicted:.2f} ms predicted"
    noisy = f" ({card['latency_quality']})" if card["latency_quality"] else ""
    size = card["bytes"][WEIGHTS] / 1e6
    return (
        f"{card['name']} of {card['network']}: {card['parameters']:,} parameters, {size:.1f} MB, "
        f"{card['score']:.1f} points of {card['metric']} on {card['task']}, written to "
        f"{doc['folder']}. A batch of {card['batch_size']} x {card['seq_len']} tokens takes "
        f"{card['latency_ms']:.2f} ms on {card['device']}{noisy}{beside}."
    )
