"""Any server with OpenAI's completions as one of the engines that are compared: llama-server, vLLM, corekit, ...

python peer_server.py --engine llama-server --precision Q8_0 --url http://127.0.0.1:8080 --workload workload.json
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from dataclasses import replace

import peer_rows

from corekit.bench.errors import BenchUsage
from corekit.bench.http_client import Server
from corekit.bench.machine import is_local, listening_process


def parser() -> argparse.ArgumentParser:
    found = peer_rows.arguments("Measures a running server by streamed completions and appends rows.")
    found.add_argument("--engine", required=True, help="what the rows call it")
    found.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server, with or without /v1")
    found.add_argument("--model", default="", help="name of the model at the server; without it the first that it lists")
    found.add_argument("--api-key-variable", metavar="NAME", help="environment variable that holds the server's key")
    found.add_argument("--prompts", choices=["ids", "text"], help="form in which prompts are sent; without it ids where there are any")
    found.add_argument("--vocab-size", type=int, help="of the server: built-in prompts are then ids below it")
    found.add_argument("--server-pid", type=int, help="process of a local server; without it the one that listens at the port")
    found.add_argument("--args", default="", help="settings of the server, to tell its rows apart")
    return found


async def measured(options: argparse.Namespace) -> None:
    key = os.environ.get(options.api_key_variable or "", "")
    server = Server(url=options.url, model=options.model, api_key=key)
    host, port, _ = server.address
    if not options.precision:
        raise BenchUsage("--precision is missing: a server does not tell in which precision it computes.")
    chosen, reps = peer_rows.workloads(options, options.vocab_size, options.prompts), peer_rows.repetitions(options)
    if not server.model:
        server = replace(server, model=await server.first_model())
    pid = options.server_pid or (listening_process(port) if is_local(host) else None)
    driver = peer_rows.Driver(
        engine=options.engine,
        precision=options.precision,
        ask=server.ask,
        about={"model": server.model, "args": options.args},
        processes=[pid] if pid else [],
    )
    await peer_rows.run(driver, chosen, reps, options)


def main() -> None:
    asyncio.run(measured(parser().parse_args()))


if __name__ == "__main__":
    sys.exit(peer_rows.told(main))
