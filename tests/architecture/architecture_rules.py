"""The rules of the house, as functions over syntax trees: each yields the lines of a module that break it, and why.

Nothing is imported to be judged, so an import inside a function or under TYPE_CHECKING counts like any other. Knows the rooms
and their arrows; knows nothing of what the code does.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping

from architecture_source import Import, Module

MAX_LINES = 320
"""About 300; a file that needs more has two subjects."""

ROOMS: Mapping[str, tuple[str, ...]] = {
    "": (),
    "api": (),
    "compose": ("api", "engine", "worker", "weights", "__version__"),
    "engine": ("api",),
    "worker": ("api",),
    "weights": ("api",),
    "builtin": ("api",),
    "testing": ("api", "compose"),
    "llm": ("api", "compose", "engine.client"),
    "bench": ("api", "compose", "engine.client", "engine.request", "llm", "__version__"),
    "cli": ("api", "compose", "engine.client", "weights.errors", "llm", "bench", "scaffold", "testing.check", "__version__"),
    "scaffold": (),
    "__main__": ("cli",),
}
"""Which rooms of corekit (or modules of a room) a room may import, besides itself."""

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "": (),
    "api": ("pluggy",),
    "compose": ("pluggy", "tomli", "pydantic", "pydantic_core", "packaging", "structlog", "torch", "xxhash"),
    "engine": ("msgspec", "structlog"),
    "worker": ("torch", "numpy", "msgspec", "structlog"),
    "testing": ("pytest", "hypothesis", "torch", "numpy", "starlette"),
    "llm": ("tqdm",),
    "cli": ("click", "structlog"),
    "scaffold": (),
    "__main__": (),
}
"""Distributions that a room may import; a room that is not listed may use what the project depends on."""

TYPES_ONLY = ("torch", "numpy")
"""What `api` may import for the type checker alone."""

PLUGGY_FILES = ("corekit/api/hookspecs.py", "corekit/compose/discovery.py")
AVOIDED_WORDS = frozenset({"manager", "handler", "util", "helper", "base", "impl", "info", "data"})
UNSAFE_IMPORTS = frozenset({"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"})
UNSAFE_CALLS = frozenset({"eval", "exec", "compile", "builtins.eval", "builtins.exec", "torch.load", "torch.hub.load", "torch.serialization.load"})
ENVIRONMENT = re.compile(r"\bos\.(environb?|getenvb?|putenv|path\.expanduser|path\.expandvars)(\.|$)|(^|\.)Path\.home$|\.expanduser$")
NETWORK = ("http", "urllib", "socket", "socketserver", "starlette", "uvicorn", "httpx", "requests")
MUTABLE = frozenset(
    {"list", "dict", "set", "bytearray", "deque", "defaultdict", "Counter", "OrderedDict", "ChainMap", "SimpleNamespace"}
    | {"WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "ContextVar", "local", "count", "cycle", "Random", "default_rng"}
    | {"Lock", "RLock", "Event", "Condition", "Semaphore", "BoundedSemaphore", "Queue", "SimpleQueue", "LifoQueue"}
    | {"ThreadPoolExecutor", "ProcessPoolExecutor", "PluginManager"}
)
READ_ONLY = frozenset({"Mapping", "Sequence", "Set", "AbstractSet", "Collection"})


Finding = tuple[int, str]
Rule = Callable[[Module], Iterator[Finding]]


def _within(target: str, package: str) -> bool:
    return target == package or target.startswith(package + ".")


def _third_party(module: Module) -> Iterator[tuple[Import, str]]:
    for found in module.imports:
        top = found.target.split(".")[0]
        if top not in sys.stdlib_module_names and top != "corekit" and top != module.name.split(".")[0]:
            yield found, top


def rooms(module: Module) -> Iterator[Finding]:
    """A room of corekit imports only the rooms that its row of the table names."""
    if not module.in_corekit:
        return
    if module.room not in ROOMS:
        yield 1, f"corekit/{module.room} is not a room of the table"
        return
    allowed = [f"corekit.{name}" for name in (module.room, *ROOMS[module.room]) if name]
    face = "corekit" if "__version__" in ROOMS[module.room] else ""
    for found in module.imports:
        lazy = found.target == face or (module.room == "" and found.for_types)
        if _within(found.target, "corekit") and not lazy and not any(_within(found.target, name) for name in allowed):
            yield found.line, f"{module.room or 'corekit/__init__.py'} may not import {found.target}"


def packages(module: Module) -> Iterator[Finding]:
    """A room of corekit imports only the distributions that its row names; `api` sees torch and numpy as types alone."""
    if module.in_corekit and module.room in PACKAGES:
        for found, top in _third_party(module):
            for_types = module.room == "api" and found.for_types and top in TYPES_ONLY
            if not top.startswith("corekit_") and top not in PACKAGES[module.room] and not for_types:
                yield found.line, f"{module.room or 'corekit/__init__.py'} may not import {top}"


def corekit_knows_no_plugin(module: Module) -> Iterator[Finding]:
    """corekit never imports from plugins/ or examples/."""
    if module.in_corekit:
        for found in module.imports:
            if found.target.startswith("corekit_") or found.target.split(".")[0] in ("plugins", "examples"):
                yield found.line, f"corekit may not import {found.target}"


def plugins_know_the_api(module: Module) -> Iterator[Finding]:
    """A plugin imports corekit.api and its own package: no other part of corekit, no other plugin."""
    if module.in_corekit:
        return
    for found in module.imports:
        ours = _within(found.target, "corekit") or found.target.startswith("corekit_") or found.target.split(".")[0] == "plugins"
        if ours and not _within(found.target, "corekit.api") and not _within(found.target, module.room):
            yield found.line, f"a plugin imports corekit.api only, not {found.target}"


def pluggy_composes(module: Module) -> Iterator[Finding]:
    """pluggy is imported in two files."""
    for found, top in _third_party(module):
        if top == "pluggy" and module.path not in PLUGGY_FILES:
            yield found.line, f"pluggy belongs to {' and '.join(PLUGGY_FILES)}"


def toml_in_compose(module: Module) -> Iterator[Finding]:
    """TOML is read in compose only."""
    if not (module.in_corekit and module.room == "compose"):
        for found in module.imports:
            if found.target.split(".")[0] in ("tomli", "tomllib", "tomlkit"):
                yield found.line, f"{found.target}: TOML is read in compose only"


def engine_knows_no_network(module: Module) -> Iterator[Finding]:
    """The engine and the worker know no HTTP."""
    if module.in_corekit and module.room in ("engine", "worker", "api"):
        for found in module.imports:
            if found.target.split(".")[0] in NETWORK:
                yield found.line, f"{module.room} knows no network: {found.target}"


def step_is_silent(module: Module) -> Iterator[Finding]:
    """Nothing that runs every step logs news: debug for the curious, warning and error for faults."""
    if module.in_corekit and module.room in ("engine", "worker"):
        for call, name in module.calls():
            if name.endswith((".info", ".msg")):
                yield call.lineno, f"{name}: the step logs nothing above debug but faults"


def environment_in_compose(module: Module) -> Iterator[Finding]:
    """The environment and the user's home are read in compose, which hands values on."""
    if module.in_corekit and module.room == "compose":
        return
    for node in module.nodes:
        if isinstance(node, ast.Attribute | ast.Name) and ENVIRONMENT.search(module.dotted(node)):
            yield node.lineno, f"{module.dotted(node)}: the environment is read in compose only"


