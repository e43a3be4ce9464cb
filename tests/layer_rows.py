"""Every output layer as a row of one table, and its plain twin: for laws that hold for all."""

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from probabilities import log_prob_of

from lmtime.config import AdaptiveSoftmaxConfig
from lmtime.cost import folding
from lmtime.softmax import (
    AdaptiveSoftmax,
    ChunkedSoftmax,
    ClassSoftmax,
    FullSoftmax,
    SampledSoftmax,
    TorchAdaptiveSoftmax,
)

WIDTH, N_WORDS = 8, 17
CONFIG = AdaptiveSoftmaxConfig(WIDTH, N_WORDS, (5, 9), 2.0)


class FixedShapes(AdaptiveSoftmax):
    """As it is compiled: with room for all tokens in each tail."""

    def forward(self, hidden, targets):
        return super().forward(hidden, targets, capacity=(hidden.numel(),) * 2)


class Folded(AdaptiveSoftmax):
    """As where the scores are many: they are dropped in the forward pass."""

    def forward(self, hidden, targets):
        with mock.patch.object(folding, "KEPT_AT_MOST", -1):
            return super().forward(hidden, targets)


LAYERS = {
    "torch's adaptive": lambda **o: TorchAdaptiveSoftmax(CONFIG, **o),
    "adaptive": lambda **o: AdaptiveSoftmax(CONFIG, head_bias=True, tail_bias=True, **o),
    "adaptive, fast products": lambda **o: AdaptiveSoftmax(
        CONFIG, head_bias=True, tail_bias=True, fast_products=True, **o
    ),
    "folded": lambda **o: Folded(CONFIG, head_bias=True, tail_bias=True, **o),
    "fixed shapes": lambda **o: FixedShapes(CONFIG, head_bias=True, tail_bias=True, **o),
    "full": lambda **o: FullSoftmax(WIDTH, N_WORDS, bias=True, **o),
    "chunked": lambda **o: ChunkedSoftmax(
        WIDTH, N_WORDS, bias=True, memory_bytes=1, min_rows=3, **o
    ),
    "classes": lambda **o: ClassSoftmax(WIDTH, N_WORDS, bias=True, **o),
    "sampled": lambda **o: SampledSoftmax(WIDTH, N_WORDS, bias=True, n_samples=3, **o).eval(),
}
every_layer = pytest.mark.parametrize("name", LAYERS)
every_reduction = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])

WORDS = torch.tensor([0, 4, 5, 8, 9, 16, 14, 2, 13, 0, 7])  # the ends of all bands
WEIGHT = torch.arange(N_WORDS) % 4 / 2.0  # some are 0, those of words 0 and 4 too


def make(name, *, dtype=torch.float64, **options):
    torch.manual_seed(7)
    return LAYERS[name](**options).to(dtype)


def draws(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(*shape, WIDTH, generator=generator, dtype=torch.float64)
    return hidden.to(dtype).requires_grad_()


def twin(layer, hidden, targets, **options):
    """Cross-entropy of the probabilities, written out; options may differ from the layer's."""
    own = dict(reduction=layer.loss.reduction, ignore_index=layer.loss.ignore_index)
    own |= dict(weight=layer.weight, label_smoothing=layer.loss.label_smoothing)
    log_prob = log_prob_of(layer, hidden.reshape(-1, WIDTH))
    return F.cross_entropy(log_prob, targets.reshape(-1), **own | options)


def gradients(loss, hidden, layer):
    inputs = [x for x in (hidden, *layer.parameters()) if x.requires_grad]
    return torch.autograd.grad(loss, inputs, retain_graph=True, materialize_grads=True)


def assert_same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11, equal_nan=True)
