"""Labs run with checked parameters, within a limit of time, and leave whole files only."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from lmtime.errors import UsageError
from lmtime.publishing import notebooks
from lmtime.publishing.notebooks import LabError, convert, labs, parameters, run_lab

PARAMETERS = """\
n_steps: int = 3  # how many steps
learning_rate: float = 1e-3  # of the optimizer
quick: bool = True  # fewer shapes
name: str = "plain"  # what to call it
sizes: list[int] = [256, 512]  # hidden sizes
layers: list[str] = ["adaptive"]  # output layers
guessed = 7  # no annotation
shape: dict = {}  # cannot be given
"""
SHOW = """\
import json, pathlib
values = dict(n_steps=n_steps, learning_rate=learning_rate, quick=quick, name=name,
              sizes=sizes, layers=layers, guessed=guessed)
pathlib.Path("values.json").write_text(json.dumps(values))
print("größe", name)
"""


def write_lab(root, name, *cells):
    """A notebook under book/labs of `root`: a parameters cell, then `cells`."""
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": {
        "name": "python3", "display_name": "Python 3", "language": "python"}})  # fmt: skip
    first = nbformat.v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})
    notebook.cells = [first, *(nbformat.v4.new_code_cell(cell) for cell in cells)]
    path = root / "book" / "labs" / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("LMTIME_ROOT", str(tmp_path))
    return tmp_path


@pytest.fixture
def known(root):
    return parameters(write_lab(root, "lab_show", SHOW))


def files(root):
    folder = root / "results" / "labs"
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def test_labs_are_the_notebooks_of_their_folder(root):
    with pytest.raises(UsageError, match="has no labs: set LMTIME_ROOT to the folder of the study"):
        labs()
    paths = [write_lab(root, name) for name in ("lab_b", "lab_a")]
    assert labs() == {"lab_a": paths[1], "lab_b": paths[0]}


def test_a_lab_is_found_by_name_short_name_or_path(root):
    path = write_lab(root, "lab_profile")
    for given in ("lab_profile", "profile", str(path)):
        assert notebooks.find_lab(given) == path
    with pytest.raises(UsageError, match="unknown lab 'profil': choose one of lab_profile"):
        notebooks.find_lab("profil")


def test_parameters_have_their_type_default_and_help(known):
    assert known["n_steps"] == notebooks.Parameter("n_steps", "int", 3, "how many steps")
    types = {name: parameter.type for name, parameter in known.items()}
    assert types["sizes"] == "list[int]" and types["guessed"] == "int"
    assert known["layers"].default == ["adaptive"]


@pytest.mark.parametrize(
    "assignment, value",
    [
        ("n_steps=20", 20),
        ("n_steps=-1", -1),
        ("learning_rate=1e-4", 1e-4),
        ("learning_rate=2", 2.0),
        ("quick=false", False),
        ("quick=YES", True),
        ("quick=0", False),
        ("name=a=b, c", "a=b, c"),
        ("name=", ""),
        ("name=true", "true"),
        ("name=Größe ∑", "Größe ∑"),
        ("sizes=128, 256,384", [128, 256, 384]),
        ("sizes=64", [64]),
        ("sizes=", []),
        ("layers=adaptive,full", ["adaptive", "full"]),
        ("guessed=8", 8),
    ],
)
def test_values_become_the_declared_type(known, assignment, value):
    (converted,) = convert(known, [assignment]).values()
    assert converted == value and type(converted) is type(value)


@pytest.mark.parametrize(
    "assignments, message",
    [
        (["n_step=4"], r"unknown parameter 'n_step'.*n_steps \(int, default 3: how many steps\)"),
        (["n_steps=four"], r"n_steps=four is not of type int"),
        (["n_steps=1e3"], r"n_steps=1e3 is not of type int"),
        (["n_steps="], r"n_steps= is not of type int"),
        (["learning_rate=fast"], r"not of type float"),
        (["quick=maybe"], r"not of type bool, one of true, false"),
        (["sizes=1,two"], r"not of type list\[int\], values separated by commas"),
        (["n_steps"], r"'n_steps' has no value: write it as name=value"),
        (["n_steps=1", "n_steps=2"], r"n_steps is given twice"),
        (["shape=3"], r"shape is declared dict and only int, float, bool, str"),
    ],
)
def test_a_wrong_parameter_is_refused_before_anything_is_written(root, known, assignments, message):
    with pytest.raises(UsageError, match=message):
        run_lab("show", assignments)
    assert files(root) == []


@pytest.mark.parametrize("text", ["not a notebook", '{"a": 1}'])
def test_a_file_that_is_no_notebook_is_the_callers_mistake(root, text):
    path = write_lab(root, "lab_bad")
    path.write_text(text)
    with pytest.raises(UsageError, match=r"lab_bad\.ipynb is not a Python notebook"):
        run_lab("bad")


def test_a_lab_runs_in_its_folder_with_the_given_values_and_is_heard(root, known):
    lines = []
    target = run_lab(
        "show", ["n_steps=5", "name=Größe ∑ 'x'", "sizes=1,2", "quick=no"], say=lines.append
    )
    assert target == root / "results" / "labs" / "lab_show.ipynb"
    assert files(root) == ["lab_show.ipynb"]
    values = json.loads((root / "book" / "labs" / "values.json").read_text())
    assert values == {
        "n_steps": 5,
        "learning_rate": 1e-3,
        "quick": False,
        "name": "Größe ∑ 'x'",
        "sizes": [1, 2],
        "layers": ["adaptive"],
        "guessed": 7,
    }
    assert lines == ["cell 1", "cell 2", "cell 3", "größe Größe ∑ 'x'"]
    assert nbformat.read(target, as_version=4).cells[-1].outputs[0].text == f"{lines[-1]}\n"


def test_a_failing_cell_is_named_with_its_error_and_the_partial_notebook(root):
    write_lab(root, "lab_fail", "x = 1", "# divide\nx / 0", "print('never')")
    lines = []
    with pytest.raises(LabError) as caught:
        run_lab("fail", ["n_steps=1"], say=lines.append)
    failed = root / "results" / "labs" / "lab_fail.failed.ipynb"
    assert str(caught.value) == (
        "lab lab_fail did not finish: ZeroDivisionError: division by zero, "
        f"in the cell that starts with `# divide`; see {failed}"
    )
    assert files(root) == ["lab_fail.failed.ipynb"]
    assert "never" not in lines and not any("Traceback" in line for line in lines)


def test_a_failed_run_leaves_the_last_good_one_and_a_good_run_takes_both_places(root):
    good = root / "results" / "labs" / "lab_fail.ipynb"
    good.parent.mkdir(parents=True)
    good.write_text("of an earlier run")
    write_lab(root, "lab_fail", "raise RuntimeError")
    with pytest.raises(LabError, match=r"finish: RuntimeError, in the cell"):
        run_lab("fail")
    assert files(root) == ["lab_fail.failed.ipynb", "lab_fail.ipynb"]
    assert good.read_text() == "of an earlier run"
    write_lab(root, "lab_fail", "print('mended')")
    run_lab("fail")
    assert files(root) == ["lab_fail.ipynb"]
    assert "mended" in good.read_text()


SLEEP = """\
# wait
import os, pathlib, time
pathlib.Path("pid").write_text(str(os.getpid()))
print("asleep", flush=True)
time.sleep(600)
"""


def is_running(pid):
    """Whether the process is there; one that ended and was not collected yet is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_ended(pid):
    deadline = time.monotonic() + 20
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not is_running(pid)


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self"), reason="reads /proc")


