"""Plausible faults of the engine and the worker, planted one at a time. Each must break the law; one that does not names a missing test."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from corekit.builtin import torch_attention
from corekit.engine import blocks, engine, keys, prefixes, request, scheduler, step_plan
from corekit.worker import history, outcome, prompt_logprobs, restrictions, rows, runner, worker


@dataclass(frozen=True)
class Mutant:
    name: str
    owner: object
    method: str
    edits: tuple[tuple[str, str], ...]
    first_walk: int = 0
    """Where to begin: no earlier walk meets what it takes."""
    laws: tuple[Callable[[], object], ...] = ()
    """Tests that notice it; none: the walks and the scripted laws do."""


def mutant(name: str, owner: object, method: str, *edits: tuple[str, str], first_walk: int = 0, laws: tuple[Callable[[], object], ...] = ()) -> Mutant:
    return Mutant(name, owner, method, edits, first_walk, laws)


B, C, K, S, P = blocks.BlockTables, blocks.CopyJournal, keys.KeyChain, scheduler.Scheduler, step_plan.Step

MUTANTS = [
    mutant("block count rounds down", B, "span", ("-(-num_tokens // self.block_size)", "max(1, num_tokens // self.block_size)")),
    mutant("fork without copy", B, "needed", ("self.refs[table[first]] > 1", "False")),
    mutant("copy goes the wrong way", B, "extend", ("BlockRef(old), BlockRef(table[first])", "BlockRef(table[first]), BlockRef(old)")),
    mutant("copied block keeps its reference", B, "extend", ("self.refs[old] -= 1", "pass")),
    mutant("fork forgets a reference", B, "share", ("self.refs[block] += 1", "self.refs[block] += block != table[0] or not self.refs[block]")),
    mutant("double give", B, "release", ("if not self.refs[block]:", "if self.refs[block] < 2:")),
    mutant("published while half-shared", B, "publish", ("if self.refs[block] > 1:", "if False:")),
    mutant("copies reversed", C, "drain", ("tuple(self._copies)", "tuple(reversed(self._copies))")),
    mutant("copies dropped", C, "drain", ("copies, self._copies = tuple(self._copies), []", "copies, self._copies = (), []")),
    mutant(
        "copies made twice, a step late",
        C,
        "drain",
        ("copies, self._copies = tuple(self._copies), []", "copies, self._copies = getattr(self, 'late', ()), []; self.late = tuple(self._copies)"),
        ("tuple(self._copies)", "tuple(kept)"),
        ("copies, self._copies", "kept = self._copies; copies, self._copies"),
    ),
    mutant(
        "hash without parent",
        K,
        "_child",
        ("self._keys.get((parent, tokens, extra))", "self._keys.get((None, tokens, extra))"),
        ("self._keys[parent, tokens, extra]", "self._keys[None, tokens, extra]"),
        first_walk=43,
    ),
    mutant(
        "published before computed",
        S,
        "_publish",
        ("size = self.limits.block_size", "size = self.limits.block_size; r.num_committed = min(len(r.tokens), size * len(r.table))"),
    ),
    mutant("sibling shares with a leader that has left", S, "_fork", ("if leader.state is RequestState.RUNNING:", "if True:")),
    mutant("seats of siblings not returned", S, "_fork", ("leader.num_samples = 1", "pass")),
    mutant("sibling starts beyond the prompt", S, "_fork", ("r.num_committed = num_prompt", "r.num_committed = num_prompt + 1")),
    mutant("leak on abort", S, "_finish", ("self.step.vacate(r)", "(self.step.vacate(r) if reason != 'abort' else self.step.residents.remove(r))")),
    mutant("leak on a fault", S, "_finish", ("self.step.vacate(r)", "(self.step.vacate(r) if reason != 'error' else self.step.residents.remove(r))")),
    mutant("an aborted request stays in the waiting list", S, "_finish", ("self.waiting.remove(r)", "pass")),
    mutant("commit for a preempted request dropped", S, "commit", ("r.tokens.extend(accepted)", "r.tokens.extend(accepted if r.table else ())")),
    mutant(
        "tokens of a finished request kept",
        S,
        "commit",
        ("if r.state is RequestState.FINISHED:", "if r.state is RequestState.FINISHED and r.group.finished and r.group.finish_reason == 'abort':"),
    ),
    mutant("in flight never lowered", S, "commit", ("r.num_in_flight -= row.max_new_tokens", "r.num_in_flight -= min(1, row.max_new_tokens)")),
    mutant("rejected drafts count as computed", S, "commit", ("r.num_computed_tokens -= rejected", "pass")),
    mutant("rejected drafts count as committed", S, "commit", ("row.num_tokens - rejected", "row.num_tokens")),
    mutant("preempted in flight is never queued again", S, "commit", ("self.waiting.add(r)", "pass")),
    mutant("recompute forgets outputs", S, "_send", ("tuple(r.tokens)", "tuple(r.tokens[: r.num_prompt_tokens] + [7] * r.num_output_tokens)")),
    mutant("sibling draws as the leader", S, "_send", ("asked.seed, r.sample,", "asked.seed, 0,")),
    mutant("table of a new life sent from its middle", P, "vacate", ("[], 0, False", "[], min(1, r.table_sent), False")),
    mutant("copied block not sent", P, "_grant", ("r.table_sent = min(r.table_sent, changed)", "pass")),
    mutant("worker keeps the old life", P, "vacate", ("[], 0, False", "[], 0, r.sent")),
    mutant("in flight kept on undo", P, "preempt", ("r.num_in_flight -= row.max_new_tokens", "pass")),
    mutant("budget kept on undo", P, "preempt", ("self._budget += row.num_tokens", "pass")),
    mutant("undone row still runs", P, "preempt", ("self.rows.pop(r, None)", "self.rows.get(r)")),
    mutant("computed kept on preemption", request.Request, "lose", ("[], 0, 0, 0", "[], self.num_computed_tokens, 0, 0")),
    mutant(
        "readmitted before its tokens are known", P, "_admit", ("if r.steps_in_flight or not r.queued or r.awaits is not None:", "if False:"), first_walk=63
    ),
    mutant("hit without holding", P, "_admit", ("blocks.hold(match)", "blocks.share([b.place.block for b in match.blocks])")),
    mutant(
        "hit counted one block short",
        P,
        "_admit",
        ("start = len(match.blocks) * blocks.block_size", "start = max(0, len(match.blocks) - 1) * blocks.block_size"),
    ),
    mutant("table kept when the stack breaks its word", P, "_admit", ("blocks.release(table)", "pass"), first_walk=43),
    mutant("cached to the last token", prefixes.Prefixes, "_most", ("(len(r.tokens) - 1)", "len(r.tokens)")),
    mutant("max_tokens without what is in flight", P, "schedule", ("r.num_known >= r.max_known", "len(r.tokens) >= r.max_known")),
    mutant("ends while its drafts are in flight", P, "_end", ("if r.steps_in_flight:", "if False:")),
    mutant("last alone never ends", P, "_continue", (" if len(self.residents) > 1 else self._end(r)", "")),
    mutant("a shared block is written by the fast path", P, "schedule_many", ("and refs[r.table[-1]] == 1", "")),
    mutant("the fast path forgets that a block is full", P, "schedule_many", ("and computed % size", "")),
    mutant("the fast path forgets what is in flight", P, "schedule_many", ("r.num_in_flight += 1", "r.num_in_flight += not r.num_in_flight")),
    mutant("drafts beyond the answer", P, "_drafts", ("r.max_known - r.num_known - 1", "most")),
    mutant(
        "copies after the KV writes",
        worker.RankWorker,
        "submit",
        ("copying = self._runner.copy(step.copies)", "copying = None"),
        ("self._runner.run(batch, self._rows)", "self._runner.run(batch, self._rows); self._runner.copy(step.copies)"),
    ),
    mutant(
        "keys are not copied",
        torch_attention.TorchAttention,
        "copy_blocks",
        ("zip(source_pool or (), target_pool or (), strict=True)", "list(zip(source_pool or (), target_pool or ()))[1:]"),
    ),
    mutant("attends one position too far", torch_attention.TorchAttention, "_part", ("key <= query", "key <= query + 1")),
    mutant("wrong slot inside later blocks", runner.Runner, "_pack", ("+ positions % size", "+ (positions % size) * (positions < size)")),
    mutant(
        "a chunk computes the tokens after it", runner.Runner, "_tokens", ("[start : start + count]", "[start + (start > 0) : start + (start > 0) + count]")
    ),
    mutant("wrong guesses are kept", outcome, "accept", ("kept[-1] == guesses[at]", "True")),
    mutant("accepted guesses count as uncomputed", rows.Rows, "append", ("+= len(tokens) - 1", "+= 0")),
    mutant(
        "a stale table goes on", rows.Rows, "_extend_table", ("[place, start:end] = blocks", "[place, max(start, old):end] = blocks[max(start, old) - start:]")
    ),
    mutant("samples of a leader draw alike", worker, "plan_draws", ("np.where(after == 0, nth, 0)", "0")),
    mutant("a guess is drawn at its neighbour's position", worker, "plan_draws", ("[owner] + after,\n        index", "[owner],\n        index")),
    mutant(
        "a guess is judged by the row before it",
        worker,
        "plan_draws",
        ("(num_logits.cumsum() - num_logits)[owner] + after", "(num_logits.cumsum() - num_logits)[owner]"),
    ),
    mutant("min_tokens counts the prompt", restrictions.Restrictions, "_num_output", ("- self._num_prompt", "")),
    mutant("an id that ends is banned too long", rows.Rows, "level", ("< columns.min_tokens", "<= columns.min_tokens")),
    mutant(
        "repetition forgets the prompt",
        restrictions.Restrictions,
        "__init__",
        ("History(prompt if self.repetition != 1 else (), output)", "History((), output)"),
    ),
    mutant("frequency counts the prompt", restrictions.Restrictions, "__init__", ("else (), output)", "else (), [*prompt, *output])")),
    mutant("a history begins anew on readmission", restrictions.Restrictions, "__init__", ("else (), output)", "else (), ())")),
    mutant("a history hears of single tokens only", rows.Rows, "append", ("self._count(place, tokens)", "self._count(place, tokens[:1])")),
    mutant("a history hears nothing of plain draws", rows.Rows, "append_one", ("self._count(place, (token,))", "pass")),
    mutant("guesses count for no penalty", history.History, "counts", ("if not guesses:", "if True:")),
    mutant(
        "bad words begin in the prompt",
        restrictions.Restrictions,
        "_completing",
        ("max(self._num_prompt, len(tokens) - self._longest)", "max(0, len(tokens) - self._longest)"),
    ),
    mutant("guesses count for no bad word", restrictions.Restrictions, "_completing", (", *guesses)", ",)")),
    mutant("logprobs of a prompt one position early", prompt_logprobs.PromptScorer, "score", ("position=start + 1", "position=start")),
    mutant(
        "a chunk's last logprob is lost",
        prompt_logprobs.PromptScorer,
        "score",
        ("batch.start + batch.num_known, columns.num_prompt[place] - 1", "batch.start + batch.num_known - 1, columns.num_prompt[place] - 1"),
    ),
    mutant("a mask before the tokens it follows from", engine.Engine, "_submit", ("while self._flights:", "while False:")),
    mutant("a mask for rows that draw nothing, not for those that do", S, "masks", ("and row.num_samples and", "and not row.num_samples and")),
    mutant(
        "siblings' constraints hear nothing",
        S,
        "commit",
        ("one.constraint is None or one.constraint.accept(drawn[n])", "one is not r or one.constraint is None or one.constraint.accept(drawn[n])"),
    ),
    mutant("a cached prompt has no logprobs", prefixes.Prefixes, "read", (" and r.group.prompt_logprobs is None", "")),
    mutant("logprobs of a prompt appended", request.Group, "keep_prompt_logprobs", ("[first : first + len(scored)] = scored", ".extend(scored)")),
    mutant(
        "logprobs of a prompt sent twice",
        request.Group,
        "take_prompt_logprobs",
        ("tuple(self.prompt_logprobs), None", "tuple(self.prompt_logprobs), self.prompt_logprobs"),
    ),
    mutant("bad words stay at the door", S, "_send", (", asked.bad_words)", ")")),
    mutant(
        "the guilty row takes its neighbour along",
        runner,
        "isolate",
        ("if end - first == 1:", "if end - first <= 2:"),
        ("faults[first] =", "faults[first] = faults[end - 1] ="),
    ),
]


@contextmanager
def planted(one: Mutant) -> Iterator[None]:
    original = one.owner.__dict__[one.method]
    source = textwrap.dedent(inspect.getsource(original))
    for old, new in one.edits:
        assert old in source, f"{one.name}: {one.method} has no {old!r}"
        source = source.replace(old, new)
    scope: dict = {}
    exec("from __future__ import annotations\n" + source, original.__globals__, scope)
    setattr(one.owner, one.method, scope[one.method])
    try:
        yield
    finally:
        setattr(one.owner, one.method, original)
