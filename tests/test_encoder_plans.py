"""Laws of what the labs time of encoders."""

import pytest

from lmtime import stats
from lmtime.encoders import measuring, plans
from lmtime.encoders.plans import network_config


@pytest.mark.parametrize("plan", [plans.depth_plan, plans.grid_plan])
@pytest.mark.parametrize("preset", ["quick", "paper"])
def test_every_configuration_is_in_a_plan_once_and_has_its_rounds(plan, preset):
    cases = plan(preset)
    assert len(set(cases)) == len(cases)
    for case in cases:
        case.sub.require_within(network_config(case.network))
        assert plans.ROUNDS[preset][case.batch_size].n >= stats.MIN_PAIRS


def test_the_depth_study_has_every_depth_at_batch_1_and_enough_for_a_line_at_others():
    depths = {}
    for case in plans.depth_plan("paper"):
        of = (case.engine, case.network, case.batch_size)
        depths.setdefault(of, []).append(len(case.sub.layers))
    assert depths["torch", "bert-base", 1] == list(range(1, 13))
    assert depths["onnxruntime", "distilbert", 1] == list(range(1, 7))
    assert len(depths) == 2 * 2 * 3
    for (_, network, _), found in depths.items():
        assert len(found) >= 3
        assert (found[0], found[-1]) == (1, network_config(network).n_layers)


def test_the_grids_are_dynaberts():
    names = {}
    for case in plans.grid_plan("paper"):
        width, depth = plans.part_of(case.network, case.sub)
        names.setdefault((case.engine, case.network), set()).add((width, depth))
        assert plans.name_in_network(case.network, case.sub) == f"w{width} d{depth}"
    assert {of: len(found) for of, found in names.items()} == {
        (engine, network): n
        for engine in plans.ENGINES
        for network, n in (("bert-base", 12), ("minilm-l6", 16))
    }


def test_no_preset_asks_for_more_threads_than_there_are(monkeypatch):
    monkeypatch.setattr(measuring, "n_cpus", lambda device: {"n_cpus": 1})
    assert measuring.usable_threads("paper") == (1,)
    monkeypatch.setattr(measuring, "n_cpus", lambda device: {"n_cpus": 64})
    assert measuring.usable_threads("paper") == (1, 2)
