"""Where chat templates run: Jinja, sandboxed."""

from __future__ import annotations

import datetime
import functools
import json
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


def render(text: str, **names: Any) -> str:
    """The template ``text`` with ``names``; ValueError for whatever it refuses or gets wrong."""
    try:
        return _compiled(text).render(**names)
    except jinja2.TemplateError as error:
        raise ValueError(f"chat template: {error}") from error


@functools.cache
def _compiled(text: str) -> jinja2.Template:
    """With the names and filters that templates written for ``transformers`` rely on."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"chat template, line {error.lineno}: {error.message}") from error


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
