"""Files of the GLUE tasks (Wang et al. 2018): where they lie, what they hold, how they are fetched.

Each task is taken from LMTIME_DATA/glue, in GLUE's own layout or in that of the data set's authors,
or else from a download in GLUE's layout. Only the training and development sets are used: the
labels of the test sets are not public. Standard library only.
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from lmtime.errors import UsageError
from lmtime.sources import cache_folder, data_folder, download, file_sha256


@dataclass(frozen=True)
class Layout:
    """Files of LMTIME_DATA/glue/<folder> and their columns, told by a header or else `columns`."""

    folder: str
    train: tuple[str, ...]
    dev: tuple[str, ...]
    texts: tuple[str, ...]  # columns of the sentence, or of both
    label: str
    columns: tuple[str, ...] = ()
    separator: str = "\t"
    note: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files."""
        return self.train + self.dev

    def paths(self) -> dict[str, Path]:
        """Those files that LMTIME_DATA holds, by name."""
        folder = data_folder()
        paths = {name: folder / "glue" / self.folder / name for name in self.files if folder}
        return {name: path for name, path in paths.items() if path.is_file()}


@dataclass(frozen=True)
class Download:
    """A file of GLUE's host: its path there, and what is known of it."""

    place: str
    n_bytes: int
    sha256: str

    @property
    def path(self) -> Path:
        """Where it lies in the cache, or will."""
        return cache_folder() / "glue" / self.place.rsplit("/", 1)[1]

    def is_here(self) -> bool:
        """Whether the file in the cache is the one that is known."""
        return self.path.is_file() and file_sha256(self.path) == self.sha256

    def fetch(self) -> None:
        """Put it into the cache if it is not there."""
        if not self.is_here():
            download(f"{HOST}/{self.place}", self.path, self.sha256)


