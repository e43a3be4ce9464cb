"""The probabilities of an output layer written out: each word by its definition, in plain torch.

The plain twin of every layer: nothing is fused, sorted or left out.
"""

import torch

from lmtime.softmax import AdaptiveSoftmax, FullSoftmax


def log_prob_of(layer, hidden):
    """(n_tokens, n_words): the head's entry for a cluster, then the word inside it; once each."""
    if isinstance(layer, FullSoftmax):
        return torch.log_softmax(hidden @ layer.head.weight.T, -1)
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


def scores_of(band, hidden):
    """(n_tokens, n_entries) of one band."""
    if band.projection is not None:
        hidden = hidden @ band.projection.weight.T
    tables = [part.weight for part in (band.words, band.clusters) if part is not None]
    scores = torch.cat([hidden @ table.T for table in tables], -1)
    return scores if band.bias is None else scores + band.bias
