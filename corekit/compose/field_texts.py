"""What the fields of a table or an options dataclass say of themselves: the texts that stand beneath them in the source.

Python keeps no such text, so the source is read; a class without a source says nothing. Knows no table by name.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise


def field_texts(declared: type) -> dict[str, str]:
    """Field -> its text in one line, inherited ones included."""
    return {name: text for owner in reversed(declared.__mro__) if "__annotations__" in vars(owner) for name, text in _own(owner)}


def _own(owner: type) -> Iterator[tuple[str, str]]:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return
    for field, beneath in pairwise(getattr(tree, "body", ())):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match beneath:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield field.target.id, " ".join(text.split())
