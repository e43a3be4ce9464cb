"""Laws of a study: rows add up to the step, and what was interrupted goes on where it stopped."""

import dataclasses
import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from filelock import FileLock

from lmtime import accuracy, corpora, plans, study
from lmtime.calibration import Calibration
from lmtime.config import GCNConfig, TransformerConfig, huggingface_config
from lmtime.corpora import Corpus
from lmtime.cost import Cost
from lmtime.cost.predict import costs
from lmtime.errors import Busy, UsageError
from lmtime.records import (
    GROUPS,
    STEP,
    Record,
    Study,
    append_jsonl,
    group_of,
    read_jsonl,
    write_jsonl,
)
from lmtime.report import Setup
from lmtime.study import alone_on, measure_missing, profile, profile_document
from lmtime.timing import Breakdown, StopRule, observation
from lmtime.timing import calibrate as calibrate_module

TINY = GCNConfig(
    hidden_size=16,
    final_hidden_size=16,
    embedding_size=8,
    n_layers=2,
    vocab_size=97,
    cutoffs=(11, 40),
    batch_size=3,
    seq_len=7,
)
SETUP = Setup(device="cpu", rule=StopRule(n_min=6, n_max=6))
RATES = Calibration(
    device="cpu",
    device_name="A processor",
    n_threads=2,
    matmul_flops_per_s={"fp32": 1e11, "tf32": 4e11},
    bytes_per_s=1e10,
)
N_TOKENS = 1_000


def small_corpus(note=""):
    """97 words, the frequent ones first."""
    ids = np.random.default_rng(0).geometric(0.03, N_TOKENS) % 97
    splits = {"train": ids.astype(np.int32)}
    return Corpus("movie-reviews", tuple(map(str, range(97))), splits, sha256="5ha", note=note)


