"""What the labs measure, and for how long: smoke (a test), quick (minutes), paper (hours).

Standard library only.
"""

from __future__ import annotations

import os

from lmtime.config import ModelConfig, configure
from lmtime.errors import UsageError, unknown

Plan = list[tuple[str, ModelConfig]]

PRESETS = ("smoke", "quick", "paper")

# Least and most pairs of steps, spread (IQR / median) to stop at, seconds for one configuration.
STOP_RULES = {
    "smoke": {"n_min": 6, "n_max": 6, "max_spread": 1.0, "max_s": 5.0, "gated": False},
    "quick": {"n_min": 20, "n_max": 40, "max_spread": 0.05, "max_s": 40.0},
    "paper": {"n_min": 50, "n_max": 300, "max_spread": 0.02, "max_s": 300.0},
}
BRIEF_RULE = {"n_min": 8, "n_max": 12, "max_spread": 0.05, "max_s": 12.0}  # slow or many steps
_SMOKE = {"vocab_size": 2_000, "cutoffs": (200, 800), "batch_size": 2, "seq_len": 16}


def stop_rule(preset: str) -> dict[str, float]:
    """The fields of the `StopRule` of a preset."""
    check(preset)
    return STOP_RULES[preset]


def brief_rule(preset: str) -> dict[str, float]:
    """As `stop_rule`, but `quick` takes fewer steps: where they are slow, or shapes many."""
    return BRIEF_RULE if preset == "quick" else stop_rule(preset)


def profile_plan(preset: str) -> Plan:
    """The network with each output layer; `paper` adds the wide network on long batches."""
    check(preset)
    models = ["gcn", "gcn-1024"] if preset == "paper" else ["gcn"]
    shape = _SMOKE | {"hidden_size": 32} if preset == "smoke" else {}
    full = {name: value for name, value in shape.items() if name != "cutoffs"}
    return [
        (model, configure(model, output_layer=layer, **options))
        for model in models
        for layer, options in (("adaptive", shape), ("full", full))
    ]


def hidden_sweep_plan(preset: str) -> Plan:
    """Growth of the whole width, then of the final hidden state alone behind a body of 256."""
    check(preset)
    shape = _SMOKE if preset == "smoke" else {"batch_size": 4}
    whole, alone, body = {
        "smoke": ((16, 32), (64,), 32),
        "quick": ((128, 256, 512), (512, 1024), 256),
        "paper": ((64, 128, 256, 512, 1024, 2048), (512, 1024, 2048, 4096), 256),
    }[preset]
    grown = [configure("gcn", hidden_size=size, **shape) for size in whole]
    grown += [configure("gcn", hidden_size=body, final_hidden_size=size, **shape) for size in alone]
    return [("gcn", config) for config in grown]


def transformer_plan(preset: str) -> Plan:
    """The 24-layer Transformer with each output layer; `paper` adds batches and the whole model."""
    check(preset)
    models, batches = ["transformer-gbw"], [2]
    shape: dict[str, object] = {}
    if preset == "smoke":
        shape = _SMOKE | {"hidden_size": 24, "ffn_size": 40, "n_heads": 2, "n_layers": 2}
    elif preset == "paper":
        models, batches = ["transformer-gbw", "transformer-gbw-1536"], [1, 2, 8]
    return [
        (model, configure(model, output_layer=layer, **{"batch_size": batch} | shape))
        for model in models
        for batch in batches
        for layer in ("adaptive", "full")
        if (model, layer) != ("transformer-gbw-1536", "full")  # its matrix alone has 1.2 billion
    ]


TODAY = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "smollm2-135m", "gemma-3-270m",
         "gemma-3-1b", "qwen2.5-0.5b", "qwen3-0.6b", "llama-3.2-1b", "bert-base")  # fmt: skip


def today_plan(preset: str) -> Plan:
    """Models of today, one sequence a step; `quick` takes one, `paper` all, at 1,024 tokens."""
    check(preset)
    if preset == "smoke":
        sizes = {"hidden_size": 32, "n_layers": 2, "ffn_size": 48, "vocab_size": 2_000}
        sizes |= {"n_heads": 2, "seq_len": 16}
        more = {"gpt2": {}, "gemma-3-270m": {"n_kv_heads": 1, "head_size": 16}}
        return [(model, configure(model, **sizes, **m)) for model, m in more.items()]
    models, seq_len = {
        "quick": (("gpt2",), 64),
        "paper": (TODAY, None),
    }[preset]
    return [(model, configure(model, seq_len=seq_len)) for model in models]


