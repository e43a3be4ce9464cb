"""Laws of the layout: who may import what, who reads a clock, how long things may be."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import lmtime

ROOT = Path(lmtime.__file__).parent

# A part of the package imports from its own row and from those above. Beside it: what it may
# import from outside, anywhere in its files, besides the standard library.
LAYERS = (
    {"errors": "", "config": "", "records": "", "hardware": "", "calibration": ""},
    {"cost": "", "plans": "", "encoders": "", "encoders.plans": ""},
    {"accuracy": "", "published": "", "inverse": "", "partition_table": ""},
    {"encoders.published_scores": ""},
    {"stats": "numpy", "metrics": "numpy", "lines": "numpy"},
    {"encoders.latency_rows": "numpy", "encoders.score_rows": "numpy"},
    {"encoders.depth": "numpy"},
    {"pareto": "numpy optuna sqlalchemy filelock"},
    {"sources": "", "glue": ""},
    {"wordcounts": "numpy", "corpora": "numpy", "tasks": "numpy"},
    {"encoders.hat": "numpy"},
    {"softmax": "torch numpy"},
    {"models": "torch transformers numpy safetensors tokenizers onnx onnxruntime"},
    {"timing": "torch numpy fvcore torchinfo"},
    {"report": "numpy", "study": "numpy filelock"},
    {"trials": "filelock", "compare": "numpy filelock"},
    {"encoders.measuring": "numpy"},
    {"encoders.supernets": "numpy filelock", "encoders.fronts": "numpy"},
    {"encoders.layer_latency": "numpy", "encoders.front_facts": "numpy"},
    {"encoders.device_fronts": "numpy", "encoders.searches": "numpy filelock"},
    {"encoders.exports": "torch numpy"},
    {
        "publishing": "altair vl_convert papermill nbformat docutils sphinx myst_nb latex2mathml",
    },
    {"perplexity": "numpy"},
    {
        "charts": "altair",
        "layer_charts": "altair",
        "encoder_charts": "altair",
        "front_charts": "altair",
        "supernet_charts": "altair",
        "explorer": "altair",
        "prose": "IPython",
    },
    {"widgets": "ipywidgets altair"},
    {"cli": "typer rich"},
)
STUDIES = {"encoders"}  # packages that go through several rows
RANK = {part: rank for rank, row in enumerate(LAYERS) for part in row}
OUTSIDE = {part: set(allowed.split()) for row in LAYERS for part, allowed in row.items()}

# What is measured can be drawn where it is: one method imports the charts when it is called.
DRAWING = {("timing/breakdown.py", "lmtime.charts")}

# 5,000 lines held the study of one network; any model, its trace, counts and costs came on top,
# then output layers of our own, their costs, training and fronts; then the second study, encoders
# cut to sub-networks, with tasks, training, measuring and search.
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_PACKAGE_LINES = 320, 45, 18_500

FILES = sorted(ROOT.rglob("*.py"))
each_file = pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))


@cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def part_of(path):
    """The module or package directly under lmtime that a file belongs to; "" is `__init__`."""
    return part_called(path.relative_to(ROOT).with_suffix("").parts)


def part_called(names):
    """Of a path under lmtime, or of a name that is imported; a study's files have ranks each."""
    top, *rest = [name for name in names if name != "__init__"] or [""]
    return ".".join([top, *rest[:1]]) if top in STUDIES and rest else top


def relative(path):
    return path.relative_to(ROOT).as_posix()


