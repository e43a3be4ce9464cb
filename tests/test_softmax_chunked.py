"""Laws of the full softmax in chunks, against torch's own on whole logits in float64.

Numbers in names of cases are those of the public mistakes they come from.
"""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from probabilities import assert_backward_repeats

from lmtime.errors import UsageError
from lmtime.softmax import ChunkedSoftmax, FullSoftmax, chunked_nll

WIDTH, N_WORDS, N_TOKENS = 7, 19, 13
REDUCTIONS = ("mean", "sum", "none")
every_reduction = pytest.mark.parametrize("reduction", REDUCTIONS)
bits = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])

pytestmark = pytest.mark.usefixtures("one_thread")


def make(*, chunk_rows=4, dtype=torch.float64, **options):
    torch.manual_seed(7)
    return ChunkedSoftmax(WIDTH, N_WORDS, memory_bytes=1, min_rows=chunk_rows, **options).to(dtype)


def some_tokens(n=N_TOKENS, *, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(n, WIDTH, generator=generator, dtype=torch.float64)
    return hidden.to(dtype).requires_grad_(), torch.randint(N_WORDS, (n,), generator=generator)


def twin(layer, hidden, targets, **options):
    """On the layer's own weights."""
    logits = F.linear(hidden, layer.head.weight, layer.head.bias)
    return F.cross_entropy(logits, targets, weight=layer.weight, **options)


def gradients(loss, hidden, layer):
    return torch.autograd.grad(loss, (hidden, *layer.parameters()), retain_graph=True)


def assert_same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12, equal_nan=True)


@st.composite
def cases(draw):
    n = draw(st.integers(1, 14))
    ignore_index = draw(st.sampled_from([-100, -1, 0, 3]))
    targets = st.one_of(st.integers(0, N_WORDS - 1), st.just(ignore_index))
    return dict(
        targets=torch.tensor(draw(st.lists(targets, min_size=n, max_size=n))),
        chunk_rows=draw(st.integers(1, 15)),
        bias=draw(st.booleans()),
        weighted=draw(st.booleans()),
        options=dict(
            ignore_index=ignore_index,
            reduction=draw(st.sampled_from(REDUCTIONS)),
            label_smoothing=draw(st.sampled_from([0.0, 0.1, 1.0])),
        ),
    )


@settings(deadline=None, max_examples=50)
@given(cases())
def test_loss_and_gradients_are_those_of_whole_logits(case):
    """Cases 2, 8, 9, 12, 19; the upstream gradients start with a 0."""
    targets, options = case["targets"], case["options"]
    class_weight = torch.arange(N_WORDS) / 3 if case["weighted"] else None
    layer = make(chunk_rows=case["chunk_rows"], bias=case["bias"], weight=class_weight, **options)
    hidden = some_tokens(len(targets))[0]
    found, wanted = layer(hidden, targets), twin(layer, hidden, targets, **options)
    assert_same(found.loss, wanted)
    upstream = torch.arange(found.loss.numel(), dtype=torch.float64).reshape(found.loss.shape)
    upstream = upstream if found.loss.dim() else torch.tensor(-3.0, dtype=torch.float64)
    ignored = targets == options["ignore_index"]
    weight = torch.ones(N_WORDS) if class_weight is None else class_weight
    if options["reduction"] != "mean" or weight[targets[~ignored]].sum() > 0:
        wanted_grads = gradients((upstream * wanted).sum(), hidden, layer)
        assert_same(gradients((upstream * found.loss).sum(), hidden, layer), wanted_grads)
    plain = F.cross_entropy(
        F.linear(hidden, layer.head.weight, layer.head.bias),
        targets,
        ignore_index=options["ignore_index"],
        reduction="none",
    )
    assert_same(found.nll, plain)
    assert (gradients(found.loss.sum(), hidden, layer)[0][ignored] == 0).all(), "exactly"


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@every_reduction
def test_with_all_targets_ignored_every_gradient_is_zero(reduction, weighted, label_smoothing):
    """Case 3: torch's own chunked operator gives nan."""
    class_weight = torch.ones(N_WORDS) if weighted else None
    layer = make(
        bias=True, reduction=reduction, weight=class_weight, label_smoothing=label_smoothing
    )
    hidden = some_tokens()[0]
    out = layer(hidden, torch.full((N_TOKENS,), -100))
    assert out.loss.isnan().all() if reduction == "mean" else (out.loss == 0).all()
    assert (out.nll == 0).all()
    assert all((grad == 0).all() for grad in gradients(out.loss.sum(), hidden, layer))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@every_reduction
