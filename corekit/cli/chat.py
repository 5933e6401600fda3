"""`corekit chat`: a conversation with a chat model, at a terminal or line by line from a pipe."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import click

from .common import overrides, read, say_loading, talk, target
from .failing import CONFIG, FAILED, USAGE, failing
from .loading import loaded
from .log import set_up
from .signals import Stopped, interrupting, stopping

if TYPE_CHECKING:
    from corekit.api import SamplingParams


@click.command()
@target
@click.option("--system", help="System message before the first question; /clear keeps it.")
@click.option("--max-tokens", type=click.IntRange(1, 2**31 - 1), help="Most tokens of an answer.  [default: what the context leaves]")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True, help="How far draws spread; 0 takes the likeliest token.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Seed that makes draws repeatable.")
@overrides
@talk
def chat(
    target: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float,
    seed: int | None,
    overrides: tuple[str, ...],
    log_level: str,
    debug: bool,
) -> None:
    """Talk with a chat model, which is told all that was said before.

    At a terminal /help lists the commands, Ctrl-C stops an answer, and Ctrl-D ends. From a pipe every line is a question.
    """
    set_up(log_level)
    try:
        with stopping():
            with failing(CONFIG, debug=debug):
                config = read(target, overrides)
            with failing(USAGE, debug=debug):
                params = _params(max_tokens, temperature, seed)
            say_loading(config, log_level)
            assembly = loaded(config, max_tokens=max_tokens, chats=True, advice="Its text is continued by `corekit run --raw`.", debug=debug)
            from .conversation import Conversation, Talk

            with failing(FAILED, debug=debug), assembly, Talk(assembly.client, params, Conversation(system)) as talk, interrupting():
                talk.run()
    except Stopped as stopped:
        raise click.exceptions.Exit(stopped.code) from None
    except KeyboardInterrupt:
        raise click.exceptions.Exit(128 + signal.SIGINT) from None


def _params(max_tokens: int | None, temperature: float, seed: int | None) -> SamplingParams:
    from corekit.api import SamplingParams

    return SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
