"""The report as one self-contained HTML page."""

from __future__ import annotations

import base64
import json
from html import escape

from regard.report import _pictures
from regard.report._entries import Entry, Predicted

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --bar: #2a788e; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.2rem; margin-top: 3rem; } h3 { font-size: 1rem; }
img { max-width: 100%; background: white; border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; }
ol { padding-left: 0; list-style: none; margin: 0; }
li { display: grid; grid-template-columns: 7rem 1fr 4rem; gap: .5rem; }
li span { align-self: center; height: .6rem; background: var(--soft); border-radius: 3px; overflow: hidden; }
li i { display: block; height: 100%; background: var(--bar); }
.tops { display: grid; grid-template-columns: repeat(auto-fill, minmax(18rem, 1fr)); gap: 1rem 2rem; }
pre { overflow: auto; max-height: 20rem; background: var(--soft); padding: .8rem; font-size: .8rem; }
@media print { details { display: none; } }
"""


def page(entries: list[Entry], title: str) -> str:
    """The HTML. All text of the user is escaped."""
    body = "\n".join(_section(entry) for entry in entries)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def _section(entry: Entry) -> str:
    question = escape(entry.question)
    rows = "\n".join(_table_row(p) for p in entry.predictions)
    tops = "\n".join(f"<div><h3>{escape(p.attention)}</h3>{_top(p)}</div>" for p in entry.predictions)
    content = escape(json.dumps(entry.to_json(), indent=1))
    return (
        f"<section>\n<h2>{question}</h2>\n"
        f"{_image(_pictures.attention_panels(entry), f'Where each attention looked: {entry.question}')}\n"
        '<table>\n<tr><th>attention</th><th>answer</th><th class="n">confidence</th><th class="n">entropy</th>'
        f'<th class="n">support area</th></tr>\n{rows}\n</table>\n'
        f'<h3>Top answers</h3>\n<div class="tops">\n{tops}\n</div>\n'
        "<h3>Effective weights: what each cell contributed (hatched: less than nothing)</h3>\n"
        f"{_image(_pictures.contributions(entry), f'Effective weights of each attention: {entry.question}')}\n"
        f"<details><summary>All numbers</summary>\n<pre>{content}</pre></details>\n</section>"
    )


def _table_row(p: Predicted) -> str:
    return (
        f'<tr><td>{escape(p.attention)}</td><td>{escape(p.answer)}</td><td class="n">{p.confidence:.1%}</td>'
        f'<td class="n">{p.entropy:.3f}</td><td class="n">{p.support_area:.1%}</td></tr>'
    )


def _top(p: Predicted) -> str:
    lines = (
        f'<li>{escape(answer)}<span><i style="width:{100 * min(max(score, 0.0), 1.0):.1f}%"></i></span>{score:.1%}</li>'
        for answer, score in p.top
    )
    return f"<ol>{''.join(lines)}</ol>"


def _image(png: bytes, description: str) -> str:
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
