"""BERT-type encoders whose heads and feed-forward width may differ from layer to layer.

A sub-network keeps some layers of a full network and, of each, the first heads and neurons: those
are the important ones once a super-network was rewired. Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from lmtime.config.checks import require_dropout, require_positive, whole_fields
from lmtime.errors import UsageError, unknown

Part = Fraction | float


@dataclass(frozen=True)
class EncoderConfig:
    """heads, ffn_sizes: one entry a layer. head_size stays when heads are cut.

    n_token_types is 0, and has_pooler False, for DistilBERT.
    """

    hidden_size: int = 768
    head_size: int = 64
    heads: tuple[int, ...] = (12,) * 12
    ffn_sizes: tuple[int, ...] = (3072,) * 12
    vocab_size: int = 30_522
    max_positions: int = 512
    n_token_types: int = 2
    n_classes: int = 2
    has_pooler: bool = True
    layer_norm_eps: float = 1e-12
    dropout: float = 0.1  # in training only

    def __post_init__(self) -> None:
        counts = set(whole_fields(type(self))) - {"n_token_types", "has_pooler"}
        require_positive(self, tuple(sorted(counts)))
        require_dropout(self)
        if type(self.n_token_types) is not int or self.n_token_types < 0:
            raise UsageError(f"n_token_types={self.n_token_types!r} must be 0 or more")
        if len(self.heads) != len(self.ffn_sizes) or not self.heads:
            raise UsageError(
                f"{len(self.heads)} layers have heads and {len(self.ffn_sizes)} a feed-forward "
                f"width: give both one entry for each layer"
            )
        for name in ("heads", "ffn_sizes"):
            sizes = tuple(int(size) for size in getattr(self, name))
            if min(sizes) < 1:
                raise UsageError(f"{name}={sizes}: a layer keeps at least 1, drop it whole instead")
            object.__setattr__(self, name, sizes)

    @property
    def n_layers(self) -> int:
        """Layers of the encoder."""
        return len(self.heads)

    @property
    def encoder_parameters(self) -> int:
        """Weights and biases of the layers, without embeddings and classifier."""
        d = self.hidden_size
        widths = [heads * self.head_size for heads in self.heads]
        attention = sum(3 * (d + 1) * width + (width + 1) * d for width in widths)
        feed_forward = sum((d + 1) * ffn + (ffn + 1) * d for ffn in self.ffn_sizes)
        return attention + feed_forward + self.n_layers * 4 * d

    @property
    def parameters(self) -> int:
        """All weights and biases but those of the classifier, which no language model has."""
        d = self.hidden_size
        rows = self.vocab_size + self.max_positions + self.n_token_types
        return self.encoder_parameters + rows * d + 2 * d + self.has_pooler * (d + 1) * d

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Of the matrix products of the layers, forward; a multiply-add is two."""
        d, n = self.hidden_size, batch_size * seq_len
        width = sum(self.heads) * self.head_size
        products = 4 * d * width + 2 * d * sum(self.ffn_sizes) + 2 * seq_len * width
        return 2 * n * products


ENCODERS: dict[str, EncoderConfig] = {
    "bert-base": EncoderConfig(),
    "distilbert": EncoderConfig(
        heads=(12,) * 6, ffn_sizes=(3072,) * 6, n_token_types=0, has_pooler=False
    ),
    "minilm-l6": EncoderConfig(
        hidden_size=384, head_size=32, heads=(12,) * 6, ffn_sizes=(1536,) * 6
    ),
}

WIDTHS = (Fraction(1), Fraction(3, 4), Fraction(1, 2), Fraction(1, 4))
DEPTHS = {
    "bert-base": (Fraction(1), Fraction(3, 4), Fraction(1, 2)),  # as DynaBERT has them
    "distilbert": (Fraction(1), Fraction(5, 6), Fraction(2, 3), Fraction(1, 2)),
    "minilm-l6": (Fraction(1), Fraction(5, 6), Fraction(2, 3), Fraction(1, 2)),
}
DEPTH_RULES = ("dynabert", "paper")


def find_encoder(name: str) -> EncoderConfig:
    """An encoder by its name in ENCODERS."""
    if name not in ENCODERS:
        raise unknown("network", name, list(ENCODERS))
    return ENCODERS[name]


