"""The tree keeps every rule of the house; and every rule bites, shown by small offenders planted for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest
from architecture_rules import MAX_LINES, RULES, Rule, native_includes, short_files
from architecture_source import Module

ROOT = Path(__file__).resolve().parents[2]

LONG_FILES: Mapping[str, str] = {}
"""path -> why this file may be longer than the limit."""


@cache
def modules() -> tuple[Module, ...]:
    """Read and parsed once for all rules."""
    paths = [path for folder in ("corekit", "plugins") for path in sorted((ROOT / folder).rglob("*.py")) if "build" not in path.parts]
    return tuple(Module(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in paths)


def offences(rule: Rule, path: str, source: str) -> list[str]:
    return [reason for _, reason in rule(Module(path, dedent(source).lstrip("\n")))]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_tree_keeps(rule: Rule) -> None:
    found = [
        f"{module.path}:{line}: {reason}" for module in modules() for line, reason in rule(module) if rule is not short_files or module.path not in LONG_FILES
    ]
    assert not found, f"{rule.__doc__}\n" + "\n".join(found)


def test_the_tree_is_seen() -> None:
    seen = {module.path for module in modules()}
    assert {"corekit/__init__.py", "corekit/api/hookspecs.py", "corekit/engine/__init__.py"} <= seen
    assert any(path.startswith("plugins/") for path in seen)


def test_long_files_are_still_long() -> None:
    for path, reason in LONG_FILES.items():
        assert reason
        assert (ROOT / path).read_text("utf-8").count("\n") > MAX_LINES, f"{path} is short again: remove it from LONG_FILES"


def test_native_code_below_the_bindings_knows_no_python() -> None:
    native = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in {".h", ".hpp", ".c", ".cc", ".cpp", ".cu", ".cuh"}]
    sources = [path for path in native if not path.stem.endswith("bindings")]
    found = [f"{path.relative_to(ROOT)}:{line}: {reason}" for path in sources for line, reason in native_includes(path.read_text("utf-8"))]
    assert not found, "\n".join(found)


OFFENDERS = [
    # rule, path, source
    ("rooms", "corekit/api/types.py", "from ..engine import engine"),
    ("rooms", "corekit/api/types.py", "import corekit.weights"),
    ("rooms", "corekit/engine/scheduler.py", "from ..compose.config import Config"),
    ("rooms", "corekit/engine/scheduler.py", "from corekit.builtin.fcfs import Fcfs"),
    ("rooms", "corekit/engine/scheduler.py", "def late():\n    from ..worker import rows"),
    ("rooms", "corekit/engine/scheduler.py", "from .. import compose"),
    ("rooms", "corekit/engine/__init__.py", "from ..worker.rows import Rows"),
    ("rooms", "corekit/worker/runner.py", "import corekit.engine.request as r"),
    ("rooms", "corekit/worker/runner.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from corekit.engine.request import Request"),
    ("rooms", "corekit/weights/gguf_file.py", "from corekit.worker import kv_pool"),
    ("rooms", "corekit/weights/gguf_file.py", "import importlib\nm = importlib.import_module('corekit.compose.config')"),
    ("rooms", "corekit/builtin/fcfs.py", "from corekit.engine.step_plan import Plan"),
    ("rooms", "corekit/compose/assemble.py", "from ..builtin import fcfs"),
    ("rooms", "corekit/compose/assemble.py", "from ..cli import main"),
    ("rooms", "corekit/cli/serve.py", "from ..engine.scheduler import Scheduler"),
    ("rooms", "corekit/cli/serve.py", "from ..weights import open_source"),
    ("rooms", "corekit/llm.py", "from .worker import runner"),
    ("rooms", "corekit/testing/kit.py", "from corekit.engine import blocks"),
    ("rooms", "corekit/__init__.py", "from .api import SamplingParams"),
    ("rooms", "corekit/lounge/chair.py", "x = 1"),
    ("packages", "corekit/api/types.py", "import torch"),
    ("packages", "corekit/api/types.py", "def late():\n    import torch"),
    ("packages", "corekit/api/types.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import transformers"),
    ("packages", "corekit/api/types.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import torch"),
    ("packages", "corekit/engine/engine.py", "from torch import Tensor"),
    ("packages", "corekit/engine/engine.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import Tensor"),
    ("packages", "corekit/engine/client.py", "import transformers"),
    ("packages", "corekit/worker/runner.py", "import transformers"),
    ("packages", "corekit/cli/serve.py", "import torch"),
    ("packages", "corekit/__init__.py", "import numpy"),
    ("corekit_knows_no_plugin", "corekit/compose/catalog.py", "import corekit_openai_http"),
    ("corekit_knows_no_plugin", "corekit/builtin/plugin.py", "def late():\n    from corekit_lru_prefix import layer"),
    ("corekit_knows_no_plugin", "corekit/bench/serve.py", "from plugins.corekit_llama import model"),
    ("plugins_know_the_api", "plugins/corekit_llama/model.py", "from corekit.builtin.transformers_model import TransformersModel"),
    ("plugins_know_the_api", "plugins/corekit_llama/model.py", "from corekit import SamplingParams"),
    ("plugins_know_the_api", "plugins/corekit_llama/model.py", "import corekit"),
    ("plugins_know_the_api", "plugins/corekit_llama/model.py", "from corekit_paged_attention import kernels"),
    ("plugins_know_the_api", "plugins/corekit_llama/model.py", "def late():\n    import corekit.testing.kits"),
    ("pluggy_composes", "corekit/engine/engine.py", "import pluggy"),
    ("pluggy_composes", "corekit/api/slots.py", "from pluggy import HookimplMarker"),
    ("pluggy_composes", "plugins/corekit_llama/__init__.py", "from pluggy import HookimplMarker"),
    ("toml_in_compose", "corekit/cli/serve.py", "import tomli"),
    ("toml_in_compose", "plugins/corekit_llama/__init__.py", "import tomllib"),
    ("engine_knows_no_network", "corekit/engine/client.py", "from http import HTTPStatus"),
    ("engine_knows_no_network", "corekit/worker/runner.py", "import starlette.responses"),
    ("step_is_silent", "corekit/engine/scheduler.py", "import logging\nlog = logging.getLogger(__name__)\ndef commit():\n    log.info('committed')"),
    ("environment_in_compose", "corekit/engine/engine.py", "import os\nx = os.environ['A']"),
    ("environment_in_compose", "corekit/cli/serve.py", "import os\nx = os.getenv('A')"),
    ("environment_in_compose", "corekit/cli/serve.py", "from os import environ as e\nx = dict(e)"),
    ("environment_in_compose", "corekit/weights/hub.py", "import os as system\nx = system.path.expanduser('~')"),
    ("environment_in_compose", "corekit/weights/hub.py", "from pathlib import Path\nx = Path.home()"),
    ("environment_in_compose", "plugins/corekit_llama/model.py", "from pathlib import Path\nx = Path('~/m').expanduser()"),
    ("no_module_state", "corekit/engine/blocks.py", "table = {}"),
    ("no_module_state", "corekit/engine/blocks.py", "TABLE: dict[str, int] = {'a': 1}"),
    ("no_module_state", "corekit/engine/blocks.py", "from typing import Final\nNAMES: Final = ['a']"),
    ("no_module_state", "corekit/engine/blocks.py", "NAMES = [n for n in 'ab']"),
    ("no_module_state", "corekit/engine/blocks.py", "from collections import defaultdict\ncache = defaultdict(list)"),
    ("no_module_state", "corekit/engine/blocks.py", "import threading\nlock = threading.Lock()"),
    ("no_module_state", "corekit/engine/blocks.py", "import itertools\nids = itertools.count()"),
    ("no_module_state", "corekit/engine/blocks.py", "x = 0\ndef bump():\n    global x\n    x += 1"),
    ("no_module_state", "corekit/engine/blocks.py", "try:\n    seen = set()\nexcept ImportError:\n    pass"),
    ("no_module_state", "corekit/engine/blocks.py", "class Blocks:\n    cache = {}"),
    ("no_module_state", "corekit/engine/blocks.py", "class Blocks:\n    cache: dict[int, int] = {}"),
    ("no_module_state", "plugins/corekit_llama/model.py", "seen = set(['a'])"),
    ("no_print", "corekit/engine/engine.py", "def f():\n    print('x')"),
    ("no_print", "plugins/corekit_llama/model.py", "import sys\nsys.stderr.write('x')"),
    ("nothing_runs_foreign_code", "corekit/weights/folder.py", "import pickle"),
    ("nothing_runs_foreign_code", "corekit/weights/folder.py", "def late():\n    from cloudpickle import loads"),
    ("nothing_runs_foreign_code", "corekit/weights/folder.py", "import torch as t\nx = t.load('f')"),
    ("nothing_runs_foreign_code", "corekit/weights/folder.py", "from torch import load\nx = load('f')"),
    ("nothing_runs_foreign_code", "corekit/builtin/fcfs.py", "x = eval('1')"),
    ("nothing_runs_foreign_code", "corekit/builtin/fcfs.py", "exec('x = 1')"),
    ("nothing_runs_foreign_code", "corekit/builtin/hf.py", "import transformers\nx = transformers.AutoConfig.from_pretrained('p', trust_remote_code=True)"),
    ("nothing_runs_foreign_code", "corekit/builtin/hf.py", "yes = 1\nx = f('p', trust_remote_code=yes)"),
    ("nothing_runs_foreign_code", "corekit/builtin/hf.py", "x = f(**{'trust_remote_code': True})"),
    ("nothing_runs_foreign_code", "corekit/weights/folder.py", "import numpy as np\nx = np.load('f', allow_pickle=True)"),
    ("names_say_what", "corekit/engine/block_manager.py", "x = 1"),
    ("names_say_what", "corekit/engine/utils.py", "x = 1"),
    ("names_say_what", "corekit/engine/blocks.py", "class KVBlockHandler: pass"),
    ("names_say_what", "corekit/engine/blocks.py", "class BaseLayer: pass"),
    ("names_say_what", "corekit/engine/blocks.py", "def f():\n    class RequestInfo: pass"),
    ("module_docstrings", "corekit/engine/blocks.py", "x = 1"),
    ("module_docstrings", "plugins/corekit_llama/model.py", "# no docstring\nx = 1"),
    ("api_docstrings", "corekit/api/types.py", "class Thing:\n    x = 1"),
    ("api_docstrings", "corekit/api/types.py", "def thing(): ..."),
    ("api_docstrings", "corekit/api/types.py", 'class Thing:\n    """Words."""\n    def move(self, source, *, target): ...'),
    ("short_files", "corekit/engine/blocks.py", "x = 1\n" * (MAX_LINES + 1)),
]

INNOCENTS = [
    ("rooms", "corekit/compose/assemble.py", "from ..engine.engine import Engine\nfrom ..weights import open_source\nfrom . import catalog"),
    ("rooms", "corekit/llm.py", "from .engine.client import Client\nfrom .compose.assemble import assemble"),
    ("rooms", "corekit/cli/__init__.py", "from .. import __version__\nfrom .serve import serve"),
    ("rooms", "corekit/__init__.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .llm import LLM"),
    ("rooms", "corekit/builtin/fcfs.py", "from corekit.api import StepPlan\nfrom corekit.api.types import Prompt\nfrom .hf_tokenizer import HfTokenizer"),
    ("packages", "corekit/api/model.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import Tensor\n    import numpy as np"),
    ("packages", "corekit/weights/gguf_file.py", "import gguf, torch"),
    (
        "plugins_know_the_api",
        "plugins/corekit_llama/model.py",
        "from corekit.api import Model\nfrom .rope import rotate\nimport corekit_llama.rope\nimport torch",
    ),
    ("pluggy_composes", "corekit/compose/discovery.py", "import pluggy"),
    ("environment_in_compose", "corekit/compose/config.py", "import os\nx = os.environ"),
    ("environment_in_compose", "corekit/weights/hub.py", "import os\nx = os.path.join('a', 'b')\nenviron = {}"),
    ("step_is_silent", "corekit/engine/scheduler.py", "import logging\nlog = logging.getLogger(__name__)\nlog.debug('x')\nlog.error('a policy raised')"),
    ("no_module_state", "corekit/engine/blocks.py", "A = (1, 2)\nB = frozenset({1})\n__all__ = ['A']\nlog = get_logger()"),
    ("no_module_state", "corekit/engine/blocks.py", "from types import MappingProxyType\nA = MappingProxyType({'a': 1})"),
    (
        "no_module_state",
        "corekit/engine/blocks.py",
        "from collections.abc import Mapping\nfrom typing import Final\nA: Mapping[str, int] = {'a': 1}\nB: Final[Mapping[str, int]] = {}",
    ),
    ("no_module_state", "corekit/engine/blocks.py", "def f():\n    cache = {}\nclass A:\n    def __init__(self):\n        self.cache = {}"),
    ("no_module_state", "corekit/compose/config.py", "class Table(BaseModel):\n    stack: list[str] = []"),
    ("no_print", "corekit/cli/serve.py", "print('x')"),
    ("nothing_runs_foreign_code", "corekit/builtin/hf.py", "import re\nre.compile('x')\nmodel.eval()\nf('p', trust_remote_code=False)"),
    ("names_say_what", "corekit/engine/metadata.py", "class DatabaseRow: pass"),
    (
        "api_docstrings",
        "corekit/api/types.py",
        'class _Private: ...\nclass Thing:\n    """Words."""\n    @property\n    def size(self): ...\n    def drop(self, ticket): ...',
    ),
    ("short_files", "corekit/engine/blocks.py", "x = 1\n" * MAX_LINES),
]

BY_NAME: Mapping[str, Rule] = {rule.__name__: rule for rule in RULES}


@pytest.mark.parametrize(("rule", "path", "source"), OFFENDERS)
def test_a_planted_offender_is_found(rule: str, path: str, source: str) -> None:
    assert offences(BY_NAME[rule], path, source)


@pytest.mark.parametrize(("rule", "path", "source"), INNOCENTS)
def test_the_innocent_pass(rule: str, path: str, source: str) -> None:
    assert not offences(BY_NAME[rule], path, source)


def test_every_rule_has_an_offender() -> None:
    assert {rule for rule, _, _ in OFFENDERS} == set(BY_NAME)


@pytest.mark.parametrize("line", ["#include <Python.h>", '#include "torch/extension.h"', "  # include <pybind11/pybind11.h>", "#include <ATen/ATen.h>"])
def test_planted_native_includes_are_found(line: str) -> None:
    assert list(native_includes(f"#include <vector>\n{line}\n"))
    assert not list(native_includes("#include <vector>\n// #include <Python.h>\n"))
