"""Every text a visitor reads goes through ``_``: English is the source, a catalogue in locale/ holds another language.

The language belongs to the visitor's session, so the translation is looked up for each text, never installed.
"""

import gettext
from functools import cache
from pathlib import Path

import streamlit as st

from attention_core.errors import AttentionError

# Characters of a visitor's text that are repeated in a sentence.
_LONGEST = 300
_LOCALE = Path(__file__).parent / "locale"


def _(message: str) -> str:
    """The text in the visitor's language."""
    return _catalogue(st.session_state.get("language", "en")).gettext(message)


@cache
def _catalogue(language: str) -> gettext.NullTranslations:
    return gettext.translation("messages", _LOCALE, [language], fallback=True)


def verbatim(text: object) -> str:
    """A text for st.markdown and its kind that is shown as it is: as inline code, which nothing interprets."""
    text = " ".join(str(text).replace("\0", "␀").split()) or " "
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    fence = "`"
    while fence in text:
        fence += "`"
    return f"{fence} {text} {fence}" if text.startswith("`") or text.endswith("`") else f"{fence}{text}{fence}"


class _Verbatim(str):
    """Inline code: its marks stand for the quotes that a template's !r would add."""

    def __repr__(self) -> str:
        return str(self)


def error_text(error: AttentionError) -> str:
    """A core error in the visitor's language, as markdown in which the values stand verbatim."""
    # Paths, shapes and the reasons of other libraries hold a visitor's text too: whatever is no number is shown as it is.
    values = {name: v if isinstance(v, int | float) else _Verbatim(verbatim(v)) for name, v in error.values.items()}
    try:
        return _(error.template).format(**values)
    except (KeyError, IndexError, ValueError, AttributeError):
        # A format such as {value:g} wants the value itself.
        return verbatim(error)
