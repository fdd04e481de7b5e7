"""Which part may import which: read from the imports, wherever in a file they stand."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = "attention_core"

# Part of the core -> the parts of the core that it may import (itself and errors aside).
ALLOWED = {
    "layer": set(),
    "extract": {"layer"},
    "analysis": {"layer", "extract"},
    "figures": set(),
    "export": {"layer", "extract"},
    "embedded_training": {"analysis"},
    "errors": set(),
    "__init__": {"layer", "extract"},
}
# Outside package -> the parts of the core that may import it. What is not named here is open to none of the core.
OUTSIDE = {
    "torch": {"layer", "extract", "analysis", "export", "embedded_training"},
    "numpy": {"layer", "extract", "analysis", "figures", "export", "embedded_training"},
    "scipy": {"analysis"},
    "plotly": {"figures"},
    "PIL": {"figures"},
    "transformers": {"extract", "embedded_training"},
    "huggingface_hub": {"extract", "embedded_training"},
    "tokenizers": {"extract", "embedded_training"},
    "safetensors": {"layer", "extract", "embedded_training"},
}


def core_files() -> list[Path]:
    return sorted((ROOT / CORE).rglob("*.py"))


def page_files() -> list[Path]:
    return [ROOT / "app.py", *sorted((ROOT / "pages").rglob("*.py"))]


def imports(file: Path) -> set[str]:
    """Full dotted names of all that a file imports, relative ones resolved."""
    package = file.relative_to(ROOT).with_suffix("").parts[:-1]
    names = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def part_of(name: str) -> str | None:
    """The part of the core that a dotted name lies in; None outside the core."""
    pieces = name.split(".")
    if pieces[0] != CORE:
        return None
    if len(pieces) == 1:
        return "__init__"
    known = (ROOT / CORE / pieces[1]).is_dir() or (ROOT / CORE / f"{pieces[1]}.py").exists()
    return pieces[1] if known else "__init__"


def part_of_file(file: Path) -> str:
    return file.relative_to(ROOT / CORE).with_suffix("").parts[0]


@pytest.mark.parametrize("file", core_files(), ids=lambda f: str(f.relative_to(ROOT)))
def test_core_imports(file):
    part = part_of_file(file)
    for name in imports(file):
        other = part_of(name)
        if other is not None:
            assert other in ALLOWED[part] | {part, "errors"}, f"{part} may not import {name}"
        else:
            top = name.split(".")[0]
            assert top in sys.stdlib_module_names or part in OUTSIDE.get(top, ()), f"{part} may not import {name}"


@pytest.mark.parametrize("file", page_files(), ids=lambda f: str(f.relative_to(ROOT)))
def test_page_imports(file):
    names = imports(file)
    tops = {name.split(".")[0] for name in names}
    assert "transformers" not in tops, "pages reach models through attention_core.extract"
    assert "plotly" not in tops, "pages draw through attention_core.figures"
    assert not {n for n in names if part_of(n) == "embedded_training"}, "the app does not train the embedded model"
    if file.parent == ROOT / "pages":
        assert "torch" not in tops, "a page reads controls, calls the core, shows; tensor maths is the core's"
        assert not {n for n in names if n.startswith("pages.") and not n.startswith("pages.ui")}, (
            "a page imports no page"
        )


def test_a_part_has_a_rule():
    assert {part_of_file(f) for f in core_files()} <= set(ALLOWED), (
        "name a new part of the core, and what it may import"
    )


def test_only_the_agreed_things_stand_at_the_top():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    visible = {name.split("/")[0] for name in tracked if not name.startswith(".")}
    assert visible <= {"README.md", "requirements.txt", "app.py", "pages", "attention_core", "tests", "LICENSE"}


@pytest.mark.parametrize("page", ["start", "build"])
def test_a_light_page_does_not_load_transformers(page):
    script = f"""
import sys
from streamlit.testing.v1 import AppTest
app = AppTest.from_file("app.py", default_timeout=60).run()
if {page!r} != "start":
    app.switch_page("pages/{page}.py").run()
assert not app.exception, app.exception
assert not app.error, [e.value for e in app.error]
heavy = [m for m in ("transformers", "tokenizers", "huggingface_hub", "plotly.express", "scipy") if m in sys.modules]
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
