"""From a configuration to an engine without frontends, for verbs that ask it themselves. What can be refused is refused before weights load."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from corekit.compose.process import give_back, nothing_collected

from .failing import CONFIG, FAILED, LOAD, USAGE, fail, failing
from .log import adopt, draws_bars

if TYPE_CHECKING:
    from corekit.compose.assembly import Assembly
    from corekit.compose.config import Config


def loaded(config: Config, *, max_tokens: int | None, chats: bool, advice: str, debug: bool) -> Assembly:
    """The engine, not started. chats: it needs a chat template; advice: what to do where the model has none. Ends the command otherwise."""
    with failing(CONFIG, debug=debug), nothing_collected():
        from corekit.compose.ahead import load_ahead

        load_ahead()
        from corekit.compose.assemble import finish
        from corekit.compose.composition import compose

        composition = compose(config, given={"frontend": ()}, clock=time.monotonic, progress=draws_bars())
    adopt()
    if chats and not composition.tokenizer.has_chat_template:
        fail(f"{composition.source.name} has no chat template: it is not a chat model. {advice}", USAGE)
    longest = composition.context.max_model_len
    if max_tokens is not None and max_tokens >= longest:
        fail(f"--max-tokens {max_tokens}: prompt and answer together have at most {longest} tokens here. Ask for at most {longest - 1}.", FAILED)
    with failing(LOAD, debug=debug):
        assembly = finish(composition)
    adopt()
    give_back()
    return assembly
