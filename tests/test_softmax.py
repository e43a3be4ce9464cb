"""Laws of an output layer, against probabilities written out in float64.

Numbers in names of cases are those of the public mistakes they come from.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from probabilities import log_prob_of

from lmtime.config import AdaptiveSoftmaxConfig, GCNConfig
from lmtime.errors import UsageError
from lmtime.softmax import OUTPUT_LAYERS, AdaptiveSoftmax, FullSoftmax, TorchAdaptiveSoftmax

WIDTH, N_WORDS, N_TOKENS = 11, 23, 13
CUTOFFS = {
    "adaptive": (5, 12),
    "adaptive, one word before and one behind": (1, 22),
    "adaptive, one tail": (17,),
    "adaptive, three tails": (2, 3, 9),
}
CUTOFFS |= {f"torch's {name}": cutoffs for name, cutoffs in CUTOFFS.items()}
LAYERS = ("full", *CUTOFFS)
REDUCTIONS = ("mean", "sum", "none")

every_layer = pytest.mark.parametrize("name", LAYERS)
every_reduction = pytest.mark.parametrize("reduction", REDUCTIONS)


pytestmark = pytest.mark.usefixtures("one_thread")


def make(name, *, dtype=torch.float64, **options):
    torch.manual_seed(7)
    if name == "full":
        layer = FullSoftmax(WIDTH, N_WORDS, **options)
    else:
        config = AdaptiveSoftmaxConfig(WIDTH, N_WORDS, CUTOFFS[name], div_value=1.7)
        kind = TorchAdaptiveSoftmax if name.startswith("torch") else AdaptiveSoftmax
        layer = kind(config, **options)
    return layer.to(dtype)


def some_hidden(*shape, dtype=torch.float64, seed=3):
    generator = torch.Generator().manual_seed(seed)
    shape = (*(shape or (N_TOKENS,)), WIDTH)
    hidden = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return hidden.to(dtype).requires_grad_()


def some_targets(*shape):
    """Every cluster is met, and its first and last word."""
    generator = torch.Generator().manual_seed(5)
    targets = torch.randint(N_WORDS, shape or (N_TOKENS,), generator=generator)
    edges = torch.tensor([0, 1, 2, 4, 5, 11, 12, 16, 17, 21, 22])
    flat = targets.view(-1)
    flat[: len(edges)] = edges[: flat.numel()]
    return targets


def gradients(loss, hidden, layer):
    """Of the hidden states and all weights; torch's layer gives None to a cluster nobody hit."""
    inputs = [hidden, *layer.parameters()]
    return torch.autograd.grad(loss, inputs, retain_graph=True, materialize_grads=True)


def assert_same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


# The loss is the cross-entropy of the probabilities


@every_reduction
@every_layer
def test_loss_is_the_cross_entropy_of_the_probabilities_and_so_are_its_gradients(name, reduction):
    layer, hidden, targets = make(name, reduction=reduction), some_hidden(), some_targets()
    found = layer(hidden, targets).loss
    wanted = F.cross_entropy(log_prob_of(layer, hidden), targets, reduction=reduction)
    assert_same(found, wanted)
    assert_same(gradients(found.sum(), hidden, layer), gradients(wanted.sum(), hidden, layer))


@every_layer
def test_gradients_are_the_differences_of_the_loss(name):
    layer, hidden, targets = make(name), some_hidden(4), torch.tensor([0, 16, 22, 3])
    inputs = (hidden, *layer.parameters())  # perturbed in place, so the layer itself moves
    assert torch.autograd.gradcheck(
        lambda hidden, *_: layer(hidden, targets).loss, inputs, fast_mode=True
    )


@st.composite
def partitions_and_targets(draw):
    n_words = draw(st.integers(2, 40))
    cutoffs = draw(st.sets(st.integers(1, n_words - 1), min_size=1, max_size=4))
    targets = draw(st.lists(st.integers(0, n_words - 1), min_size=1, max_size=9))
    return n_words, tuple(sorted(cutoffs)), torch.tensor(targets)


@settings(deadline=None, max_examples=60)
@given(partitions_and_targets(), st.sampled_from([AdaptiveSoftmax, TorchAdaptiveSoftmax]))
def test_any_partition_and_any_targets_give_the_probability_of_the_word(case, kind):
    """An empty cluster, all in the short list, all in the last tail: none is special."""
    n_words, cutoffs, targets = case
    layer = kind(AdaptiveSoftmaxConfig(WIDTH, n_words, cutoffs, 1.5)).double()
    hidden = some_hidden(len(targets))
    wanted = -log_prob_of(layer, hidden).gather(1, targets[:, None])[:, 0]
    assert_same(layer(hidden, targets).nll, wanted)
    assert_same(layer.log_prob(hidden), log_prob_of(layer, hidden))


