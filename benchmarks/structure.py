"""`make structure`: figures on the structure of the code, in total and for each package.

Everything is read from the source, nothing is imported. An import cycle is a set of modules that
import each other directly or indirectly: counted once for imports at module level alone, once
including those inside functions. Imports for type checkers only are left out of both.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ("schemas", "rl_core", "tasks", "flows", "deployments", "skyrl_gym")
MAX_COLUMNS = 100
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Graph = dict[str, set[str]]


@dataclass
class Figures:
    """Counts of one file, or of several added up."""

    files: int = 0
    lines: int = 0
    longest: int = 0
    anys: int = 0
    wide: int = 0
    comments: int = 0
    comprehensions: int = 0
    ternaries: int = 0

    def add(self, other: Figures) -> None:
        for name, value in vars(other).items():
            mine = getattr(self, name)
            setattr(self, name, max(mine, value) if name == "longest" else mine + value)


@dataclass
class Module:
    """One source file: its path, its figures and the dotted names that it imports."""

    path: Path
    name: str
    figures: Figures
    imports: set[str] = field(default_factory=set)
    late_imports: set[str] = field(default_factory=set)


def count(source: str, tree: ast.AST) -> Figures:
    lines = source.splitlines()
    nodes = list(ast.walk(tree))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return Figures(
        files=1,
        lines=len(lines),
        longest=len(lines),
        anys=sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes),
        wide=sum(len(line) > MAX_COLUMNS for line in lines),
        comments=sum(token.type == tokenize.COMMENT for token in tokens),
        comprehensions=sum(isinstance(node, COMPREHENSIONS) for node in nodes),
        ternaries=sum(isinstance(node, ast.IfExp) for node in nodes),
    )


def for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imported(node: ast.AST, package: list[str], late: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the dotted names imported below `node`, with True for those inside a function."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, late
    elif isinstance(node, ast.ImportFrom):
        parents = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*parents, *([node.module] if node.module else [])])
        for alias in node.names:
            yield f"{base}.{alias.name}", late
    late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    if isinstance(node, ast.If) and for_type_checkers(node):
        children = node.orelse
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from imported(child, package, late)


def read(root: Path, packages: tuple[str, ...]) -> list[Module]:
    modules = []
    for path in sorted(found for name in packages for found in (root / name).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        relative = path.relative_to(root)
        package = list(relative.parts[:-1])
        parts = package if path.name == "__init__.py" else [*package, path.stem]
        module = Module(relative, ".".join(parts), count(source, tree))
        for name, late in imported(tree, package):
            (module.late_imports if late else module.imports).add(name)
        modules.append(module)
    return modules


def graph(modules: list[Module], *, late: bool) -> Graph:
    """Return each module with the modules of the project that it imports; `from a import b` is
    `a.b` if that is a module."""
    names = {module.name for module in modules}
    edges: Graph = {}
    for module in modules:
        wanted = module.imports | (module.late_imports if late else set())
        resolved = {name if name in names else name.rpartition(".")[0] for name in wanted}
        edges[module.name] = (resolved & names) - {module.name}
    return edges


def reachable(edges: Graph, start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(edges[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(edges[name])
    return found


def cycles(edges: Graph) -> list[list[str]]:
    """Return the sets of modules that import each other, the largest first."""
    reach = {name: reachable(edges, name) for name in edges}
    rings = set()
    for a in edges:
        if a in reach[a]:
            rings.add(tuple(sorted(b for b in reach[a] if a in reach[b])))
    return [list(ring) for ring in sorted(rings, key=lambda ring: (-len(ring), ring))]


def package_of(path: Path) -> str:
    """Return the package of a file: a top-level folder, or a package of `rl_core`."""
    deep = path.parts[0] == "rl_core" and len(path.parts) > 2
    return "/".join(path.parts[: 2 if deep else 1])


def per_1000(number: int, figures: Figures) -> str:
    return f"{1000 * number / max(1, figures.lines):.1f}"


HEADS = (
    "package",
    "files",
    "lines",
    "longest",
    "Any /1000",
    f">{MAX_COLUMNS} cols",
    "comments /1000",
)
HEADS += ("comprehensions /1000", "ternaries /1000")


def row(title: str, one: Figures) -> tuple[str, ...]:
    counts = (one.files, one.lines, one.longest)
    rates = (one.comments, one.comprehensions, one.ternaries)
    return (
        title,
        *map(str, counts),
        per_1000(one.anys, one),
        str(one.wide),
        *(per_1000(n, one) for n in rates),
    )


def table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join(lines)


def report(root: Path, packages: tuple[str, ...] = PACKAGES) -> str:
    modules = read(root, packages)
    whole = Figures()
    parts: dict[str, Figures] = {}
    rooms: Counter[Path] = Counter()
    for module in modules:
        whole.add(module.figures)
        parts.setdefault(package_of(module.path), Figures()).add(module.figures)
        if module.path.name != "__init__.py":
            rooms[module.path.parent] += 1
    lines = [
        table([HEADS, row("all", whole), *(row(name, parts[name]) for name in sorted(parts))]),
        "",
    ]
    largest, number = rooms.most_common(1)[0] if rooms else (Path(), 0)
    lines.append(
        f"folders {len(rooms)}; files per folder {sum(rooms.values()) / max(1, len(rooms)):.1f}"
    )
    lines.append(
        f"largest folder {largest} with {number} files; modules loose in rl_core "
        f"{rooms[Path('rl_core')]}"
    )
    for title, late in (("at module level", False), ("with those inside functions", True)):
        rings = cycles(graph(modules, late=late))
        lines.append(f"import cycles {title}: {len(rings)}")
        lines.extend(f"  {len(ring)}: {', '.join(ring)}" for ring in rings)
    lines += [
        "",
        table([("folder", "files"), *((str(path), str(n)) for path, n in sorted(rooms.items()))]),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    print(report(parser.parse_args().root))
