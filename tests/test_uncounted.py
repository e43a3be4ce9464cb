"""What may hide products and has no formula is listed, never silently 0; what hides none is not."""

import pytest
import torch
import torch.nn.functional as F
from counting import counted
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import custom_op


@custom_op("lmtime_tests::product", mutates_args=())
def custom_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What it does inside is hidden."""
    return a @ b


SQUARE = torch.eye(4)
RAGGED = torch.nested.nested_tensor([torch.ones(1, 3, 3), torch.ones(1, 5, 5)])
WITHOUT_FORMULA = {
    "a custom operator": (lambda: custom_product(SQUARE, SQUARE), "lmtime_tests.product"),
    "a sparse product": (lambda: SQUARE.to_sparse() @ SQUARE, "aten.mm"),
    "a complex product": (lambda: SQUARE.cfloat() @ SQUARE.cfloat(), "aten.mm"),
    "a ragged product": (lambda: RAGGED @ RAGGED, "aten.matmul"),
    "distances": (lambda: torch.cdist(SQUARE, SQUARE), "aten._cdist_forward"),
    "a bilinear form": (lambda: F.bilinear(SQUARE, SQUARE, torch.ones(2, 4, 4)), "aten._trilinear"),
    "a transform": (lambda: torch.fft.rfft(SQUARE), "aten._fft_r2c"),
    "a solver": (lambda: torch.linalg.solve(SQUARE, SQUARE), "aten._linalg_solve_ex"),
    "a factor": (lambda: torch.geqrf(SQUARE), "aten.geqrf"),
}


@pytest.mark.parametrize("name", WITHOUT_FORMULA)
def test_what_may_hide_products_is_listed_and_never_silently_zero(name):
    call, operator = WITHOUT_FORMULA[name]
    found = counted(lambda: (call(), call()))
    assert dict(found.uncounted) == {operator: 2}
    assert found.total.flops == 0 < found.total.bytes


def test_a_replayed_graph_is_listed(monkeypatch):
    """Its kernels run with no operator that could be seen."""
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: None)
    found = counted(lambda: torch.cuda.CUDAGraph.replay(None))
    assert dict(found.uncounted) == {"CUDAGraph.replay": 1}


def test_a_tensor_made_of_others_is_counted_by_what_it_is_made_of():
    rows = torch.nested.nested_tensor([torch.zeros(3, 4), torch.zeros(5, 4)], layout=torch.jagged)
    found = counted(lambda: F.linear(rows, torch.zeros(6, 4)))
    assert (found.total.flops, dict(found.uncounted)) == (2 * 8 * 4 * 6, {})


def test_tensors_without_values_are_counted_by_shape():
    def step():
        with FakeTensorMode():
            q, mask = torch.empty(2, 4, 8, 16), torch.zeros(8, 8)
            F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
            nn.Linear(3, 4)(torch.empty(2, 3))

    found = counted(step)
    assert found.total.flops == 4 * 8 * 8 * 8 * 16 + 2 * 2 * 3 * 4
    assert not found.uncounted


def test_second_derivatives_hide_nothing():
    found = counted(lambda: torch.func.hessian(lambda x: (x @ SQUARE).pow(2).sum())(SQUARE[:2]))
    assert not found.uncounted
    assert found.total.flops > 0


def test_a_fused_layer_is_listed():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()

    def step():
        with torch.inference_mode():
            layer(torch.zeros(2, 3, 8))

    assert dict(counted(step).uncounted) == {"aten._transformer_encoder_layer_fwd": 1}


def test_what_works_element_by_element_is_not_listed():
    net = nn.Sequential(
        nn.Embedding(50, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.1), nn.RMSNorm(8), nn.GLU(),
        nn.BatchNorm1d(3), nn.SiLU(), nn.Softmax(-1), nn.GroupNorm(1, 3), nn.Hardtanh(), nn.ELU(),
        nn.MaxPool1d(2), nn.Upsample(scale_factor=2), nn.ReflectionPad1d(1), nn.LogSoftmax(-1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters())

    def step():
        out = net(torch.arange(6).view(2, 3))
        top = torch.cat([out.sort().values, out.topk(2).values, out.cumsum(0).tril()], -1)
        (top.logsumexp(-1).std() + F.pad(out, (1, 1)).repeat(2, 1, 1).norm()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    found = counted(step, net)
    assert (found.total.flops, dict(found.uncounted)) == (0, {})
