"""What tests of searches and exports share: a super-network, and latencies by a known law."""

import shutil

import numpy as np

from lmtime.config import name_of
from lmtime.encoders import layer_latency
from lmtime.encoders.fronts import Place
from lmtime.encoders.plans import LATENCY, part_of
from lmtime.encoders.supernets import Job
from lmtime.models.batches import TOKENIZER
from lmtime.models.checkpoint import load_encoder, minilm_folder, save_encoder
from lmtime.records import append_jsonl, results_root
from lmtime.timing.conditions import device_folder, device_name, threads

PLACE = Place("cpu-1-thread", seq_len=8)


def super_network():
    """MiniLM with a random classifier, where a trained super-network would be."""
    job = Job("minilm-l6", "sentiment", 0)
    save_encoder(load_encoder(minilm_folder(), n_classes=2), job.folder)
    shutil.copyfile(minilm_folder() / TOKENIZER, job.folder / TOKENIZER)
    return job


def law_ms(sub):
    """Latency of a sub-network: its parts add."""
    return 1 + 0.2 * len(sub.layers) + 0.05 * sum(sub.heads) + 0.001 * sum(sub.ffn_sizes)


def row(network, sub, place=PLACE, ms=None, **more):
    """A row of encoder_latency by the law, with a little noise in its samples."""
    ms = law_ms(sub) if ms is None else ms
    part = part_of(network, sub)
    samples = ms * np.random.default_rng(0).normal(1, 0.01, 20)
    return {
        "run_id": "made", "device": place.device, "device_name": device_name("cpu"), "n_threads": 1,
        "engine": place.engine, "network": network, "name": name_of(*part) if part else sub.key,
        "width": part and float(part[0]), "depth": part and float(part[1]),
        **{name: list(sizes) for name, sizes in sub.fields().items()},
        "batch_size": place.batch_size, "seq_len": place.seq_len, "latency_ms": ms,
        "latency_ms_low": 0.99 * ms, "latency_ms_high": 1.01 * ms, "n": 20,
        "samples_ms": samples.round(4).tolist(), "throughput_per_s": 1000 / ms,
        "parameters": 1000, "flops": 1, "quality": "", **more,
    }  # fmt: skip


def keep(rows):
    """Append rows to those of this machine on one thread."""
    with threads(1):
        folder = results_root() / device_folder("cpu")
    folder.mkdir(parents=True, exist_ok=True)
    append_jsonl(folder / f"{LATENCY}.jsonl", rows)


def designed_rows(place=PLACE):
    """A row for all that a predictor of MiniLM is fitted on and judged by."""
    cases = [case for part in layer_latency.designed("minilm-l6", place) for case in part]
    return [row("minilm-l6", case.sub, place) for case in cases]