def no_module_state(module: Module) -> Iterator[Finding]:
    """What a module or class binds cannot change: tuples, frozensets, MappingProxyType, or a read-only type for the checker."""
    yield from _bindings(module, module.tree.body)
    for node in module.nodes:
        if isinstance(node, ast.Global):
            yield node.lineno, f"global {', '.join(node.names)}: state lives in objects"
        if isinstance(node, ast.ClassDef):
            # A dataclass refuses mutable defaults by itself and a pydantic model copies them: annotated fields of those are no state.
            fields = bool(node.bases or node.decorator_list)
            yield from _bindings(module, [s for s in node.body if not (fields and isinstance(s, ast.AnnAssign))])


def _bindings(module: Module, body: list[ast.stmt]) -> Iterator[Finding]:
    for statement in body:
        if isinstance(statement, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _bindings(module, getattr(statement, part, []))
        if isinstance(statement, ast.Assign):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and not _read_only(module, statement.annotation):
            names = [statement.target.id]
        else:
            continue
        if statement.value is not None and names not in (["__all__"], ["__slots__"]) and _mutable(module, statement.value):
            yield statement.lineno, f"{', '.join(names)} is mutable state; make it immutable, or annotate it as Mapping or Sequence"


def _read_only(module: Module, annotation: ast.expr) -> bool:
    """Mapping[...], Sequence[...], AbstractSet[...], or Final of one: the type checker refuses every mutation."""
    if isinstance(annotation, ast.Subscript):
        if module.dotted(annotation.value).rsplit(".", 1)[-1] in ("Final", "ClassVar"):
            return _read_only(module, annotation.slice)
        return _read_only(module, annotation.value)
    return module.dotted(annotation).rsplit(".", 1)[-1] in READ_ONLY


def _mutable(module: Module, value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return module.dotted(value.func).rsplit(".", 1)[-1] in MUTABLE
    if isinstance(value, ast.IfExp):
        return _mutable(module, value.body) or _mutable(module, value.orelse)
    if isinstance(value, ast.BinOp):
        return _mutable(module, value.left) or _mutable(module, value.right)
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp | ast.GeneratorExp)


def no_print(module: Module) -> Iterator[Finding]:
    """Only the command line and the benchmarks print."""
    if not (module.in_corekit and module.room in ("cli", "bench")):
        for call, name in module.calls():
            if name in ("print", "sys.stdout.write", "sys.stderr.write"):
                yield call.lineno, f"{name}: only cli and bench print"


def nothing_runs_foreign_code(module: Module) -> Iterator[Finding]:
    """No pickle, no eval, no code from model folders."""
    for found in module.imports:
        if found.target.split(".")[0] in UNSAFE_IMPORTS:
            yield found.line, f"{found.target} can run foreign code"
    for call, name in module.calls():
        if name in UNSAFE_CALLS:
            yield call.lineno, f"{name}() can run foreign code"
        for keyword in call.keywords:
            if keyword.arg in ("trust_remote_code", "allow_pickle") and not _is_false(keyword.value):
                yield call.lineno, f"{keyword.arg} must be False"
    for node in module.nodes:
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in ("trust_remote_code", "allow_pickle") and not _is_false(value):
                    yield value.lineno, f"{key.value} must be False"


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def names_say_what(module: Module) -> Iterator[Finding]:
    """File and class names avoid words that name nothing."""
    yield from ((1, f"file name: {word}") for word in _avoided(module.path.rsplit("/", 1)[-1].removesuffix(".py")))
    for node in module.nodes:
        if isinstance(node, ast.ClassDef):
            yield from ((node.lineno, f"class {node.name}: {word}") for word in _avoided(node.name))


def _avoided(name: str) -> list[str]:
    words = (word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name))
    return [word for word in words if word in AVOIDED_WORDS or word.removesuffix("s") in AVOIDED_WORDS]