def accuracy_plan(preset: str) -> Plan:
    """Shapes that no calibration has seen: widths, tokens, vocabularies, layers, both networks."""
    check(preset)
    if preset == "smoke":
        return profile_plan(preset) + transformer_plan(preset)
    if preset == "quick":
        small = [_gcn(layer, 256, hidden_size=128) for layer in ("adaptive", "full")]
        return [*small, *(_short_transformer(layer, 256, 192) for layer in ("adaptive", "full"))]
    both = [shape for layer in ("adaptive", "full") for shape in _accuracy_shapes(layer)]
    fused = [
        _gcn("fused-adaptive", n, hidden_size=h)
        for h, n in ((128, 512), (256, 64), (256, 2048), (512, 512), (1024, 256))
    ]
    wide = _gcn("adaptive", 512, hidden_size=256, cutoffs=(5_000, 20_000), div_value=2.0)
    return [*both, *fused, wide]


def reference_plan(preset: str) -> Plan:
    """Steps that a calibration ends with; none of the shapes of `accuracy_plan` is among them."""
    check(preset)
    if preset == "smoke":
        shape = _SMOKE | {"hidden_size": 48}
        full = {name: value for name, value in shape.items() if name != "cutoffs"}
        return [
            ("gcn", configure("gcn", **shape)),
            ("gcn", configure("gcn", output_layer="full", **full)),
        ]
    return [
        _gcn("adaptive", 96, hidden_size=192),
        _gcn("adaptive", 1536, hidden_size=192),
        _gcn("adaptive", 256, hidden_size=192, vocab_size=10_000),
        _gcn("adaptive", 768, hidden_size=384),
        _gcn("adaptive", 128, hidden_size=768),
        _gcn("fused-adaptive", 112, hidden_size=192),
        _gcn("fused-adaptive", 896, hidden_size=320),
        _gcn("fused-adaptive", 1792, hidden_size=160),
        _gcn("full", 384, hidden_size=192),
        _gcn("full", 96, hidden_size=384),
        _gcn("full", 1280, hidden_size=320),
        _short_transformer("adaptive", 128, 256),
        _short_transformer("adaptive", 768, 320),
        _short_transformer("full", 512, 256),
    ]


def _accuracy_shapes(layer: str) -> Plan:
    """22 shapes: the whole width, the final state alone, a small vocabulary, the Transformer."""
    square = [(h, n) for h in (128, 256, 512) for n in (64, 512, 2048)] + [(1024, 64), (1024, 256)]
    few_words = ((256, 128), (256, 1024), (512, 512))
    return [
        *(_gcn(layer, n, hidden_size=h) for h, n in square),
        *(_gcn(layer, 512, hidden_size=256, final_hidden_size=size) for size in (512, 1024)),
        *(_gcn(layer, n, hidden_size=h, vocab_size=10_000) for h, n in few_words),
        *(_short_transformer(layer, n, h) for h in (192, 384) for n in (64, 256, 1024)),
    ]


# Partitions of 33,278 words behind a hidden state of 1,024: cutoffs, and what leaves torch's shape.
PARTITIONS: dict[str, dict[str, object]] = {
    "two tails": {"cutoffs": (2_000, 10_000)},  # torch's shape, and the one compared with
    "two tails with a low-rank head": {"cutoffs": (2_000, 10_000), "head_rank": 256},
    "three tails": {"cutoffs": (200, 2_000, 10_000), "tail_widths": (256, 64, 16)},
    "four tails": {"cutoffs": (60, 400, 2_000, 10_000), "tail_widths": (256, 256, 64, 16)},
    "six tails": {  # by `lmtime cutoffs --rank-floor 1/2`, with a calibration of 2026-11-30
        "cutoffs": (15, 182, 636, 2_000, 5_667, 10_586),
        "tail_widths": (1024, 1024, 512, 128, 128, 32),
    },
    "six narrow tails": {  # the same cuts, with widths that stay where the hidden state grows
        "cutoffs": (15, 182, 636, 2_000, 5_667, 10_586),
        "tail_widths": (512, 512, 512, 128, 128, 32),
    },
    "four tails with a shared projection": {
        "cutoffs": (60, 400, 2_000, 10_000),
        "tail_widths": (256, 256, 64, 16),
        "shared_rank": 256,
    },
}
BASELINE, BEST, SCALING = "two tails", "six tails", "six narrow tails"
SEEDS = (0, 1, 2)
Trials = list[tuple[str, ModelConfig, int]]  # model, configuration, seed


