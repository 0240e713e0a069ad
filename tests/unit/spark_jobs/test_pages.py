"""Rules for all page templates: they escape values, and a mistake in a template raises an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from spark_jobs.pages import page_environment


def rendered(folder: Path, template: str, **values: object) -> str:
    (folder / "page.html").write_text(template)
    return page_environment(folder).get_template("page.html").render(**values)


def test_a_value_is_escaped_in_text_and_in_attributes(tmp_path: Path) -> None:
    page = rendered(tmp_path, '<p id="{{ value }}">{{ value }}</p>', value="<b>\"'&")
    assert page == '<p id="&lt;b&gt;&#34;&#39;&amp;">&lt;b&gt;&#34;&#39;&amp;</p>'


def test_an_undefined_name_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UndefinedError, match="nothing"):
        rendered(tmp_path, "{{ nothing }}")


def test_a_value_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="empty value"):
        rendered(tmp_path, "{{ value }}", value=None)


def test_texts_are_cleaned_before_they_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("{{ text }} {{ number }}")
    environment = page_environment(tmp_path, lambda text: text.replace("x", "<"))
    assert environment.get_template("page.html").render(text="x", number=7) == "&lt; 7"