def test_loss_and_nll_may_both_be_differentiated(reduction, label_smoothing):
    layer = make(reduction=reduction, label_smoothing=label_smoothing, bias=True)
    hidden, targets = some_tokens()
    weights = torch.arange(N_TOKENS, dtype=torch.float64)
    out = layer(hidden, targets)
    options = dict(reduction=reduction, label_smoothing=label_smoothing)
    wanted = twin(layer, hidden, targets, **options)
    nll = twin(layer, hidden, targets, reduction="none")
    for a, b in (
        ((weights * out.nll).sum(), (weights * nll).sum()),
        (
            out.loss.sum() - (weights * out.nll).sum(),
            wanted.sum() - (weights * nll).sum(),
        ),
    ):
        assert_same(gradients(a, hidden, layer), gradients(b, hidden, layer))


@every_reduction
@pytest.mark.parametrize("chunk_rows", [1, 2, 3, N_TOKENS])
def test_two_backward_passes_give_the_same_and_need_the_graph(chunk_rows, reduction):
    """Case 21."""
    layer = make(chunk_rows=chunk_rows, reduction=reduction, bias=True, label_smoothing=0.1)
    hidden, targets = some_tokens()
    loss = 0.3 * layer(hidden, targets).loss.sum()
    assert_backward_repeats(loss, hidden, lambda: gradients(loss, hidden, layer))


def test_gradients_are_made_for_what_needs_them():
    layer, (hidden, targets) = make(bias=True), some_tokens()
    wanted = gradients(layer(hidden, targets).loss, hidden, layer)
    layer.head.weight.requires_grad_(False)
    loss = layer(hidden, targets).loss
    assert_same(torch.autograd.grad(loss, (hidden, layer.head.bias)), (wanted[0], wanted[2]))
    layer.head.weight.requires_grad_(True)
    loss = layer(hidden.detach(), targets).loss
    assert_same(torch.autograd.grad(loss, tuple(layer.parameters())), wanted[1:])
    with torch.no_grad():
        assert_same(layer(hidden, targets).loss, loss.detach())


@every_reduction
def test_gradients_of_gradients_are_refused(reduction):
    layer, (hidden, targets) = make(reduction=reduction), some_tokens()
    loss = layer(hidden, targets).loss.sum()
    with pytest.raises(UsageError, match="create_graph=True is not for"):
        torch.autograd.grad(loss, hidden, create_graph=True)


# Precision


@bits
@pytest.mark.parametrize("as_on_a_gpu", [False, True])
def test_16_bit_weight_gradients_err_no_more_in_many_chunks(dtype, as_on_a_gpu, monkeypatch):
    """Case 9: frequent words sum hundreds of rows. The error must not grow with their number."""
    if as_on_a_gpu:
        monkeypatch.setattr(chunked_nll, "_product_dtype", lambda dtype, device: dtype)
    n = 1021
    hidden, targets = some_tokens(n, dtype=dtype)
    targets = targets // 7
    truth = make().to(dtype).double()
    wanted = gradients(twin(truth, hidden.double(), targets), hidden, truth)[1]

    def error(chunk_rows):
        layer = make(chunk_rows=chunk_rows, dtype=dtype)
        out = layer(hidden, targets)
        grad = gradients(out.loss, hidden, layer)[1]
        assert (out.loss.dtype, grad.dtype) == (torch.float32, dtype)
        return ((grad.double() - wanted).norm() / wanted.norm()).item()

    one_rounding = torch.finfo(dtype).eps
    assert error(n) < one_rounding
    assert all(error(rows) < 1.3 * error(n) for rows in (64, 8, 1))


@bits
@pytest.mark.parametrize("input_dtype", [torch.float32, None])
@every_reduction
def test_autocast_runs_and_stays_near_fp32(reduction, input_dtype, dtype):
    """Case 6: with fp32 and with 16-bit input; out comes fp32, and gradients as their inputs."""
    layer, (hidden, targets) = make(dtype=torch.float32, reduction=reduction), some_tokens()
    cast = hidden.detach().to(input_dtype or dtype).requires_grad_()
    plain = hidden.detach().float().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        out, log_prob = layer(cast, targets), layer.log_prob(cast)
    assert out.loss.dtype == out.nll.dtype == log_prob.dtype == torch.float32
    wanted = layer(plain, targets)
    torch.testing.assert_close(out.nll, wanted.nll, rtol=0, atol=1e-2)
    grads, wanted_grads = (
        gradients(loss.sum(), x, layer) for loss, x in ((out.loss, cast), (wanted.loss, plain))
    )
    assert [grad.dtype for grad in grads] == [cast.dtype, torch.float32]
    for grad, want in zip(grads, wanted_grads, strict=True):
        torch.testing.assert_close(grad.float(), want, rtol=0, atol=2e-2)


