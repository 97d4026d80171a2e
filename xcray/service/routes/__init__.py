"""One file a noun. Routes translate: request -> the rooms below -> reply; they decide nothing themselves.

Two kinds of path parts are known to all of them: `modelname`, and `modelref` for name, name@alias or name:3.
"""

from __future__ import annotations

from starlette.convertors import StringConvertor, register_url_convertor


class _Name(StringConvertor):
    """A part of a path that can be a name: `:` and `@` belong to references."""

    regex = "[^/:@]+"


class _Reference(StringConvertor):
    """name, name@alias or name:3. Versions are digits, so `:predict` is never one."""

    regex = "[^/:@]+(?:@[^/:@]+|:[0-9]+)?"


register_url_convertor("modelname", _Name())
register_url_convertor("modelref", _Reference())