def module_docstrings(module: Module) -> Iterator[Finding]:
    """Every module says what it does."""
    if not (ast.get_docstring(module.tree) or "").strip():
        yield 1, "no module docstring"


def api_docstrings(module: Module) -> Iterator[Finding]:
    """Every public class and function of the contract is documented, and so is every method with two parameters or more.

    A property, or a method with one parameter at most, may rest on its name and its types.
    """
    if module.in_corekit and module.room == "api":
        yield from _undocumented(module.tree.body, "")


def _undocumented(body: list[ast.stmt], owner: str) -> Iterator[Finding]:
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        num_parameters = 0 if isinstance(node, ast.ClassDef) else len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs][1:])
        if not ast.get_docstring(node) and (not owner or num_parameters > 1):
            yield node.lineno, f"{owner}{node.name} has no docstring"
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node.body, f"{node.name}.")


def short_files(module: Module) -> Iterator[Finding]:
    """A file stays within the limit, so that it has one subject."""
    lines = module.text.count("\n")
    if lines > MAX_LINES:
        yield lines, f"{lines} lines, the limit is {MAX_LINES}"


RULES: tuple[Rule, ...] = (
    rooms,
    packages,
    corekit_knows_no_plugin,
    plugins_know_the_api,
    pluggy_composes,
    toml_in_compose,
    engine_knows_no_network,
    step_is_silent,
    environment_in_compose,
    no_module_state,
    no_print,
    nothing_runs_foreign_code,
    names_say_what,
    module_docstrings,
    api_docstrings,
    short_files,
)


def native_includes(text: str) -> Iterator[Finding]:
    """Below the bindings, native code includes neither Python nor torch."""
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*#\s*include\s*[<\"](Python\.h|pybind11/|nanobind/|torch/|ATen/|c10/|numpy/)", line):
            yield number, f"{line.strip()}: only bindings know Python, and nothing knows torch"