@pytest.mark.parametrize("div_value", [0.25, 1.0, 1.7, 3.0])
def test_widths_of_the_tails_are_the_configurations(div_value):
    """Case 13: also wider ones than the hidden state."""
    config = AdaptiveSoftmaxConfig(WIDTH, N_WORDS, (5, 12), div_value)
    layer = TorchAdaptiveSoftmax(config).layer
    assert tuple(down.out_features for down, _ in layer.tail) == config.tail_dims
    assert tuple(out.out_features for _, out in layer.tail) == config.tail_sizes
    assert layer.head.out_features == config.head_size
    layer = AdaptiveSoftmax(config)
    assert tuple(tail.projection.out_features for tail in layer.tails) == config.tail_dims
    assert tuple(tail.words.out_features for tail in layer.tails) == config.tail_sizes
    assert layer.head.words.out_features == config.head_size


# Ignored targets


each_adaptive = pytest.mark.parametrize("kind", [AdaptiveSoftmax, TorchAdaptiveSoftmax])


@each_adaptive
@pytest.mark.parametrize("target", [6, 11])
def test_only_the_global_id_is_ignored(target, kind):
    """Case 1: 6 and 11 are number 1 of their clusters, which must not be taken for word 1."""
    layer = kind(AdaptiveSoftmaxConfig(8, 20, (5, 10), 2.0), ignore_index=1).double()
    hidden = torch.randn(2, 8, dtype=torch.float64)
    out = layer(hidden, torch.tensor([target, 1]))
    wanted = -log_prob_of(layer, hidden)[0, target]
    assert_same(out.nll, torch.stack([wanted, torch.zeros_like(wanted)]))
    assert_same(out.loss, wanted)


@every_reduction
@pytest.mark.parametrize("ignore_index", [-100, -1, 0, 1, 255])
@every_layer
def test_an_ignored_target_in_the_middle_counts_nowhere(name, ignore_index, reduction):
    """Case 2."""
    layer = make(name, reduction=reduction, ignore_index=ignore_index)
    hidden, targets = some_hidden(4), torch.tensor([2, ignore_index, 7, 12])
    out = layer(hidden, targets)
    wanted = F.cross_entropy(
        log_prob_of(layer, hidden), targets, reduction=reduction, ignore_index=ignore_index
    )
    assert_same(out.loss, wanted)
    assert_same(gradients(out.loss.sum(), hidden, layer), gradients(wanted.sum(), hidden, layer))
    assert out.nll[1] == 0
    grad = gradients(out.loss.sum(), hidden, layer)[0]
    assert (grad[1] == 0).all(), "exactly"
    assert (grad[[0, 2, 3]] != 0).any(-1).all()


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@every_reduction
@every_layer
def test_with_all_targets_ignored_every_gradient_is_zero(name, reduction, label_smoothing):
    """Case 3: as in torch the mean is nan, and nothing else is."""
    layer = make(name, reduction=reduction, label_smoothing=label_smoothing)
    hidden = some_hidden(3)
    out = layer(hidden, torch.full((3,), -100))
    assert torch.equal(out.nll, torch.zeros(3, dtype=torch.float64))
    assert out.loss.isnan().all() if reduction == "mean" else (out.loss == 0).all()
    assert all((grad == 0).all() for grad in gradients(out.loss.sum(), hidden, layer))


# Weighting, smoothing, backward twice


@every_layer
def test_weights_of_the_tokens_reach_the_gradients(name):
    """Case 8: the first weight is 0, so that one taken for all of them is caught."""
    layer, hidden, targets = make(name, reduction="none"), some_hidden(), some_targets()
    weights = torch.arange(N_TOKENS, dtype=torch.float64)
    found = (weights * layer(hidden, targets).loss).sum()
    plain = F.cross_entropy(log_prob_of(layer, hidden), targets, reduction="none")
    wanted = (weights * plain).sum()
    assert_same(gradients(found, hidden, layer), gradients(wanted, hidden, layer))


