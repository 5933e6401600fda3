"""The names and labels that a PromQL expression uses: enough of its grammar to miss none. Evaluates nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

FUNCTIONS = frozenset(
    {"avg", "count", "deriv", "histogram_quantile", "increase", "max", "min", "rate", "sum", "vector"} | {"label_values"}  # of Grafana's variables
)
_WORDS = frozenset({"and", "or", "unless", "bool", "offset"})
_TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<text>"(?:[^"\\]|\\.)*")|(?P<name>[A-Za-z_:][\w:]*)|(?P<number>\d+(?:\.\d+)?)|(?P<range>\[[^\]]*\])|(?P<mark>[(){},<>=!~+*/-]+?)"""
)
_MATCHER = re.compile(r'\s*(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"\s*,?')


@dataclass
class Used:
    """What an expression asks for."""

    selectors: list[tuple[str, set[str]]] = field(default_factory=list)
    """Metric, and the labels that it is chosen by."""
    grouped: set[str] = field(default_factory=set)
    """Labels of `by` and `on`."""


def used(expression: str) -> Used:
    """Raises ValueError for what it does not understand, rather than passing over a name."""
    found = Used()
    at = 0
    while at < len(expression):
        token = _TOKEN.match(expression, at)
        if token is None:
            raise ValueError(f"not understood: {expression[at : at + 30]!r}")
        at = token.end()
        name = token["name"]
        if name in ("by", "on", "without", "ignoring"):
            group = re.compile(r"\s*\(([\w\s,]*)\)").match(expression, at)
            if group is None:
                raise ValueError(f"no labels after {name}: {expression!r}")
            found.grouped |= {label.strip() for label in group[1].split(",") if label.strip()}
            at = group.end()
        elif name and name not in _WORDS and not (name in FUNCTIONS and expression[at:].lstrip().startswith(("(", "by "))):
            labels: set[str] = set()
            if expression[at:].startswith("{"):
                end = expression.index("}", at)
                labels = set(_MATCHER.findall(expression[at + 1 : end]))
                if _MATCHER.sub("", expression[at + 1 : end]).strip():
                    raise ValueError(f"matchers not understood: {expression[at : end + 1]!r}")
                at = end + 1
            found.selectors.append((name, labels))
    return found
