"""The demo corpus: its rules on a small tree, and its properties on the real standard library."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from xcray.data import demo as pydocs
from xcray.data.demo import Document, documents
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import NotFound

PACKAGES = ("csv", "_pydecimal", "xml", "tempfile", "gzip")


def tree(root, files):
    """Write files below a root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


SOURCES = {
    "pack/__init__.py": '"""The package as a whole."""',
    "pack/_inner/_ridge.py": '''
"""Ridge models live here."""
class Ridge:
    """A model with a penalty."""
    def fit(self, X, *, alpha=1):
        """Learn the weights from rows."""
        def nested():
            """Nested functions are not documented here."""
    def _secret(self):
        """Private methods are left out."""
    class Part:
        """A class within a class."""
try:
    def fast(n):
        """Found under a try statement."""
except ImportError:
    pass
def short():
    """Too short."""
def silent(rows):
    return rows  # comments count in the standard library alone
''',
    "pack/tests/test_it.py": '"""Tests are not documentation."""',
    "pack/_vendor/copy.py": '"""Vendored copies are not ours."""',
    "again.py": 'def same():\n    """Learn the  weights FROM rows."""\n',
    "broken.py": '"""A file that does not parse."""\ndef (:\n',
    "zeros.py": b'"""Null bytes within."""\x00',
    "pip/__init__.py": '"""Tools are left out here."""',
    "pack-1.0.dist-info/hook.py": '"""Not a module at all."""',
}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Return the documents of SOURCES, short ones and those of rare labels, too."""
    monkeypatch.setattr(pydocs, "MIN_WORDS", 3)
    monkeypatch.setattr(pydocs, "MIN_LABEL_DOCUMENTS", 1)
    return documents([tree(tmp_path, SOURCES)])


def test_documents_and_labels(corpus):
    labels = {document.id: document.labels for document in corpus}
    assert labels == {
        "again:same": ("again",),
        "pack": ("pack",),
        "pack._inner._ridge": ("pack",),
        "pack._inner._ridge:Ridge": ("pack", "pack.Ridge"),
        "pack._inner._ridge:Ridge.Part": ("pack", "pack.Ridge", "pack.Ridge.Part"),
        "pack._inner._ridge:fast": ("pack",),
    }


def test_text_is_names_and_docstring_without_its_labels(corpus):
    texts = {document.id: document.text for document in corpus}
    assert texts["pack._inner._ridge:Ridge"] == "Ridge\nA model with a penalty."
    assert texts["pack._inner._ridge:fast"] == "fast n\nFound under a try statement."
    assert all("pack." not in text for text in texts.values())


def test_rare_labels_go_and_documents_without_labels_too(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(pydocs, "MIN_LABEL_DOCUMENTS", 2)
    times = Counter(label for document in documents([tmp_path]) for label in document.labels)
    assert times == {"pack": 5, "pack.Ridge": 2}


def test_packages_choose(tmp_path, corpus):
    assert [document.id for document in documents([tmp_path], ["again"])] == ["again:same"]


def test_reading_runs_nothing(tmp_path, corpus):
    tree(
        tmp_path,
        {
            "danger_of_import.py": '"""This module must never be imported."""\nraise SystemExit("imported")\n'
        },
    )
    assert len(documents([tmp_path])) == len(corpus) + 1
    assert "danger_of_import" not in sys.modules


@pytest.mark.parametrize(
    ("parts", "public"),
    [
        (("_pydecimal",), ("decimal",)),
        (("_collections_abc",), ("collections", "abc")),
        (("_pytest", "tmpdir"), ("pytest", "tmpdir")),
        (("sklearn", "linear_model", "_ridge"), ("sklearn", "linear_model")),
        (("__future__",), ("__future__",)),
    ],
)
def test_public_names(parts, public):
    assert pydocs.public_name(parts) == public


def test_clear_errors(tmp_path):
    with pytest.raises(NotFound, match="no directory nowhere"):
        documents([tmp_path / "nowhere"])


@pytest.fixture(scope="module")
def standard_library():
    return documents([pydocs.default_roots()[0]], PACKAGES)


def test_the_standard_library_documents_what_the_demo_asks(standard_library):
    times = Counter(label for document in standard_library for label in document.labels)
    assert times["csv"] >= 10
    assert times["csv.DictReader"] >= 3
    assert {
        "xml",
        "xml.dom",
        "xml.dom.minidom",
        "decimal",
        "decimal.Context",
        "gzip.GzipFile",
        "tempfile",
    } <= set(times)


def test_documents_are_distinct_and_in_a_fixed_order(standard_library):
    again = documents([pydocs.default_roots()[0]], PACKAGES)
    assert again == standard_library
    assert len({document.id for document in again}) == len(again)
    assert all(isinstance(document, Document) and document.labels for document in again)


def test_the_demo_question_meets_the_words_of_its_answer(standard_library):
    result = standard_library
    pipeline, X = TextPipeline.fit_transform(
        (document.text for document in result), pydocs.TEXT_PARAMS
    )
    query = pipeline.transform(["read rows of a csv file into dictionaries"])
    scores = (X.to_scipy() @ query.to_scipy().T).toarray().ravel()
    # Python 3.13 has other docstrings in csv, so the place among the nearest differs.
    nearest = [result[i] for i in scores.argsort()[::-1][:10]]
    assert any("csv" in document.labels for document in nearest[:5])
    assert any("csv.DictReader" in document.labels for document in nearest)