@every_reduction
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
@every_layer
def test_label_smoothing_is_that_of_torch_on_the_probabilities(name, label_smoothing, reduction):
    """Case 12: the mass goes to every word alike, also to those in tails; ignored rows get none."""
    options = dict(reduction=reduction, ignore_index=-1, label_smoothing=label_smoothing)
    layer, hidden, targets = make(name, **options), some_hidden(), some_targets()
    targets[1] = targets[8] = -1
    out = layer(hidden, targets)
    wanted = F.cross_entropy(log_prob_of(layer, hidden), targets, **options)
    assert_same(out.loss, wanted)
    assert_same(gradients(out.loss.sum(), hidden, layer), gradients(wanted.sum(), hidden, layer))
    assert_same(out.nll, make(name, reduction="none", ignore_index=-1)(hidden, targets).loss)


@every_layer
def test_two_backward_passes_give_the_same_and_need_the_graph(name):
    """Case 21."""
    layer, hidden, targets = make(name), some_hidden(), some_targets()
    loss = layer(hidden, targets).loss
    first = gradients(loss, hidden, layer)
    assert all(map(torch.equal, first, gradients(loss, hidden, layer)))
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


# Shapes


@every_reduction
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (3, 1, 2, 2)])
@every_layer
def test_leading_dimensions_are_kept_and_change_nothing(name, shape, reduction):
    """Case 16: a single hidden state needs no dimension of tokens."""
    layer, targets = make(name, reduction=reduction), torch.tensor(some_targets(12).tolist())
    n_tokens = math.prod(shape)
    hidden = some_hidden(12)[:n_tokens]
    flat, targets = layer(hidden, targets[:n_tokens]), targets[:n_tokens].reshape(shape)
    out = layer(hidden.reshape(*shape, WIDTH), targets)
    assert out.nll.shape == shape
    assert out.loss.shape == (shape if reduction == "none" else ())
    assert_same(out.nll.reshape(-1), flat.nll)
    assert_same(out.loss.reshape(-1), flat.loss.reshape(-1))
    log_prob = layer.log_prob(hidden.reshape(*shape, WIDTH))
    assert_same(log_prob, log_prob_of(layer, hidden).reshape(*shape, N_WORDS))
    assert layer.predict(hidden.reshape(*shape, WIDTH)).shape == shape


@every_layer
def test_hidden_states_need_not_lie_in_order(name):
    layer, targets = make(name), some_targets(3, 4)
    hidden = some_hidden(4, 3).transpose(0, 1)
    assert not hidden.is_contiguous()
    assert_same(layer(hidden, targets), layer(hidden.contiguous(), targets))
    assert_same(layer.log_prob(hidden), layer.log_prob(hidden.contiguous()))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5)])
@every_layer
def test_no_tokens_are_no_error(name, shape):
    """Case 16."""
    layer, hidden = make(name), torch.zeros(*shape, WIDTH, dtype=torch.float64)
    assert layer.log_prob(hidden).shape == (*shape, N_WORDS)
    assert layer.predict(hidden).shape == shape
    out = layer(hidden, torch.zeros(shape, dtype=torch.int64))
    assert out.nll.shape == shape
    assert out.loss.isnan(), "as in torch"


# Probabilities


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
@every_layer
def test_probabilities_sum_to_one(name, scale):
    layer, hidden = make(name), scale * some_hidden()
    total = layer.log_prob(hidden).logsumexp(-1)
    assert_same(total, torch.zeros(N_TOKENS, dtype=torch.float64))


@every_layer
def test_log_probability_of_the_target_is_the_negative_of_its_loss(name):
    layer, hidden = make(name), some_hidden(N_WORDS)
    targets = torch.arange(N_WORDS)
    assert_same(layer(hidden, targets).nll, -layer.log_prob(hidden).diagonal())


@every_layer
def test_prediction_is_the_most_likely_word(name):
    layer, hidden = make(name), 5 * some_hidden(400)
    predicted = layer.predict(hidden)
    assert torch.equal(predicted, log_prob_of(layer, hidden).argmax(-1))
    assert predicted.dtype == torch.int64
    assert len(predicted.unique()) > 5, "the case must differ from token to token"


@pytest.mark.parametrize("cluster_share, wanted", [(0.6, 0), (0.95, 5)])
def test_a_likely_cluster_is_no_likely_word(cluster_share, wanted):
    """Case 16: the cluster leads the head; its five words share it, the first gets 0.36 of it."""
    layer = AdaptiveSoftmax(AdaptiveSoftmaxConfig(4, 10, (5,), 1.0)).double()
    head = torch.tensor([1 - cluster_share - 4e-9, *[1e-9] * 4, cluster_share]).log()
    inside = torch.tensor([0.36, *[0.16] * 4]).log()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.zero_()
        layer.head.words.weight[:, 0] = head
        layer.tails[0].projection.weight[0, 0] = 1.0
        layer.tails[0].words.weight[:, 0] = inside
    hidden = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    assert (hidden @ layer.head.words.weight.T).argmax() == 5, "the cluster leads"
    assert layer.predict(hidden) == wanted


