"""Rows of latencies and scores for tests of fronts: grids measured, and a network trained here."""

from lmtime.config import DEPTHS, ENCODERS, WIDTHS, name_of, sub_network
from lmtime.encoders import fronts
from lmtime.encoders.plans import LATENCY, SCORES, SEARCH

PER_HEAD_MS, PER_LAYER_MS, FIXED_MS = 1.0, 1.5, 2.0  # of one thread
GRID = {
    network: {name_of(w, d): (w, d) for d in DEPTHS[network] for w in WIDTHS}
    for network in ("bert-base", "minilm-l6")
}


def latency_row(name, network="bert-base", *, per_layer=PER_LAYER_MS, speed=1.0, **more):
    """What a part takes: so much a head, a layer and a call, over `speed`; samples 2 % around."""
    full = ENCODERS[network]
    sub = sub_network(full, *GRID[network][name])
    ms = (FIXED_MS + sum(per_layer + PER_HEAD_MS * h for h in sub.heads)) / speed
    samples = [round(ms * (1 + 0.01 * ((3 * i) % 5 - 2)), 4) for i in range(15)]
    config = sub.config(full)
    return {
        "run_id": "r1", "device": "cpu-1-thread", "device_name": "a CPU", "engine": "torch",
        "network": network, "name": name, "width": float(GRID[network][name][0]),
        "depth": float(GRID[network][name][1]), **{k: list(v) for k, v in sub.fields().items()},
        "batch_size": 1, "seq_len": 128, "latency_ms": ms, "latency_ms_low": 0.99 * ms,
        "latency_ms_high": 1.01 * ms, "samples_ms": samples, "flops": config.flops(1, 128),
        "parameters": config.parameters, "quality": "",
    } | more  # fmt: skip


def grid(network="bert-base", **more):
    return [latency_row(name, network, **more) for name in GRID[network]]


def score_row(name, n_right, n=40, network="minilm-l6", task="sentiment"):
    """A part that is right on its first examples of n."""
    sub = sub_network(ENCODERS[network], *GRID[network][name])
    return {
        "run_id": "s1", "network": network, "task": task, "seed": 0, "name": name,
        "width": float(GRID[network][name][0]), "depth": float(GRID[network][name][1]),
        **{k: list(v) for k, v in sub.fields().items()}, "metric": "accuracy",
        "score": 100 * n_right / n, "n_examples": n, "labels": "10" * (n // 2),
        "predicted": ("10" * n)[:n_right] + ("01" * n)[n_right % 2:][:n - n_right],
    }  # fmt: skip


def trained(network="minilm-l6", task="sentiment", *, score_low=91.0):
    """The more heads, the better, and the network that was trained alone."""
    heads = {name: sum(latency_row(name, network)["heads"]) for name in GRID[network]}
    most = max(heads.values())
    rows = [score_row(n, 36 * heads[n] // most, task=task, network=network) for n in heads]
    alone = {"name": "fine-tuned", "predicted": rows[0]["labels"], "score_low": score_low}
    return [{**rows[0], **alone}, *rows]


def at_hand(monkeypatch, own=(), reference=(), scores=(), searches=()):
    """The rows that there are: latencies of this machine and of the reference, the rest its own."""
    sets = {
        LATENCY: [("this machine", list(own)), ("reference", list(reference))],
        SCORES: [("this machine", list(scores))],
        SEARCH: [("this machine", list(searches))],
    }
    monkeypatch.setattr(fronts, "row_sets", lambda name: sets[name])
