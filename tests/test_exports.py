"""Laws of an export: a smaller network of its own, with the logits of the slice it was cut from."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from subnetworks import PLACE, designed_rows, keep, law_ms, super_network

from lmtime.config import SubNetwork, find_encoder, sub_network, whole_network
from lmtime.encoders import exports
from lmtime.errors import UsageError
from lmtime.models.checkpoint import load_encoder
from lmtime.models.onnx_export import OnnxEncoder

MINILM = find_encoder("minilm-l6")
SUB = SubNetwork((0, 3), (6, 3), (384, 768))

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    root = tmp_path_factory.mktemp("export")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMTIME_RESULTS", str(root / "results"))
        patch.setenv("LMTIME_ROOT", str(root))
        keep(designed_rows())
        job = super_network()
        done = exports.export(job, SUB, root / "small", PLACE)
        yield job, done


def test_the_folder_holds_a_network_of_its_own(exported):
    _, done = exported
    names = sorted(path.name for path in done.folder.iterdir())
    assert names == [
        "config.json", "model.onnx", "model.safetensors", "subnetwork.json", "tokenizer.json",
    ]  # fmt: skip
    assert [p.name for p in done.folder.parent.iterdir() if p.name.startswith(".")] == []


def test_a_fresh_process_reads_it_and_gives_the_same_logits(exported):
    job, done = exported
    tokens = torch.arange(100, 120).reshape(2, 10)
    with torch.no_grad():
        wanted = load_encoder(job.folder)(tokens, sub=SUB)
    program = (
        "import json, sys, torch\n"
        "from lmtime.models.checkpoint import load_encoder\n"
        "torch.set_num_threads(1)\n"
        "small = load_encoder(sys.argv[1])\n"
        "with torch.no_grad(): logits = small(torch.arange(100, 120).reshape(2, 10))\n"
        "sys.stdout.write(json.dumps(logits.tolist()))\n"
    )
    command = [sys.executable, "-c", program, str(done.folder)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert np.abs(np.array(json.loads(text)) - wanted.numpy()).max() <= 1e-5
    assert np.abs(OnnxEncoder(done.folder / "model.onnx")(tokens) - wanted.numpy()).max() <= 1e-5


def test_the_card_says_what_it_is(exported):
    _, done = exported
    card = json.loads((done.folder / "subnetwork.json").read_text())
    assert card == done.card
    assert card["name"] == SUB.key
    assert card["parameters"] == SUB.config(MINILM).parameters + 2 * 385
    assert card["bytes"]["model.safetensors"] == pytest.approx(4 * card["parameters"], rel=0.001)
    assert card["predicted_ms"] == pytest.approx(law_ms(SUB), abs=1e-3)
    assert card["latency_ms"] > 0
    assert max(card["max_difference"], card["onnx_max_difference"]) <= 1e-5
    assert 0 <= card["score"] <= 100
    said = exports.in_words({"rows": [card], "folder": "small"})
    assert f"{card['parameters']:,} parameters" in said
    assert "ms predicted" in said


def test_nothing_is_written_over(exported):
    job, done = exported
    with pytest.raises(UsageError, match="there and not empty"):
        exports.export(job, SUB, done.folder, PLACE)
    with pytest.raises(UsageError, match="is no folder"):
        exports.export(job, SUB, done.folder.parent / "no" / "such", PLACE)


def test_what_breaks_off_leaves_nothing(exported, monkeypatch, tmp_path):
    job, _ = exported

    def broken(*arguments):
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(exports, "export_onnx", broken)
    with pytest.raises(RuntimeError, match="disk"):
        exports.export(job, SUB, tmp_path / "small", PLACE)
    assert list(tmp_path.iterdir()) == []


def test_a_sub_network_has_two_names():
    for name in ("w1/2 d2/3", "w0.5 d0.6667", "0,1,3,4|6,6,6,6|768,768,768,768"):
        assert exports.named(name, MINILM) == sub_network(MINILM, 0.5, 2 / 3)
    assert exports.named("w1 d1", MINILM) == whole_network(MINILM)


@pytest.mark.parametrize("text", ["", "half", "w1", "w1/0 d1", "0|1", "0|13|1", "a|b|c", "w0 d1"])
def test_what_names_no_sub_network_is_refused(text):
    with pytest.raises(UsageError):
        exports.named(text, MINILM)
