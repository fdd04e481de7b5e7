"""Taking a diagnosis away: its table, the heads as csv, the sums as a profile, and the command that does the same."""

import shlex
import tempfile
from pathlib import Path

import streamlit as st

from attention_core.analysis.profile_sums import Profile
from pages.ui.diagnose_job import Plan
from pages.ui.explore_export import picture_choice, table_button
from pages.ui.explore_views import Table
from pages.ui.text import _


def show_export(table: Table) -> None:
    """The table of a view of one text."""
    table_button(table, f"diagnose_{table.name}", "diagnose_csv")
    picture_choice()


def show_profile_export(profile: Profile, table: Table, plan: Plan, texts_from: str) -> None:
    """What the Export button opens over texts."""
    table_button(table, f"diagnose_{table.name}", "diagnose_csv")
    st.download_button(
        _("All numbers of all heads (csv)"),
        lambda: _heads_csv(profile),
        "heads.csv",
        "text/csv",
        key="heads_csv",
        on_click="ignore",
        width="stretch",
    )
    st.download_button(
        _("The profile, to compare with later (json)"),
        lambda: profile.to_json().encode(),
        "profile.json",
        "application/json",
        key="profile_json",
        on_click="ignore",
        width="stretch",
    )
    picture_choice()
    st.markdown(_("**The same without a screen**, for many texts"))
    st.code(command(plan, texts_from), language="bash", wrap_lines=True)
    st.caption(_("It reads every text of the file, where this page may have taken some of the stories."))


def command(plan: Plan, texts_from: str) -> str:
    """The command line that takes the same numbers."""
    file = "attention_core/embedded/stories.jsonl" if texts_from == "stories" else "texts.txt"
    words = ["python", "-m", "attention_core.analysis.profile", file, "--model", plan.model.name]
    words += ["--profile", "sums.json", "--out", "heads.csv"]
    words += ["--edits", plan.edits] if plan.edits else []
    words += ["--gradients"] if plan.gradients else []
    words += ["--ablation", str(plan.ablation)] if plan.ablation else []
    return shlex.join(words)


def _heads_csv(profile: Profile) -> bytes:
    from attention_core.analysis.profile_command import write_table

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "heads.csv"
        write_table(profile, path)
        return path.read_bytes()
