"""One source file as the rules see it: its name, its imports with all of them resolved, and dotted names for what it calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Import(NamedTuple):
    target: str
    """Dotted, down to the imported name."""
    line: int
    for_types: bool


@dataclass(frozen=True)
class Module:
    """One source file; `path` is relative to the repository, with forward slashes."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def name(self) -> str:
        parts = self.path.removesuffix(".py").split("/")
        return ".".join(parts[parts[0] == "plugins" :]).removesuffix(".__init__")

    @cached_property
    def in_corekit(self) -> bool:
        return self.path.startswith("corekit/")

    @cached_property
    def room(self) -> str:
        """Of corekit: the folder, or the module at the top; of a plugin: its import name."""
        parts = self.name.split(".")
        return ".".join(parts[1:2]) if self.in_corekit else parts[0]

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree))

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        return tuple(self._imports(self.tree, for_types=False))

    @cached_property
    def names(self) -> dict[str, str]:
        """Local name -> dotted name of what an import bound to it."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found.update({a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names})
            elif isinstance(node, ast.ImportFrom):
                found.update({a.asname or a.name: f"{self._origin(node)}.{a.name}" for a in node.names})
        return found

    def dotted(self, node: ast.AST) -> str:
        """`os.environ` for that attribute however os was imported; "" for what is no chain of names."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self.dotted(node.value)}.{node.attr}"
        return ""

    def calls(self) -> Iterator[tuple[ast.Call, str]]:
        return ((node, self.dotted(node.func)) for node in self.nodes if isinstance(node, ast.Call))

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        keep = len(parts) - node.level + self.path.endswith("__init__.py")
        return ".".join([*parts[: max(keep, 0)], *filter(None, [node.module])])

    def _imports(self, node: ast.AST, *, for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (Import(f"{self._origin(node)}.{alias.name}", node.lineno, for_types) for alias in node.names)
        elif isinstance(node, ast.Call) and self.dotted(node.func).endswith(("import_module", "__import__")):
            yield from (Import(a.value, node.lineno, for_types) for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str))
        if isinstance(node, ast.If) and self.dotted(node.test).endswith("TYPE_CHECKING"):
            for child in node.body:
                yield from self._imports(child, for_types=True)
            for child in node.orelse:
                yield from self._imports(child, for_types=for_types)
            return
        for child in ast.iter_child_nodes(node):
            yield from self._imports(child, for_types=for_types)
