"""Laws of the ONNX file: the same logits as torch for any batch, and whole or not there."""

import importlib

import numpy as np
import onnx
import pytest
import torch

from lmtime.config import EncoderConfig, SubNetwork
from lmtime.errors import UsageError
from lmtime.models.encoder import Encoder, cut
from lmtime.models.onnx_export import OPSET, OnnxEncoder, export_onnx

TINY = EncoderConfig(
    hidden_size=24, head_size=4, heads=(6, 5, 3), ffn_sizes=(40, 33, 50), vocab_size=90,
    max_positions=32, n_classes=3,
)  # fmt: skip
DISTILLED = EncoderConfig(
    hidden_size=24, head_size=8, heads=(3, 1), ffn_sizes=(40, 17), vocab_size=90, max_positions=32,
    n_token_types=0, has_pooler=False,
)  # fmt: skip


def encoder_of(config, seed=0):
    """Random weights large enough to tell one operator from another."""
    torch.manual_seed(seed)
    encoder = Encoder(config).eval()
    for value in encoder.parameters():
        torch.nn.init.normal_(value, std=0.3)
    return encoder


def batch(n, seq_len, seed=1):
    """Tokens, a mask with padding of unlike lengths, and types."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(90, (n, seq_len), generator=generator)
    lengths = torch.randint(1, seq_len + 1, (n, 1), generator=generator)
    types = torch.randint(2, (n, seq_len), generator=generator)
    return tokens, (torch.arange(seq_len) < lengths).long(), types


def inputs_of(encoder, tokens, mask, types):
    return (tokens, mask, types) if encoder.token_types is not None else (tokens, mask)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """{name: (encoder of torch, the same of a file)}, a cut one among them."""
    folder, pairs = tmp_path_factory.mktemp("onnx"), {}
    whole = encoder_of(TINY)
    smaller = cut(whole, SubNetwork((0, 2), (2, 1), (20, 7)))
    for name, one in {"whole": whole, "cut": smaller, "distilled": encoder_of(DISTILLED)}.items():
        export_onnx(one, folder / f"{name}.onnx")
        pairs[name] = one, OnnxEncoder(folder / f"{name}.onnx")
    return pairs


@pytest.mark.parametrize("name", ["whole", "cut", "distilled"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 32), (4, 7), (9, 20)])
def test_the_logits_are_torchs_for_any_batch_and_length(exported, name, shape):
    encoder, file = exported[name]
    given = inputs_of(encoder, *batch(*shape))
    with torch.no_grad():
        expected = encoder(*given).numpy()
    np.testing.assert_allclose(file(*given), expected, atol=1e-4, rtol=1e-4)
    arrays = [x.numpy() for x in given]
    np.testing.assert_array_equal(file(*arrays), file(*given))


def test_what_is_absent_is_as_for_torch(exported):
    encoder, file = exported["whole"]
    tokens, *_ = batch(3, 9)
    with torch.no_grad():
        expected = encoder(tokens).numpy()
    np.testing.assert_allclose(file(tokens), expected, atol=1e-4, rtol=1e-4)


def test_padding_changes_nothing(exported):
    _, file = exported["whole"]
    tokens, *_ = batch(2, 6)
    padded = torch.cat([tokens, torch.full((2, 5), 7)], dim=1)
    mask = (torch.arange(11) < 6).long().expand(2, 11)
    np.testing.assert_allclose(file(padded, mask), file(tokens), atol=1e-5)
    assert np.abs(file(padded) - file(tokens)).max() > 1e-3, "the mask is what hides it"


def test_a_file_for_batches_without_padding_has_no_mask(exported, tmp_path):
    encoder, with_mask = exported["whole"]
    export_onnx(encoder, tmp_path / "model.onnx", with_mask=False)
    file = OnnxEncoder(tmp_path / "model.onnx")
    tokens, mask, types = batch(2, 8)
    assert file.inputs == ("tokens", "token_types")
    np.testing.assert_allclose(file(tokens, None, types), with_mask(tokens, None, types), atol=1e-5)
    with pytest.raises(UsageError, match="exported without mask"):
        file(tokens, mask)


def test_the_file_is_standard_onnx_and_alone_in_its_folder(tmp_path):
    path = tmp_path / "new" / "model.onnx"
    export_onnx(encoder_of(TINY), path)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", OPSET)]
    assert [p.name for p in path.parent.iterdir()] == ["model.onnx"]


def test_an_export_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_text("of before")
    monkeypatch.setattr(onnx, "save_model", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_onnx(encoder_of(TINY), path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_text() == "of before"


def test_a_damaged_file_is_the_callers_mistake(tmp_path):
    path = tmp_path / "model.onnx"
    export_onnx(encoder_of(TINY), path)
    for broken in (path.read_bytes()[:5_000], b"", b"no model at all"):
        path.write_bytes(broken)
        with pytest.raises(UsageError, match=r"model\.onnx"):
            OnnxEncoder(path)
    with pytest.raises(UsageError, match="there is no file"):
        OnnxEncoder(tmp_path / "other.onnx")


def test_a_batch_that_does_not_fit_is_the_callers_mistake(exported):
    _, file = exported["whole"]
    with pytest.raises(UsageError, match=r"\(1, 33\) do not fit"):
        file(torch.zeros((1, 33), dtype=torch.int64))
    with pytest.raises(UsageError, match="all inputs are"):
        file(torch.zeros((2, 4), dtype=torch.int64), torch.ones((2, 5), dtype=torch.int64))


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_a_missing_package_names_the_extra(missing, tmp_path, monkeypatch):
    export_onnx(encoder_of(TINY), tmp_path / "model.onnx")

    def absent(name):
        if name == missing:
            raise ImportError(name)
        return importlib.__import__(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(UsageError, match=rf"{missing} is not.*pip install 'lmtime\[export\]'"):
        export_onnx(encoder_of(TINY), tmp_path / "other.onnx")
        OnnxEncoder(tmp_path / "model.onnx")