@pytest.fixture(scope="module")
def small_text():
    """A corpus that is there at once, and a machine whose rates are known."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what is this small runs slower on more
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpora, "load", lambda name, **options: small_corpus())
        yield
    torch.set_num_threads(n_threads)


@pytest.fixture(autouse=True)
def own_root(tmp_path, monkeypatch, small_text):
    monkeypatch.setenv("LMTIME_ROOT", str(tmp_path))
    monkeypatch.delenv("LMTIME_RESULTS", raising=False)
    return tmp_path


def measured(config=TINY, **changes):
    setup = dataclasses.replace(SETUP, **changes)
    return profile("gcn", config, setup, command="a test", calibration=RATES)


@pytest.fixture(scope="module", params=["adaptive", "full"])
def trained(request, small_text):
    return measured(dataclasses.replace(TINY, output_layer=request.param))


@pytest.fixture(scope="module")
def forward(small_text):
    return measured(phase="forward")


@pytest.fixture(scope="module")
def half_precision(small_text):
    return measured(dtype="bf16")


def assert_between(low, value, high):
    """The ends are sums in another order than the value, so its last digit may pass them."""
    slack = 1e-9 * abs(value)
    assert low - slack <= value <= high + slack


def split(done):
    *parts, step = done.records
    assert (step.owner, step.phase) == (STEP, STEP), "the step comes last"
    return parts, step


# One configuration


def test_the_step_is_the_exact_sum_of_the_parts(trained):
    parts, step = split(trained)
    assert step.latency_ms == sum(row.latency_ms for row in parts)
    assert sum(row.share for row in parts) == pytest.approx(1.0, rel=1e-12)
    assert_between(step.latency_ms_low, step.latency_ms, step.latency_ms_high)


def test_each_row_is_the_median_of_its_own_samples(trained):
    parts, step = split(trained)
    for row in parts:
        samples = trained.measured.breakdown.part(row.owner, row.phase)
        assert row.n == len(samples) == 6
        assert row.latency_ms == row.latency_ms_p50 == np.median(samples)
        assert row.share == pytest.approx(row.latency_ms / step.latency_ms, rel=1e-12)
    assert step.latency_ms_p50 == np.median(trained.measured.breakdown.totals_ms)
    for row in trained.records:
        quantiles = [getattr(row, f"latency_ms_p{q}") for q in ("05", "25", "50", "75", "95")]
        assert quantiles == sorted(quantiles)
        assert_between(row.share_low, row.share, row.share_high)


def test_every_part_that_costs_something_was_measured_and_has_its_cost(trained):
    parts, step = split(trained)
    config = GCNConfig(**step.config)
    expected = costs(config, trained.provenance.notes["counted_hits"])
    rows = {(row.owner, row.phase): row for row in parts}
    assert set(expected) <= set(rows)
    for part, row in rows.items():
        wanted = sum(expected.get(part, []), Cost(0, 0))
        assert (row.flops, row.bytes) == (wanted.flops, wanted.bytes), part
    assert step.flops == pytest.approx(sum(row.flops for row in parts), rel=1e-12)
    assert step.bytes == pytest.approx(sum(row.bytes for row in parts), rel=1e-12)


def test_the_prediction_stands_beside_the_measurement(trained):
    parts, step = split(trained)
    assert sum(row.predicted_share for row in parts) == pytest.approx(1.0)
    assert step.predicted_share == 1.0
    for end in ("predicted_ms_low", "predicted_ms_high"):
        total = sum(getattr(row, end) for row in parts)
        assert getattr(step, end) == pytest.approx(total)
    conv = next(row for row in parts if (row.owner, row.phase) == ("conv 1", "forward"))
    assert conv.flops / 1e11 * 1e3 < conv.predicted_ms_low < conv.predicted_ms_high


def test_parameters_are_those_of_the_model(trained):
    parts, step = split(trained)
    model = study.models.build(GCNConfig(**step.config))
    total = sum(parameter.numel() for parameter in model.parameters())
    assert step.parameters == total
    once = {row.owner: row.parameters for row in parts if row.phase == "forward"}
    assert sum(once.values()) == total


def test_rows_come_back_from_the_document_as_they_were(trained):
    text = json.dumps(profile_document(trained), allow_nan=False)
    document = json.loads(text)
    assert (document["schema"], document["command"]) == ("lmtime/1", "profile")
    assert [Record.from_row(row) for row in document["rows"]] == trained.records
    assert document["inflation"] == trained.measured.breakdown.inflation.ratio
    assert document["quality"] == trained.measured.quality
    assert document["provenance"]["run_id"] == document["rows"][0]["run_id"]


def test_groups_are_the_sums_of_their_owners(trained):
    parts, _ = split(trained)
    groups = profile_document(trained)["groups"]
    assert list(groups) == list(GROUPS)
    assert sum(group["share"] for group in groups.values()) == pytest.approx(1.0)
    for name, group in groups.items():
        shares = [row.share for row in parts if group_of(row.owner) == name]
        assert group["share"] == pytest.approx(sum(shares))
        assert_between(group["share_low"], group["share"], group["share_high"])


def test_conditions_say_on_what_and_how(trained):
    conditions, (_, step) = trained.provenance, split(trained)
    assert conditions.run_id == step.run_id
    assert conditions.command == "a test"
    assert conditions.n_threads == step.n_threads == torch.get_num_threads()
    assert conditions.corpus == {
        "name": "movie-reviews",
        "sha256": "5ha",
        "vocab_size": 97,
        "notes": [],
    }
    assert conditions.versions["torch"] == torch.__version__
    assert conditions.notes["bytes_per_s"] == RATES.bytes_per_s
    assert conditions.notes["n_warmup"] == trained.measured.breakdown.n_warmup


def test_targets_of_the_clusters_are_the_mean_over_the_batches_that_ran():
    """33 batches' worth of tokens: the first 16 are taken in turn, and no others."""
    corpus, edges = small_corpus(), (*TINY.cutoffs, TINY.vocab_size)
    batches = list(corpus.batches(TINY.batch_size, TINY.seq_len))
    assert len(batches) > study.N_BATCHES
    counted = [
        [((low <= t) & (t < high)).sum() for low, high in pairwise(edges)]
        for _, t in batches[: study.N_BATCHES]
    ]
    assert measured().provenance.notes["tail_hits"] == np.mean(counted, axis=0).tolist()


# Phases and precisions


def test_forward_alone_has_forward_parts_alone(forward):
    parts, step = split(forward)
    assert {row.phase for row in parts} == {"forward"}
    assert {"embedding", "conv 1", "output layer", "loss"} <= {row.owner for row in parts}
    assert "optimizer" not in {row.owner for row in parts}
    assert step.flops == sum(op.flops for ops in costs_of(forward) for op in ops)
    assert step.latency_ms == sum(row.latency_ms for row in parts)


def costs_of(done):
    hits = done.provenance.notes["counted_hits"]
    return costs(TINY, hits, phases=("forward",)).values()


