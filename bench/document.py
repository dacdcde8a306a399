"""A report as a tree, which is written as Markdown or as one page of HTML that needs no other file."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A piece of text, which may be urgent to read."""

    text: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Items:
    """Lines that stand for themselves."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells below titles."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, titles: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
        """Make a table of anything that can be written."""
        return cls(tuple(titles), tuple(tuple(map(str, row)) for row in rows))


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG file, with what it shows."""

    file: Path
    caption: str


@dataclass(frozen=True, slots=True)
class Heading:
    """The name of what follows."""

    text: str


Part = Paragraph | Items | Table | Picture | Heading


def to_markdown(parts: Sequence[Part]) -> str:
    """Write Markdown; pictures are named by their files, as lying beside it."""
    return "\n\n".join(_markdown(part) for part in parts)


def to_html(title: str, parts: Sequence[Part]) -> str:
    """Write one page of HTML that holds its pictures."""
    body = "\n".join(_html(part) for part in parts)
    return _PAGE.format(title=html.escape(title), body=body)


def table_lines(table: Table) -> list[str]:
    """Return a table's lines in Markdown."""
    lines = [table.titles, tuple("---" for _ in table.titles), *table.rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def spread(values: Sequence[float], form: str) -> str:
    """Write the median of `values`, with the least and the most of them, each in a form such as `.2f`."""
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def _markdown(part: Part) -> str:
    match part:
        case Paragraph(text, strong):
            return f"**{text}**" if strong else text
        case Items(lines):
            return "\n".join(f"- {line}" for line in lines)
        case Table():
            return "\n".join(table_lines(part))
        case Picture(file, caption):
            return f"![{caption}]({file.name})"
        case Heading(text):
            return f"## {text}"


def _html(part: Part) -> str:
    match part:
        case Paragraph(text, strong):
            return f"<p{' class=strong' if strong else ''}>{html.escape(text)}</p>"
        case Items(lines):
            return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"
        case Table(titles, rows):
            head = "".join(f"<th scope=col>{html.escape(title)}</th>" for title in titles)
            body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
            return f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        case Picture(file, caption):
            data, text = base64.b64encode(file.read_bytes()).decode(), html.escape(caption)
            image = f'<img alt="{text}" src="data:image/png;base64,{data}">'
            return f"<figure>{image}<figcaption>{text}</figcaption></figure>"
        case Heading(text):
            return f"<h2>{html.escape(text)}</h2>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }}
th, td {{ border-bottom: 1px solid #ccc; padding: 0.25rem 0.75rem; text-align: right; white-space: nowrap; }}
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) {{ text-align: left; }}
.strong {{ font-weight: bold; }}
figure {{ margin: 1.5rem 0; }}
img {{ max-width: 100%; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""
