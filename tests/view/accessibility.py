"""axe-core in the page itself: whatever it calls a violation, serious or not."""

import pytest


def findings(page):
    """What is wrong with a page: rule, impact, and the element."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python").Axe()
    found = axe.run(page).response["violations"]
    return [(one["id"], one["impact"], one["nodes"][0]["html"][:200]) for one in found]