def trials_plan(preset: str) -> tuple[dict[str, int], Trials]:
    """Fields of the budget, and what is trained on it; three seeds of those that matter."""
    check(preset)
    if preset == "smoke":
        small = {"hidden_size": 32, "batch_size": 4, "seq_len": 16, "vocab_size": 2_000}
        config = configure("gcn", output_layer="fused-adaptive", **small, cutoffs=(200, 800))
        return {"n_tokens": 2_000, "held_out_tokens": 2_000}, [("gcn", config, 0)]
    if preset == "quick":
        return {"n_tokens": 50_000}, [("gcn", partitioned(name), 0) for name in (BASELINE, BEST)]
    names = {name: (0,) for name in PARTITIONS} | dict.fromkeys((BASELINE, BEST, SCALING), SEEDS)
    trained = [("gcn", partitioned(name), seed) for name, seeds in names.items() for seed in seeds]
    return {"n_tokens": 600_000}, sorted(trained, key=lambda t: t[2])


def partitioned(name: str) -> ModelConfig:
    """The network with one of the partitions behind a final hidden state of 1,024."""
    options = PARTITIONS[name]
    return configure("gcn", final_hidden_size=1024, output_layer="fused-adaptive", **options)


Sizes = list[tuple[int, int, tuple[str, ...]]]  # hidden size, tokens, layers beside torch's
SAME = ("fused-adaptive", "fused-adaptive-planned", "fused-adaptive-fast", "fast-products")
OTHER = ("four tails", BEST, SCALING, "four tails with a shared projection")
WHOLE = ("torch-full", "chunked", "chunked-fast", "torch-chunks-256")


def comparison_plan(preset: str) -> Sizes:
    """Shapes at which output layers are timed side by side."""
    check(preset)
    if preset == "smoke":
        return [(64, 16, ("fused-adaptive", BEST))]
    if preset == "quick":
        return [(256, n, SAME) for n in (64, 1024)]
    tokens = [(d, n, SAME + OTHER[:1]) for d in (512, 1024) for n in (16, 64, 256, 4096, 16_384)]
    widths = [(d, 64, SAME) for d in (128, 256, 2048, 4096)]
    grown = [(d, 1024, SAME + OTHER) for d in (128, 256, 2048, 4096)]
    return [
        (1024, 1024, (*SAME, *list(PARTITIONS)[1:], "classes", "sampled")),
        (512, 1024, SAME + OTHER),
        *tokens,
        *widths,
        *grown,
        *((d, 1024, WHOLE) for d in (512, 1024)),
    ]


def returned_plan(preset: str) -> Sizes:
    """Layers of a full vocabulary, for a process that gives the memory that it frees back."""
    check(preset)
    if preset == "smoke":
        return [(64, 16, ("chunked",))]
    if preset == "quick":
        return [(512, 1024, ("torch-full", "chunked"))]
    return [(d, 1024, WHOLE) for d in (512, 1024)]


def _gcn(layer: str, n_tokens: int, **sizes: object) -> tuple[str, ModelConfig]:
    if layer == "adaptive" and sizes.get("vocab_size") == 10_000:
        sizes["cutoffs"] = (1_000, 4_000)
    return "gcn", configure("gcn", output_layer=layer, **_batch(n_tokens), **sizes)


def _short_transformer(layer: str, n_tokens: int, hidden_size: int) -> tuple[str, ModelConfig]:
    sizes = {"hidden_size": hidden_size, "ffn_size": 4 * hidden_size, "n_heads": hidden_size // 64}
    sizes |= {"n_layers": 6, "vocab_size": 33_278, "cutoffs": (2_000, 10_000)}
    model = "transformer-gbw"
    return model, configure(model, output_layer=layer, **_batch(n_tokens), **sizes)


def _batch(n_tokens: int) -> dict[str, int]:
    """Sequences of 128 tokens, or one that is shorter."""
    seq_len = min(n_tokens, 128)
    return {"batch_size": n_tokens // seq_len, "seq_len": seq_len}


def check(preset: str) -> None:
    """Refuse an unknown preset, and rows of a smoke test among real ones."""
    if preset not in PRESETS:
        raise unknown("preset", preset, list(PRESETS))
    if preset == "smoke" and not os.environ.get("LMTIME_RESULTS"):
        raise UsageError(
            "preset smoke only tests a lab, its rows are no results: set LMTIME_RESULTS to a "
            "scratch folder, or choose quick or paper"
        )
