"""Which encoders the labs time: their depths, and the grids of widths and depths.

Standard library only.
"""

from __future__ import annotations

from typing import NamedTuple

from lmtime.config.encoder import (
    DEPTHS,
    WIDTHS,
    EncoderConfig,
    Part,
    SubNetwork,
    find_encoder,
    name_of,
    sub_network,
    whole_network,
)
from lmtime.errors import UsageError
from lmtime.plans import check

LATENCY, SCORES, SEARCH = "encoder_latency", "encoder_scores", "encoder_search"  # studies
ENGINES = ("torch", "onnxruntime")
SEQ_LEN = 128
TINY = "tiny"  # of the smoke tests
_TINY = EncoderConfig(
    hidden_size=32, head_size=8, heads=(4,) * 3, ffn_sizes=(64,) * 3, vocab_size=500,
    max_positions=32,
)  # fmt: skip


class Rounds(NamedTuple):
    """Samples of each configuration, and whether the quality gate looks at them.

    Only the smoke tests of labs do without: their rows are no results, however quiet it was.
    """

    n: int
    gated: bool = True


# One sample a round, by preset and batch size. A batch of 32 takes tens of seconds through twelve
# layers on a small CPU: six is the least that an interval needs.
_SMOKE, USUAL = Rounds(6, gated=False), Rounds(15)
ROUNDS = {
    "smoke": {1: _SMOKE, 2: _SMOKE},
    "quick": {1: Rounds(12)},
    "paper": {1: USUAL, 8: Rounds(6), 32: Rounds(6)},
}
THREADS = {"smoke": (1,), "quick": (2,), "paper": (1, 2)}  # each is a device of its own

# Depths by preset and batch size; larger batches leave some out, for the same reason.
_DEPTHS = {
    "smoke": {TINY: {1: (1, 2, 3), 2: (1, 2, 3)}},
    "quick": {"bert-base": {1: (1, 3, 6, 9, 12)}, "distilbert": {1: (1, 3, 6)}},
    "paper": {
        "bert-base": {1: tuple(range(1, 13)), 8: (1, 2, 4, 6, 8, 10, 12), 32: (1, 3, 6, 12)},
        "distilbert": {1: tuple(range(1, 7)), 8: (1, 2, 4, 6), 32: (1, 3, 6)},
    },
}


class Case(NamedTuple):
    """One configuration to time; it is its own identity."""

    engine: str
    network: str
    sub: SubNetwork
    batch_size: int
    seq_len: int


Plan = list[Case]


class SearchSize(NamedTuple):
    """Sub-networks that are scored, examples of either half, rounds of the front, tokens."""

    n_evaluations: int
    n_examples: int | None
    rounds: Rounds
    seq_len: int


SEARCHES = {
    "smoke": SearchSize(6, 16, _SMOKE, 16),
    "quick": SearchSize(20, 100, Rounds(12), SEQ_LEN),
    "paper": SearchSize(200, None, USUAL, SEQ_LEN),
}


def network_config(name: str) -> EncoderConfig:
    """As `find_encoder`, and the tiny one of smoke tests."""
    return _TINY if name == TINY else find_encoder(name)


def device_called(n_threads: int | None) -> str:
    """As in `cpu-1-thread`: a number of threads makes a device of its own. None is a GPU."""
    return "cuda" if n_threads is None else f"cpu-{n_threads}-thread{'s' * (n_threads > 1)}"


def threads_of(device: str) -> int:
    """Threads of a device of a CPU, as in `cpu-2-threads`."""
    n = device.split("-")[1] if device.startswith("cpu-") else ""
    if not n.isdecimal() or device != device_called(int(n)) or int(n) < 1:
        raise UsageError(f"device {device!r}: choose cuda, cpu-1-thread, cpu-2-threads and so on")
    return int(n)


def place_in_words(device: str, engine: str) -> str:
    """As in "ONNX Runtime, cpu 2 threads"."""
    return f"{'ONNX Runtime' if engine == 'onnxruntime' else engine}, {device.replace('-', ' ')}"


def part_of(network: str, sub: SubNetwork) -> tuple[Part, Part] | None:
    """Width and depth of a sub-network that is in the grid of DynaBERT, else None."""
    full = network_config(network)
    grid = ((width, depth) for width in WIDTHS for depth in DEPTHS.get(network, (1,)))
    return next((part for part in grid if sub_network(full, *part) == sub), None)


def name_in_network(network: str, sub: SubNetwork) -> str:
    """As in `w3/4 d5/6` where it is in the grid, else its key."""
    part = part_of(network, sub)
    return name_of(*part) if part else sub.key


def first_layers(network: str, n_layers: int) -> SubNetwork:
    """The first layers of a network at their full width: which stay does not matter for time."""
    whole = whole_network(network_config(network))
    return SubNetwork(*(part[:n_layers] for part in whole.fields().values()))


def depth_plan(preset: str) -> Plan:
    """Encoders of growing depth: `paper` has both engines, and at batch 1 every depth."""
    check(preset)
    engines = ENGINES[:1] if preset == "quick" else ENGINES
    seq_len = 16 if preset == "smoke" else SEQ_LEN
    return [
        Case(engine, network, first_layers(network, depth), batch_size, seq_len)
        for network, batches in _DEPTHS[preset].items()
        for batch_size, depths in batches.items()
        for depth in depths
        for engine in engines
    ]


def grid_plan(preset: str) -> Plan:
    """DynaBERT's sub-networks, one sequence a call: `quick` has those of MiniLM in torch alone."""
    check(preset)
    networks = {"smoke": (TINY,), "quick": ("minilm-l6",), "paper": ("bert-base", "minilm-l6")}
    engines = ENGINES if preset == "paper" else ENGINES[:1]
    seq_len = 16 if preset == "smoke" else SEQ_LEN
    return [
        Case(engine, network, sub_network(network_config(network), width, depth), 1, seq_len)
        for network in networks[preset]
        for depth in DEPTHS.get(network, (1,))
        for width in WIDTHS
        for engine in engines
    ]
