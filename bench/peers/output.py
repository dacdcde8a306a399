"""Writes a comparison: Markdown to standard output, and all of it into a folder."""

from __future__ import annotations

from pathlib import Path

from llamalane.bench.document import Heading, to_html, to_markdown
from llamalane.bench.peers.plan import Comparison
from llamalane.bench.peers.plots import draw
from llamalane.bench.peers.tables import report_parts
from llamalane.bench.report import to_json
from llamalane.bench.simulator.plots import load_pyplot


def comparison_markdown(comparison: Comparison) -> str:
    """Return the report as Markdown, without pictures."""
    return to_markdown(report_parts(comparison))


def write_folder(comparison: Comparison, folder: Path) -> list[Path]:
    """Write `report.json`, `report.md` with its PNG files, and `report.html`, which needs none, into `folder`.

    It is made if it is not there. Raises `LlamalaneError` when matplotlib is not installed.
    """
    pyplot = load_pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    pictures = draw(comparison, folder, pyplot)
    parts = [*report_parts(comparison), Heading("Pictures"), *pictures]
    texts = {
        "report.json": to_json(comparison),
        "report.md": to_markdown(parts) + "\n",
        "report.html": to_html(f"{' and '.join(comparison.names)}: a comparison", parts),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [*(folder / name for name in texts), *(picture.file for picture in pictures)]
