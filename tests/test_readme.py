"""The README's script runs as it stands."""

import re
from pathlib import Path

import torch

import lmtime
from lmtime.timing import StopRule, breakdown

README = Path(lmtime.__file__).parent.parent / "README.md"


def test_the_script_profiles_the_model_that_it_makes(capsys, one_thread, monkeypatch):
    """Six pairs of steps: how steady they are is not what is tested."""
    brief = StopRule(n_min=6, n_max=6)
    monkeypatch.setattr(breakdown, "StopRule", lambda: brief)
    (script,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for line in script.splitlines() if line.strip()]) <= 12
    torch.manual_seed(0)
    exec(script, {"__name__": "script"})
    table = capsys.readouterr().out
    rows = [line.split()[:2] for line in table.splitlines()]
    for owner in ("0", "1", "2"):
        assert [owner, "forward"] in rows
        assert [owner, "backward"] in rows
    assert ["optimizer", "optimizer"] in rows
    assert "GFLOP/s" in table
