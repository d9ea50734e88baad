"""The messages of an IRC-style chat protocol as JSON Schemas, with examples.

Everything is read from the package's own files; nothing is fetched, and no validator is needed to load it.
"""

import json
from functools import lru_cache
from importlib.resources import files

__all__ = ["bundle", "draft07", "examples", "names", "schema"]


@lru_cache(maxsize=None)
def _text(path):
    return files(__name__).joinpath("data", path).read_text(encoding="utf-8")


def _read(path):
    try:
        return json.loads(_text(path))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise KeyError(path) from None


def names():
    """The names of all messages: ``message``, the envelope, then such as ``c2s/join``."""
    return json.loads(_text("names.json"))


def _known(name):
    if name not in names():
        raise KeyError(name)
    return name


def bundle():
    """All messages in one document of draft 2020-12. One message is ``#/$defs/c2s.join``."""
    return _read("bundle.json")


def draft07():
    """The same in draft 07. One message is ``#/definitions/c2s.join``."""
    return _read("draft-07.json")


def schema(name):
    """The schema of one message with all that it refers to, draft 2020-12. ``KeyError`` if there is none."""
    return _read(f"bundled/{_known(name)}.schema.json")


def examples(name):
    """The examples of one message: ``valid`` ones, and ``invalid`` ones with path and keyword that fail."""
    return _read(f"examples/{_known(name)}.json")
