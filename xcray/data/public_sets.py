"""Public data sets by name: where their files are, under which terms, and how they are read.

`fetch_dataset("bibtex", "DATA/bibtex")` downloads the files, or takes files that were downloaded
before, checks their SHA-256, and builds a data set.
"""

from __future__ import annotations

import http.client
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from xcray.data.build import build
from xcray.data.dataset import Dataset
from xcray.data.public_readers import (
    NEWS20_WORDS,
    Reader,
    read_cifar10,
    read_covtype,
    read_kddcup99,
    read_mnist,
    read_news20,
    read_rcv1,
    read_repository,
)
from xcray.data.readers.options import ReadOptions
from xcray.errors import Conflict, Corrupt, NotFound, Unavailable, similar_or_all
from xcray.storage.atomic import sha256_file

TIMEOUT_SECONDS: Final = 60.0


class PublicFile(NamedTuple):
    """A file of a set: its name, address, and SHA-256.

    sha256: as published by scikit-learn, Keras or TensorFlow; None if none is published.
    """

    name: str
    url: str
    sha256: str | None = None


class PublicSet(NamedTuple):
    """A public data set. n_train, n_test: rows; n_test is None if rows are held out here."""

    files: tuple[PublicFile, ...]
    read: Reader
    n_train: int
    n_test: int | None
    n_features: int
    n_labels: int
    licence: str


def _figshare(name: str, number: int, sha256: str) -> PublicFile:
    """Return a file of scikit-learn's copies."""
    return PublicFile(name, f"https://ndownloader.figshare.com/files/{number}", sha256)


def _repository(name: str, number: str) -> PublicFile:
    """Return an archive of the Extreme Classification Repository."""
    return PublicFile(name, f"https://drive.google.com/uc?export=download&id={number}")


REPOSITORY_TERMS: Final = "no licence stated; the Extreme Classification Repository asks to cite it"
UCI_TERMS: Final = "CC BY 4.0 (UCI Machine Learning Repository)"

