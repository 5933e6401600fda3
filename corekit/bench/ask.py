"""Asks an engine in this process, through the same client that frontends use."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from corekit.api import CorekitError, EngineClient, Prompt, SamplingParams

from .errors import BenchError, BenchUsage
from .load import Ask
from .trace import Trace
from .workload import Request, Workload


def ask_engine(client: EngineClient, heard: Callable[[int], None]) -> Ask:
    """Greedy, to the exact number of tokens; the counts are asserted. heard: told how many tokens came, for progress."""

    async def ask(request: Request) -> Trace:
        ids = request.token_ids
        prompt = Prompt(token_ids=ids) if ids is not None else Prompt(text=request.text)
        params = SamplingParams(temperature=0.0, max_tokens=request.num_output_tokens, ignore_eos=True)
        arrivals: list[float] = []
        num_output_tokens = num_prompt_tokens = num_cached_tokens = 0
        sent = perf_counter()
        try:
            async for output in client.generate(prompt, params):
                new = sum(len(sample.token_ids) for sample in output.outputs)
                if new:
                    arrivals.append(perf_counter())
                    heard(new)
                num_output_tokens += new
                num_prompt_tokens, num_cached_tokens = output.num_prompt_tokens, output.num_cached_tokens
        except CorekitError as error:
            raise BenchError(
                f"a request of {_prompt(request)} and {request.num_output_tokens} output tokens failed: {type(error).__name__}: {error}"
            ) from error
        if num_output_tokens != request.num_output_tokens:
            raise BenchError(f"a request of {_prompt(request)} asked for {request.num_output_tokens} tokens and got {num_output_tokens}: the engine miscounted")
        if ids is not None and num_prompt_tokens != len(ids):
            raise BenchError(f"a prompt of {len(ids)} ids was counted as {num_prompt_tokens} tokens: the engine miscounted")
        return Trace(
            num_prompt_tokens=num_prompt_tokens, num_cached_tokens=num_cached_tokens, num_output_tokens=num_output_tokens, sent=sent, arrivals=tuple(arrivals)
        )

    return ask


def vocab_size(client: EngineClient) -> int:
    """Ids that a prompt may hold: those that both the model and the tokenizer know."""
    return min(client.model.vocab_size, client.tokenizer.vocab_size)


def check_fits(client: EngineClient, workload: Workload) -> None:
    """Raises BenchUsage before anything runs when a request of the workload cannot fit the model."""
    num_ids, max_model_len = vocab_size(client), client.model.max_model_len
    for r, repetition in enumerate(workload.repetitions):
        for i, request in enumerate(repetition):
            ids = request.token_ids or ()
            place = f"workload {workload.origin}: {workload.name}.reps[{r}][{i}]"
            if ids and max(ids) >= num_ids:
                raise BenchUsage(
                    f"{place}.ids: has id {max(ids)}, but {client.model.name} knows ids below {num_ids}. "
                    "Was it made with another tokenizer? --prompts text sends its text."
                )
            if len(ids) + request.num_output_tokens > max_model_len:
                raise BenchUsage(
                    f"{place}: needs {len(ids)} + {request.num_output_tokens} positions, the context has {max_model_len}. "
                    "Raise model.max_model_len or block_allocator.num_blocks, or take a smaller workload."
                )


def _prompt(request: Request) -> str:
    return f"{len(request.token_ids)} ids" if request.token_ids is not None else f"{len(request.text or '')} characters"
