"""The tab's page as text, from the templates in ``html``. Every value is escaped; classes are those of Spark's pages.

There is no script, because Spark's content security policy allows none without a nonce. Buttons are forms, and a
``meta`` element reloads the page; browsers accept it in the body as well (Spark writes the head).
"""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment

from spark_jobs.pages import page_environment
from spark_jobs.ui.routes import TAB_PATH
from spark_jobs.ui.view import PageInput, page_view

_TEMPLATES: Final = files("spark_jobs.ui").joinpath("html")


def render_page(given: PageInput) -> str:
    """Return the content below the navigation bar. It can always be encoded as UTF-8."""
    return _render("tab.html", page=page_view(given)).encode(errors="replace").decode()


def render_notice(title: str, text: str, base: str) -> str:
    """Return a small complete page, as the answer to a button that had no effect."""
    return _render("notice.html", title=title, text=text, base=base, home=base + TAB_PATH)


def _render(name: str, **values: Any) -> str:
    return _environment().get_template(name).render(**values)


@functools.cache
def _environment() -> Environment:
    return page_environment(_TEMPLATES)
