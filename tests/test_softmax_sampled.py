"""Laws of the sampled softmax: an estimate in training, the full softmax otherwise."""

import math

import pytest
import torch
import torch.nn.functional as F

from lmtime.errors import UsageError
from lmtime.softmax import FullSoftmax, SampledSoftmax
from lmtime.softmax.sampled import ZipfSampler

WIDTH, N_WORDS, N_TOKENS = 5, 40, 6
powers = pytest.mark.parametrize("power", [0.0, 0.75, 1.0, 1.3])

pytestmark = pytest.mark.usefixtures("one_thread")


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


def make(n_samples, *, generator=None, **options):
    torch.manual_seed(7)
    options = dict(n_samples=n_samples, generator=generator or seeded(), **options)
    return SampledSoftmax(WIDTH, N_WORDS, **options).double()


def some_tokens():
    generator = seeded(3)
    hidden = torch.randn(N_TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    return hidden.requires_grad_(), torch.tensor([0, 0, 1, 7, 20, 39])


def full_twin(layer, **options):
    full = FullSoftmax(WIDTH, N_WORDS, **options).double()
    full.load_state_dict(layer.state_dict())
    return full


def full_loss(layer, hidden, targets):
    return F.cross_entropy(F.linear(hidden, layer.head.weight), targets)


def gradients(loss, hidden, layer):
    return torch.autograd.grad(loss, (hidden, *layer.parameters()))


def assert_same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


# The sampler


@powers
@pytest.mark.parametrize("n_words", [1, 2, 40, 800_000])
def test_probabilities_are_those_of_a_whole_that_falls_with_the_rank(power, n_words):
    probability = ZipfSampler(n_words, power).probability(torch.arange(n_words))
    assert probability.sum().item() == pytest.approx(1, abs=1e-9)
    assert (probability.diff() <= 1e-15).all()


def test_log_uniform_is_that_of_tensorflow():
    ids = torch.tensor([0, 3, 99])
    wanted = [math.log((k + 2) / (k + 1)) / math.log(101) for k in ids.tolist()]
    assert ZipfSampler(100, 1.0).probability(ids).tolist() == pytest.approx(wanted, rel=1e-12)
    assert ZipfSampler(100, 0.0).probability(ids).tolist() == pytest.approx([0.01] * 3)


@powers
def test_draws_have_those_probabilities(power):
    """Chi-square with 39 degrees of freedom: above 80 in one of 8,000 cases; the seed is fixed."""
    n = 100_000
    sampler = ZipfSampler(N_WORDS, power)
    counts = sampler.sample(n, seeded()).bincount(minlength=N_WORDS)
    expected = n * sampler.probability(torch.arange(N_WORDS))
    assert len(counts) == N_WORDS
    assert ((counts - expected) ** 2 / expected).sum() < 80


# In training


def test_a_seed_decides_the_draws():
    hidden, targets = some_tokens()
    first, same = (make(5, generator=seeded(4))(hidden, targets) for _ in range(2))
    assert torch.equal(first.nll, same.nll)
    other = make(5, generator=seeded(5))(hidden, targets)
    assert not torch.equal(first.nll, other.nll)
    layer = make(5)
    layer.generator = None
    torch.manual_seed(2)
    again = [layer(hidden, targets).loss]
    torch.manual_seed(2)
    assert torch.equal(again[0], layer(hidden, targets).loss)


def drawing(layer, ids):
    layer.sampler.sample = lambda n, generator: torch.tensor(ids)
    return layer


@pytest.mark.parametrize("bias", [False, True])
def test_the_loss_is_that_of_the_drawn_words_without_the_target(bias):
    """Also where all that is drawn is the target: then it is certain."""
    ids = [0, 1, 0, 7]
    layer, (hidden, targets) = drawing(make(4, bias=bias), ids), some_tokens()
    logits = F.linear(hidden, layer.head.weight, layer.head.bias)
    probability = layer.sampler.probability(torch.arange(N_WORDS))
    wanted = []
    for row, target in zip(logits, targets.tolist(), strict=True):
        others = [row[k].exp() / (4 * probability[k]) for k in ids if k != target]
        wanted.append((row[target].exp() + sum(others)).log() - row[target])
    out = layer(hidden, targets)
    assert_same(out.nll, torch.stack(wanted))
    assert_same(
        gradients(out.loss, hidden, layer), gradients(sum(wanted) / N_TOKENS, hidden, layer)
    )
    layer = drawing(make(3), [7, 7, 7])
    certain = layer(hidden, torch.full((N_TOKENS,), 7))
    assert_same(certain.nll, torch.zeros(N_TOKENS, dtype=torch.float64))
    assert all((grad == 0).all() for grad in gradients(certain.loss, hidden, layer))


def test_the_sum_over_the_words_is_unbiased():
    """exp(nll) is the sum over exp(logit of the target)."""
    hidden, targets = some_tokens()
    layer = make(8)
    ratios = torch.stack([layer(hidden, targets).nll.detach().exp() for _ in range(3000)])
    wanted = full_twin(layer)(hidden, targets).nll.exp()
    deviation = ratios.std(0) / math.sqrt(len(ratios))
    assert ((ratios.mean(0) - wanted).abs() < 4 * deviation).all()
    assert (deviation < 0.02 * wanted).all(), "the law must be able to fail"


def flat_gradients(loss, hidden, layer):
    return torch.cat([grad.flatten() for grad in gradients(loss, hidden, layer)])


def test_the_mean_gradient_nears_the_full_one_as_samples_grow():
    hidden, targets = some_tokens()
    bias, spread = [], []
    for n_samples in (2, 8, 32):
        layer = make(n_samples)
        wanted = flat_gradients(full_loss(layer, hidden, targets), hidden, layer)
        draws = torch.stack(
            [flat_gradients(layer(hidden, targets).loss, hidden, layer) for _ in range(1000)]
        )
        bias.append(((draws.mean(0) - wanted).norm() / wanted.norm()).item())
        spread.append(((draws - wanted).norm(dim=1).mean() / wanted.norm()).item())
    assert bias[2] < bias[1] < bias[0]
    assert bias[2] < 0.03
    assert spread[2] < spread[1] < spread[0]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_an_ignored_target_counts_nowhere(reduction, label_smoothing):
    options = dict(reduction=reduction, ignore_index=1, label_smoothing=label_smoothing)
    layer, (hidden, targets) = make(6, bias=True, **options), some_tokens()
    loss = layer(hidden, targets).loss
    grad = gradients(loss.sum(), hidden, layer)[0]
    assert (grad[2] == 0).all()
    layer.generator.manual_seed(1)
    rest = layer(hidden[[0, 1, 3, 4, 5]], targets[[0, 1, 3, 4, 5]]).loss
    assert_same(loss.sum(), rest.sum())


def test_label_smoothing_adds_the_mean_over_all_words_under_the_same_sum():
    plain, smooth = (make(6, label_smoothing=eps, bias=True) for eps in (0.0, 0.25))
    hidden, targets = some_tokens()
    logits = F.linear(hidden, plain.head.weight, plain.head.bias)
    nll = plain(hidden, targets).nll
    uniform = nll + logits.gather(1, targets[:, None])[:, 0] - logits.mean(1)
    assert_same(smooth(hidden, targets).loss, (0.75 * nll + 0.25 * uniform).mean())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_keep_a_likelihood_of_32(dtype):
    """Also where all is cast, the sampler is not."""
    hidden, targets = some_tokens()
    wanted = make(6, bias=True)(hidden, targets)
    found = make(6, bias=True).to(dtype)(hidden.to(dtype), targets)
    with torch.autocast("cpu", dtype=dtype):
        mixed = make(6, bias=True).float()(hidden.float(), targets)
    for out in (found, mixed):
        assert out.nll.dtype == out.loss.dtype == torch.float32
        torch.testing.assert_close(out.nll.double(), wanted.nll, rtol=0, atol=2e-2)


# Otherwise


def test_evaluation_is_exact_and_so_are_as_many_samples_as_words():
    hidden, targets = some_tokens()
    layer, whole = make(3), make(N_WORDS)
    wanted = full_twin(layer)(hidden, targets)
    assert (layer(hidden, targets).nll - wanted.nll).abs().max() > 0.01
    with torch.no_grad():
        assert_same(layer(hidden, targets), wanted)
    assert_same(layer.eval()(hidden, targets), wanted)
    assert_same(layer.log_prob(hidden), full_twin(layer).log_prob(hidden))
    assert_same(whole(hidden, targets), wanted)
    assert layer.train()(hidden, targets).nll.sum() != wanted.nll.sum()


@pytest.mark.parametrize("bad", [N_WORDS, -2])
def test_mistakes_are_refused(bad):
    hidden, targets = some_tokens()
    targets[3] = bad
    with pytest.raises((IndexError, RuntimeError)):
        make(3)(hidden, targets)
    with pytest.raises(UsageError, match="n_samples=0 must be 1 or more"):
        make(0)
    for power in (-0.5, math.nan, math.inf):
        with pytest.raises(UsageError, match=r"power=.* must be 0 or more, and finite"):
            make(3, power=power)
