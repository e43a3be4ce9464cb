"""Which sub-networks a search may choose from: a grid of widths and depths, or layer by layer.

A sub-network is known by its key: two ways to ask for the same one are one configuration.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from lmtime.config.encoder import EncoderConfig, Part, SubNetwork, kept_layers, sub_network
from lmtime.errors import UsageError

if TYPE_CHECKING:
    from optuna.trial import Trial


def from_key(key: str) -> SubNetwork:
    """The sub-network with this key."""
    return SubNetwork(*(tuple(map(int, part.split(","))) for part in key.split("|")))


@dataclass(frozen=True)
class GridSpace:
    """One width and one depth for the whole network, as in DynaBERT: 12 or 16 points."""

    full: EncoderConfig
    widths: Sequence[Part]
    depths: Sequence[Part]
    rule: str = "dynabert"

    def __post_init__(self) -> None:
        points: dict[str, SubNetwork] = {}
        for width, depth in itertools.product(self.widths, self.depths):
            made = sub_network(self.full, width, depth, self.rule)
            points.setdefault(made.key, made)
        if not points:
            raise UsageError("a space needs one width and one depth at least: none were given")
        object.__setattr__(self, "_points", points)

    @property
    def size(self) -> int:
        """Sub-networks, each counted once."""
        return len(self._points)

    def sub_networks(self) -> Iterator[SubNetwork]:
        """All of them, the widths of the first depth last."""
        return iter(self._points.values())

    uniform = sub_networks  # within each, all layers are alike

    def contains(self, sub: SubNetwork) -> bool:
        """Whether it is one of them."""
        return sub.key in self._points

    def random(self, rng: np.random.Generator) -> SubNetwork:
        """One of them, each as likely."""
        return list(self._points.values())[rng.integers(self.size)]

    def ask(self, trial: Trial) -> SubNetwork:
        """The one that a trial of Optuna's suggests."""
        return self._points[trial.suggest_categorical("sub-network", list(self._points))]


@dataclass(frozen=True)
class LayerSpace:
    """Heads and FFN size of each kept layer, and the depth: 10^14 points and more for BERT-base.

    heads, ffn_sizes: what any layer may have. depths: multipliers; those that keep the same
    layers are one.
    """

    full: EncoderConfig
    heads: Sequence[int]
    ffn_sizes: Sequence[int]
    depths: Sequence[Part] = (Fraction(1),)
    rule: str = "dynabert"

    def __post_init__(self) -> None:
        for name in ("heads", "ffn_sizes"):
            most = min(getattr(self.full, name))
            given = sorted({int(size) for size in getattr(self, name)})
            if not given or given[0] < 1 or given[-1] > most:
                raise UsageError(f"{name} {given} must be between 1 and {most}, the full network's")
            object.__setattr__(self, name, tuple(given))
        kept = {kept_layers(self.full.n_layers, depth, self.rule) for depth in self.depths}
        if not kept:
            raise UsageError("a space needs one depth at least: none was given")
        object.__setattr__(self, "_kept", tuple(sorted(kept, key=lambda layers: -len(layers))))

    @property
    def size(self) -> int:
        """Sub-networks, exactly."""
        n_widths = len(self.heads) * len(self.ffn_sizes)
        return sum(n_widths ** len(layers) for layers in self._kept)

    def sub_networks(self) -> Iterator[SubNetwork]:
        """All of them, one at a time; only for a small space."""
        for layers in self._kept:
            n = len(layers)
            for heads in itertools.product(self.heads, repeat=n):
                for ffn_sizes in itertools.product(self.ffn_sizes, repeat=n):
                    yield SubNetwork(layers, heads, ffn_sizes)

    def uniform(self) -> Iterator[SubNetwork]:
        """Those whose layers are all alike: from the smallest of each depth to the largest."""
        for layers in self._kept:
            for heads, ffn_size in itertools.product(self.heads, self.ffn_sizes):
                yield SubNetwork(layers, (heads,) * len(layers), (ffn_size,) * len(layers))

    def contains(self, sub: SubNetwork) -> bool:
        """Whether a search may choose it."""
        n = len(sub.layers)
        return (
            sub.layers in self._kept
            and len(sub.heads) == len(sub.ffn_sizes) == n
            and set(sub.heads) <= set(self.heads)
            and set(sub.ffn_sizes) <= set(self.ffn_sizes)
        )

    def random(self, rng: np.random.Generator) -> SubNetwork:
        """Each depth as likely, then each width: drawn by count, all would be the deepest."""
        layers = self._kept[rng.integers(len(self._kept))]
        heads = rng.choice(self.heads, len(layers))
        ffn_sizes = rng.choice(self.ffn_sizes, len(layers))
        return SubNetwork(layers, tuple(heads.tolist()), tuple(ffn_sizes.tolist()))

    def ask(self, trial: Trial) -> SubNetwork:
        """The one that a trial of Optuna's suggests; of dropped layers it asks nothing."""
        layers = self._kept[trial.suggest_categorical("depth", range(len(self._kept)))]
        heads = tuple(trial.suggest_categorical(f"heads {i}", self.heads) for i in layers)
        ffn_sizes = tuple(trial.suggest_categorical(f"FFN {i}", self.ffn_sizes) for i in layers)
        return SubNetwork(layers, heads, ffn_sizes)

    def crossed(self, sub: SubNetwork, other: SubNetwork, rng: np.random.Generator) -> SubNetwork:
        """The same layers; each width is as likely the other's, where that has the layer."""
        heads, ffn_sizes = list(sub.heads), list(sub.ffn_sizes)
        at = {layer: i for i, layer in enumerate(other.layers)}
        for i, layer in enumerate(sub.layers):
            if layer in at:
                takes_heads, takes_ffn = rng.random(2) < 0.5
                heads[i] = other.heads[at[layer]] if takes_heads else heads[i]
                ffn_sizes[i] = other.ffn_sizes[at[layer]] if takes_ffn else ffn_sizes[i]
        return SubNetwork(sub.layers, tuple(heads), tuple(ffn_sizes))

    def mutated(self, sub: SubNetwork, rng: np.random.Generator) -> SubNetwork:
        """A neighbour: one width of one layer a step up or down, or another depth."""
        n = len(sub.layers)
        which = int(rng.integers(2 * n + (len(self._kept) > 1)))
        if which == 2 * n:
            return self._deepened(sub, rng)
        name, choices = (("heads", self.heads), ("ffn_sizes", self.ffn_sizes))[which // n]
        widths = list(getattr(sub, name))
        at = choices.index(widths[which % n])
        steps = [i for i in (at - 1, at + 1) if 0 <= i < len(choices)] or [at]
        widths[which % n] = choices[steps[rng.integers(len(steps))]]
        parts = {"heads": sub.heads, "ffn_sizes": sub.ffn_sizes} | {name: tuple(widths)}
        return SubNetwork(sub.layers, **parts)

    def _deepened(self, sub: SubNetwork, rng: np.random.Generator) -> SubNetwork:
        """Another depth; a layer that comes in is as wide as the nearest that was there."""
        others = [layers for layers in self._kept if layers != sub.layers]
        layers = others[rng.integers(len(others))]
        was = np.array(sub.layers)
        nearest = [int(np.abs(was - i).argmin()) for i in layers]
        return SubNetwork(
            layers,
            tuple(sub.heads[i] for i in nearest),
            tuple(sub.ffn_sizes[i] for i in nearest),
        )
