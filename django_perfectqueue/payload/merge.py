"""Change data by a JSON merge patch."""

from __future__ import annotations

from collections.abc import Callable

from django_perfectqueue.exceptions import InvalidTaskError

from .codecs import decode
from .inputs import encoded
from .names import JSON


def merged(value: JSON, patch: JSON) -> JSON:
    """
    Return what a JSON merge patch, RFC 7386, makes of a value; null takes a member away.

    Raise InvalidTaskError where the patch is nested too deeply.
    """
    try:
        return merge(value, patch)
    except RecursionError as error:
        raise InvalidTaskError("The patch is nested too deeply.") from error


def merge(value: JSON, patch: JSON) -> JSON:
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), change)
    return result


def rewriter(patch: JSON) -> Callable[[str], str]:
    """
    Return what makes of a stored payload the patched one.

    That raises PayloadError where it can't be read, InvalidTaskError where the patched one
    can't be stored.
    """
    return lambda payload: encoded(merged(decode(payload), patch))
