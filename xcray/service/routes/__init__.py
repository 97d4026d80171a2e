"""REST routes, one file per resource.

Routes translate a request into calls of the packages below and the result into a reply; they
contain no logic of their own. They share two path converters: `modelname`, and `modelref` for name,
name@alias or name:3.
"""

from __future__ import annotations

from starlette.convertors import StringConvertor, register_url_convertor


class _Name(StringConvertor):
    """Path segment that can be a name: `:` and `@` belong to references."""

    regex = "[^/:@]+"


class _Reference(StringConvertor):
    """name, name@alias or name:3. Versions are digits, so `:predict` is never a version."""

    regex = "[^/:@]+(?:@[^/:@]+|:[0-9]+)?"


register_url_convertor("modelname", _Name())
register_url_convertor("modelref", _Reference())
