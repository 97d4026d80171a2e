"""Stems of words by the Snowball algorithms of PyStemmer, and the language of a text by py3langid.

Both are in the extra `text`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module, metadata
from typing import Any, Final

import pyarrow as pa

from xcray.data.text.vocabulary import build_vocabulary, string_bytes
from xcray.errors import Refused, missing_extra
from xcray.kernels.text import StemTable, as_plain_tuple

# code (ISO 639-1) -> name of the Snowball algorithm
ALGORITHMS: Final = {
    "ar": "arabic",
    "ca": "catalan",
    "cs": "czech",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "eo": "esperanto",
    "es": "spanish",
    "et": "estonian",
    "eu": "basque",
    "fa": "persian",
    "fi": "finnish",
    "fr": "french",
    "ga": "irish",
    "hi": "hindi",
    "hu": "hungarian",
    "hy": "armenian",
    "id": "indonesian",
    "it": "italian",
    "lt": "lithuanian",
    "ne": "nepali",
    "nl": "dutch",
    "no": "norwegian",
    "pl": "polish",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sr": "serbian",
    "sv": "swedish",
    "ta": "tamil",
    "tr": "turkish",
    "yi": "yiddish",
}
NUMBERS: Final = {name: i + 1 for i, name in enumerate(ALGORITHMS.values())}
AUTO: Final = "auto"  # the language that is detected text by text
DETECTED_CHARACTERS: Final = 500  # at the start of a text: more do not change the result
MAX_CACHED_WORDS: Final = 500_000  # of a language, then the cache starts again


def algorithm(language: str) -> str | None:
    """Return the Snowball algorithm of a code ("de", "de-AT") or name; None if there is none."""
    language = language.strip().lower()
    if language in ALGORITHMS.values():
        return language
    return ALGORITHMS.get(language.replace("_", "-").partition("-")[0])


def stemmer_version() -> str:
    """Return the version of PyStemmer. Raises Unavailable, with the fix, if it is missing."""
    _module("Stemmer")
    return metadata.version("PyStemmer")


def detector_version() -> str:
    """Return the version of py3langid. Raises Unavailable, with the fix, if it is missing."""
    _module("py3langid")
    return metadata.version("py3langid")


def require_version(package: str, version: str) -> None:
    """Raise Refused for another version of a package: it can read texts in another way."""
    installed = stemmer_version() if package == "PyStemmer" else detector_version()
    if installed != version:
        raise Refused(
            f"the text was stemmed with {package} {version}, and {installed} is installed, whose "
            f"stems can differ: pip install '{package}=={version}', or build the data set again"
        )


def detect(text: str) -> str:
    """Return the code of the most probable language that has stems. Deterministic.

    Raises Unavailable if py3langid is missing.
    """
    return _detect(text[:DETECTED_CHARACTERS])


@lru_cache(maxsize=256)  # a request analyses its text more than once
def _detect(text: str) -> str:
    """Return the language of the start of a text."""
    return str(_detector().classify(text)[0])


@cache
def _detector() -> Any:
    """Load the detector, which takes half a second."""
    langid = _module("py3langid.langid")
    out = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE)
    out.set_languages([code for code in ALGORITHMS if code in out.labels])
    return out


class Stems(dict[str, str]):
    """Stems of lowercase words by word, each computed once."""

    def __init__(self, name: str) -> None:
        """Initialise for a Snowball algorithm. Raises Unavailable if PyStemmer is missing."""
        super().__init__()
        self.number = NUMBERS[name]  # of the language in compiled code
        # 0: without a cache of its own
        self._stem: Callable[[str], str] = _module("Stemmer").Stemmer(name, 0).stemWord

    def __missing__(self, word: str) -> str:
        """Compute the stem of a word."""
        if len(self) >= MAX_CACHED_WORDS:
            self.clear()
        stem = self[word] = self._stem(word)
        return stem


def stems_of(name: str) -> Stems:
    """Return the stems of a Snowball algorithm, one cache a process. Raises as `Stems`."""
    number = NUMBERS[name]
    return STEMS.get(number) or STEMS.setdefault(number, Stems(name))


class KnownStems:
    """The stems that were computed so far, as a table for compiled code."""

    def __init__(self) -> None:
        """Initialise without a word."""
        self._missed, self._size = 0, 0
        self.table: Any = _tabulate([])  # a `StemTable` as plain tuple

    def note_missed(self, n: int) -> None:
        """Count texts with words that are not in the table, and add these words now and then.

        A new table costs about as much as reading the texts that missed the old one.
        """
        self._missed += n
        if self._missed < 64 + self._size // 16:
            return
        self._missed = 0
        # `list` copies at once, so other threads can add words
        words = [(number, item) for number in list(STEMS) for item in list(STEMS[number].items())]
        if len(words) != self._size:
            self.table, self._size = _tabulate(words), len(words)


def _tabulate(words: list[tuple[int, tuple[str, str]]]) -> Any:
    """Return a `StemTable` of languages and (word, stem) as plain tuple.

    Without words whose stem does not fit in their place.
    """
    fit = [
        (chr(number) + word, stem)
        for number, (word, stem) in words
        if len(stem.encode()) <= len(word.encode())
    ]
    keys, stems = (pa.array([pair[i] for pair in fit], pa.large_string()) for i in (0, 1))
    return as_plain_tuple(StemTable(build_vocabulary(keys), string_bytes(stems)))


def _module(name: str) -> Any:
    """Return a module of the extra. Raises Unavailable if it is missing."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise missing_extra(error) from None


STEMS: Final[dict[int, Stems]] = {}
KNOWN_STEMS: Final = KnownStems()
