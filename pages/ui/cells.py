"""The arithmetic of a chosen cell, written out with the numbers of this very state."""

import html
from collections.abc import Sequence

import streamlit as st

from attention_core.layer.arithmetic import CellArithmetic
from pages.ui.text import _

_TERMS = 8

Row = Sequence[str | float | int]


def number(value: float, digits: int = 4) -> str:
    """A number as people read it: a true minus sign, four significant digits; 0 is never "-0"."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "−∞"
    return f"{value + 0.0:.{digits}g}".replace("-", "−")


def tex(value: float, *, bare: bool = False) -> str:
    """The same for KaTeX, in brackets where it is negative; ``bare`` without, for a result."""
    text = number(value).replace("−", "-").replace("∞", r"\infty")
    if "e" in text:
        mantissa, exponent = text.split("e")
        text = rf"{mantissa} \cdot 10^{{{int(exponent)}}}"
    return f"({text})" if text.startswith("-") and not bare else text


def show_cell(cell: CellArithmetic, query_tokens: Sequence[str], key_tokens: Sequence[str]) -> None:
    """Writes out how a cell came about.

    Args:
        cell: from attention_core.layer.arithmetic.
        query_tokens, key_tokens: labels.
    """
    if cell.stage in ("weights", "dropped_weights"):
        _show_weight(cell, key_tokens)
    elif cell.stage in ("scores", "masked_scores"):
        _show_score(cell)
    elif cell.stage in ("context", "concatenation"):
        _show_context(cell, key_tokens)
    else:
        _show_projection(cell)
    off = abs(cell.recomputed - cell.value) if cell.value == cell.value and abs(cell.value) < float("inf") else 0.0
    st.caption(
        _("The tensor holds {value}. Recomputed in float64 from these terms: {again} (difference {off}).").format(
            value=number(cell.value, 9), again=number(cell.recomputed, 9), off=number(off, 2)
        )
    )


def _show_score(cell: CellArithmetic) -> None:
    st.latex(
        rf"S_{{{cell.row},{cell.column}}} = s \sum_d q_d\,k_d = {tex(cell.scale)} \cdot {tex(cell.total)} = "
        rf"{tex(cell.scale * cell.total, bare=True)}"
    )
    if cell.stage == "masked_scores" and not cell.visible:
        st.write(_("The mask hides this key from this query, so the score becomes −∞ and its weight exactly 0."))
    _show_terms(cell, _("dimension"), "q", "k")


def _show_weight(cell: CellArithmetic, key_tokens: Sequence[str]) -> None:
    name = "A" if cell.stage == "weights" else "A'"
    if cell.visible_keys == 0:
        st.write(_("This query sees no key. Its weights and its context are 0, and the row is drawn blank."))
        return
    if not cell.visible:
        st.latex(rf"A_{{{cell.row},{cell.column}}} = 0")
        st.write(_("The mask hides this key from this query, so its weight is exactly 0."))
    else:
        at = f"{cell.row},{cell.column}"
        exponent = f"{tex(cell.total * cell.scale)} - {tex(cell.row_max)}"
        st.latex(
            rf"A_{{{at}}} = \frac{{e^{{S_{{{at}}} - \max}}}}{{\sum_j e^{{S_{{{cell.row},j}} - \max}}}} = "
            rf"\frac{{e^{{{exponent}}}}}{{{tex(cell.denominator)}}} = "
            rf"\frac{{{tex(cell.numerator)}}}{{{tex(cell.denominator)}}} = {tex(cell.numerator / cell.denominator)}"
        )
    if cell.stage == "dropped_weights" and cell.kept is not None:
        if cell.kept:
            st.latex(rf"{name}_{{{cell.row},{cell.column}}} = A \cdot {tex(cell.kept)} = {tex(cell.value)}")
        else:
            st.write(_("Dropout set this weight to 0 in this draw."))
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown(_("**The score** is a dot product, times the scale"))
        st.latex(
            rf"S_{{{cell.row},{cell.column}}} = {tex(cell.scale)} \cdot {tex(cell.total)} = "
            rf"{tex(cell.scale * cell.total, bare=True)}"
        )
        _show_terms(cell, _("dimension"), "q", "k")
    with right:
        st.markdown(_("**The softmax** shares the row out among its visible keys"))
        _show_softmax(cell, key_tokens)


def _show_softmax(cell: CellArithmetic, key_tokens: Sequence[str]) -> None:
    seen = sorted((t for t in cell.softmax if t.visible), key=lambda t: -t.numerator)
    shown, rest = seen[:_TERMS], seen[_TERMS:]
    rows: list[Row] = [
        (f"{t.key} {key_tokens[t.key]}", t.score, t.numerator, t.numerator / cell.denominator) for t in shown
    ]
    if rest:
        left = sum(t.numerator for t in rest)
        rows.append((_("{count} others").format(count=len(rest)), "", left, left / cell.denominator))
    hidden = len(cell.softmax) - len(seen)
    if hidden:
        rows.append((_("{count} hidden by the mask").format(count=hidden), "−∞", 0, 0))
    total = (_("sum"), "", cell.denominator, 1.0)
    strong = next((i for i, t in enumerate(shown) if t.key == cell.column), None)
    show_table((_("key"), _("score"), "exp(S − max)", _("weight")), rows, total, strong)


def _show_context(cell: CellArithmetic, key_tokens: Sequence[str]) -> None:
    if not cell.visible:
        st.write(_("This query sees no key. Its weights and its context are 0, and the row is drawn blank."))
        return
    dim = cell.column if cell.dim is None else cell.dim
    if cell.dim is not None:
        st.write(
            _("Column {column} of the concatenation is dimension {dim} of head {head}.").format(
                column=cell.column, dim=cell.dim, head=cell.head
            )
        )
    st.latex(rf"C_{{{cell.row},{dim}}} = \sum_j A_{{{cell.row},j}}\,V_{{j,{dim}}} = {tex(cell.total, bare=True)}")
    shown, rest, others = cell.largest(_TERMS)
    rows: list[Row] = [(f"{t.index} {key_tokens[t.index]}", t.left, t.right, t.product) for t in shown]
    if others:
        rows.append((_("{count} others").format(count=others), "", "", rest))
    show_table((_("key"), _("weight"), _("value"), _("product")), rows, (_("sum"), "", "", cell.total))


def _show_projection(cell: CellArithmetic) -> None:
    symbol, source, matrix = {
        "query": ("Q", "X", "W_Q"),
        "key": ("K", "X", "W_K"),
        "value": ("V", "X", "W_V"),
        "output": ("O", r"\mathrm{concat}", "W_O"),
    }[cell.stage]
    bias = "" if cell.bias is None else rf" + b_{{{cell.column}}}"
    numbers = "" if cell.bias is None else f"{tex(cell.total - cell.bias)} + {tex(cell.bias)} = "
    st.latex(
        rf"{symbol}_{{{cell.row},{cell.column}}} = \sum_i {source}_{{{cell.row},i}}\,({matrix})_{{{cell.column},i}}{bias} = "
        rf"{numbers}{tex(cell.total, bare=True)}"
    )
    _show_terms(cell, _("feature"), "x" if cell.stage != "output" else "concat", "w")


def _show_terms(cell: CellArithmetic, index: str, left: str, right: str) -> None:
    shown, rest, others = cell.largest(_TERMS)
    rows: list[Row] = [(str(t.index), t.left, t.right, t.product) for t in shown]
    if others:
        rows.append((_("{count} others").format(count=others), "", "", rest))
    if cell.bias is not None:
        rows.append((_("bias"), "", "", cell.bias))
    show_table((index, left, right, f"{left} × {right}"), rows, (_("sum"), "", "", cell.total))


def show_table(header: Sequence[str], rows: Sequence[Row], total: Row | None = None, strong: int | None = None) -> None:
    """A small table of numbers; every text in it is shown as it is, whatever it holds."""

    def line(row: Row, tag: str = "td", name: str = "") -> str:
        cells = "".join(f"<{tag}>{html.escape(c if isinstance(c, str) else number(c))}</{tag}>" for c in row)
        return f'<tr class="{name}">{cells}</tr>'

    body = "".join(line(row, name="strong" if i == strong else "") for i, row in enumerate(rows))
    foot = line(total, name="total") if total else ""
    st.html(f'<table class="sums"><thead>{line(header, "th")}</thead><tbody>{body}{foot}</tbody></table>')
