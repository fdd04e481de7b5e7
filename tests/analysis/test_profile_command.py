"""The command line of profiles: files of texts, broken lines, sums that go on after a stop and merge."""

import csv
import json
import signal
import threading

import numpy as np
import pytest

from attention_core.analysis import profile_command
from attention_core.analysis.profile import profile_of
from attention_core.analysis.profile_command import main
from attention_core.analysis.profile_sums import read_profile
from attention_core.analysis.text_files import UNCLOSED, Line, read_texts, sources_and_targets
from attention_core.errors import AttentionError
from tests.analysis.conftest import TEXTS
from tests.analysis.test_profile import same


@pytest.fixture
def command(monkeypatch, text_model):
    """Runs the command on the small model, whatever model is named."""
    monkeypatch.setattr(profile_command, "load_model", lambda name: text_model)
    monkeypatch.setattr(profile_command, "mean_contexts", lambda model, texts: None)
    return lambda *arguments: main([str(argument) for argument in arguments])


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS), encoding="utf-8")
    return path


def test_a_text_a_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\n  two \n" + b"\xff\xfe broken\n" + "日本\n".encode())
    assert read_texts(path) == ([Line(1, "one"), Line(3, "two"), Line(5, "日本")], [(4, "not UTF-8")])


def test_csv_with_quoted_line_ends_and_targets(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('Id,Text,Target\n1,"two\nlines",short\n2,,x\n3,a\n4,"b, c",d\n5,e,\n', encoding="utf-8-sig")
    lines, broken = read_texts(path)
    assert lines == [Line(2, "two\nlines", "short"), Line(6, "b, c", "d")]
    assert broken == [(4, "no text"), (5, "another number of fields than the header has"), (7, "an empty target")]
    path.write_text("a,b\n1,2\n")
    with pytest.raises(AttentionError, match='a csv of texts needs a column "text"'):
        read_texts(path)


def test_jsonl_with_texts_and_with_paragraphs(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [
        {"text": "a", "target": "b"},
        {"paragraphs": ["c", "d"]},
        {"title": "e"},
        {"text": 5},
        ["f"],
        {"paragraphs": [1]},
    ]
    path.write_text("\n".join([*map(json.dumps, rows), "{broken", "", '{"text": "g"}']))
    lines, broken = read_texts(path)
    assert lines == [Line(1, "a", "b"), Line(2, "c"), Line(2, "d"), Line(9, "g")]
    assert broken == [(3, "no text"), (4, "no text"), (5, "no text"), (6, "no text"), (7, "not JSON")]


@pytest.mark.parametrize(
    ("rows", "sources", "said"),
    [
        # To the end of the file; to the next quote; closed by a line of its own; in the last line.
        ('a,b\nc,"d\ne,f\ng,h\n', "aeg", [(3, UNCLOSED)]),
        ('a,b\nc,"d\ne,"f"\ng,h\n', "aeg", [(3, UNCLOSED)]),
        ('a,b\nc,"d\n"e",f\ng,h\n', "aeg", [(3, UNCLOSED)]),
        ('a,b\nc,d\ng,"', "ac", [(4, UNCLOSED)]),
        ('a,b\nc,"d\ne,f\ng,"h\ni,j\n', "aei", [(3, UNCLOSED), (5, UNCLOSED)]),
        ('a,b\nc,"d"e\ng,h\n', "ag", [(3, "not csv (',' expected after '\"')")]),
    ],
)
def test_a_quote_that_is_not_closed_costs_its_own_line_alone(tmp_path, rows, sources, said):
    path = tmp_path / "a.csv"
    path.write_text(f"text,target\n{rows}")
    lines, broken = read_texts(path)
    assert ("".join(line.source for line in lines), broken) == (sources, said)


def test_a_quote_that_is_never_closed_is_no_reason_to_wait(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text\n"open\n' + "a row of ordinary words\n" * 50_000)
    lines, broken = read_texts(path)
    assert len(lines) == 50_000 and broken == [(2, UNCLOSED)]


def test_blank_lines_before_the_header_of_a_csv(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("\n  \n,\ntext,target\na,b\n")
    assert read_texts(path) == ([Line(5, "a", "b")], [])
    path.write_text("\n\n")
    assert read_texts(path) == ([], [])
    for data, said in (
        (b"\xfftext\na\n", "line 1, is not UTF-8"),
        (b'\nid,"text\na\n', f"line 2, cannot be read: {UNCLOSED}"),
    ):
        path.write_bytes(data)
        with pytest.raises(AttentionError, match=said):
            read_texts(path)


def test_jsonl_that_no_one_can_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        "\n".join(["[" * 100_000, '{"text": "\\ud800"}', '{"paragraphs": ["a", "\\udfff"]}', '{"text": "a"}'])
    )
    assert read_texts(path) == (
        [Line(4, "a")],
        [(1, "too deeply nested"), (2, "no text"), (3, "no text")],
    )


def test_a_missing_target_is_the_source():
    assert sources_and_targets([]) == ([], None)
    assert sources_and_targets([Line(1, "a"), Line(2, "b")]) == (["a", "b"], None)
    assert sources_and_targets([Line(1, "a"), Line(2, "b", "c")]) == (["a", "b"], ["a", "c"])
    assert sources_and_targets([Line(1, "a", "c"), Line(2, "b")]) == (["a", "b"], ["c", "b"])


def test_targets_of_some_texts_reach_the_model(command, tmp_path, text_model):
    path, sums = tmp_path / "a.jsonl", tmp_path / "sums.json"
    path.write_text('{"text": "Hello cat"}\n{"text": "two cats", "target": "the cat"}\n')
    assert command(path, "--profile", sums) == 0
    expected = profile_of(text_model, ["Hello cat", "two cats"], targets=["Hello cat", "the cat"])
    same(read_profile(sums), expected)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(AttentionError, match=r"texts are read from .txt, .csv, .jsonl files, not from a.pdf"):
        read_texts(tmp_path / "a.pdf")
    with pytest.raises(AttentionError, match=r"a.txt cannot be read: No such file"):
        read_texts(tmp_path / "a.txt")


def test_sums_and_table(command, texts, tmp_path, text_model, capsys):
    sums, table = tmp_path / "sums.json", tmp_path / "heads.csv"
    with open(texts, "a", encoding="utf-8") as file:
        file.write("\n" + "x" * 200)
    assert command(texts, "--profile", sums, "--out", table, "--gradients") == 0
    said = capsys.readouterr().err
    count = text_model.count_tokens("x" * 200)
    assert f"line 8 skipped: the source has {count} tokens, but this model takes at most 32" in said
    assert "7 texts" in said and "gradients: 8 of 8" in said
    profile, expected = read_profile(sums), profile_of(text_model, TEXTS)
    assert "importance" in profile.columns()
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert len(rows) == sum(layers * heads for layers, heads in profile.shapes.values())
    for row in rows:
        place = int(row["layer"]), int(row["head"])
        for name in ("entropy", "output_share"):
            assert float(row[name]) == pytest.approx(expected.mean(row["kind"], name)[place], rel=1e-4)
            assert float(row[f"{name}_spread"]) == pytest.approx(
                expected.spread(row["kind"], name)[place], rel=1e-3, abs=1e-6
            )
        assert (row["next"] == "") == (row["kind"] != "encoder")


def test_broken_lines_are_told_with_their_numbers(command, tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "Hello cat"}\n{"text": 3}\n{"text": "two cats"}\n')
    assert command(path, "--profile", tmp_path / "sums.json") == 0
    assert "line 2 skipped: no text" in capsys.readouterr().err
    assert read_profile(tmp_path / "sums.json").texts == 2


def test_a_stopped_command_goes_on(command, tmp_path, monkeypatch, capsys, text_model):
    path, sums = tmp_path / "texts.txt", tmp_path / "sums.json"
    many = [f"{text[:20]} {number}" for number in range(30) for text in TEXTS]
    path.write_text("\n".join(many), encoding="utf-8")
    steps = []
    handler = signal.getsignal(signal.SIGINT)  # where the tests run in the background it is another than usual

    def stop_once(*arguments, **options):
        for step in real(*arguments, **options):
            steps.append(step.done)
            if len(steps) == 1:
                signal.raise_signal(signal.SIGINT)
            yield step

    real = profile_command.profile_texts
    monkeypatch.setattr(profile_command, "profile_texts", stop_once)
    assert threading.current_thread() is threading.main_thread()
    assert command(path, "--profile", sums) == 130
    assert "stopped; the same command goes on" in capsys.readouterr().err
    assert read_profile(sums).texts == steps[0] < len(many)
    assert command(path, "--profile", sums) == 0
    assert steps[1] > steps[0]
    same(read_profile(sums), profile_of(text_model, many), tolerance=0)
    # A third start finds all done, and counts nothing twice.
    assert command(path, "--profile", sums) == 0
    assert read_profile(sums).texts == len(many)
    assert signal.getsignal(signal.SIGINT) is handler


def test_ablation_is_over_some_of_the_texts(command, texts, tmp_path, monkeypatch):
    seen = {}

    def remember(model, *, into, texts, indices, means, **options):
        seen.update(texts=texts, indices=list(indices))
        return iter(())

    monkeypatch.setattr(profile_command, "ablation_effects", remember)
    assert command(texts, "--ablation", 3, "--profile", tmp_path / "sums.json") == 0
    assert seen == {"texts": [TEXTS[0], TEXTS[2], TEXTS[4]], "indices": [0, 2, 4]}


def test_sums_of_other_texts_models_and_edits_are_refused(command, texts, tmp_path, capsys):
    sums, other = tmp_path / "sums.json", tmp_path / "other.txt"
    other.write_text("Hello world")
    assert command(texts, "--profile", sums) == 0
    before = sums.read_text()
    edits = "[Window(kind='encoder', layer=0, width=1)]"
    for arguments, said in (
        ((other,), "holds the sums of other texts"),
        ((texts, "--edits", edits), "were taken under the edits []"),
        ((texts, "--edits", "[open('x')]"), "edits are written as a list"),
    ):
        capsys.readouterr()
        assert command(*arguments, "--profile", sums) == 1
        assert said in capsys.readouterr().err
        assert sums.read_text() == before
    assert command(other, "--profile", sums, "--restart") == 0
    assert read_profile(sums).texts == 1
    assert command(texts, "--edits", edits, "--profile", tmp_path / "edited.json") == 0
    assert read_profile(tmp_path / "edited.json").edits == edits


def test_merging(command, tmp_path, text_model):
    parts = []
    for number, some in enumerate((TEXTS[:3], TEXTS[3:])):
        path = tmp_path / f"{number}.txt"
        path.write_text("\n".join(some))
        parts.append(tmp_path / f"{number}.json")
        assert command(path, "--profile", parts[-1]) == 0
    assert command("--merge", *parts, "--profile", tmp_path / "whole.json", "--out", tmp_path / "heads.csv") == 0
    same(read_profile(tmp_path / "whole.json"), profile_of(text_model, TEXTS))
    assert np.isfinite(float(next(csv.DictReader((tmp_path / "heads.csv").read_text().splitlines()))["entropy"]))


def test_nothing_to_do(command, tmp_path, capsys):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    assert command(empty) == 1
    assert "holds no text" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command()
