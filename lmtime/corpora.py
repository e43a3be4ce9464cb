"""Text as token streams whose ids are sorted by frequency: 0 is the most frequent. NumPy only.

A corpus is found (see `sources`), split, tokenised whole and cached; `load` cuts the cached corpus
to the vocabulary that is asked for.
"""

from __future__ import annotations

import hashlib
import struct
import sys
import zipfile
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from lmtime import sources, wordcounts
from lmtime.errors import UsageError, unknown
from lmtime.records import replaced
from lmtime.sources import NAMES, SEED, TOKENISER, Found, cache_folder

EOS, UNK = "<eos>", "<unk>"
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


def tail_hits(targets: np.ndarray, cutoffs: Sequence[int], vocab_size: int) -> list[int]:
    """How many targets lie in each tail cluster; none where there are no cutoffs."""
    edges = (*cutoffs, vocab_size)
    return [int(((low <= targets) & (targets < high)).sum()) for low, high in pairwise(edges)]


def at_hand(name: str) -> str:
    """The corpus to take for one: real text in place of counts, where LMTIME_DATA holds it."""
    has_text = name == "word-counts" and NAMES["gbw"].state().startswith("here")
    return "gbw" if has_text else name


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
    if not NAMES[name].is_text:
        words, streams = wordcounts.draw()
        return _corpus(name, words, streams, wordcounts.NOTE), sources.counts_path()
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


def _encoded(name: str, found: Found, progress: Progress) -> Corpus:
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


def _corpus(name: str, words: Sequence[str], splits: dict[str, np.ndarray], note: str) -> Corpus:
    """A Corpus with its content hash; the streams become read-only."""
    digest = hashlib.sha256("\n".join(words).encode())
    for split, stream in splits.items():
        digest.update(f"\n\n{split} {len(stream)}\n".encode())
        digest.update(np.ascontiguousarray(stream, dtype="<i4"))
        stream.setflags(write=False)
    return Corpus(name, tuple(words), splits, digest.hexdigest(), note)


# The cache


def _write_cache(path: Path, corpus: Corpus) -> None:
    """Write the whole file or nothing."""
    with replaced(path) as partial, partial.open("wb") as file:
        words = np.frombuffer("\n".join(corpus.words).encode(), dtype=np.uint8)
        np.savez(file, sha256=np.array(corpus.sha256), words=words, **corpus.splits)


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
