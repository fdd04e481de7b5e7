"""Files that are read back, cells that no spreadsheet runs, and Python that gives the same numbers."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from attention_core import attention_steps, masks
from attention_core.export import python_lines, safe_cell, steps_npz, table_csv

ROOT = Path(__file__).parents[1]
HOSTILE = ["=1+1", "+cmd", "-2", "@SUM(A1)", "\tx", ' =HYPERLINK("http://x")', "＝1", "a,b", 'say "hi"', "two\nlines"]


@pytest.fixture
def steps():
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, length, 5) for length in (3, 7, 7))
    return attention_steps(query, key, value, masks.causal(3, 7))


def test_an_npz_holds_every_stage_with_tokens_and_settings(steps):
    data = steps_npz(
        steps, heads=[4, 6], query_tokens=["<s>", "海 1/2", "c"], key_tokens=list("abcdefg"), settings={"source": "né"}
    )
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        for name in ("query", "key", "value", "scores", "weights", "context"):
            assert np.array_equal(file[name], getattr(steps, name).numpy()), name
        assert np.array_equal(file["mask"], steps.full_mask().numpy())
        assert "output" not in file
        assert float(file["scale"]) == steps.scale
        assert file["heads"].tolist() == [4, 6]
        assert file["query_tokens"].tolist() == ["<s>", "海 1/2", "c"]
        assert json.loads(str(file["settings"])) == {"source": "né"}


def test_narrow_numbers_are_widened(steps):
    half = attention_steps(steps.query.bfloat16(), steps.key.bfloat16(), steps.value.bfloat16())
    data = steps_npz(half, heads=[0, 1], query_tokens=list("abc"), key_tokens=list("abcdefg"), settings={})
    with np.load(io.BytesIO(data)) as file:
        assert file["query"].dtype == np.float32


def test_a_csv_gives_the_numbers_back_to_the_last_digit(steps):
    values = steps.weights[0, 0].numpy()
    rows = list(csv.reader(io.StringIO(table_csv(values, ["a", "b", "a"], list("tuvwxyz")))))
    assert rows[0] == ["position", "token", *(f"{n} {letter}" for n, letter in enumerate("tuvwxyz"))]
    assert [row[:2] for row in rows[1:]] == [["0", "a"], ["1", "b"], ["2", "a"]]
    assert np.array_equal(np.array([row[2:] for row in rows[1:]], dtype=np.float32), values)


def test_what_is_no_number_is_left_empty():
    text = table_csv(np.array([[1.0, -np.inf, np.nan]]), ["a"], list("xyz"))
    assert text.splitlines()[1] == "0,a,1.0,,"


@pytest.mark.parametrize("token", HOSTILE)
def test_no_cell_is_a_formula(token):
    text = table_csv(np.array([[-0.5]]), [token], [token])
    header, row = list(csv.reader(io.StringIO(text)))
    for cell in (header[2], row[1]):
        assert not cell.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "＝")), cell
    assert row[1].removeprefix("'") == token
    assert float(row[2]) == -0.5, "a negative number stays a number"


def test_harmless_cells_stay():
    assert safe_cell("·king") == "·king"


@pytest.mark.parametrize(
    "view",
    [
        {"source": "The old king gave his son a ring.", "target": None, "beams": None},
        {"source": 'He said "no" \\ it\'s\nall \U0001f9d1 {x} ' * 6, "target": "it's {y}", "beams": None},
        {"source": "The king had a<mask>.", "target": None, "beams": 2, "reading": ("special", "renormalise", "words")},
    ],
    ids=["shifted", "typed", "written"],
)
def test_the_python_gives_the_same_numbers(view, tmp_path):
    from attention_core import load_model, trace
    from attention_core.analysis.reading import read_map
    from attention_core.extract.inputs import Generation

    code = python_lines(
        model="embedded", revision=None, device="cpu", dtype="float32", kind="cross", layer=1, head=3, **view
    )
    model = load_model("embedded", device="cpu")
    how = {"generate": Generation(num_beams=view["beams"])} if view["beams"] else {"target": view["target"]}
    run = trace(model, view["source"], **how)
    head = run.steps("cross", 1, [3])
    wanted = head.weights[0, 0]
    name = "head.weights[0, 0]"
    if "reading" in view:
        wanted = read_map(run, "cross", wanted, head.full_mask()[0, 0], steps=view["reading"]).weights
        name = "read.weights"
    # What is run is the text itself, in a process of its own, as a person would.
    saved = tmp_path / "weights.pt"
    script = code + f"\nimport torch\ntorch.save({name}, {str(saved)!r})\n"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout
    assert torch.equal(torch.load(saved, weights_only=True), wanted)
