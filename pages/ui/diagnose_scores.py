"""The heads that a target is read through, each with its own verdict, and the numbers of the reading with what they mean."""

import html
from collections.abc import Sequence

import streamlit as st

from attention_core.analysis.passages import PassageFinding
from attention_core.analysis.summaries import lead_share, reading_scores
from attention_core.analysis.target_reading import TargetReading
from pages.ui.cells import number
from pages.ui.text import _


def show_head_table(reading: TargetReading, verdicts: Sequence[Sequence[PassageFinding]]) -> None:
    """A row for each head that is read through: how well it finds, and what it alone says.

    Args:
        reading: of the heads.
        verdicts: what each of the first heads finds by itself.
    """
    looks = {"written": _("written"), "read": _("read")}
    rows = []
    for place, (head, found) in enumerate(zip(reading.heads, verdicts)):
        skipped = sum(finding.source.end - finding.source.first for finding in found if finding.name == "omission")
        rows.append(
            (
                _("layer {layer}, head {head}").format(layer=head.layer, head=head.head),
                looks[head.looks_for],
                number(head.hits, 3),
                number(float(reading.special_mass[place]), 3),
                str(sum(finding.name == "repetition" for finding in found)),
                f"{skipped / len(reading.sources):.0%}",
            )
        )
    st.markdown(_("**Read through**"))
    header = (_("head"), _("looks for"), _("finds"), _("control"), _("repeats"), _("skips"))
    st.html(_html_table(header, rows, "heads"))
    text = (
        _("One head: paint and passages are its own verdict.")
        if len(reading.heads) == 1
        else _(
            "Paint and passages come from the mean over these {count} heads, a map that no single head has; each row is one "
            "head's own verdict. Choose one head to see it alone."
        ).format(count=len(reading.heads))
    )
    if len(verdicts) < len(reading.heads):
        text += " " + _("The first {count} are listed.").format(count=len(verdicts))
    st.caption(text)
    st.caption(
        _(
            "Looks for: the token that its row writes, or the one that it has just read. Finds: share of the target's tokens "
            "whose largest weight lies on the same token in the source; a random place is right {chance} of the time. Control: "
            "share of its attention on control tokens. Repeats: passages said twice. Skips: share of the source."
        ).format(chance=number(reading.heads[0].chance, 2))
    )


def show_scores(reading: TargetReading) -> None:
    """Every number of the map that is shown, with what it means in a few words."""
    scores = {name: number(float(value), 3) for name, value in reading_scores(reading.mean).items()}
    hits = sum(head.hits for head in reading.heads) / len(reading.heads)
    sources = len(reading.sources)
    rows = [
        (
            _("coverage loss"),
            scores["coverage_loss"],
            _("of a target token's attention, the share that fell where attention had been: repetition raises it"),
        ),
        (
            _("omission penalty"),
            scores["omission"],
            _("ln of what a source token got, at most 1, mean: 0 = all was read, −∞ = one token got nothing"),
        ),
        (
            _("coverage deviation"),
            scores["coverage_deviation"],
            _("−ln(1 + (1 − coverage)²), mean: 0 = each source token was read exactly once"),
        ),
        (
            _("absent-mindedness, target"),
            scores["absentminded_target"],
            _("entropy of where a target token looks, nats: 0 = one place, {most} = everywhere").format(
                most=number(_ln(sources), 3)
            ),
        ),
        (
            _("absent-mindedness, source"),
            scores["absentminded_source"],
            _("entropy of who looks at a source token, nats: 0 = one token, {most} = all").format(
                most=number(_ln(len(reading.targets)), 3)
            ),
        ),
        (
            _("copy hits"),
            number(hits, 3),
            _("of the target's tokens that the source has, the share that is found there; chance {chance}").format(
                chance=number(reading.heads[0].chance, 2)
            ),
        ),
        (
            _("lead bias"),
            scores["lead_bias"],
            _("of all attention, the share on the first fifth of the source; spread evenly {even}").format(
                even=number(lead_share(sources), 3)
            ),
        ),
        (
            _("monotonicity"),
            scores["monotonicity"],
            _("Kendall's tau of the places looked at most: 1 = in the source's order, 0 = in none, −1 = backwards"),
        ),
    ]
    st.markdown(_("**In numbers**"))
    st.html(_html_table((_("number"), "", _("what it says")), rows, "meanings"))
    several = _("Of the mean map; copy hits are the mean of the heads' own. ") if len(reading.heads) > 1 else ""
    st.caption(
        several
        + _(
            "Coverage and its loss: Tu et al. 2016, See et al. 2017. Omission penalty: Wu et al. 2016 (there a sum over the "
            "source). Deviation and absent-mindedness: Rikters and Fishel 2017. Compare targets of one source."
        )
    )


def _ln(count: int) -> float:
    from math import log

    return log(count)


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> str:
    """A small table as ``show_table`` makes them, with room for a last column of words."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    table = f'<table class="sums {name}"><thead>{line(header, "th")}</thead><tbody>{body}</tbody></table>'
    return f'{_STYLE}<div class="scrolled">{table}</div>'


_STYLE = """<style>
.scrolled { overflow-x: auto; }
table.sums.meanings { max-width: 46rem; }
table.sums.heads td, table.sums.heads th { padding-left: .25rem; padding-right: .25rem; white-space: nowrap; }
table.sums.meanings td { vertical-align: top; white-space: normal !important; padding-top: .3rem; padding-bottom: .3rem; }
table.sums.meanings td:last-child, table.sums.meanings th:last-child { text-align: left; padding-left: 1rem; opacity: .8; }
@media (max-width: 640px) {
  table.sums.meanings thead { display: none; }
  table.sums.meanings tr { display: grid; grid-template-columns: 1fr auto; border-top: 1px solid rgba(128,128,128,.18); }
  table.sums.meanings td { border-top: 0; }
  table.sums.meanings td:last-child { grid-column: 1 / -1; padding: 0 0 .5rem; }
}
</style>"""