@dataclass(frozen=True)
class SubNetwork:
    """layers: those of the full network that stay, ascending. heads, ffn_sizes: one entry each."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    ffn_sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.layers) == len(self.heads) == len(self.ffn_sizes) or not self.layers:
            raise UsageError(
                f"layers {self.layers}, heads {self.heads} and widths {self.ffn_sizes} of a "
                f"sub-network must have one entry for each layer that stays"
            )
        if list(self.layers) != sorted(set(self.layers)) or self.layers[0] < 0:
            raise UsageError(f"layers {self.layers} must ascend, each once, from 0")
        if min(self.heads) < 1 or min(self.ffn_sizes) < 1:
            raise UsageError(f"a layer of {self.key} keeps nothing: drop it whole instead")

    @property
    def key(self) -> str:
        """The same text for the same sub-network: `0,2,4|12,12,6|1536,768,384`."""
        return "|".join(",".join(map(str, part)) for part in self.fields().values())

    @classmethod
    def of_row(cls, row: dict) -> SubNetwork:
        """The one that a record is of."""
        return cls(*(tuple(row[name]) for name in cls.__match_args__))

    def fields(self) -> dict[str, tuple[int, ...]]:
        """As a record holds them."""
        return {"layers": self.layers, "heads": self.heads, "ffn_sizes": self.ffn_sizes}

    def config(self, full: EncoderConfig) -> EncoderConfig:
        """The network that is left when it is cut out of the full one."""
        self.require_within(full)
        fields = {name: getattr(full, name) for name in full.__dataclass_fields__}
        return EncoderConfig(**fields | {"heads": self.heads, "ffn_sizes": self.ffn_sizes})

    def require_within(self, full: EncoderConfig) -> None:
        """Refuse layers, heads or neurons that the full network does not have."""
        if self.layers[-1] >= full.n_layers:
            raise UsageError(
                f"there is no layer {self.layers[-1]}: layers go from 0 to {full.n_layers - 1}"
            )
        for layer, heads, ffn in zip(self.layers, self.heads, self.ffn_sizes, strict=True):
            if heads > full.heads[layer] or ffn > full.ffn_sizes[layer]:
                raise UsageError(
                    f"layer {layer} has {full.heads[layer]} heads and {full.ffn_sizes[layer]} "
                    f"neurons: {heads} and {ffn} are more than can be kept"
                )


def whole_network(full: EncoderConfig) -> SubNetwork:
    """The sub-network that leaves nothing out."""
    return SubNetwork(tuple(range(full.n_layers)), full.heads, full.ffn_sizes)


def sub_network(
    full: EncoderConfig, width: Part, depth: Part, rule: str = "dynabert"
) -> SubNetwork:
    """DynaBERT's: the same part of the heads and of the neurons in each layer that stays.

    Half a head is rounded to the even number, as the released code does; one at least stays.
    """
    part = as_part("width", width)
    layers = kept_layers(full.n_layers, depth, rule)
    heads = tuple(max(1, round(full.heads[layer] * part)) for layer in layers)
    ffn_sizes = tuple(max(1, round(full.ffn_sizes[layer] * part)) for layer in layers)
    return SubNetwork(layers, heads, ffn_sizes)


def kept_layers(n_layers: int, depth: Part, rule: str = "dynabert") -> tuple[int, ...]:
    """Which layers stay at a depth. They differ where depth x layers is no whole number.

    dynabert: the released code's floor(i / depth) for i < round(depth x layers), halves to even.
    paper: layer d is dropped where (d + 1) is a multiple of 1 / (1 - depth).
    """
    part = as_part("depth", depth)
    if rule == "dynabert":
        kept = tuple(int(i / part) for i in range(max(1, round(part * n_layers))))
    elif rule == "paper":
        if part < Fraction(1, 2):
            raise UsageError(f"depth={depth}: the paper's rule drops one layer of two at most")
        every = n_layers + 1 if part == 1 else 1 / (1 - part)
        kept = tuple(d for d in range(n_layers) if (d + 1) % every)
    else:
        raise unknown("rule", rule, list(DEPTH_RULES))
    return kept


def as_part(what: str, value: Part) -> Fraction:
    """A width or depth as an exact fraction; a decimal near a simple one is that: 0.8333 is 5/6."""
    part = Fraction(value) if math.isfinite(value) else Fraction(0)
    simple = part.limit_denominator(24)
    if isinstance(value, float):
        part = simple if abs(simple - part) < 1e-3 else part.limit_denominator(10**6)
    if not 0 < part <= 1:
        raise UsageError(f"{what}={value} must be more than 0 and at most 1")
    return part


def name_of(width: Part, depth: Part) -> str:
    """As in `w3/4 d5/6`."""
    return f"w{as_part('width', width)} d{as_part('depth', depth)}"