def test_training_has_all_phases(trained):
    phases = {row.phase for row in trained.records}
    assert phases == {"forward", "backward", "optimizer", STEP}


def trained_flops():
    return measured().records[-1].flops


def test_what_is_not_known_in_16_bit_is_none_and_not_zero(half_precision):
    for row in half_precision.records:
        assert row.dtype == "bf16"
        assert (row.predicted_ms_low, row.predicted_ms_high) == (None, None)
        assert row.predicted_share is None
    assert half_precision.records[-1].flops == trained_flops()


@pytest.mark.parametrize(
    "changes, wanted",
    [
        ({"dtype": "fp16"}, "unknown dtype 'fp16': choose one of fp32, tf32, bf16"),
        ({"phase": "backward"}, "unknown phase 'backward': choose one of train, forward"),
        ({"device": "tpu"}, "unknown device 'tpu': choose one of auto, cpu, cuda"),
    ],
)
def test_a_setup_that_does_not_exist_is_refused(changes, wanted):
    with pytest.raises(UsageError, match=f"^{wanted}$"):
        Setup(**changes)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Setup(device="auto").device == "cpu"
    with pytest.raises(UsageError, match="torch sees none: use --device cpu"):
        Setup(device="cuda")


def spoilt(done, ratio, **changes):
    """The same profile, had the marks cost so much."""
    breakdown = done.measured.breakdown
    plain = breakdown.totals_ms / ratio
    breakdown = dataclasses.replace(breakdown, plain_ms=plain, **changes)
    return dataclasses.replace(
        done, measured=dataclasses.replace(done.measured, breakdown=breakdown)
    )


@pytest.mark.parametrize("ratio, told", [(1.0, False), (1.04, False), (1.06, True), (1.5, True)])
def test_inflation_above_five_percent_is_told(forward, ratio, told):
    summary = profile_document(spoilt(forward, ratio, warmed_up=True))["summary"]
    assert summary[0].startswith(f"Marks cost {100 * (ratio - 1):.1f} %")
    assert [line for line in summary if "above 5 %" in line] == summary[1 : 1 + told]


def test_a_step_that_never_got_steady_is_told(forward):
    summary = profile_document(spoilt(forward, 1.0, warmed_up=False))["summary"]
    assert "The step never became steady while warming up." in summary


def test_rows_of_a_spoilt_measurement_say_so(forward, monkeypatch):
    samples = np.ones((3, 1))
    refused = Breakdown((("conv 1", "forward"),), samples, samples[:, 0] / 2, 10, True)
    monkeypatch.setattr(observation, "measure", lambda *_, **__: refused)
    rows = measured().records
    assert {row.quality for row in rows} == {"the marks slow the step 2.00 times"}
    ungated = dataclasses.replace(SETUP.rule, gated=False)  # the smoke test of a lab
    assert {row.quality for row in measured(rule=ungated).records} == {""}


def test_other_work_on_the_machine_spoils_a_measurement(monkeypatch):
    told = "other work kept 1.9 of the 2 CPUs busy"
    monkeypatch.setattr(observation.gates, "verdict", lambda *_, **__: told)
    done = measured()
    assert {row.quality for row in done.records} == {done.measured.breakdown.quality or told}


def test_a_step_faster_than_the_device_can_be_is_an_error(monkeypatch):
    """Case 7: the implied rate is above the peak, so time or count is wrong (pytorch #119806)."""
    original = observation.measure

    def launched_only(*args, **options):
        found = original(*args, **options)
        return dataclasses.replace(found, plain_ms=np.full_like(found.plain_ms, 1e-6))

    monkeypatch.setattr(observation, "measure", launched_only)
    cpu = "cpu MHz : 2000\nflags : avx2 fma\n"
    files = {"/proc/cpuinfo": cpu}
    monkeypatch.setattr(calibrate_module, "_read", lambda path: files.get(path, ""))
    with pytest.raises(RuntimeError, match=r"arithmetic of the step: .* is above the bound of its"):
        measured()


# Counted and traced


def test_the_output_layers_part_of_the_arithmetic_is_told(trained):
    parts, _ = split(trained)
    forward = [row for row in parts if row.phase == "forward"]
    flops = {row.owner: row.flops for row in forward}
    share = flops["output layer"] / sum(flops.values())
    group = trained.provenance.notes["groups"]["output layer"]
    assert group["forward_flops_share"] == pytest.approx(share)
    useful = sum(row.useful_flops for row in forward)  # the padding of the convolutions is not
    assert group["forward_useful_flops_share"] == pytest.approx(flops["output layer"] / useful)
    line = f"Of the forward FLOPs the output layer has {100 * flops['output layer'] / useful:.1f} %"
    assert any(text.startswith(line) for text in profile_document(trained)["summary"])