def test_backward_under_autocast_is_the_same():
    layer, (hidden, targets) = (
        make(dtype=torch.float32, bias=True),
        some_tokens(dtype=torch.float32),
    )
    loss = layer(hidden, targets).loss
    first = [grad.clone() for grad in gradients(loss, hidden, layer)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(list(gradients(loss, hidden, layer)), first)


# Chunks


@pytest.mark.parametrize(
    "n_tokens, vocab_size, wanted",
    [
        (1024, 33_278, 256),  # 252 rows would fit
        (1000, 33_278, 250),  # four even chunks, not three of 256 and a rest
        (4096, 128_256, 256),
        (10_007, 1000, 5004),  # prime: the last chunk has one row less
        (100, 33_278, 100),
        (1, 10, 1),
        (0, 10, 1),
    ],
)
def test_chunks_are_even_and_fit_the_memory_but_for_a_least_number(n_tokens, vocab_size, wanted):
    with torch.device("meta"):
        layer = ChunkedSoftmax(8, vocab_size)
    assert layer.chunk_rows(n_tokens) == wanted


def test_no_tensor_is_as_large_as_the_logits():
    """Largest of all tensors that operators of a training step and of a prediction make."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            tensors = out if isinstance(out, tuple | list) else [out]
            sizes = [x.untyped_storage().nbytes() // 8 for x in tensors if torch.is_tensor(x)]
            largest = max([largest, *sizes])
            return out

    layer, (hidden, targets) = make(chunk_rows=16, label_smoothing=0.1), some_tokens(160)
    with Watch():
        layer(hidden, targets).loss.backward()
        layer.predict(hidden)
    assert largest == max(16 * N_WORDS, 160 * WIDTH)


# The rest of the interface


def test_it_is_the_full_layer_in_its_other_answers():
    layer, full = make(chunk_rows=5), FullSoftmax(WIDTH, N_WORDS).double()
    full.load_state_dict(layer.state_dict())
    hidden, targets = some_tokens(24)
    for shape in ((24,), (4, 6), (2, 3, 4)):
        x, t = hidden.reshape(*shape, WIDTH), targets.reshape(shape)
        assert_same(layer(x, t), full(x, t))
        assert_same(layer.log_prob(x), full.log_prob(x))
        assert torch.equal(layer.predict(x), full.predict(x))
    assert_same(layer.log_prob(hidden[0]), full.log_prob(hidden[0]))
    assert torch.equal(layer.predict(hidden[0]), full.predict(hidden[0]))
    assert_same(layer(hidden[0], targets[0]), full(hidden[0], targets[0]))


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
@every_reduction
def test_no_tokens_are_no_error(shape, reduction):
    layer = make(reduction=reduction, bias=True)
    hidden = torch.zeros(*shape, WIDTH, dtype=torch.float64, requires_grad=True)
    out = layer(hidden, torch.zeros(shape, dtype=torch.int64))
    assert out.nll.shape == layer.predict(hidden).shape == shape
    assert layer.log_prob(hidden).shape == (*shape, N_WORDS)
    assert all((grad == 0).all() for grad in gradients(out.loss.sum(), hidden, layer))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bad", [N_WORDS, 10**12, -2, -5])
def test_a_target_that_is_no_word_is_an_error(bad, label_smoothing):
    """Case 23: in the first chunk and in the last."""
    layer = make(chunk_rows=1, ignore_index=-1, label_smoothing=label_smoothing)
    for targets in ([bad, 3, 18], [3, -1, bad]):
        with pytest.raises((IndexError, RuntimeError)):
            layer(some_tokens(3)[0], torch.tensor(targets))


def test_mistakes_in_options_are_named():
    with pytest.raises(UsageError, match="min_rows=0 must be 1 or more"):
        ChunkedSoftmax(4, 5, min_rows=0)
    with pytest.raises(UsageError, match=r"weight of shape \(4,\) must be \(5,\), one a word"):
        ChunkedSoftmax(4, 5, weight=torch.ones(4))
