"""`corekit run`: one prompt, its answer as it comes, and the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .common import overrides, say_loading, talk
from .common import read as read_config
from .failing import CONFIG, FAILED, USAGE, fail, failing, say, standard_input
from .loading import loaded
from .log import set_up, tell
from .signals import Stopped, run_until_signal, stopping

if TYPE_CHECKING:
    from corekit.api import Prompt, SamplingParams
    from corekit.compose.assembly import Assembly


@click.command()
@click.argument("prompt")
@click.option("--config", "file", metavar="FILE", help="TOML file with the configuration.")
@click.option("--model", "source", metavar="SOURCE", help="Where the weights come from, as in `corekit serve`.")
@click.option("--system", help="System message before the prompt.")
@click.option("--raw", is_flag=True, help="Continue the text as it is, without a chat template.")
@click.option("--max-tokens", type=click.IntRange(1, 2**31 - 1), default=256, show_default=True, help="Most tokens of the answer.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True, help="How far draws spread; 0 takes the likeliest token.")
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Draw from the smallest set of tokens of at least this probability.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Seed that makes draws repeatable.")
@overrides
@talk
def run(
    prompt: str,
    file: str | None,
    source: str | None,
    system: str | None,
    raw: bool,
    max_tokens: int,
    temperature: float,
    top_p: float,
    seed: int | None,
    overrides: tuple[str, ...],
    log_level: str,
    debug: bool,
) -> None:
    """Answer PROMPT with a chat model, printing the answer as it comes. `-` reads the prompt from standard input."""
    set_up(log_level)
    if raw and system is not None:
        fail("--system needs a chat template, which --raw leaves out", USAGE)
    try:
        with stopping():
            text = _standard_input() if prompt == "-" else prompt
            if not text:
                fail("PROMPT is empty, so there is nothing to answer. Give at least one character.", USAGE)
            with failing(CONFIG, debug=debug):
                config = read_config(source, overrides, file=file)
            say_loading(config, log_level)
            from corekit.api import Prompt, SamplingParams

            roles = [("system", system), ("user", text)] if system is not None else [("user", text)]
            messages = tuple({"role": role, "content": content} for role, content in roles)
            with failing(USAGE, debug=debug):
                asked = Prompt(text=text) if raw else Prompt(messages=messages, template={"add_generation_prompt": True})
                params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
            assembly = loaded(config, max_tokens=max_tokens, chats=not raw, advice="--raw continues the text as it is.", debug=debug)
            with failing(FAILED, debug=debug), assembly:
                run_until_signal(_answer(assembly, asked, params))
    except Stopped as stopped:
        raise click.exceptions.Exit(stopped.code) from None


def _standard_input() -> str:
    try:
        return standard_input().read().decode()
    except UnicodeDecodeError as error:
        fail(f"-: standard input is not UTF-8 text ({error.reason} at byte {error.start}). Convert it, or give the prompt as an argument.", USAGE)
    except (OSError, ValueError, AttributeError) as error:  # closed, or none at all
        fail(f"-: standard input cannot be read: {error}. Give the prompt as an argument.", USAGE)


async def _answer(assembly: Assembly, prompt: Prompt, params: SamplingParams) -> None:
    async for output in assembly.client.generate(prompt, params):
        for part in output.outputs:
            say(part.text, nl=False)
    say()
    if any(part.finish_reason == "length" for part in output.outputs):
        tell(f"(stopped at --max-tokens {params.max_tokens})")
