"""`make docs`: the API reference from the docstrings, the OpenAPI document of the service, and a
check of every link.

    python docs/build.py build/docs

Writes api/*.md (one page a room) and openapi.json; ends with 1 and the list when a link of a
Markdown page leads nowhere.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "xcray"
LINK = re.compile(r"(?<!\\)\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+\s+(.*?)\s*$", re.MULTILINE)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def page(title: str, files: list[Path]) -> str:
    """One room as Markdown."""
    parts = [f"# {title}\n"]
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parts.append(f"## `{module_of(path)}`\n\n{prose(ast.get_docstring(tree))}")
        parts += [entry for node in tree.body for entry in entries(node)]
    return "\n".join(parts)


def module_of(path: Path) -> str:
    """The dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def entries(node: ast.stmt, owner: str = "") -> Iterator[str]:
    """A public definition and what is public inside it."""
    if not isinstance(node, Definition) or node.name.startswith("_"):
        return
    yield f"### `{owner}{signature(node)}`\n\n{prose(ast.get_docstring(node))}"
    if isinstance(node, ast.ClassDef):
        for step in node.body:
            yield from entries(step, f"{node.name}.")


def signature(node: Definition) -> str:
    """`name(arguments) -> result`; a class with its bases."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(node.args)}){result}"


def prose(docstring: str | None) -> str:
    """A docstring, its layout kept."""
    return f"```text\n{docstring or ''}\n```\n"


def write_reference(out: Path) -> int:
    """One page a room, and an index; how many pages."""
    rooms: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE).parts
        rooms.setdefault(inside[0].removesuffix(".py"), []).append(path)
    face = rooms.pop("__init__", [])
    rooms.pop("__main__", None)
    (out / "api").mkdir(parents=True, exist_ok=True)
    for room, files in {"xcray": face, **rooms}.items():
        (out / "api" / f"{room}.md").write_text(page(room, files), encoding="utf-8")
    index = "\n".join(f"- [{room}]({room}.md)" for room in ("xcray", *rooms))
    (out / "api" / "README.md").write_text(f"# API reference\n\n{index}\n", encoding="utf-8")
    return len(rooms) + 2


def write_openapi(out: Path) -> None:
    """The OpenAPI document, made without starting a server."""
    from xcray.service.app import create_app
    from xcray.service.settings import Settings

    with tempfile.TemporaryDirectory() as home:
        document = create_app(Settings(home=Path(home))).openapi()
    (out / "openapi.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def markdown_pages() -> list[Path]:
    """The Markdown pages that belong to the project."""
    if shutil.which("git") is not None:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, check=False
        )
        if listed.returncode == 0:
            return [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [
        *ROOT.glob("*.md"),
        *(page for folder in ("deploy", "docs", "helm") for page in (ROOT / folder).rglob("*.md")),
    ]


def anchors(text: str) -> set[str]:
    """The anchors that headings make, as code hosts make them."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).replace(" ", "-")
        for heading in HEADING.findall(text)
    }


def dead_links(path: Path) -> list[str]:
    """Links of a page to files and headings that are not there; links to other hosts are not
    followed.
    """
    text = path.read_text(encoding="utf-8")
    out = []
    for link in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        goal = (path.parent / file).resolve() if file else path
        if not goal.exists():
            out.append(f"{path.name}: {link}: no such file")
        elif (
            anchor
            and goal.suffix == ".md"
            and anchor not in anchors(goal.read_text(encoding="utf-8"))
        ):
            out.append(f"{path.name}: {link}: no such heading")
    return out


def main(arguments: list[str]) -> int:
    """Write everything; 1 when a link is dead."""
    out = Path(arguments[0] if arguments else "build/docs")
    pages = write_reference(out)
    write_openapi(out)
    checked = markdown_pages()
    dead = [link for path in checked for link in dead_links(path)]
    print(
        f"{out}: {pages} pages of API reference, openapi.json; {len(checked)} Markdown pages checked, {len(dead)} dead links"
    )
    print(*dead, sep="\n", end="\n" if dead else "")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