# Precision


@pytest.mark.parametrize("autocast_dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("input_dtype", [torch.float32, torch.bfloat16])
@every_layer
def test_autocast_runs_and_stays_near_fp32(name, input_dtype, autocast_dtype):
    """Case 6: with fp32 and with 16-bit input, and what comes out is fp32."""
    layer, hidden = make(name, dtype=torch.float32), some_hidden(dtype=torch.float32)
    targets = some_targets()
    cast = hidden.detach().to(input_dtype).requires_grad_()
    with torch.autocast("cpu", dtype=autocast_dtype):
        out, log_prob = layer(cast, targets), layer.log_prob(cast)
    out.loss.backward()
    assert out.nll.dtype == out.loss.dtype == log_prob.dtype == torch.float32
    torch.testing.assert_close(out.loss, layer(hidden, targets).loss, rtol=0, atol=1e-2)
    torch.testing.assert_close(log_prob, layer.log_prob(hidden), rtol=0, atol=1e-2)
    plain = torch.autograd.grad(layer(hidden, targets).loss, hidden)[0]
    assert cast.grad.dtype == input_dtype
    torch.testing.assert_close(cast.grad.float(), plain, rtol=0, atol=1e-2)


@every_layer
def test_fp32_errs_by_its_own_rounding_and_no_more(name):
    truth, layer = make(name), make(name, dtype=torch.float32)
    layer.load_state_dict({k: v.float() for k, v in truth.state_dict().items()})
    truth.load_state_dict({k: v.double() for k, v in layer.state_dict().items()})
    hidden = 10 * some_hidden(dtype=torch.float32)
    wanted = log_prob_of(truth, hidden.double())
    torch.testing.assert_close(layer.log_prob(hidden).double(), wanted, rtol=1e-5, atol=1e-5)


# Mistakes


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bad", [N_WORDS, N_WORDS + 5, 10**12, -2, -5])
@every_layer
def test_a_target_that_is_no_word_is_an_error(name, bad, label_smoothing):
    """Case 23: never a number, wherever it stands."""
    layer = make(name, ignore_index=-1, label_smoothing=label_smoothing)
    for targets in ([bad, 3, 22], [3, -1, bad], [bad] * 3):
        with pytest.raises((IndexError, RuntimeError)):
            layer(some_hidden(3), torch.tensor(targets))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.float32, torch.bool])
@every_layer
def test_targets_of_another_type_are_refused_by_every_layer(name, dtype):
    """Case 23: torch's own functions differ in which they accept."""
    with pytest.raises(UsageError, match=r"targets are torch\.\w+ and must be torch\.int64"):
        make(name)(some_hidden(3), torch.tensor([1, 0, 1]).to(dtype))


@pytest.mark.parametrize(
    "hidden, targets", [((3,), (4,)), ((2, 3), (6,)), ((2, 3), (3, 2)), ((), (1,)), ((1,), ())]
)
@every_layer
def test_targets_have_the_shape_of_the_hidden_states(name, hidden, targets):
    with pytest.raises(UsageError, match="needs targets of shape"):
        make(name)(
            some_hidden(*hidden) if hidden else some_hidden(1)[0], torch.ones(targets).long()
        )


@every_layer
def test_hidden_states_of_another_width_are_refused(name):
    layer, wide = make(name), torch.zeros(4, 2 * WIDTH, dtype=torch.float64)
    calls = (layer.log_prob, layer.predict, lambda h: layer(h, torch.ones(4, dtype=torch.int64)))
    for call in calls:
        with pytest.raises(UsageError, match="hidden states 22 wide must be 11"):
            call(wide)


@every_layer
def test_options_that_do_not_exist_are_refused(name):
    with pytest.raises(UsageError, match="unknown reduction 'avg': choose one of mean, sum, none"):
        make(name, reduction="avg")
    for label_smoothing in (-0.1, 1.1, math.nan):
        with pytest.raises(UsageError, match=r"label_smoothing=.* between 0 and 1"):
            make(name, label_smoothing=label_smoothing)


# The table


@pytest.mark.parametrize("name", OUTPUT_LAYERS)
def test_the_table_builds_the_layer_of_a_configuration(name):
    shape = dict(hidden_size=37, final_hidden_size=41, vocab_size=53, cutoffs=(7, 19))
    layer = OUTPUT_LAYERS[name](GCNConfig(output_layer=name, **shape))
    assert layer.log_prob(torch.zeros(2, 41)).shape == (2, 53)
