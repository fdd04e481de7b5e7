"""Texts in files: a .txt, a .csv or a .jsonl, with the lines that hold none told apart."""

import csv
import json
from collections.abc import Iterator
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


def read_texts(path: Path) -> tuple[list[Line], list[tuple[int, str]]]:
    """The texts of a file, and its broken lines.

    A .txt has a text a line. A .csv has a header with a column "text" (or "source") and perhaps "target". A .jsonl has an object a
    line, with "text" (or "source") and perhaps "target", or with "paragraphs", each of which is a text. Empty lines are
    passed over.

    Returns:
        the texts, and (number, reason) of lines that hold none.

    Raises:
        AttentionError: a file that cannot be read, or of another kind.
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
    numbers = [number for number, _ in lines]
    reader = csv.reader((f"{line}\n" for _, line in lines), strict=True)
    header: list[str] | None = None
    while True:
        place = reader.line_num
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield numbers[min(place, len(numbers) - 1)], f"not csv ({error})"
            continue
        if header is None:
            header = [name.strip().lower() for name in row]
            if not {"text", "source"} & set(header):
                raise AttentionError(
                    'a csv of texts needs a column "text" (or "source"): it has {found}', found=", ".join(row)
                )
        elif row:
            yield numbers[place], _texts(dict(zip(header, row)), len(row) == len(header))


def _from_jsonl(lines: list[tuple[int, str]]) -> Iterator[tuple[int, list | str]]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            read = json.loads(line)
        except ValueError:
            yield number, "not JSON"
            continue
        paragraphs = read.get("paragraphs") if isinstance(read, dict) else None
        if isinstance(paragraphs, list) and paragraphs and all(isinstance(p, str) and p.strip() for p in paragraphs):
            yield number, [(paragraph,) for paragraph in paragraphs]
        else:
            yield number, _texts(read if isinstance(read, dict) else {}, True)


def _texts(fields: dict, complete: bool) -> list | str:
    """[(source, target)] of one row or object, or what is wrong with it."""
    if not complete:
        return "another number of fields than the header has"
    source = fields.get("text", fields.get("source"))
    target = fields.get("target")
    if not isinstance(source, str) or not source.strip():
        return "no text"
    if target is not None and (not isinstance(target, str) or not target.strip()):
        return "an empty target"
    return [(source, target)]
