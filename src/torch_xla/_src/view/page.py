"""The HTML page of a recording: a tree of modules, each with its ops and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from torch_xla._src.graph.printing import shape_text
from torch_xla._src.graph.value import Spec
from torch_xla._src.view.cost import Cost, Module

_STYLE = (
    "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}td,th{padding:1px 8px;text-align:left;font-size:13px}"
    "td.n{text-align:right}details{margin-left:1.2em}summary{cursor:pointer}.bar{display:inline-block;height:.7em;"
    "background:#4e79a7;margin-right:.4em}.m{color:#666}"
)


def html_of(root: Module, by_compiler: dict[str, float], leaves: Sequence[Spec], roots: Sequence[int]) -> str:
    """The page. by_compiler: what the compiler says of the whole."""
    said = ", ".join(f"{name} {value:,.0f}" for name, value in by_compiler.items()) or "nothing"
    head = (
        f"<!doctype html><html><head><meta charset='utf-8'><title>Program</title><style>{_STYLE}</style></head><body>"
        f"<h1>{root.total.rows} ops, {len(leaves)} inputs, {len(roots)} outputs</h1>"
        f"<p>Counted from shapes: {_cost(root.total)}. By the compiler: {escape(said)}.</p>"
    )
    return head + "".join(_module(root, root.total, "(outside of modules)")) + "</body></html>\n"


def _cost(cost: Cost) -> str:
    return f"{cost.flops:,} flops, {cost.num_bytes:,} bytes"


def _module(module: Module, whole: Cost, own: str) -> Iterator[str]:
    for name, inner in sorted(module.modules.items(), key=lambda item: -item[1].total.flops):
        share = inner.total.flops / whole.flops if whole.flops else 0.0
        yield (
            f"<details open><summary><span class='bar' style='width:{100 * share:.1f}px'></span><b>{escape(name)}</b> "
            f"<span class='m'>{share:.1%} &middot; {_cost(inner.total)}, {inner.total.rows} ops</span></summary>"
        )
        yield from _module(inner, whole, "")
        yield "</details>"
    if module.rows:
        if own:
            yield f"<p class='m'>{own}</p>"
        yield "<details><summary>ops</summary><table><tr><th>result<th>op<th>shapes<th>flops<th>bytes<th>line</tr>"
        yield from (_row(row, cost) for row, cost in module.rows)
        yield "</table></details>"


def _row(row: Any, cost: Cost) -> str:
    shapes = ", ".join(shape_text(spec) for spec in row.outs if spec is not None)
    backward = " (backward)" if row.backward else ""
    return (
        f"<tr><td>%{row.base}<td>{escape(str(row.op._schema.name))}{backward}<td>{escape(shapes)}"
        f"<td class='n'>{cost.flops:,}<td class='n'>{cost.num_bytes:,}<td>{escape(row.line)}</tr>"
    )