def test_each_owner_has_its_kernels_waits_and_busy_time(trained):
    parts, step = split(trained)
    for row in parts:
        if row.owner not in ("outside", "optimizer"):
            assert row.kernels >= 1, (row.owner, row.phase)
            assert row.busy_ms > 0
    for name in ("kernels", "syncs", "busy_ms", "idle_ms"):
        assert getattr(step, name) == pytest.approx(sum(getattr(row, name) for row in parts))
    waits = {row.owner: row.syncs for row in parts if row.phase == "forward"}
    assert waits["output layer"] == 2 * 3 * (step.config["output_layer"] == "adaptive")


def test_kinds_of_work_add_up_to_the_traced_step(trained):
    kinds = trained.provenance.notes["kinds"]
    assert set(kinds) == set(GROUPS)
    total = sum(ms for group in kinds.values() for ms in group.values())
    assert total == pytest.approx(trained.measured.trace.total_ms)
    assert kinds["output layer"]["matrix products"] > 0
    assert kinds["output layer"]["softmax passes"] > 0


def test_what_has_no_formula_is_listed_with_its_share_of_time(trained, monkeypatch):
    assert trained.provenance.notes["uncounted"] == []
    monkeypatch.setitem(trained.measured.breakdown.counts.uncounted, "aten.mm", 7)
    (row,) = trained.measured.uncounted
    assert (row["operator"], row["calls"]) == ("aten.mm", 7)
    assert 0 < row["share"] < 1
    (line,) = [x for x in profile_document(trained)["summary"] if "No formula" in x]
    assert line.startswith("No formula for aten.mm (7 calls, ")


# Any model


DECODER = huggingface_config(
    {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 97}
)


@pytest.mark.parametrize(
    "config",
    [
        TransformerConfig(
            hidden_size=16, ffn_size=24, n_heads=2, n_layers=3, vocab_size=97, cutoffs=(11, 40),
            batch_size=3, seq_len=7,
        ),
        DECODER.changed(batch_size=3, seq_len=7),
    ],
    ids=["transformer", "gpt2"],
)  # fmt: skip
def test_any_model_has_rows_that_sum_and_its_prediction(config):
    done = measured(config)
    parts, step = split(done)
    assert step.latency_ms == sum(row.latency_ms for row in parts)
    assert sum(row.predicted_share for row in parts) == pytest.approx(1.0)
    expected = costs(config, done.provenance.notes["counted_hits"])
    rows = {(row.owner, row.phase): row for row in parts}
    for part, row in rows.items():
        if row.owner != "embedding":  # its clusters are met by the tokens, not by the targets
            assert row.flops == sum(op.flops for op in expected.get(part, [])), part
    assert {"embedding", "layer 1", "output layer", "loss", "optimizer"} <= {r.owner for r in parts}
    again = Record.from_row(json.loads(json.dumps(step.to_row())))
    assert again == step


# What is refused before anything is done


def never(*_, **__):
    raise AssertionError("nothing may be built or measured")


@pytest.mark.parametrize("sizes", [(1_000, 7), (3, 1_000), (10**9, 10**9)])
def test_a_batch_beyond_the_corpus_is_refused_first(sizes, own_root, monkeypatch):
    monkeypatch.setattr(study, "calibrate", never)
    monkeypatch.setattr(study.models, "build", never)
    config = dataclasses.replace(TINY, batch_size=sizes[0], seq_len=sizes[1])
    with pytest.raises(UsageError, match="tokens, but split 'train' of movie-reviews has 1000"):
        profile("gcn", config, SETUP, command="a test")
    assert list(own_root.iterdir()) == []


def test_what_the_corpus_lacks_is_told_and_kept(monkeypatch):
    note = "a part stands for the whole"
    monkeypatch.setattr(corpora, "load", lambda name, **options: small_corpus(note))
    wide = dataclasses.replace(TINY, vocab_size=200)
    done = profile("gcn", wide, SETUP, command="a test", calibration=RATES)
    few = "movie-reviews has 97 words: rarer ones are never met."
    assert done.provenance.corpus["notes"] == [note, few]
    assert study.profile_document(done)["summary"][-2:] == [note, few]


