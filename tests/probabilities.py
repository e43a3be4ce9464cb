"""The probabilities of an output layer written out: each word by its definition, in plain torch.

The plain twin of every layer: nothing is fused, sorted or left out.
"""

import pytest
import torch
import torch.nn.functional as F

from lmtime.softmax import AdaptiveSoftmax, ChunkedSoftmax, ClassSoftmax, FullSoftmax


def log_prob_of(layer, hidden):
    """(n_tokens, n_words): the head's entry for a cluster, then the word inside it; once each."""
    if isinstance(layer, FullSoftmax | ChunkedSoftmax):
        return torch.log_softmax(F.linear(hidden, layer.head.weight, layer.head.bias), -1)
    if isinstance(layer, ClassSoftmax):
        return log_prob_of_classes(layer, hidden)
    if isinstance(layer, AdaptiveSoftmax):
        if layer.shared is not None:
            hidden = hidden @ layer.shared.weight.T
        head, *tails = (scores_of(band, hidden) for band in (layer.head, *layer.tails))
    else:
        head = hidden @ layer.layer.head.weight.T
        tails = [hidden @ down.weight.T @ out.weight.T for down, out in layer.layer.tail]
    head = torch.log_softmax(head, -1)
    n_short = head.shape[-1] - len(tails)
    inside = [
        head[:, n_short + i, None] + torch.log_softmax(tail, -1) for i, tail in enumerate(tails)
    ]
    return torch.cat([head[:, :n_short], *inside], -1)


def log_prob_of_classes(layer, hidden):
    """Class by class, of its own words alone."""
    log_class = torch.log_softmax(layer.classes(hidden), -1)
    parts = []
    for c, vectors in enumerate(layer.words):
        n_words = min(layer.class_size, layer.vocab_size - c * layer.class_size)
        bias = None if layer.bias is None else layer.bias[c, :n_words]
        inside = torch.log_softmax(F.linear(hidden, vectors[:n_words], bias), -1)
        parts.append(log_class[:, c, None] + inside)
    return torch.cat(parts, -1)


def scores_of(band, hidden):
    """(n_tokens, n_entries) of one band."""
    if band.projection is not None:
        hidden = hidden @ band.projection.weight.T
    tables = [part.weight for part in (band.words, band.clusters) if part is not None]
    scores = torch.cat([hidden @ table.T for table in tables], -1)
    return scores if band.bias is None else scores + band.bias


def assert_backward_repeats(loss, hidden, gradients):
    """Two passes over a kept graph give the same; without it the second is refused. Case 21.

    gradients: () -> those of the loss, of the hidden states first.
    """
    first = [grad.clone() for grad in gradients()]
    assert all(map(torch.equal, first, gradients()))
    loss.backward()
    assert torch.equal(first[0], hidden.grad)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
