"""The adaptive softmax, fast: torch's model, or one of freer shape, with one wait at most."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lmtime.config import AdaptiveSoftmaxConfig
from lmtime.errors import UsageError
from lmtime.softmax.bands import Band, band_shapes
from lmtime.softmax.full import log_softmax
from lmtime.softmax.fused import AdaptiveNLL
from lmtime.softmax.interface import (
    OutputLayer,
    OutputLoss,
    check_int64,
    mean_nll,
    product_dtype,
    shaped_like,
)
from lmtime.softmax.partition import Lookup, Plan, partition
from lmtime.softmax.products import multiply_by
from lmtime.softmax.static import static_nll


class AdaptiveSoftmax(OutputLayer):
    """A short list and tail clusters of narrow words (Grave et al. 2017).

    The probabilities are those of `nn.AdaptiveLogSoftmaxWithLoss` with the same weights, and the
    weights are drawn as there. The tokens are sorted by cluster once; a `plan` made on the host
    spares the wait for the device. A cluster that no target hits has a gradient of zeros.

    Of head and tails either may have a bias. weight: (vocab_size,), what a word counts in the loss.
    The mass of label smoothing goes to all words of the vocabulary alike, which costs the scores
    of a full softmax. words: vectors that another layer has too, one table a band (`band_shapes`).
    fast_products: in fp32 on a CPU take oneDNN wherever it is faster at all, and for long sums too,
    which err about twice as much; but for the gradients of the weights.
    """

    def __init__(
        self,
        config: AdaptiveSoftmaxConfig,
        *,
        head_bias: bool = False,
        tail_bias: bool = False,
        weight: Tensor | None = None,
        words: Sequence[nn.Parameter] | None = None,
        fast_products: bool = False,
        **options: object,
    ) -> None:
        super().__init__(config.hidden_size, config.vocab_size, weight=weight, **options)
        self.config = config
        self.multiply = multiply_by(fast_products)
        shapes, n_tails = band_shapes(config), len(config.cutoffs)
        given = [None] * len(shapes) if words is None else list(words)
        if words is not None and (found := [tuple(t.shape) for t in given]) != shapes:
            raise UsageError(f"tied words of shapes {found} must be {shapes}, one table a band")
        self.shared = None
        if config.shared_rank is not None:
            self.shared = nn.Linear(config.hidden_size, config.shared_rank, bias=False)
        self.head = Band(
            shapes[0],
            config.input_size,
            projects=config.head_rank is not None,
            n_clusters=n_tails,
            bias=head_bias,
            words=given[0],
        )
        self.tails = nn.ModuleList(
            Band(shape, config.input_size, projects=projects, bias=tail_bias, words=table)
            for shape, projects, table in zip(
                shapes[1:], config.tail_projects, given[1:], strict=True
            )
        )
        # By device, and no buffer: `to_empty` would leave it without values.
        self._lookups: dict[torch.device, Lookup] = {}

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor,
        *,
        plan: Plan | None = None,
        capacity: Sequence[int] | None = None,
    ) -> OutputLoss:
        """hidden: (..., hidden_size); targets: (...) int64; plan: of these targets.

        With `capacity`, the most tokens of each tail cluster, all shapes are fixed and the layer
        can be compiled whole: see `static.py` for what happens beyond it.
        """
        if plan is not None and capacity is not None:
            raise UsageError("a plan and capacities are two ways to go: give one of them")
        rows, flat = self._checked(hidden, targets)
        narrowed = self._narrowed(rows)
        if capacity is None:
            plan = self.plan(flat) if plan is None else plan.to(rows.device)
            found = plan.n_tokens, len(plan.counts)
            if found != (wanted := (len(flat), len(self.tails))):
                raise UsageError(
                    "a plan of {} tokens and {} tails is not one of {} and {}".format(
                        *found, *wanted
                    )
                )
            share = self._share(flat, plan.ignored, plan.n_kept)
            nll, loss = self._fused_nll(narrowed, plan, share)
        else:
            ignored = flat == self.loss.ignore_index
            bands = (self.head, *self.tails)
            nll = static_nll(bands, self.config.cutoffs, narrowed, flat, ignored, capacity)
            loss = None
        if loss is None:
            uniform = None
            if self.loss.label_smoothing:
                uniform = mean_nll(self.all_log_prob(rows), self.weight)
            loss = self.loss(nll, uniform, flat, self.weight).loss
        return shaped_like(targets, nll, loss)

    def __getstate__(self) -> dict[str, object]:
        """Without what can be looked up anew, on whatever device the copy is."""
        return super().__getstate__() | {"_lookups": {}}

    def plan(self, targets: Tensor) -> Plan:
        """The tokens of (...) int64 targets by cluster, on their device; on a GPU the host waits.

        A target that is neither a word nor ignored raises IndexError.
        """
        check_int64(targets)
        device, config = targets.device, self.config
        if device not in self._lookups:
            self._lookups[device] = Lookup.of(
                config.cutoffs, config.vocab_size, self.loss.ignore_index, device
            )
        return partition(targets.flatten().contiguous(), self._lookups[device])

    def all_log_prob(self, hidden: Tensor) -> Tensor:
        """(n_tokens, hidden_size) -> (n_tokens, vocab_size)."""
        narrowed = self._narrowed(hidden)
        sizes = (self.config.cutoffs[0], *[1] * len(self.tails))
        short_list, *clusters = log_softmax(self.head(narrowed)).split(sizes, dim=1)
        inside = (log_softmax(tail(narrowed)) for tail in self.tails)
        return torch.cat([short_list, *map(torch.add, clusters, inside)], dim=1)

    def _narrowed(self, rows: Tensor) -> Tensor:
        """(n_tokens, hidden_size) -> (n_tokens, input_size), in the type of the products."""
        dtype = product_dtype(rows, self.head.words.weight.dtype)
        rows = rows if rows.dtype == dtype else rows.to(dtype)
        return rows if self.shared is None else self.shared(rows)

    def _share(self, flat: Tensor, ignored: Tensor | None, n_kept: int) -> float | Tensor | None:
        """Of each token's nll in the loss, one number or (n_tokens,); None: it is no such sum."""
        if self.loss.reduction == "none" or self.loss.label_smoothing or n_kept == 0:
            return None
        is_mean = self.loss.reduction == "mean"
        if self.weight is None:
            return 1.0 / n_kept if is_mean else 1.0
        counts = self._counts(flat, ignored)
        if not is_mean:
            return counts
        total = counts.sum()
        return counts / total.masked_fill(total == 0, 1.0)  # 0 for all where no token has weight

    def _counts(self, flat: Tensor, ignored: Tensor | None) -> Tensor:
        """(n_tokens,): the weight of each target, 0 where ignored."""
        known = flat if ignored is None else flat.masked_fill(ignored, 0)
        weight = self.weight.to(torch.promote_types(self.head.words.weight.dtype, torch.float32))
        return _masked(weight.index_select(0, known), ignored)

    @torch.compiler.disable  # sizes of clusters are known to the host alone; see `capacity`
    def _fused_nll(
        self, narrowed: Tensor, plan: Plan, share: float | Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        dtype = narrowed.dtype
        weights = [
            tensor if tensor is None or tensor.dtype == dtype else tensor.to(dtype)
            for band in (self.head, *self.tails)
            for tensor in band.weights
        ]
        learns = any(t is not None and t.requires_grad for t in (narrowed, *weights))
        learns = learns and torch.is_grad_enabled()
        nll, loss = AdaptiveNLL.apply(narrowed, plan, share, learns, self.multiply, *weights)
        if isinstance(share, Tensor) and self.loss.reduction == "mean":
            loss = loss.masked_fill(~share.any(), math.nan)  # as in torch, and no gradient is
        return nll, loss

    @classmethod
    def from_torch(
        cls, module: nn.AdaptiveLogSoftmaxWithLoss, **options: object
    ) -> AdaptiveSoftmax:
        """The same probabilities from copies of the weights; a bias that torch has not is 0."""
        config = AdaptiveSoftmaxConfig(
            module.in_features, module.n_classes, module.cutoffs, module.div_value
        )
        head_bias = options.pop("head_bias", False) or module.head.bias is not None
        layer = cls(config, head_bias=head_bias, **options)
        layer.to(module.head.weight)
        for band in (layer.head, *layer.tails):
            if band.bias is not None:
                nn.init.zeros_(band.bias)
        found = {_own_name(name): tensor for name, tensor in module.state_dict().items()}
        layer.load_state_dict(layer.state_dict() | found)
        return layer

    def to_torch(self) -> nn.AdaptiveLogSoftmaxWithLoss:
        """torch's layer with copies of the weights; it has neither ranks nor biases of tails."""
        config, (head, *tails) = self.config, (self.head.weights, *(t.weights for t in self.tails))
        if not config.is_torchs or any(tail.bias is not None for tail in tails):
            raise UsageError(
                "torch's adaptive softmax takes no tail_widths, head_rank, shared_rank or "
                "tail_bias: a layer with one of them cannot become one"
            )
        module = nn.AdaptiveLogSoftmaxWithLoss(
            config.hidden_size,
            config.vocab_size,
            config.cutoffs,
            config.div_value,
            head_bias=head.bias is not None,
        ).to(head.words)
        state = {"head.weight": torch.cat([m for m in head[1:3] if m is not None])}
        if head.bias is not None:
            state["head.bias"] = head.bias
        for i, tail in enumerate(tails):
            state |= {f"tail.{i}.0.weight": tail.projection, f"tail.{i}.1.weight": tail.words}
        module.load_state_dict(state)
        return module


def _own_name(name: str) -> str:
    """Of a parameter of torch's layer: `tail.0.1.weight` is `tails.0.words.weight`."""
    for theirs, ours in ((".0.weight", ".projection.weight"), (".1.weight", ".words.weight")):
        if name.endswith(theirs):
            return name.removesuffix(theirs).replace("tail", "tails") + ours
    return name.replace("head.weight", "head.words.weight")


def _masked(values: Tensor, ignored: Tensor | None) -> Tensor:
    """0 where the target is ignored."""
    return values if ignored is None else values.masked_fill(ignored, 0.0)
