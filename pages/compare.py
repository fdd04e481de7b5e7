"""Compare: the layer from scratch beside the heads of a real model."""

from pages.ui import compare_page
from pages.ui.compare_settings import SETTINGS
from pages.ui.layout import begin_page, end_page
from pages.ui.state import close_settings, open_settings
from pages.ui.text import _

PAGE = "compare"

begin_page(PAGE, _("Compare the layer from scratch with real heads"))
ignored = open_settings(PAGE, SETTINGS)
places = compare_page.sidebar()
compare_page.show_page(PAGE, ignored, places)
close_settings(PAGE, SETTINGS)
end_page()
