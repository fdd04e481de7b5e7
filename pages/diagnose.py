"""Diagnose: find the heads that fail, and say why."""

from pages.ui import diagnose_page, explore_controls
from pages.ui.diagnose_settings import SETTINGS
from pages.ui.layout import begin_page, end_page
from pages.ui.state import close_settings, open_settings
from pages.ui.text import _

PAGE = "diagnose"

begin_page(PAGE, _("Diagnose a model's heads"))
ignored = open_settings(PAGE, SETTINGS)
places = explore_controls.sidebar()
diagnose_page.show_page(PAGE, ignored, places)
close_settings(PAGE, SETTINGS)
end_page()
