"""What the Build page's layer costs."""

import streamlit as st

from attention_core.analysis.cost import layer_cost
from pages.ui.cells import show_table
from pages.ui.playground import Playground
from pages.ui.stages import stage_info
from pages.ui.text import _


def show_cost(built: Playground) -> None:
    """Parameters, multiply-adds and bytes of this layer at this size."""
    with st.expander(_("What this layer costs")):
        cost = layer_cost(
            built.config,
            len(built.query_tokens),
            len(built.key_tokens),
            dtype=built.steps.context.dtype,
            unmasked=None if built.mask is None else int(built.mask.sum()),
        )
        info = stage_info()
        one, two, three = st.columns(3, gap="medium")
        with one:
            st.markdown(_("**Parameters**"))
            show_table(
                (_("matrix"), _("numbers")),
                [(name.replace("_", " "), f"{count:,}") for name, count in cost.parameters.items()],
                (_("all"), f"{cost.total_parameters:,}"),
            )
        with two:
            st.markdown(_("**Multiply-adds**"))
            show_table(
                (_("stage"), _("count")),
                [(info[name].title, f"{count:,}") for name, count in cost.multiply_adds.items()],
                (_("all"), f"{cost.total_multiply_adds:,}"),
            )
            if cost.hidden_multiply_adds:
                st.caption(
                    _("{count} of them are spent on cells that the mask hides: all cells are computed.").format(
                        count=f"{cost.hidden_multiply_adds:,}"
                    )
                )
        with three:
            st.markdown(_("**Bytes of each intermediate**"))
            show_table(
                (_("stage"), _("bytes")),
                [(info[name].title, f"{count:,}") for name, count in cost.bytes.items()],
                (_("all"), f"{cost.total_bytes:,}"),
            )
            st.caption(
                _("Taken in chunks of queries, scores and weights together hold {count} bytes at a time.").format(
                    count=f"{cost.chunked_bytes:,}"
                )
            )
