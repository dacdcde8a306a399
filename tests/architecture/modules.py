"""The package's modules, and what each of them imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "llamalane"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, absolute and as deep as it is written, and the line that imports it."""

    name: str
    line: int
    relative: bool = False

    @property
    def top(self) -> str:
        """The first part of the name: the distribution's package."""
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Module:
    """A source file; `path` starts at the package, such as `streams/llama/model.py`."""

    path: str
    imports: tuple[Import, ...]

    @property
    def room(self) -> str:
        """The room or leaf that it belongs to; `""` for the root package itself."""
        first = self.path.partition("/")[0].removesuffix(".py")
        return "" if first == "__init__" else first


def read_modules(package: Path) -> list[Module]:
    """Read every module of the package, through the links of its rooms."""
    # Path.rglob does not follow links, which is what the rooms are.
    rooms = [package, *(path for path in sorted(package.iterdir()) if path.is_dir())]
    files = {file for room in rooms for file in room.rglob("*.py")}
    return [
        Module(file.relative_to(package).as_posix(), tuple(imports_of(file.read_text(encoding="utf-8"))))
        for file in sorted(files)
    ]


def imports_of(source: str) -> Iterator[Import]:
    """Find every import statement, also inside functions and under conditions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for alias in node.names:
                yield Import(f"{module}.{alias.name}".strip("."), node.lineno, relative=node.level > 0)
