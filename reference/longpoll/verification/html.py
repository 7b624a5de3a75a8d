"""Writes `longpoll-report/index.html`: the rows, the races of RocketMQ 4.9 as charts, and the judge's section.

One self-contained file without network access or scripts, with all texts escaped. `longpoll_spec.render` and
`longpoll_judge.show.report` draw the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from longpoll.output import check_directory, check_file
from longpoll.verification.report import Row
from longpoll_judge.contract.result import Result
from longpoll_judge.show.report import STYLE as JUDGE_STYLE
from longpoll_judge.show.report import render_section

PAGE: Final = "index.html"
STYLE: Final = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0; color: #1c2733; background: #fff }
main { max-width: 78rem; margin: 2rem auto; padding: 0 1rem }
table.rows { border-collapse: collapse; width: 100% }
table.rows th, table.rows td { text-align: left; vertical-align: top; padding: .35rem .7rem }
table.rows th, table.rows td { border-bottom: 1px solid #d9e0e6 }
table.rows td.s { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
table.rows td.seen { overflow-wrap: anywhere }
.outcome { padding: .1rem .7rem; border-radius: 1rem; color: #fff }
.ok { background: #1a7f4b } .violated { background: #b3261e }
.unknown { background: #8a6100 } .skipped { background: #66727d }
figure { margin: 1rem 0; overflow-x: auto } figcaption { margin-bottom: .5rem }
figure svg { max-width: 100%; height: auto }
@media (prefers-color-scheme: dark) {
  body { color: #e3e8ec; background: #14191e }
  table.rows th, table.rows td { border-color: #35404a }
  .judge, .judge th, .judge pre { color: #e3e8ec !important }
  .judge th, .judge pre { background: #1f262d !important }
}
"""


def render(rows: Sequence[Row], charts: Sequence[tuple[str, str]], result: Result | None) -> str:
    """The page; `charts` are (caption, SVG text) pairs, `result` is None if no history was judged."""
    figures = "".join(f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>" for caption, svg in charts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>longpoll verify</title><style>{STYLE}{JUDGE_STYLE}</style></head><body><main>"
        f"<h1>longpoll verify</h1>{_table(rows)}"
        f"<h2>The race, step by step</h2>{figures or '<p>No counterexample to draw.</p>'}"
        f"</main>{'' if result is None else render_section(result)}</body></html>\n"
    )


def _table(rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{title}</th>" for title in ("part", "what", "", "what was seen", "s"))
    body = "".join(
        f"<tr><td>{escape(row.part)}</td><td>{escape(row.what)}</td>"
        f'<td><span class="outcome {row.outcome}">{row.outcome}</span></td>'
        f'<td class="seen">{escape(row.detail)}</td><td class="s">{row.seconds:.1f}</td></tr>'
        for row in rows
    )
    return f'<table class="rows"><tr>{head}</tr>{body}</table>'


def check(directory: Path) -> None:
    """Check before the work that the page can be written; raises NotWritableError."""
    check_directory(directory, "the report into")
    check_file(directory / PAGE, "the report")


def write(directory: Path, text: str) -> Path:
    """Write the page as `index.html` into the directory, created if missing."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / PAGE
    path.write_text(text, encoding="utf-8")
    return path
