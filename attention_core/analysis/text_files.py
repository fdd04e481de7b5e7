"""Texts in files: a .txt, a .csv or a .jsonl, with the lines that hold none told apart."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import AttentionError


@dataclass(frozen=True)
class Line:
    """A text of a file.

    Attributes:
        number: of the line it stands on, from 1.
        source, target: the texts; target None = the source.
    """

    number: int
    source: str
    target: str | None = None


UNCLOSED = "a quote is opened and not closed"


def sources_and_targets(lines: Sequence[Line]) -> tuple[list[str], list[str] | None]:
    """What the encoder and the decoder read of the texts of a file.

    Returns:
        sources, and targets: None where no text has one; else one a text, being its source where it has none of its own.
    """
    sources = [line.source for line in lines]
    if all(line.target is None for line in lines):
        return sources, None
    return sources, [line.source if line.target is None else line.target for line in lines]


def read_texts(path: Path) -> tuple[list[Line], list[tuple[int, str]]]:
    """The texts of a file, and its broken lines.

    A .txt has a text a line. A .csv has a header with a column "text" (or "source") and perhaps "target". A .jsonl has an object a
    line, with "text" (or "source") and perhaps "target", or with "paragraphs", each of which is a text. Empty lines are
    passed over. Some texts may have a target and others none: see ``sources_and_targets``.

    After a row of a .csv whose quote is never closed, reading goes on with the next line.

    Returns:
        the texts, and (number, reason) of lines that hold none.

    Raises:
        AttentionError: a file that cannot be read, or of another kind; a .csv without a header that can be read.
    """
    readers = {".txt": _from_txt, ".csv": _from_csv, ".jsonl": _from_jsonl}
    if path.suffix.lower() not in readers:
        raise AttentionError(
            "texts are read from {known} files, not from {name}", known=", ".join(readers), name=path.name
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise AttentionError("{path} cannot be read: {reason}", path=str(path), reason=error.strerror) from error
    lines, broken = [], []
    decoded = []
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        try:
            decoded.append((number, raw.decode("utf-8")))
        except UnicodeDecodeError:
            broken.append((number, "not UTF-8"))
    if path.suffix.lower() == ".csv":
        header = next((number for number, line in decoded if line.strip()), None)
        if broken and header is not None and broken[0][0] < header:
            raise AttentionError("the header of the csv, line {number}, is not UTF-8", number=broken[0][0])
    for number, found in readers[path.suffix.lower()](decoded):
        if isinstance(found, str):
            broken.append((number, found))
        else:
            lines += [Line(number, *texts) for texts in found]
    return lines, sorted(broken)


def _from_txt(lines: list[tuple[int, str]]) -> Iterator[tuple[int, list | str]]:
    for number, line in lines:
        if line.strip():
            yield number, [(line.strip(),)]


def _from_csv(lines: list[tuple[int, str]]) -> Iterator[tuple[int, list | str]]:
    # A quoted field may hold line ends, so that rows are told by where they begin.
    place, header = 0, None
    while place < len(lines):
        number, (row, length) = lines[place][0], _csv_row(lines, place)
        place += length
        if header is None:
            if isinstance(row, str):
                raise AttentionError(
                    "the header of the csv, line {number}, cannot be read: {reason}", number=number, reason=row
                )
            if not any(name.strip() for name in row):
                continue
            header = [name.strip().lower() for name in row]
            if not {"text", "source"} & set(header):
                raise AttentionError(
                    'a csv of texts needs a column "text" (or "source"): it has {found}', found=", ".join(row)
                )
        elif isinstance(row, str):
            yield number, row
        elif row:
            yield number, _texts(dict(zip(header, row)), len(row) == len(header))


def _csv_row(lines: list[tuple[int, str]], start: int) -> tuple[list[str] | str, int]:
    """The row that begins with a line, or what is wrong with it, and how many lines it takes.

    A row that is wrong takes one line: a quote that is not closed there would run on to the next one, in another row, or to
    the end of the file.
    """
    reader = csv.reader((f"{lines[place][1]}\n" for place in range(start, len(lines))), strict=True)
    try:
        return next(reader), reader.line_num
    except csv.Error as error:
        ends = reader.line_num > 1 or str(error).startswith("unexpected end")
        return UNCLOSED if ends else f"not csv ({error})", 1


def _from_jsonl(lines: list[tuple[int, str]]) -> Iterator[tuple[int, list | str]]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            read = json.loads(line)
        except ValueError:
            yield number, "not JSON"
            continue
        except RecursionError:
            yield number, "too deeply nested"
            continue
        paragraphs = read.get("paragraphs") if isinstance(read, dict) else None
        if isinstance(paragraphs, list) and paragraphs and all(_is_text(p) for p in paragraphs):
            yield number, [(paragraph,) for paragraph in paragraphs]
        else:
            yield number, _texts(read if isinstance(read, dict) else {}, True)


def _texts(fields: dict, complete: bool) -> list | str:
    """[(source, target)] of one row or object, or what is wrong with it."""
    if not complete:
        return "another number of fields than the header has"
    source = fields.get("text", fields.get("source"))
    target = fields.get("target")
    if not _is_text(source):
        return "no text"
    if target is not None and not _is_text(target):
        return "an empty target"
    return [(source, target)]


def _is_text(found: object) -> bool:
    """Whether it holds something, in characters that can be written (half of a pair of surrogates cannot)."""
    return isinstance(found, str) and bool(found.strip()) and not any("\ud800" <= c <= "\udfff" for c in found)