@needs_proc
def test_a_run_past_its_limit_is_ended_with_its_kernel(root):
    write_lab(root, "lab_slow", SLEEP)
    limit_s = 10
    start = time.monotonic()
    with pytest.raises(LabError, match=r"took longer than 10 s, in the cell.*`# wait`; see"):
        run_lab("slow", timeout_s=limit_s)
    assert time.monotonic() - start < limit_s + notebooks.GRACE_S + 5
    assert files(root) == ["lab_slow.failed.ipynb"]
    assert wait_until_ended((root / "book" / "labs" / "pid").read_text())


@needs_proc
def test_an_interrupted_run_leaves_no_process_and_can_be_repeated(root):
    write_lab(root, "lab_slow", SLEEP)

    def interrupt(line):
        if line == "asleep":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_lab("slow", say=interrupt)
    assert files(root) == ["lab_slow.failed.ipynb"]
    assert wait_until_ended((root / "book" / "labs" / "pid").read_text())
    write_lab(root, "lab_slow", SLEEP.replace("600", "0"))
    run_lab("slow")
    assert files(root) == ["lab_slow.ipynb"]


@needs_proc
def test_a_run_does_not_outlive_the_process_that_started_it(root):
    path = write_lab(root, "lab_slow", SLEEP)
    code = "from lmtime.publishing.notebooks import run_lab; run_lab('slow')"
    parent = subprocess.Popen([sys.executable, "-c", code])
    pid = path.with_name("pid")
    deadline = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    parent.kill()
    parent.wait()
    assert wait_until_ended(pid.read_text())


def test_what_a_lab_leaves_running_does_not_hold_the_run_up(root):
    write_lab(root, "lab_child", "import subprocess\nsubprocess.Popen(['sleep', '30'])")
    start = time.monotonic()
    run_lab("child", timeout_s=60)
    assert time.monotonic() - start < 28


def test_a_limit_that_ends_before_the_first_cell_leaves_no_file(root):
    write_lab(root, "lab_slow", SLEEP)
    with pytest.raises(LabError, match=r"took longer than 0\.01 s, before its first cell"):
        run_lab("slow", timeout_s=0.01)
    assert files(root) == []


def test_a_kernel_that_dies_is_reported(root):
    write_lab(root, "lab_die", "import os\nos._exit(3)")
    with pytest.raises(LabError, match=r"Kernel died, in the cell that starts with `import os`"):
        run_lab("die")
