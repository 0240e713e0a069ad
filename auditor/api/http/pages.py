"""The pages of the API. They have no script and load nothing; all values are escaped. The templates are in ``html``."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment
from markupsafe import Markup

from auditor.api.problems import Problem
from spark_jobs.pages import page_environment, style_hash

_TEMPLATES: Final = files("auditor.api.http").joinpath("html")


@dataclass(frozen=True, slots=True)
class HtmlPage:
    """A page and the security policy that is sent with it."""

    html: str
    policy: str


def rendered(template: str, **values: Any) -> HtmlPage:
    """Return the page that a template makes of these values."""
    css = _style()
    html = _environment().get_template(template).render(css=css, **values)
    return HtmlPage(html, f"default-src 'none'; style-src '{style_hash(css)}'; base-uri 'none'; frame-ancestors 'none'")


def problem_page(problem: Problem, path: str) -> HtmlPage:
    """Return a refusal as a page, with a link to the status page that also works behind a proxy.

    Args:
        problem: the refusal.
        path: the requested path.
    """
    home = "../" * (path.count("/") - 1) + "status"
    return rendered("problem.html", problem=problem, home=home)


@functools.cache
def _style() -> Markup:
    return Markup(_TEMPLATES.joinpath("status.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file


@functools.cache
def _environment() -> Environment:
    return page_environment(_TEMPLATES)
