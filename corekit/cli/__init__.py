"""The command line: `corekit`. One file per verb, imported when the verb is called, so that help is there at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from corekit import __version__
from corekit.compose.process import own_process, wants_color

from .group import Group

_VERBS: Mapping[str, tuple[str, str]] = {
    "serve": ("corekit.cli.serve:serve", "Serve a model over HTTP."),
    "run": ("corekit.cli.run:run", "Answer one prompt and end."),
    "chat": ("corekit.cli.chat:chat", "Talk with a chat model."),
    "check": ("corekit.cli.check:check", "Compose everything except weights; say what fills each slot."),
    "config": ("corekit.cli.config:config", "Show the configuration, where each value comes from, and what it may say."),
    "plugins": ("corekit.cli.plugins:plugins", "List every provider that is installed."),
    "bench": ("corekit.cli.bench:bench", "Measure latency, throughput, a server, the engine or KV memory."),
}


class Verbs(Group):
    """Verbs are known by name and summary; their modules load when they are called."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        finally:
            for stream in (sys.stdout, sys.stderr):
                _let_go(stream)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module, _, name = _VERBS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _VERBS.items()])


def _let_go(stream: Any) -> None:
    """What a stream still holds and cannot write was told before: Python would try again at the end, and put its own exit code over ours."""
    try:
        stream.flush()
    except (OSError, ValueError, AttributeError):  # full, closed, or never there
        with suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 a request failed or was refused, 2 usage, 3 configuration, 4 model, 5 address. After a signal serve "
    "ends with 0, the others with 130 (SIGINT) or 143 (SIGTERM); a second signal ends any of them with those at once.",
)
@click.version_option(__version__, prog_name="corekit", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """corekit: an LLM serving engine that you assemble.

    `corekit serve` with no argument serves a small demo model with an OpenAI-compatible API on 127.0.0.1:8000.
    """
    own_process()
    if not wants_color():
        ctx.color = False
