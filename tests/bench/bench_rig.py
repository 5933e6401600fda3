"""A benchmark's command line in this process, a model without weights for it, and a real server. Knows no test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from click.testing import CliRunner, Result

from corekit.cli.bench import bench

QUIET = ["--max-foreign", "4096"]
"""Neighbours of a test run must not make it longer."""
FINGERPRINT = ["none", "--set", "model.use=fingerprint", "--set", "tokenizer.use=bytes", "--set", "block_allocator.num_blocks=64"]


def invoked(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(bench, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@contextmanager
def serving() -> Iterator[str]:
    """A real server on a free port, in a thread of this process."""
    from corekit_openai_http.frontend import OpenAiHttp
    from corekit_openai_http.options import HttpOptions

    from corekit.compose.assemble import assemble

    frontend = OpenAiHttp(HttpOptions(port=0, api_keys=("secret",)))
    config = {"model": {"source": "none", "use": "fingerprint"}, "tokenizer": {"use": "bytes"}, "block_allocator": {"num_blocks": 64}}
    with assemble(config, frontends=(frontend,), environ={}) as assembly:
        frontend.bind()
        loop = asyncio.new_event_loop()
        serving = loop.create_task(assembly.serve())

        def run() -> None:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(asyncio.wait([serving]))
            loop.close()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield frontend.address or ""
        finally:
            loop.call_soon_threadsafe(serving.cancel)
            thread.join()
