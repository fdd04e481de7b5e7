"""What the rules found: failures, the severest first, and observations that sound heads show too."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from attention_core.analysis.diagnosis import (
    CALIBRATED_ON,
    RULES,
    Diagnosis,
    Finding,
    ReferenceOf,
    Untested,
    number_label,
)
from attention_core.analysis.head_metrics import BY_NAME
from pages.ui.cells import number, show_table
from pages.ui.diagnose_settings import default_thresholds, threshold_key
from pages.ui.explore_views import Table
from pages.ui.head_controls import kind_names
from pages.ui.state import carry
from pages.ui.text import _, verbatim
from pages.ui.whatif_words import place_words

if TYPE_CHECKING:
    from pages.ui.diagnose_job import Texts

# Failures that are written out; more are told in a table.
_MOST_WRITTEN = 8


@dataclass(frozen=True)
class Example:
    """A text that a button opens.

    Attributes:
        source: what the encoder reads.
        target: what the decoder reads; None = the source itself.
    """

    source: str
    target: str | None


def example_of(texts: "Texts", index: int | None) -> Example | None:
    """The text of that index; None where there is none."""
    if index is None or not 0 <= index < len(texts.sources):
        return None
    return Example(texts.sources[index], None if texts.targets is None else texts.targets[index])


def show_findings(diagnosis: Diagnosis, texts: "Texts", against: str) -> Table:
    """Failures written out, observations in groups; before them, what could not be tested.

    Args:
        diagnosis: what was found.
        texts: what its examples are numbered in.
        against: what failures are compared with, in the visitor's language.
    """
    failures = diagnosis.failures
    rules = {rule.name: rule for rule in RULES}
    blind = [each for each in diagnosis.untested if rules[each.rule].failure]
    if failures:
        st.markdown(
            _("**Failures: {count}**, the severest first. Compared with {against}.").format(
                count=len(failures), against=against
            )
        )
    else:
        none = _("No rule that could be tested finds a failure.") if blind else _("No rule finds a failure.")
        st.success(
            none + " " + _("Compared with {against}.").format(against=against),
            icon=":material/check_circle:",
        )
    if blind:
        st.warning(_("Not tested:") + "\n" + "".join(f"\n- {untested_words(each)}" for each in blind))
    if diagnosis.reference is not None and not diagnosis.reference.same_model:
        st.caption(_other_model(diagnosis.reference))
    if diagnosis.unchanged:
        places = "; ".join(
            f"{_rule_names()[f.rule]}: {place_words(f.kind, f.layer, f.heads)}"
            for f in diagnosis.unchanged[:_MOST_WRITTEN]
        )
        more = "; …" if len(diagnosis.unchanged) > _MOST_WRITTEN else ""
        st.caption(
            _("Below a threshold, but just so in the reference, so no failure: {places}.").format(places=places + more)
        )
    for place, finding in enumerate(failures[:_MOST_WRITTEN]):
        with st.container(border=True):
            _failure(finding, texts, place, referenced=diagnosis.reference is not None)
    if len(failures) > _MOST_WRITTEN:
        rest = failures[_MOST_WRITTEN:]
        rows = [(_rule_names()[f.rule], place_words(f.kind, f.layer, f.heads), number(f.severity, 2)) for f in rest]
        show_table((_("rule"), _("heads"), _("severity")), rows)
    st.markdown(_("**Observations.** Sound heads show these too; they are no failures."))
    if not diagnosis.observations:
        st.caption(_("None."))
    others = [each for each in diagnosis.untested if not rules[each.rule].failure]
    if others:
        st.caption(_("Not tested:") + "\n" + "".join(f"\n- {untested_words(each)}" for each in others))
    for rule in RULES:
        found = [finding for finding in diagnosis.observations if finding.rule == rule.name]
        if found:
            _group(rule, found, texts)
    st.caption(
        _(
            "A weight is no explanation (Jain and Wallace 2019): these numbers say where heads look and what they add, not why "
            "the model says what it says. A finding points to heads worth a look; what would settle it stands beside it."
        )
    )
    _thresholds()
    every = [*failures, *diagnosis.observations]
    values = np.array([[np.nan if f.severity is None else f.severity] for f in every]).reshape(-1, 1)
    labels = [f"{_rule_names()[f.rule]}: {place_words(f.kind, f.layer, f.heads)}" for f in every]
    return Table("findings", values, labels, [_("severity")])


def sentence(finding: Finding) -> str:
    """A finding in the visitor's language."""
    values = dict(finding.values) | {"kind": kind_names()[finding.kind].lower()}
    if "column" in values:
        values["column"] = _(str(values["column"]))
    text = _(finding.template).format(**values)
    return text[0].upper() + text[1:] + "."


def untested_words(untested: Untested) -> str:
    """Where a rule could not be tested, and why, in the visitor's language."""
    where = [kind_names()[untested.kind]]
    if not untested.every:
        layers: dict[int, list[int]] = {}
        for layer, head in untested.heads:
            layers.setdefault(layer, []).append(head)
        where = [place_words(untested.kind, layer, heads) for layer, heads in layers.items()]
    why = _(untested.template).format(**untested.values)
    return f"{_rule_names()[untested.rule].capitalize()} ({'; '.join(where)}): {why}."


