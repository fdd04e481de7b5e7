"""What if: change heads and masks inside a real model, and see what it says."""

from pages.ui import explore_controls, whatif_page
from pages.ui.layout import begin_page, end_page
from pages.ui.state import close_settings, open_settings
from pages.ui.text import _
from pages.ui.whatif_settings import SETTINGS

PAGE = "whatif"

begin_page(PAGE, _("What if a head were different?"))
ignored = open_settings(PAGE, SETTINGS)
places = explore_controls.sidebar()
whatif_page.show_page(PAGE, ignored, places)
close_settings(PAGE, SETTINGS)
end_page()
