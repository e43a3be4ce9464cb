"""The class-based softmax: p(word) = p(its class) * p(word among the words of the class)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lmtime.errors import UsageError
from lmtime.softmax.full import log_softmax
from lmtime.softmax.interface import OutputLayer, mean_nll, product_dtype


class ClassSoftmax(OutputLayer):
    """Two levels over classes of as many consecutive ids each (Goodman 2001).

    2 * n_tokens * hidden_size * (n_classes + class_size) FLOPs forward, twice that backward; fewest
    with about sqrt(vocab_size) classes, the default. Tokens are sorted by their class, and each
    class that is met has a product of its own, so that no vector of a word is copied; knowing the
    sizes waits for the device once. All words of all classes are one parameter: (n_classes,
    class_size, hidden_size), where the last class may have vectors of no word, with gradient 0.

    n_classes: at most so many; fewer where the words fill fewer. bias: of the classes and of the
    words, (n_classes, class_size).
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        n_classes: int | None = None,
        bias: bool = False,
        **options: object,
    ) -> None:
        super().__init__(hidden_size, vocab_size, **options)
        n_classes = round(math.sqrt(vocab_size)) if n_classes is None else n_classes
        if not 1 <= n_classes <= vocab_size:
            raise UsageError(f"{n_classes=} must lie between 1 and the {vocab_size} words")
        self.class_size = math.ceil(vocab_size / n_classes)
        self.n_classes = math.ceil(vocab_size / self.class_size)
        self.classes = nn.Linear(hidden_size, self.n_classes, bias=bias)
        self.words = nn.Parameter(torch.empty(self.n_classes, self.class_size, hidden_size))
        bound = 1 / math.sqrt(hidden_size)  # as nn.Linear
        nn.init.uniform_(self.words, -bound, bound)
        self.bias = None
        if bias:
            self.bias = nn.Parameter(torch.empty(self.words.shape[:2]).uniform_(-bound, bound))

    def token_nll(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """(n_tokens, hidden_size), (n_tokens,) -> (n_tokens,), and `mean_nll`."""
        hidden = self._cast(hidden)
        known = targets.masked_fill(targets == self.loss.ignore_index, 0)
        classes = known.div(self.class_size, rounding_mode="floor")
        log_class = log_softmax(self.classes(hidden)).gather(1, classes[:, None])[:, 0]
        nll = -log_class - self._log_word(hidden, known, classes)
        if self.loss.label_smoothing == 0:
            return nll, None
        return nll, mean_nll(self.all_log_prob(hidden), self.weight)

    def all_log_prob(self, hidden: Tensor) -> Tensor:
        """(n_tokens, hidden_size) -> (n_tokens, vocab_size)."""
        hidden = self._cast(hidden)
        bias = None if self.bias is None else self.bias.flatten()
        logits = nn.functional.linear(hidden, self.words.flatten(0, 1), bias)[:, : self.vocab_size]
        n_missing = self.words.shape[0] * self.class_size - self.vocab_size
        logits = nn.functional.pad(logits, (0, n_missing), value=-math.inf)
        inside = log_softmax(logits.unflatten(1, self.words.shape[:2]))
        log_class = log_softmax(self.classes(hidden))
        return (log_class[:, :, None] + inside).flatten(1)[:, : self.vocab_size]

    def _cast(self, hidden: Tensor) -> Tensor:
        return hidden.to(product_dtype(hidden, self.words.dtype))

    def _log_word(self, hidden: Tensor, targets: Tensor, classes: Tensor) -> Tensor:
        """Log-probability of each target among the words of its class, (n_tokens,)."""
        order = classes.argsort(stable=True)
        counts = classes.bincount(minlength=self.n_classes).tolist()
        parts = hidden[order].split(counts)
        # One `unbind`, whose backward pass writes one gradient: each index would write a whole one.
        vectors = self.words.unbind(0)
        biases = [None] * self.n_classes if self.bias is None else self.bias.unbind(0)
        met = [c for c, count in enumerate(counts) if count] or [0]
        logits = torch.cat([nn.functional.linear(parts[c], vectors[c], biases[c]) for c in met])
        place = targets - classes * self.class_size
        # What is no word is refused: by the gather of its class, or by this place in the last one.
        place = place.masked_fill(targets >= self.vocab_size, self.class_size)[order]
        n_words = (self.vocab_size - classes * self.class_size)[order]
        missing = torch.arange(self.class_size, device=hidden.device) >= n_words[:, None]
        log_word = log_softmax(logits.masked_fill(missing, -math.inf)).gather(1, place[:, None])
        return log_word[:, 0][order.argsort()]