def _other_model(reference: ReferenceOf) -> str:
    return _("The reference is of another model than this one, {name}: its weights differ.").format(
        name=verbatim(reference.name)
    )


def _failure(finding: Finding, texts: "Texts", place: int, *, referenced: bool) -> None:
    left, right = st.columns([5, 1], vertical_alignment="top")
    left.markdown(
        f"**{_rule_names()[finding.rule].capitalize()}:** {place_words(finding.kind, finding.layer, finding.heads)}"
    )
    right.markdown(_("severity **{value}**").format(value=number(finding.severity, 2)))
    st.markdown(sentence(finding))
    st.caption(_meaning(finding.meaning, finding.confirmation))
    _numbers(finding)
    if finding.against == "neighbours" and referenced:
        st.caption(_("The reference has not measured this, so the severity compares with the heads beside it."))
    with st.container(horizontal=True, gap="small", key=f"failure_{place}"):
        open_buttons(finding.kind, finding.layer, finding.heads, example_of(texts, finding.example), f"failure_{place}")


def _meaning(meaning: str, confirmation: str) -> str:
    meaning = _(meaning)
    return _("{meaning}. This would confirm it: {confirmation}.").format(
        meaning=meaning[0].upper() + meaning[1:], confirmation=_(confirmation)
    )


def _numbers(finding: Finding) -> None:
    rows = []
    for each in finding.numbers:
        label, unit = number_label(each.name)
        value = _("not measured") if each.value is None else number(each.value, 3)
        sign = "<" if each.below else ">"
        limit = "" if each.threshold is None else f"{sign} {number(each.threshold, 3)}"
        rows.append((_(label), value, limit, _(unit)))
    show_table((_("number"), _("found"), _("told if"), _("unit")), rows)


def _group(rule, found: Sequence[Finding], texts: "Texts") -> None:
    title = _("{name}: {count}").format(name=_(rule.label).capitalize(), count=len(found))
    with st.expander(title):
        st.caption(_meaning(rule.meaning, rule.confirmation))
        names = [each.name for each in found[0].numbers]
        header = [_("head"), *(_(number_label(name)[0]) for name in names)]
        if rule.name == "positional":
            header = [_("head"), _("where"), _("weight")]
        rows = []
        for finding in found:
            values = ["–" if each.value is None else number(each.value, 3) for each in finding.numbers]
            if rule.name == "positional":
                values = [_(BY_NAME[finding.numbers[0].name].label), *values]
            rows.append((place_words(finding.kind, finding.layer, finding.heads), *values))
        show_table(header, rows)
        worst = found[0]
        with st.container(horizontal=True, gap="small", key=f"group_{rule.name}"):
            open_buttons(worst.kind, worst.layer, worst.heads, example_of(texts, worst.example), f"group_{rule.name}")


def open_buttons(kind: str, layer: int, heads: Sequence[int], example: Example | None, key: str) -> None:
    """Opens heads on another page: as they are on the text where it shows most, or switched off."""
    head = heads[0]
    text = {} if example is None else {"source": example.source, "mode": "shift", "show": "one"}
    if example is not None and example.target is not None:
        text |= {"mode": "typed", "target": example.target}
    label = _("Open in Explore") if example is None else _("Worst example in Explore")
    if st.button(label, key=f"{key}_explore", icon=":material/travel_explore:"):
        carry({"kind": kind, "layer": layer, "h": head, "show": "one", **text})
        st.switch_page("pages/explore.py")
    if st.button(_("Switch off in What if"), key=f"{key}_whatif", icon=":material/science:"):
        from attention_core.extract.interventions import SwitchOff, edits_to_text

        edit = SwitchOff(kind=kind, layer=layer, heads=tuple(heads))
        place = {"if_kind": kind, "if_layer": layer, "if_head": head, "if_view": "says", "experiment": ""}
        carry({"edits": edits_to_text([edit]), **place})
        st.switch_page("pages/whatif.py")


def _thresholds() -> None:
    with st.expander(_("Thresholds")):
        st.caption(
            _("The rules are this project's own, calibrated on {what}. Other models may need others.").format(
                what=_(CALIBRATED_ON)
            )
        )
        for rule in RULES:
            st.markdown(f"**{_(rule.label).capitalize()}**")
            with st.container(horizontal=True, gap="small", key=f"limits_{rule.name}"):
                for name in rule.thresholds:
                    label, unit = number_label(name)
                    st.number_input(
                        _(label),
                        0.0,
                        100.0,
                        key=threshold_key(rule.name, name),
                        format="%.4g",
                        step=None,
                        help=_(unit),
                        width=170,
                    )
        st.button(_("Back to the calibrated ones"), key="limits_default", on_click=default_thresholds)


def _rule_names() -> dict[str, str]:
    return {rule.name: _(rule.label) for rule in RULES}