HOST = "https://dl.fbaipublicfiles.com"
# By GLUE's folder. Seen in github.com/huggingface/datasets at 040102f,
# datasets/glue/dataset_infos.json, as the download checksums of each task. The checksums of the
# older addresses (github.com/tensorflow/datasets at 333639b, url_checksums/glue.txt) are the same,
# but for QQP, which was cleaned since.
DOWNLOADS = {
    "CoLA": (
        Download(
            "glue/data/CoLA.zip", 376_971,
            "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff",
        ),
    ),
    "SST-2": (
        Download(
            "glue/data/SST-2.zip", 7_439_277,
            "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
        ),
    ),
    "MRPC": (
        Download(
            "senteval/senteval_data/msr_paraphrase_train.txt", 1_047_044,
            "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
        ),
        Download(
            "glue/data/mrpc_dev_ids.tsv", 6_222,
            "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7",
        ),
    ),
    "STS-B": (
        Download(
            "glue/data/STS-B.zip", 802_872,
            "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85",
        ),
    ),
    "QQP": (
        Download(
            "glue/data/QQP-clean.zip", 41_696_084,
            "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0",
        ),
    ),
    "MNLI": (
        Download(
            "glue/data/MNLI.zip", 312_783_507,
            "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633",
        ),
    ),
    "QNLI": (
        Download(
            "glue/data/QNLIv2.zip", 10_627_589,
            "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5",
        ),
    ),
    "RTE": (
        Download(
            "glue/data/RTE.zip", 697_150,
            "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee",
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Files:
    """What was found for a task: its layout, its texts by file name, and the hash of the files."""

    layout: Layout
    texts: dict[str, bytes]
    sha256: str


def find(name: str, layouts: tuple[Layout, ...]) -> Files:
    """The files of a task: of the first layout that is complete, else downloaded.

    The first layout is GLUE's, which is that of the download.
    """
    for layout in layouts:
        paths = layout.paths()
        if len(paths) == len(layout.files):
            hashes = str([(name, file_sha256(path)) for name, path in paths.items()])
            texts = {name: path.read_bytes() for name, path in paths.items()}
            return Files(layout, texts, hashlib.sha256(hashes.encode()).hexdigest())
    downloads = DOWNLOADS[layouts[0].folder]
    try:
        for file in downloads:
            file.fetch()
    except UsageError as error:
        raise UsageError(f"{name} is not at hand: {error}; or {_advice(layouts)}") from None
    hashes = str([file.sha256 for file in downloads])
    return Files(layouts[0], _unpacked(layouts[0]), hashlib.sha256(hashes.encode()).hexdigest())


def state(layouts: tuple[Layout, ...]) -> str:
    """What is at hand of a task: where it lies, or what a download of it takes."""
    for layout in layouts:
        if len(layout.paths()) == len(layout.files):
            return f"here: LMTIME_DATA/glue/{layout.folder}"
    downloads = DOWNLOADS[layouts[0].folder]
    if all(file.is_here() for file in downloads):
        return "here: downloaded"
    return f"to download, {sum(file.n_bytes for file in downloads) / 1e6:.1f} MB"


def _advice(layouts: tuple[Layout, ...]) -> str:
    """Which files to put where."""
    where = [f"{', '.join(layout.files)} into {_place(layout)}" for layout in layouts]
    text = "put " + ", or ".join(where)
    return text if data_folder() else f"{text}, and set LMTIME_DATA=FOLDER"


def _place(layout: Layout) -> Path:
    return (data_folder() or Path("FOLDER")) / "glue" / layout.folder


def _unpacked(layout: Layout) -> dict[str, bytes]:
    """Texts of the downloaded files in GLUE's layout; nothing is unpacked to disk."""
    downloads = DOWNLOADS[layout.folder]
    if len(downloads) == 1:
        with zipfile.ZipFile(downloads[0].path) as file:
            return {name: file.read(f"{layout.folder}/{name}") for name in layout.files}
    pairs, ids = (file.path.read_bytes() for file in downloads)
    return dict(zip(("train.tsv", "dev.tsv"), split_pairs(pairs, ids), strict=True))


def split_pairs(pairs: bytes, ids: bytes) -> tuple[bytes, bytes]:
    """MRPC's table of pairs as GLUE's train and dev: dev are the pairs whose two ids are listed.

    pairs: with a header, ids in the second and third column. ids: a pair a line.
    """
    header, *rows = pairs.removesuffix(b"\n").split(b"\n")
    listed = {tuple(line.split()) for line in ids.splitlines()}
    splits: tuple[list[bytes], list[bytes]] = ([header], [header])
    for row in rows:
        splits[tuple(row.split(b"\t")[1:3]) in listed].append(row)
    train, dev = (b"\n".join([*rows, b""]) for rows in splits)
    return train, dev


def examples(
    layout: Layout, files: tuple[str, ...], texts: dict[str, bytes]
) -> tuple[list[tuple[str, str | None]], list[str], int]:
    """Sentences (the second may be None) and labels of some files, and how many rows were no row.

    GLUE's older QQP has three rows that lack columns; they are left out and counted.
    """
    found: list[tuple[str, str | None]] = []
    labels: list[str] = []
    n_broken = 0
    n_splits = len(layout.columns) - 1  # -1, as many as there are, where a header names them
    for name in files:
        rows = [line.split(layout.separator, n_splits) for line in _lines(name, texts[name])]
        columns = rows.pop(0) if layout.label in rows[0] else list(layout.columns)
        wanted = (*layout.texts, layout.label)
        if not set(wanted) <= set(columns):
            raise UsageError(
                f"{layout.folder}/{name} has no header that names {', '.join(wanted)}: "
                f"put the original there"
            )
        places = [columns.index(column) for column in wanted]
        for cells in rows:
            if len(cells) < len(columns):
                n_broken += 1
                continue
            sentence, *second, label = (cells[place] for place in places)
            found.append((sentence, second[0] if second else None))
            labels.append(label)
    return found, labels, n_broken


def _lines(name: str, text: bytes) -> list[str]:
    """Lines of one file, without marks of a byte order or of another system's line ends."""
    try:
        return text.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text ({error}): put the original there") from None
