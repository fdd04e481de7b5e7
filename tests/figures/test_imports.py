"""The figures know no torch, no model and no screen, and draw without them."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "attention_core" / "figures"


def test_figures_import_only_errors_of_ours():
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    assert len(names) > 10
    code = "import sys\n" + "".join(f"import attention_core.figures.{name}\n" for name in names if name != "__init__")
    code += "print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER.parents[1], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    assert not {"torch", "transformers", "streamlit", "plotly.express", "plotly.subplots"} & set(loaded)
    ours = {
        name for name in loaded if name.startswith("attention_core.") and not name.startswith("attention_core.figures")
    }
    assert ours == {"attention_core.errors"}