# Many configurations


CONFIGS = [("gcn", dataclasses.replace(TINY, hidden_size=size)) for size in (16, 8, 12)]


@pytest.fixture
def calibrated(monkeypatch):
    """How often the device was calibrated. Steps this small spread: here none is refused for it."""
    monkeypatch.setattr(Breakdown, "quality", property(lambda self: ""))
    monkeypatch.setattr(observation.gates, "verdict", lambda *_, **__: "")  # whatever else runs
    calls = []

    def calibrate(device, dtype, say):
        calls.append(device)
        return RATES

    monkeypatch.setattr(study, "calibrate", calibrate)
    return calls


def sizes_of(kept):
    """Width of each step's row, in order."""
    return [r.config["hidden_size"] for r in kept.records() if r.owner == STEP]


def assert_no_row_twice(kept):
    rows = [(r.config["hidden_size"], r.dtype, r.owner, r.phase) for r in kept.records()]
    assert len(rows) == len(set(rows)) > 0
    runs = [row["run_id"] for row in read_jsonl(kept.provenance_path)]
    assert len(runs) == len(set(runs))
    assert {r.run_id for r in kept.records()} <= set(runs)


def test_a_calibration_ends_with_steps_that_are_kept(own_root, calibrated, monkeypatch):
    """Each of the plan once; what they say predicts them, and neither rate is measured anew."""
    monkeypatch.setattr(plans, "reference_plan", lambda preset: CONFIGS)
    kept = Study(own_root, "reference")
    found = study.with_steps(RATES, kept, command="a test")
    assert sizes_of(kept) == [16, 8, 12]
    assert {r.study for r in kept.records()} == {"reference"}
    assert calibrated == []
    told = [row["error"] for row in accuracy.comparisons(kept, found)]
    assert found.in_step
    assert abs(float(np.median(told))) < 1


def test_what_was_measured_is_not_measured_again(own_root, calibrated, monkeypatch):
    kept = measure_missing("a-study", CONFIGS, SETUP, command="a test")
    assert kept.path.parent.parent == own_root / "results"
    assert {r.study for r in kept.records()} == {"a-study"}
    assert sizes_of(kept) == [16, 8, 12]
    assert calibrated == ["cpu"], "once for all"
    before = kept.path.read_bytes(), kept.provenance_path.read_bytes()
    monkeypatch.setattr(study, "profile", never)
    said = []
    again = measure_missing("a-study", CONFIGS, SETUP, command="a test", say=said.append)
    assert again == kept
    assert (kept.path.read_bytes(), kept.provenance_path.read_bytes()) == before
    assert calibrated == ["cpu"]
    assert len(said) == 3
    assert all(line.endswith("already measured") for line in said)


