"""The memory of a step is known beforehand: against what the profiler sees allocated."""

import resource
import subprocess
import sys

import pytest
import torch

from lmtime.config import GCNConfig, TransformerConfig, configure, huggingface_config
from lmtime.cost.optimizers import NAMES
from lmtime.cost.predict import optimizer_of
from lmtime.errors import UsageError
from lmtime.models import build, memory, optimizer_for
from lmtime.models.memory import _cluster_sizes, available_bytes, require_memory, step_bytes
from lmtime.softmax import runs
from lmtime.timing.memory import peak_bytes

pytestmark = pytest.mark.usefixtures("one_thread")

GPT2 = huggingface_config(
    dict(model_type="gpt2", n_embd=64, n_layer=3, n_head=4, n_positions=128, vocab_size=3001),
    batch_size=4,
    seq_len=128,
)
CLUSTERS = dict(vocab_size=5_003, cutoffs=(500, 2_000), batch_size=4, seq_len=64)
NARROW = dict(hidden_size=64, embedding_size=64, **CLUSTERS)
TRANSFORMER = dict(hidden_size=64, ffn_size=128, n_heads=4, n_layers=3, **CLUSTERS)
CONFIGS = {
    "activations lead": GPT2,
    "weights lead": GPT2.changed(batch_size=1, seq_len=16),
    "a window": huggingface_config(
        dict(model_type="gemma3_text", hidden_size=64, num_hidden_layers=3, intermediate_size=128,
             num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=3001,
             sliding_window=50, sliding_window_pattern=2),
        batch_size=2, seq_len=128,
    ),
    "gcn": GCNConfig(**NARROW, final_hidden_size=64),
    "gcn, fused": GCNConfig(**NARROW, output_layer="fused-adaptive", final_hidden_size=96),
    "gcn, fused, folds": GCNConfig(
        **NARROW | dict(vocab_size=30_000, cutoffs=(9_000, 12_000)),
        output_layer="fused-adaptive", final_hidden_size=96,
    ),
    "gcn, full": GCNConfig(output_layer="full", **CLUSTERS),
    "gcn, chunked": GCNConfig(output_layer="chunked", **CLUSTERS),
    "transformer": TransformerConfig(**TRANSFORMER),
    "transformer, full": TransformerConfig(**TRANSFORMER, output_layer="full"),
}  # fmt: skip


def expected_ids(config):
    """(batch, seq_len): as many of each cluster as the estimate expects."""
    if not hasattr(config, "cutoffs"):
        return torch.randint(config.vocab_size, (config.batch_size, config.seq_len))
    starts = torch.tensor([0, *config.cutoffs])
    ids = starts.repeat_interleave(torch.tensor(_cluster_sizes(config)))
    return ids.reshape(config.batch_size, config.seq_len)


def measured_bytes(config, phase, name=None):
    """Weights and states, and the most that the second step has allocated beside them."""
    model, ids = build(config), expected_ids(config)
    optimizer = optimizer_for(model, config, name)

    def step():
        with torch.set_grad_enabled(phase == "train"):
            loss = model(ids, ids)
        if phase == "train":
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    step()
    peak = peak_bytes(step, "cpu")
    weights = sum(p.nbytes for p in model.parameters())
    states = optimizer_of(config, name).n_copies * weights if phase == "train" else 0
    return weights + states + sum(b.nbytes for b in model.buffers()) + peak


@pytest.mark.parametrize("phase", ["train", "forward"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_estimate_is_what_is_allocated(name, phase, monkeypatch):
    monkeypatch.setattr(runs, "pay", lambda: False)
    config = CONFIGS[name]
    estimate = step_bytes(config, phase=phase)
    assert estimate.total == pytest.approx(measured_bytes(config, phase), rel=0.05)


@pytest.mark.skipif(not runs.HAS_ONEDNN, reason="this torch has no oneDNN")
def test_products_in_runs_hold_some_megabytes_beside(monkeypatch):
    config, found = CONFIGS["gcn, chunked"], []
    for pays in (True, False):
        monkeypatch.setattr(runs, "pay", lambda pays=pays: pays)
        found.append(measured_bytes(config, "forward"))
    assert 0 < found[0] - found[1] <= 4 * 4 * runs.AT_ONCE


@pytest.mark.parametrize("name", NAMES)
def test_the_estimate_follows_the_optimizer(name):
    """The vocabulary's vectors are most of the weights, so that temporary ones are seen."""
    config = CONFIGS["weights lead"]
    estimate = step_bytes(config, optimizer=optimizer_of(config, name))
    assert estimate.total == pytest.approx(measured_bytes(config, "train", name), rel=0.02)


def test_weights_gradients_and_states_are_of_one_size():
    found = step_bytes(GPT2)
    n_values = sum(p.numel() for p in build(GPT2).parameters())
    assert found.parameters == found.gradients == 4 * n_values
    assert found.optimizer == 8 * n_values
    forward = step_bytes(GPT2, phase="forward")
    assert (forward.parameters, forward.gradients, forward.optimizer) == (4 * n_values, 0, 0)


def test_a_step_that_fits_is_let_through(monkeypatch):
    needed = step_bytes(GPT2).total
    monkeypatch.setattr(memory, "available_bytes", lambda device: needed)
    require_memory(GPT2, "cpu")
    monkeypatch.setattr(memory, "available_bytes", lambda device: needed - 1)
    with pytest.raises(UsageError, match=r"needs about .* GiB .*weights.*lower batch_size"):
        require_memory(GPT2, "cpu")


def test_what_torch_cannot_run_without_values_is_let_through(monkeypatch, capfd):
    monkeypatch.setattr(memory, "available_bytes", lambda device: 0)
    sizes = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=101)
    experts = dict(model_type="mixtral", intermediate_size=48, num_local_experts=3)
    require_memory(huggingface_config(sizes | experts, seq_len=11), "cpu")
    assert capfd.readouterr().err == ""


def test_a_cgroup_limits_what_is_available(monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("1200\n")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    assert available_bytes("cpu") == 3800
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes("cpu") > 3800


def test_a_model_far_too_large_is_refused_with_nothing_allocated():
    config = configure("gpt2-xl", batch_size=64)
    assert config.n_tokens == 65_536
    code = (
        "from lmtime.config import configure; from lmtime.models.memory import require_memory;"
        "require_memory(configure('gpt2-xl', batch_size=64), 'cpu')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "this step needs about 592" in done.stderr.splitlines()[-1]
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert peak_kib < 2 * 2**20  # the weights alone are 6 GB