def imports(path):
    """Full names of all that a file imports, wherever in it: (module, or module.name)."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


# Imports


def test_every_part_of_the_package_has_its_place():
    assert {part_of(path) for path in FILES} - {""} <= set(RANK)


@each_file
def test_a_part_imports_only_from_its_layer_and_those_below(path):
    own = part_of(path)
    for name in imports(path):
        first, *rest = name.split(".")
        if first == "lmtime" and own and (relative(path), name) not in DRAWING:
            other = part_called(rest)
            assert other in RANK, f"{name} is not a part of the package"
            assert RANK[other] <= RANK[own], f"{own} may not import {name}"


@each_file
def test_only_named_parts_import_from_outside(path):
    allowed = OUTSIDE.get(part_of(path), set()) | {"lmtime"} | sys.stdlib_module_names
    found = {name.split(".")[0] for name in imports(path)}
    assert found <= allowed


@each_file
def test_nothing_imports_the_command_line_or_the_book(path):
    if part_of(path) == "cli":
        return
    for name in imports(path):
        assert name.split(".")[:2] != ["lmtime", "cli"]
        assert name.split(".")[0] not in {"book", "tests"}
        assert name.split(".")[:2] != ["lmtime", "widgets"], "panels are for notebooks"


def modules_of(*parts):
    for path in FILES:
        if part_of(path) in parts:
            name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
            yield name.removesuffix(".__init__")


def run(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def importing(modules, *, without):
    """Imports the modules where others cannot be; gives what the process has loaded then."""
    lines = ["import sys, importlib"]
    lines += [f"sys.modules[{name!r}] = None" for name in without]
    lines += [f"importlib.import_module({name!r})" for name in modules]
    lines += ["sys.stdout.write(' '.join(name for name, m in sys.modules.items() if m))"]
    return run("\n".join(lines))


HEAVY = ("torch", "numpy", "altair", "pandas", "ipywidgets")


def test_the_package_itself_loads_nothing():
    loaded = importing(["lmtime"], without=())
    assert "lmtime" in loaded
    assert [name for name in loaded if name.startswith("lmtime.")] == []
    assert set(HEAVY) & set(loaded) == set()


def test_the_core_needs_the_standard_library_alone():
    parts = [part for part, allowed in OUTSIDE.items() if not allowed]
    modules = list(modules_of(*parts))
    assert {"lmtime.config", "lmtime.records", "lmtime.cost.predict"} <= set(modules)
    loaded = importing(modules, without=[*HEAVY, "rich", "typer"])
    assert set(modules) <= set(loaded)


def test_the_command_line_starts_without_what_is_slow():
    loaded = importing(["lmtime.cli"], without=())
    assert set(HEAVY) & set(loaded) == set()


def test_analysis_needs_numpy_and_no_torch():
    loaded = importing(
        modules_of("stats", "metrics", "lines", "pareto", "corpora", "tasks", "encoders.hat"),
        without=["torch", "altair", "pandas"],
    )
    assert "lmtime.corpora" in loaded


def test_fronts_and_searches_load_no_optuna():
    modules = set(modules_of("pareto"))
    assert {"lmtime.pareto.dominance", "lmtime.pareto.claims"} <= modules
    loaded = importing(modules, without=["optuna", "sqlalchemy", "torch"])
    assert modules <= set(loaded)


def test_charts_need_no_torch():
    modules = list(modules_of("charts", "explorer", "prose"))
    loaded = importing(modules, without=["torch"])
    assert set(modules) <= set(loaded)


def test_measuring_loads_no_charts():
    loaded = importing(["lmtime.timing"], without=["altair"])
    assert "lmtime.charts" not in loaded


# Clocks and output


@each_file
def test_only_the_clock_reads_a_clock(path):
    """`time.monotonic` counts budgets in seconds and measures nothing."""
    if path.relative_to(ROOT).as_posix() == "timing/clock.py":
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            assert not node.attr.startswith(("perf_counter", "process_time")), text
            assert text not in {"time.time", "time.time_ns", "torch.cuda.Event"}
    imported = {name for name in imports(path) if name.startswith(("time.", "torch.cuda"))}
    assert imported == set(), "import the module, so that its use can be seen"


def test_the_clock_is_where_it_should_be():
    source = (ROOT / "timing" / "clock.py").read_text(encoding="utf-8")
    assert "perf_counter_ns" in source
    assert "cuda.Event" in source


@each_file
def test_nothing_is_printed(path):
    calls = (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call))
    assert [call.lineno for call in calls if ast.unparse(call.func) == "print"] == []


# Size and words


@each_file
def test_a_file_is_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_FILE_LINES


@each_file
def test_a_function_is_short(path):
    functions = (
        node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.Lambda)
    )
    long = {
        getattr(node, "name", "lambda"): node.end_lineno - node.lineno + 1
        for node in functions
        if node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert long == {}


@each_file
def test_what_is_public_says_what_it_is(path):
    named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    public = [n for n in tree(path).body if isinstance(n, named) and not n.name.startswith("_")]
    assert ast.get_docstring(tree(path)), "the file itself"
    assert [node.name for node in public if not ast.get_docstring(node)] == []


def code_lines(path):
    """Numbers of the lines that hold code: neither empty, nor a comment, nor a docstring."""
    documented = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    text = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            text |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    return [n for n, line in lines if line.strip() and line.strip()[0] != "#" and n not in text]


def test_the_package_is_small():
    assert sum(len(code_lines(path)) for path in FILES) < MAX_PACKAGE_LINES


def test_lines_of_code_are_told_from_words(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(
        '"""Doc\n\nmore."""\n\n# why\nx = 1  # here\n\ndef f():\n    """Says."""\n    return x\n'
    )
    assert code_lines(path) == [6, 8, 10]