SETS: Final[dict[str, PublicSet]] = {
    "bibtex": PublicSet(
        (_repository("Bibtex.zip", "0B3lPMIHmG6vGcy1xM2pJZ09MMGM"),),
        *(read_repository, 4880, 2515, 1836, 159, REPOSITORY_TERMS),
    ),
    "delicious": PublicSet(
        (_repository("Delicious.zip", "0B3lPMIHmG6vGdG1jZ19VS2NWRVU"),),
        *(read_repository, 12920, 3185, 500, 983, REPOSITORY_TERMS),
    ),
    "mediamill": PublicSet(
        (_repository("Mediamill.zip", "0B3lPMIHmG6vGY3B4TXRmZnZBTkk"),),
        *(read_repository, 30993, 12914, 120, 101, REPOSITORY_TERMS),
    ),
    "eurlex": PublicSet(
        (_repository("Eurlex.zip", "0B3lPMIHmG6vGU0VTR1pCejFpWjg"),),
        *(read_repository, 15539, 3809, 5000, 3993, REPOSITORY_TERMS),
    ),
    "rcv1": PublicSet(
        (
            _figshare(
                "lyrl2004_vectors_train.dat.gz",
                5976057,
                "5468f656d0ba7a83afc7ad44841cf9a53048a5c083eedc005dcdb5cc768924ae",
            ),
            _figshare(
                "lyrl2004_vectors_test_pt0.dat.gz",
                5976069,
                "ed40f7e418d10484091b059703eeb95ae3199fe042891dcec4be6696b9968374",
            ),
            _figshare(
                "lyrl2004_vectors_test_pt1.dat.gz",
                5976066,
                "87700668ae45d45d5ca1ef6ae9bd81ab0f5ec88cc95dcef9ae7838f727a13aa6",
            ),
            _figshare(
                "lyrl2004_vectors_test_pt2.dat.gz",
                5976063,
                "48143ac703cbe33299f7ae9f4995db49a258690f60e5debbff8995c34841c7f5",
            ),
            _figshare(
                "lyrl2004_vectors_test_pt3.dat.gz",
                5976060,
                "dfcb0d658311481523c6e6ca0c3f5a3e1d3d12cde5d7a8ce629a9006ec7dbb39",
            ),
            _figshare(
                "rcv1v2.topics.qrels.gz",
                5976048,
                "2a98e5e5d8b770bded93afc8930d88299474317fe14181aee1466cc754d0d1c1",
            ),
        ),
        *(read_rcv1, 23149, 781265, 47236, 103, "vectors for research (Lewis et al., JMLR 2004)"),
    ),
    "covtype": PublicSet(
        (
            _figshare(
                "covtype.data.gz",
                5976039,
                "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
            ),
        ),
        *(read_covtype, 581012, None, 54, 7, UCI_TERMS),
    ),
    "kddcup99_10pct": PublicSet(
        (
            _figshare(
                "kddcup99_10_data",
                5976042,
                "8045aca0d84e70e622d1148d7df782496f6333bf6eb979a1b0837c42a9fd9561",
            ),
        ),
        *(read_kddcup99, 494021, None, 118, 23, UCI_TERMS),
    ),
    "mnist": PublicSet(
        (
            PublicFile(
                "mnist.npz",
                "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
                "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
            ),
        ),
        *(read_mnist, 60000, 10000, 784, 10, "CC BY-SA 3.0"),
    ),
    "cifar10": PublicSet(
        (
            PublicFile(
                "cifar-10-binary.tar.gz",
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        *(read_cifar10, 50000, 10000, 3072, 10, "no licence stated; asks to cite Krizhevsky 2009"),
    ),
    "news20_bydate": PublicSet(
        (
            PublicFile(
                "20news-bydate-matlab.tgz",
                "http://qwone.com/~jason/20Newsgroups/20news-bydate-matlab.tgz",
            ),
        ),
        *(read_news20, 11269, 7505, NEWS20_WORDS, 20, "no licence stated"),
    ),
}


def fetch_dataset(
    name: str,
    target: Path,
    downloaded: Path | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Dataset:
    """Download a public set, or take its files from disk; build `target` and return it opened.

    downloaded: a folder with the files of the set, or its only file; None to download. note:
    called with a line for each file. The manifest records address, SHA-256 and licence. Raises
    NotFound for another name or a missing file, Conflict if the target exists, Unavailable if a
    file cannot be downloaded, Corrupt for another SHA-256 or size.
    """
    if name not in SETS:
        raise NotFound(f"there is no public set {name!r}{similar_or_all(name, SETS)}")
    chosen = SETS[name]
    if target.exists():
        raise Conflict(f"{target} exists already: remove it, or choose another with --out")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as place:
        folder, files, sums = Path(place), dict[str, Path](), dict[str, str]()
        for file in chosen.files:
            files[file.name] = _obtain(name, file, folder, downloaded, len(chosen.files), note)
            sums[file.name] = _checked(file, files[file.name])
        format, paths, options = chosen.read(files, folder)
        read = ReadOptions(n_features=chosen.n_features, n_labels=chosen.n_labels)
        origin = {
            "urls": {file.name: file.url for file in chosen.files},
            "sha256": sums,
            "licence": chosen.licence,
        }
        if format != "xc":  # which has a header
            options = replace(options, read=read)
        options = replace(options, name=name, origin=origin)
        return build(format, paths, target, options)


def _obtain(
    name: str,
    file: PublicFile,
    folder: Path,
    downloaded: Path | None,
    n_files: int,
    note: Callable[[str], None],
) -> Path:
    """Return the path of a file, which is downloaded unless `downloaded` has it."""
    if downloaded is None:
        note(f"downloading {file.url}")
        return _download(name, file, folder / file.name)
    path = downloaded if n_files == 1 and downloaded.is_file() else downloaded / file.name
    if not path.is_file():
        raise NotFound(f"there is no file {path}: download it from {file.url}")
    return path


def _download(name: str, file: PublicFile, path: Path) -> Path:
    """Download a file."""
    try:
        with (
            urllib.request.urlopen(file.url, timeout=TIMEOUT_SECONDS) as reply,
            path.open("wb") as out,
        ):
            shutil.copyfileobj(reply, out)
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        checksum = file.sha256 or "not published"
        raise Unavailable(
            f"{file.url} cannot be downloaded ({reason}): download {file.name} elsewhere "
            f"(SHA-256 {checksum}), then run `xcray data fetch {name} --from FOLDER`",
            code="DOWNLOAD_FAILED",
        ) from None
    return path


def _checked(file: PublicFile, path: Path) -> str:
    """Return the SHA-256 of a file. Raises Corrupt if another one is published."""
    found = sha256_file(path)
    if file.sha256 not in (None, found):
        raise Corrupt(
            f"{path.name} has SHA-256 {found}, not {file.sha256}: download {file.url} again"
        )
    return found
