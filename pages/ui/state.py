"""What a person has set: kept over pages, carried in the URL, undone and reset.

Each page lists its settings once. ``open_settings`` at its top brings in a link and gives every widget its value;
``close_settings`` at its end remembers the values and writes the URL. Widgets take ``key=`` only: their value is always in
st.session_state. (Streamlit's own ``bind="query-params"`` would put translated labels into the URL and knows no undo.)
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from urllib.parse import quote_plus, urlencode

import streamlit as st
from streamlit.errors import StreamlitAPIException

# A URL of about 8,000 characters still passes everywhere. One value may be 1,500 characters long and take up to 4,000 in the
# URL, where a Chinese character is nine.
MOST_URL_CHARACTERS = 1500
_MOST_ENCODED = 4000
_MOST_UNDO = 50
# What the session remembers over pages: the page that is open, whether it was just come to, and the latest value of each
# key. Two pages that list a key share its value.
_PAGE, _ARRIVED, _LATEST = "_page", "_arrived", "_latest"


@dataclass(frozen=True)
class Setting:
    """One thing that a person can set.

    Attributes:
        key: of the widget, and the name in the URL.
        default: its value at first.
        read: makes the value out of the URL's text, or raises ValueError.
        write: makes the URL's text out of the value; None = it does not travel in the URL.
    """

    key: str
    default: object
    read: Callable[[str], object]
    write: Callable[[object], str] | None = str


def choice(key: str, default: str, options: Iterable[str]) -> Setting:
    """One of some names."""
    options = tuple(options)

    def read(text: str) -> str:
        if text not in options:
            raise ValueError(text)
        return text

    return Setting(key, default, read)


def choices(key: str, default: Iterable[str], options: Iterable[str]) -> Setting:
    """Any of some names, as a list."""
    options = tuple(options)

    def read(text: str) -> list[str]:
        names = text.split(".") if text else []
        if not set(names) <= set(options):
            raise ValueError(text)
        return [name for name in options if name in names]

    return Setting(key, list(default), read, ".".join)


def whole(key: str, default: int, least: int, most: int) -> Setting:
    """A whole number from least to most."""

    def read(text: str) -> int:
        if len(text) > 12 or not least <= int(text) <= most:
            raise ValueError(text)
        return int(text)

    return Setting(key, default, read)


def real(key: str, default: float, least: float, most: float) -> Setting:
    """A number from least to most."""

    def read(text: str) -> float:
        if len(text) > 24 or not isfinite(float(text)) or not least <= float(text) <= most:
            raise ValueError(text)
        return float(text)

    def write(value: float) -> str:
        short = f"{value:g}"
        return short if float(short) == value else repr(value)

    return Setting(key, default, read, write)


def flag(key: str, default: bool = False) -> Setting:
    """Yes or no."""

    def read(text: str) -> bool:
        if text not in ("0", "1"):
            raise ValueError(text)
        return text == "1"

    return Setting(key, default, read, lambda value: "1" if value else "0")


def text(key: str, default: str = "", *, travels: bool = True) -> Setting:
    """A text; longer ones than MOST_URL_CHARACTERS stay here and do not travel in the URL."""
    return Setting(key, default, str, str if travels else None)


def note_page(page: str) -> None:
    """Notes which page is open, so that open_settings knows when a person arrives at it from another one."""
    if st.session_state.get(_PAGE) != page:
        st.session_state[_PAGE], st.session_state[_ARRIVED] = page, True


def open_settings(page: str, settings: Mapping[str, Setting]) -> list[str]:
    """Brings in a link, and gives every widget of the page its value.

    Args:
        page: name of the page.
        settings: by key.

    Returns:
        the names of what was in the link and could not be used.
    """
    saved = _saved(page)
    query = st.query_params.to_dict()
    ignored = []
    linked = bool(query) and query != saved["url"]
    if linked:
        # A link says everything that is not at its default; without a query it is this person coming back.
        for key, setting in settings.items():
            value = setting.default
            if key in query and setting.write is not None:
                try:
                    value = setting.read(query[key])
                except ValueError:
                    ignored.append(key)
            elif setting.write is None:
                value = saved["values"].get(key, value)
            st.session_state[key] = value
        ignored += [key for key in query if key not in settings]
        saved["url"] = query
    arrived, latest = st.session_state.pop(_ARRIVED, False), st.session_state.setdefault(_LATEST, {})
    for key, setting in settings.items():
        # On another page Streamlit keeps of a widget what its key held before the widget was first drawn, or nothing.
        if arrived and not linked and key in latest:
            st.session_state[key] = _copied(latest[key])
        # Under another choice it forgets a widget that was not drawn. And of a box whose names have changed with the text
        # (4 · king) the browser sends the old name, which Streamlit then takes for the value.
        elif key not in st.session_state or not _fits(setting, st.session_state[key]):
            st.session_state[key] = saved["values"].get(key, setting.default)
    # Now and not only at the end: a run that is broken off, because the person leaves, must lose nothing of a link.
    latest.update({key: _copied(st.session_state[key]) for key in settings})
    return ignored


def close_settings(page: str, settings: Mapping[str, Setting]) -> None:
    """Remembers the page's values, for coming back and for undo, and writes the URL."""
    saved = _saved(page)
    values = {key: _copied(st.session_state[key]) for key in settings if key in st.session_state}
    for key, value in values.items():
        # A control that was not drawn keeps its value as a plain entry. Else Streamlit falls back to the entry from before
        # the control was first drawn. For one that was drawn, its widget has the value, and Streamlit refuses.
        with suppress(StreamlitAPIException):
            st.session_state[key] = value
    st.session_state.setdefault(_LATEST, {}).update({key: _copied(value) for key, value in values.items()})
    if values != saved["values"]:
        if saved["values"]:
            saved["history"] = [*saved["history"], saved["values"]][-_MOST_UNDO:]
        saved["values"] = values
    query = _query(values, settings)
    if query != st.query_params.to_dict():
        st.query_params.from_dict(query)
    saved["url"] = query