def test_an_interrupted_study_goes_on_at_the_first_missing_configuration(calibrated, monkeypatch):
    build, built = study.models.build, []

    def interrupted(config, **options):
        if len(built) == 1:
            raise KeyboardInterrupt
        built.append(config.hidden_size)
        return build(config, **options)

    monkeypatch.setattr(study.models, "build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure_missing("a-study", CONFIGS, SETUP, command="a test")
    kept = measure_missing("a-study", CONFIGS[:1], SETUP, command="a test")
    assert sizes_of(kept) == built == [16], "the finished one is kept"

    def noted(config, **options):
        built.append(config.hidden_size)
        return build(config, **options)

    monkeypatch.setattr(study.models, "build", noted)
    measure_missing("a-study", CONFIGS, SETUP, command="a test")
    assert built == [16, 8, 12, 8], "the rest only, and the first of them again"
    assert sizes_of(kept) == [16, 8, 12]
    assert_no_row_twice(kept)


def test_the_first_configuration_is_measured_again_last_to_see_drift(calibrated, monkeypatch):
    times = iter([10.0, 50.0, 70.0, 13.0])
    original = study.profile

    def timed(*args, **options):
        done, ms = original(*args, **options), next(times)
        plain = np.full_like(done.measured.breakdown.plain_ms, ms)
        breakdown = dataclasses.replace(done.measured.breakdown, plain_ms=plain)
        measured = dataclasses.replace(done.measured, breakdown=breakdown)
        return dataclasses.replace(done, measured=measured)

    monkeypatch.setattr(study, "profile", timed)
    kept = measure_missing("a-study", CONFIGS, SETUP, command="a test")
    assert sizes_of(kept) == [16, 8, 12]
    assert_no_row_twice(kept)
    drifts = [row["notes"].get("drift_of_study") for row in kept.provenance().values()]
    assert drifts == [1.3, None, None]


def test_a_model_too_large_for_the_memory_is_left_out_and_said(calibrated, monkeypatch):
    def available(device):
        return 400_000

    monkeypatch.setattr(study.models.memory, "available_bytes", available)
    said = []
    wide = ("gcn", dataclasses.replace(TINY, hidden_size=1_600))
    kept = measure_missing(
        "a-study", [wide, *CONFIGS[1:2]], SETUP, command="a test", say=said.append
    )
    assert sizes_of(kept) == [8]
    assert any("left out, this step needs about" in line for line in said)


def test_conditions_without_rows_are_not_a_measurement(calibrated, monkeypatch):
    """As a process leaves it that was killed between the two files."""

    def killed(kept, rows, conditions):
        append_jsonl(kept.provenance_path, [dataclasses.asdict(conditions)])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(study.Study, "add", killed)
        measure_missing("a-study", CONFIGS[:1], SETUP, command="a test")
    kept = measure_missing("a-study", CONFIGS[:1], SETUP, command="a test")
    assert sizes_of(kept) == [16]
    assert_no_row_twice(kept)
    assert len(read_jsonl(kept.provenance_path)) == 2


def test_a_configuration_wanted_twice_is_measured_once(calibrated):
    kept = measure_missing("a-study", CONFIGS[:1] * 2, SETUP, command="a test")
    assert sizes_of(kept) == [16]


def test_another_precision_and_another_study_are_measured_for_themselves(calibrated):
    half = dataclasses.replace(SETUP, dtype="bf16")
    kept = measure_missing("a-study", CONFIGS[:1], SETUP, command="a test")
    measure_missing("a-study", CONFIGS[:1], half, command="a test")
    assert [r.dtype for r in kept.records() if r.owner == STEP] == ["fp32", "bf16"]
    other = measure_missing("another", CONFIGS[:1], SETUP, command="a test")
    assert sizes_of(other) == [16]
    assert other.provenance_path == kept.provenance_path, "the conditions are those of the device"
    assert_no_row_twice(kept)


def test_refused_rows_are_measured_again_and_replaced(calibrated, monkeypatch):
    kept = measure_missing("a-study", CONFIGS[:1], SETUP, command="a test")
    refused = [dataclasses.replace(r, quality="a test") for r in kept.records()]
    write_jsonl(kept.path, [r.to_row() for r in refused])
    measure_missing("a-study", CONFIGS[:1], SETUP, command="a test")
    assert {r.quality for r in kept.records()} == {""}
    assert_no_row_twice(kept)


def test_rows_of_fewer_steps_than_are_asked_for_are_replaced(calibrated):
    kept = measure_missing("a-study", CONFIGS[:1], SETUP, command="a test")
    more = dataclasses.replace(SETUP, rule=StopRule(n_min=8, n_max=8))
    measure_missing("a-study", CONFIGS[:1], more, command="a test")
    assert {r.n for r in kept.records()} == {8}
    measure_missing("a-study", CONFIGS[:1], SETUP, command="a test")
    assert {r.n for r in kept.records()} == {8}, "more than enough"
    assert_no_row_twice(kept)


def test_a_device_is_measured_by_one_run_at_a_time(own_root, calibrated):
    measure_missing("a-study", CONFIGS[:1], SETUP, command="a test")
    with alone_on("cpu"), pytest.raises(UsageError, match="is being measured by another run"):
        measure_missing("another", CONFIGS[:1], SETUP, command="a test")


def test_every_product_and_convolution_runs_in_the_precision_that_is_named():
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    for dtype, allowed in (("fp32", False), ("tf32", True), ("bf16", False)):
        flags = measured(dtype=dtype).provenance.flags
        assert flags["cudnn_allow_tf32"] is flags["matmul_allow_tf32"] is allowed
    assert before == (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)


def test_one_device_is_measured_by_one_at_a_time(own_root):
    with alone_on("cpu"):
        with pytest.raises(Busy, match="being measured by another run"), alone_on("cpu"):
            pass
        (lock,) = own_root.glob("results/.*.lock")
        with pytest.raises(TimeoutError), FileLock(lock, timeout=0):
            pass
    with alone_on("cpu"):
        pass
