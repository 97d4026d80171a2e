"""Hooks of mkdocs: pages from outside docs/, generated pages, links between them, files in pages.

A link to a file of the repository that is outside the site becomes text. A link to a missing file
is left unchanged, and `mkdocs build --strict` fails.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from docs import reference

ROOT = Path(__file__).parents[1]
FILE = re.compile(r"^<!-- file: (\S+) -->$", re.MULTILINE)
LINK = re.compile(r"(!?\[[^\]\n]*\])\(([^)\s:#]+)(#[^)\s]*)?\)")
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "deploy/README.md": "compose.md",
    "helm/xcray/README.md": "reference/chart.md",
    "benchmarks/README.md": "benchmarks.md",
    **{
        f"notebooks/{path.name}": f"tutorials/{path.stem}.md"
        for path in ROOT.glob("notebooks/*.ipynb")
    },
    **{f"examples/{path.name}": f"tutorials/{path.stem}.md" for path in ROOT.glob("examples/*.py")},
}
# outputs of notebooks, the first of these kinds that there is
SHOWN = ("image/svg+xml", "image/png", "text/markdown", "text/plain")
REPOSITORY = {page: path for path, page in OUTSIDE.items()}
# Search lists guides before lists of names, and reasons last.
BOOST = {"Guides": 4, "Start": 2, "Decisions": 0.25}
BOOST |= dict.fromkeys(("Reference", "Python", "Notebooks", "Scripts"), 0.5)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the parts of the navigation that list a folder: {title: "folder/*"}."""
    results = [*REPOSITORY, *(f"reference/python/{name}.md" for name in reference.PYTHON)]
    results += [path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/*/*.md")]
    config.nav = _expand(config.nav, sorted(results))
    return config


def _expand(entry: Any, results: list[str]) -> Any:
    """Replace "folder/*" by the pages of the folder."""
    if isinstance(entry, list):
        return [_expand(each, results) for each in entry]
    if isinstance(entry, dict):
        return {title: _expand(each, results) for title, each in entry.items()}
    if not entry.endswith("/*"):
        return entry
    return [page for page in results if Path(page).parent.as_posix() == entry[:-2]]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/ and the generated ones."""
    for path, page in OUTSIDE.items():
        if (ROOT / path).exists():
            files.append(File.generated(config, page, content=_markdown(ROOT / path)))
    for page, text in reference.pages().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at pages of the site, and show each file that a comment names."""
    markdown = FILE.sub(_source_block, markdown)
    source = Path(page.file.src_uri)
    section = getattr(getattr(page, "parent", None), "title", "")
    page.meta["search"] = {"boost": BOOST.get(section, 1)}
    place = Path(REPOSITORY.get(source.as_posix(), f"docs/{source.as_posix()}")).parent

    def site_link(match: re.Match[str]) -> str:
        text, link, anchor = match.groups()
        target = os.path.normpath(place / link)
        inside = OUTSIDE.get(target, target.removeprefix("docs/"))
        if inside != target:
            return f"{text}({os.path.relpath(inside, source.parent)}{anchor or ''})"
        return f"{text[1:-1]} (`{target}`)" if (ROOT / target).exists() else match[0]

    return (
        markdown
        if source.as_posix().startswith("reference/python/")
        else LINK.sub(site_link, markdown)
    )


def _source_block(match: re.Match[str]) -> str:
    """Return a Python file of the repository as a code block."""
    text = (ROOT / match[1]).read_text(encoding="utf-8")
    return f'```python title="{match[1]}"\n{text}```\n'


def _markdown(path: Path) -> str:
    """Return a page, script or notebook as Markdown."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        head = ast.get_docstring(ast.parse(text)) or ""
        title = path.stem.replace("_", " ").capitalize()
        return f'# {title}\n\n{head}\n\n```python title="{path.relative_to(ROOT)}"\n{text}```\n'
    if path.suffix == ".ipynb":
        return "\n\n".join(
            part for cell in json.loads(text)["cells"] for part in _cell_markdown(cell)
        )
    return text


def _cell_markdown(cell: dict[str, Any]) -> Iterator[str]:
    """Yield a cell of a notebook and its outputs as Markdown."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text", "")})
        kind = next(each for each in SHOWN if each in data)
        content = "".join(data[kind])
        if kind == "image/png":
            yield f'<img alt="" src="data:image/png;base64,{content.strip()}">'
        elif kind == "image/svg+xml":
            encoded = base64.b64encode(content.encode()).decode()
            yield f'<img alt="" src="data:image/svg+xml;base64,{encoded}">'
        elif kind == "text/markdown":
            yield content
        else:
            yield f"```text\n{content.rstrip()}\n```"