def carry(values: Mapping[str, object]) -> None:
    """Makes the page that is switched to next open with these values of its settings; the others are as they were."""
    st.session_state.setdefault(_LATEST, {}).update({key: _copied(value) for key, value in values.items()})


def place(options: Sequence, key: str) -> int:
    """The ``index=`` of a select box in a popover: where its value stands.

    What lies in a closed popover is drawn by the browser when it is opened, runs after its value was sent; it then shows its
    default and sends that back. So there the default is the value.
    """
    value = st.session_state[key]
    return list(options).index(value) if value in options else 0


def undo(page: str, settings: Mapping[str, Setting]) -> None:
    """Takes the last change back (a callback: runs before the page does)."""
    saved = _saved(page)
    if saved["history"]:
        saved["values"] = saved["history"].pop()
        st.session_state.update({key: _copied(value) for key, value in saved["values"].items() if key in settings})


def can_undo(page: str) -> bool:
    """Whether there is a change to take back."""
    saved = _saved(page)
    # What was changed just now is remembered at the end of this run.
    changed = any(key in st.session_state and st.session_state[key] != value for key, value in saved["values"].items())
    return bool(saved["history"]) or changed


def reset(settings: Mapping[str, Setting]) -> None:
    """Sets everything to its default (a callback); undo brings it back."""
    for key, setting in settings.items():
        st.session_state[key] = _copied(setting.default)


def link(page: str, settings: Mapping[str, Setting]) -> tuple[str, list[str]]:
    """The address that opens this view, and the keys of what is set but does not travel."""
    values = {key: st.session_state[key] for key in settings if key in st.session_state}
    query = _query(values, settings)
    left = [k for k, s in settings.items() if values.get(k, s.default) != s.default and k not in query]
    address = (st.context.url or "").split("?")[0]
    return (f"{address}?{urlencode(query)}" if query else address), left


def _query(values: Mapping[str, object], settings: Mapping[str, Setting]) -> dict[str, str]:
    query = {}
    for key, value in values.items():
        setting = settings[key]
        if value != setting.default and setting.write is not None and value is not None:
            try:
                written = setting.write(value)
            except ValueError:
                # What a person typed and nobody can read is told on the page, and travels nowhere.
                continue
            if len(written) <= MOST_URL_CHARACTERS and len(quote_plus(written, errors="replace")) <= _MOST_ENCODED:
                query[key] = written
    return query


def _fits(setting: Setting, value: object) -> bool:
    """Whether a value is of the sort that the setting has, and not a widget's name for one."""
    default = setting.default
    if default is None or value is None:
        return True
    if isinstance(default, bool | str):
        return isinstance(value, type(default))
    if isinstance(default, int | float):
        return isinstance(value, int | float)
    if isinstance(default, list):
        try:
            return isinstance(value, list) and len(setting.read(setting.write(value))) == len(value)
        except (TypeError, ValueError):
            return False
    return True


def _saved(page: str) -> dict:
    return st.session_state.setdefault(f"_saved_{page}", {"values": {}, "history": [], "url": {}})


def _copied(value: object) -> object:
    return list(value) if isinstance(value, list) else value
