"""Edits and their effects in words."""

from collections.abc import Sequence
from math import isfinite

from attention_core.analysis.effects import TokenEffects
from pages.ui.cells import number
from pages.ui.head_controls import kind_names
from pages.ui.text import _, verbatim

# Words of a text that are named one by one.
_MOST_NAMED = 6
# Below this a difference of probabilities is what rounding makes (see interventions.FromScratch).
ROUNDING = 1e-4


def what_names() -> dict[str, str]:
    """What can be done, by the name of the edit."""
    return {
        "SwitchOff": _("Switch off"),
        "Forbid": _("Hide words from it"),
        "Force": _("Let it see these words only"),
        "Window": _("Let it see a window only"),
        "Uniform": _("Look at everything alike"),
        "Previous": _("Look at the token before"),
        "Identity": _("Look at its own token"),
        "Temperature": _("Another temperature"),
        "Scale": _("Another scale"),
        "Untrained": _("Make it untrained"),
        "FromScratch": _("Compute it from scratch"),
    }


def what_means(what: str, kind: str) -> str:
    """One sentence on an edit, and what it does to the first row."""
    first = _("Row 0 sees one key and keeps it.") if kind == "decoder" else ""
    said = {
        "SwitchOff": _(
            "The head's context is replaced by zeros, or by its mean over the shipped stories. The layer's output bias stays."
        ),
        "Forbid": _("These words get no weight; the softmax shares it out among the others."),
        "Force": _("All other words get no weight. A query that comes before all of these sees nothing."),
        "Window": _("Keys further away than this get no weight."),
        "Uniform": _("Every visible key gets the same weight.") + " " + first,
        "Previous": _("All weight goes one token back. The first token looks at itself."),
        "Identity": _("All weight goes to the query's own token."),
        "Temperature": _("Scores are divided by it: above 1 flattens, below 1 sharpens.") + " " + first,
        "Scale": _("What the dot products are multiplied with.") + " " + first,
        "Untrained": _("Query and key are each turned by a random rotation, so that they no longer fit each other.")
        + " "
        + first,
        "FromScratch": _("The project's own attention computes the head. Nothing should change."),
    }
    return said[what].strip()


def place_words(kind: str, layer: int | None, heads: Sequence[int] | None) -> str:
    """Cross-attention, layer 2, head 1."""
    name = kind_names()[kind]
    if layer is None:
        where = _("every layer")
    else:
        where = _("layer {layer}").format(layer=layer)
    if heads is None:
        which = _("all heads")
    elif len(heads) == 1:
        which = _("head {head}").format(head=heads[0])
    else:
        which = _("heads {heads}").format(heads=", ".join(map(str, heads)))
    return _("{kind}, {layer}, {heads}").format(kind=name, layer=where, heads=which)


def edit_words(edit, query_labels: Sequence[str], key_labels: Sequence[str]) -> str:
    """What an edit does, as markdown; ``query_labels``, ``key_labels`` name the tokens that positions stand for."""
    what = type(edit).__name__
    if what == "SwitchOff":
        done = _("switched off (0)") if edit.by == "zero" else _("switched off (its mean)")
    elif what in ("Forbid", "Force"):
        done = _keys_words(edit, what, query_labels, key_labels)
    elif what == "Window":
        done = _("sees a window only, on each side: {width}").format(width=edit.width)
    elif what == "Temperature":
        done = _("scores divided by {value}").format(value=number(edit.value))
    elif what == "Scale":
        rules = {"d_model": "1 / √d_model", "head_dim": "1 / √head_dim", "none": "1"}
        rule = rules[edit.rule] if isinstance(edit.rule, str) else number(edit.rule)
        done = _("scale {rule}").format(rule=rule)
    else:
        done = {
            "Uniform": _("looks at everything alike"),
            "Previous": _("looks at the token before"),
            "Identity": _("looks at its own token"),
            "FromScratch": _("computed from scratch"),
            "Untrained": _("untrained (seed {seed})").format(seed=getattr(edit, "seed", 0)),
        }[what]
    return f"**{place_words(edit.kind, edit.layer, edit.heads)}:** {done}"


def _keys_words(edit, what: str, query_labels: Sequence[str], key_labels: Sequence[str]) -> str:
    keys = _named(edit.keys, key_labels) if edit.keys else ""
    if edit.after is not None:
        last = _("everything after {word}").format(word=_named((edit.after,), key_labels))
        keys = _("{words} and {more}").format(words=keys, more=last) if keys else last
    who = "" if edit.queries is None else _named(edit.queries, query_labels)
    if what == "Forbid":
        return (_("{who} may not look at {keys}") if who else _("may not look at {keys}")).format(who=who, keys=keys)
    return (_("{who} may look only at {keys}") if who else _("may look only at {keys}")).format(who=who, keys=keys)


def without_effect(edit, query_count: int, key_count: int) -> bool:
    """Whether it hides nothing of this text, which has no such positions."""
    if type(edit).__name__ != "Forbid":
        return False
    keys = any(key < key_count for key in edit.keys) or (edit.after is not None and edit.after < key_count - 1)
    queries = edit.queries is None or any(query < query_count for query in edit.queries)
    return not (keys and queries)


def _named(places: Sequence[int], labels: Sequence[str]) -> str:
    """Tokens by their labels; positions that this text does not have by their number."""
    shown = [verbatim(labels[place]) if place < len(labels) else f"#{place}" for place in places[:_MOST_NAMED]]
    more = len(places) - len(shown)
    return ", ".join(shown) + (" " + _("and {count} more").format(count=more) if more > 0 else "")


def likelihood_words(effects: TokenEffects, labels: Sequence[str]) -> str:
    """How much less (or more) likely the target became, and where most."""
    rise = effects.loss_after - effects.loss_before
    if not isfinite(rise):
        return _("**The likelihood can no longer be computed:** the changed scores overflow.")
    if float((effects.after - effects.before).abs().max()) < ROUNDING:
        return _("**The target is as likely as before**, to rounding: {loss} nats a token.").format(
            loss=number(effects.loss_before, 3)
        )
    text = _("**The target becomes {direction} likely:** from {before} to {after} nats a token ({rise}).").format(
        direction=_("less") if rise > 0 else _("more"),
        before=number(effects.loss_before, 3),
        after=number(effects.loss_after, 3),
        rise=("+" if rise > 0 else "") + number(rise, 3),
    )
    worst = effects.worst
    before, after = (float(side[worst].exp()) for side in (effects.before, effects.after))
    if before - after > ROUNDING:
        text += " " + _("It falls most at {word}: probability {before} → {after}.").format(
            word=verbatim(labels[worst]), before=number(before, 3), after=number(after, 3)
        )
    return text


def watch_words(experiment: str) -> str:
    """What to look at in a ready experiment."""
    return {
        "strongest": _(
            "**Watch** whether the written text goes wrong at all. A head that adds most to its layer need not be one that the "
            "model cannot do without: others often do the same."
        ),
        "blind": _(
            "**Watch** where the written text stops following the source: the first half should still be copied, the second "
            "half has to be invented."
        ),
        "scale": _(
            "**Watch** the maps under “Heads”: a smaller scale flattens every row. Heads that were sharp suffer most, and the "
            "text with them."
        ),
        "previous": _(
            "**Watch** the words that come twice or stand in a row: heads that look one token back tell the model which word "
            "it has just passed."
        ),
    }[experiment]
