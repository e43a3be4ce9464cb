"""What tests share: folders that do not depend on what this machine holds, and one thread."""

import sys

import pytest
import torch

from lmtime import cli


@pytest.fixture
def own_folders(tmp_path, monkeypatch):
    """An empty cache, and no data."""
    monkeypatch.setenv("LMTIME_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LMTIME_DATA", raising=False)


@pytest.fixture
def wikitext(own_folders, tmp_path, monkeypatch):
    """A folder for LMTIME_DATA with three small splits in WikiText's form."""
    folder = tmp_path / "data" / "wikitext-2"
    folder.mkdir(parents=True)
    texts = {"train": " \n = A = \n the <unk> the \n", "valid": " the \n", "test": " A é \n"}
    for split, text in texts.items():
        (folder / f"{split}.txt").write_text(text, encoding="utf-8")
    monkeypatch.setenv("LMTIME_DATA", str(folder.parent))
    return folder


@pytest.fixture(scope="module")
def one_thread():
    """What is this small runs slower on more."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs `lmtime` in an empty folder; gives exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["lmtime", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        return (code, *capsys.readouterr())

    return run
