"""Vocabularies in SKOS: concepts with labels of several languages, read by rdflib.

A concept's name is its preferred label: the first language in the alphabet, or the one without a
language. All its other preferred, alternative and hidden labels are other names, in any language,
because texts can be in any of them. URIs stay ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from xcray.data.readers.blocks import Source
from xcray.errors import DataError, excerpt, missing_extra

# suffix -> format of rdflib
SUFFIXES: Final = {".ttl": "turtle", ".rdf": "xml", ".nt": "nt"}

Concept = tuple[str, str, tuple[str, ...], str, tuple[str, ...]]


def read_skos(source: Source) -> Iterator[Concept]:
    """Yield id, name, other names, description and broader ids of each concept, by id.

    Concepts without a preferred label are left out. Raises NotFound, Unavailable without rdflib,
    DataError for a file that is not valid.
    """
    try:
        # Imported here: no other vocabulary needs it.
        from rdflib import RDF, Graph
        from rdflib.namespace import SKOS
    except ModuleNotFoundError as error:
        raise missing_extra(error) from error
    kind = next(SUFFIXES[each] for each in reversed(source.path.suffixes) if each in SUFFIXES)
    content, graph = b"".join(block.data for block in source.blocks()), Graph()
    try:
        graph.parse(data=content, format=kind)
    except Exception as error:  # each of rdflib's parsers has its own
        raise _syntax_error(source, error) from None
    for concept in sorted(graph.subjects(RDF.type, SKOS.Concept, unique=True), key=str):
        names = _literals(graph, concept, SKOS.prefLabel)
        if names:
            others = [
                *names[1:],
                *_literals(graph, concept, SKOS.altLabel),
                *_literals(graph, concept, SKOS.hiddenLabel),
            ]
            yield (
                str(concept),
                names[0],
                tuple(dict.fromkeys(others)),
                " ".join(_literals(graph, concept, SKOS.definition)),
                tuple(sorted(str(each) for each in graph.objects(concept, SKOS.broader))),
            )


def _literals(graph: Any, concept: Any, predicate: Any) -> list[str]:
    """Return the literals of a predicate, by language and value."""
    found = [(each.language or "", str(each)) for each in graph.objects(concept, predicate)]
    return [text for _, text in sorted(found) if text.strip()]


def _syntax_error(source: Source, error: Exception) -> DataError:
    """Return the error of a file that rdflib cannot read, with its line if rdflib says it."""
    line = getattr(error, "lines", None)
    if callable(get_line := getattr(error, "getLineNumber", None)):
        line = get_line() - 1
    where = {} if line is None else {"line": int(line) + 1}
    problem = f"not valid RDF: {excerpt(' '.join(str(error).split()), 200)}"
    return source.error("FORMAT_MISMATCH", problem, **where)
