"""Plausible faults of parking, of prefixes in flight and of what is counted of them. Those that leave every token right name the law that notices."""

from __future__ import annotations

from functools import partial

import test_engine_awaiting as awaiting
import test_engine_broken_stack as broken
import test_engine_keys as keyed
import test_engine_memory as memory
import test_engine_parked_states as states
import test_engine_rates as rated
import test_engine_sharing as sharing
from mutants import mutant

from corekit.builtin.fcfs import Fcfs
from corekit.engine import claims, counts, engine, keys, parking, prefixes, rates, request, scheduler, step_plan, waiting

C, K, P, Q, R, S, T = claims.Claims, keys.KeyChain, parking.Parking, request.Request, rates.Rates, scheduler.Scheduler, step_plan.Step
X = prefixes.Prefixes

MEMORY_MUTANTS = [
    # parking
    mutant(
        "parked without its last block",
        P,
        "park",
        ("blocks.span(r.num_computed_tokens)", "r.num_computed_tokens // blocks.block_size"),
        laws=(states.test_all_that_was_computed_is_parked_and_what_has_committed_under_its_keys,),
    ),
    mutant(
        "what was parked starts one token too far",
        T,
        "_admit",
        ("else r.num_computed_tokens", "else min(r.num_computed_tokens + 1, len(r.tokens) - 1)"),
        laws=(partial(states.test_what_was_parked_is_neither_computed_again_nor_passed_over, False),),
    ),
    mutant(
        "what was parked starts one token too early",
        T,
        "_admit",
        ("else r.num_computed_tokens", "else max(0, r.num_computed_tokens - 1)"),
        laws=(partial(states.test_what_was_parked_is_neither_computed_again_nor_passed_over, False),),
    ),
    mutant(
        "rejected guesses stay with who is parked",
        S,
        "commit",
        ("if r.state is not RequestState.PREEMPTED:", "if r.state is RequestState.RUNNING:"),
        laws=(partial(states.test_room_is_counted_for_the_whole_ticket, 6, 0, states.Reason.BLOCKS),),
    ),
    mutant(
        "the ticket of an aborted request is kept",
        S,
        "_finish",
        ("self.blocks.forget(r.ticket)", "pass"),
        laws=(partial(states.test_an_abort_gives_everything_back_in_every_state, "lru+swap", "parked"),),
    ),
    mutant(
        "an undone row counts as computed",
        T,
        "preempt",
        ("r.num_computed_tokens = row.start", "pass"),
        laws=(partial(states.test_what_was_parked_is_neither_computed_again_nor_passed_over, True),),
    ),
    mutant(
        "keys of blocks that have not committed",
        P,
        "num_keyed",
        ("r.num_committed //", "r.num_computed_tokens //"),
        laws=(states.test_all_that_was_computed_is_parked_and_what_has_committed_under_its_keys,),
    ),
    mutant(
        "who comes back has published nothing",
        T,
        "preempt",
        ("r.num_published = self._parking.num_keyed(r)", "r.num_published = 0"),
        laws=(memory.test_who_comes_back_from_the_host_retains_its_blocks_again,),
    ),
    mutant(
        "sibling of a parked leader shares its blocks",
        S,
        "_fork",
        ("if leader.state is RequestState.RUNNING:", "if leader.state is not RequestState.PREEMPTED:"),
        laws=(partial(states.test_siblings_of_a_leader_that_is_parked_begin_anew, "swap"),),
    ),
    mutant(
        "aborted, and still to return",
        S,
        "_finish",
        ("self._returning.discard(r)", "pass"),
        laws=(partial(states.test_an_abort_gives_everything_back_in_every_state, "swap", "parked with rows in flight"),),
    ),
    mutant(
        "room without what swap_in takes",
        T,
        "_admit",
        ("max(blocks.span(end), r.num_parked_blocks)", "blocks.span(end)"),
        laws=(partial(states.test_room_is_counted_for_the_whole_ticket, 8, 2, states.Reason.WATERMARK),),
    ),
    mutant(
        "a parked request is looked for beyond its ticket",
        X,
        "match",
        ("r.keys[: r.num_published]", "r.keys"),
        laws=(memory.test_who_comes_back_has_what_it_parked_though_another_has_more,),
    ),
    mutant(
        "the configuration overrules the policy",
        T,
        "preempt",
        ("mode or self._limits.preemption", "self._limits.preemption or mode"),
        laws=(partial(rated.test_the_policy_decides_then_the_configuration_then_the_rates, "recompute", "swap", rated.QUICK),),
    ),
    mutant(
        "what others hold is weighed",
        P,
        "_is_quicker",
        ("self._blocks.refs[block] == 1", "True"),
        laws=(rated.test_what_others_hold_is_neither_copied_nor_lost,),
    ),
    mutant("copied one way only", P, "_is_quicker", ("2 * num_lost", "num_lost"), laws=(rated.test_what_others_hold_is_neither_copied_nor_lost,)),
    mutant(
        "old steps never fade",
        R,
        "computed",
        ("MEMORY * self._tokens", "self._tokens"),
        ("MEMORY * self._token_seconds", "self._token_seconds"),
        laws=(partial(rated.test_old_steps_fade, "computed"),),
    ),
    mutant(
        "answers count as reading",
        engine.Engine,
        "_learn",
        (">= 2 *", ">= 0 *"),
        laws=(rated.test_an_engine_learns_from_steps_that_read_prompts_and_from_copies,),
    ),
    # prefixes in flight
    mutant(
        "claims outlive their writer",
        T,
        "vacate",
        ("self._claims.release(r)", "pass"),
        laws=(partial(sharing.test_when_the_writer_leaves_another_goes_on_where_it_was, "abort"),),
    ),
    mutant(
        "woken while it stands in line, and queued twice",
        C,
        "_wake",
        ("for r in woken if not r.queued", "for r in woken"),
        laws=(sharing.test_who_is_woken_in_the_plan_in_which_it_began_to_wait_keeps_its_place,),
    ),
    mutant(
        "who awaits a prefix stays in line",
        S,
        "_settle",
        ("if r.awaits is not None and r.queued:", "if False:"),
        laws=(awaiting.test_those_who_wait_for_a_prefix_count_as_waiting_and_as_queued,),
    ),
    mutant("a key that was published is still awaited", C, "published", ("self._writers.pop(key, None)", "self._writers.get(key)")),
    mutant(
        "an aborted one still awaits its prefix",
        C,
        "leave",
        ("del waiting[r]", "pass"),
        laws=(partial(awaiting.test_a_waiter_may_be_aborted_whenever, "it waits"),),
    ),
    mutant(
        "an aborted one is woken",
        C,
        "leave",
        ("self.free.pop(r, None)", "pass"),
        laws=(partial(awaiting.test_a_waiter_may_be_aborted_whenever, "it was woken"),),
    ),
    mutant(
        "a writer that gets nothing is waited for",
        C,
        "_moves",
        ("return writer", "return True or writer"),
        laws=(sharing.test_when_the_writer_gets_nothing_one_of_those_who_wait_takes_over,),
    ),
    mutant(
        "a writer that gets nothing keeps its keys",
        C,
        "claim",
        ("and not self._moves(writer, step)", "and False"),
        laws=(sharing.test_when_the_writer_gets_nothing_one_of_those_who_wait_takes_over,),
    ),
    mutant(
        "woken for every block",
        C,
        "awaited",
        ("while first + 1 < end and", "while False and"),
        laws=(partial(awaiting.test_two_thousand_that_wait_for_one_prefix_are_looked_at_twice, Fcfs),),
    ),
    mutant(
        "nobody waits",
        X,
        "awaited",
        ("return self._claims", "return None and self._claims"),
        laws=(partial(sharing.test_eight_that_arrive_together_compute_their_prefix_once, Fcfs, 256, 0, 1),),
    ),
    mutant(
        "room is made for who awaits a prefix",
        T,
        "victims_for",
        ("if waits and self._prefixes.awaited(r, len(match.blocks), self.number) is not None:", "if False:"),
        laws=(awaiting.test_those_who_wait_for_a_prefix_count_as_waiting_and_as_queued,),
    ),
    # keys, retention, counts
    mutant("keys without the salt", K, "extend", ("(at + 1) * size]), extra)", "(at + 1) * size]), ())"), laws=(sharing.test_different_salts_never_share,)),
    mutant(
        "tags run into one another",
        K,
        "_child",
        ('content += [struct.pack("<q", len(tag)), tag]', "content += [tag]"),
        laws=(partial(keyed.test_tags_are_told_apart_whatever_their_lengths, ("a", "bc"), ("ab", "c")),),
    ),
    mutant("the seed is not used", K, "_child", ("else self._seed", 'else b""'), laws=(keyed.test_a_seed_gives_the_same_hashes_and_another_gives_others,)),
    mutant(
        "the wrong blocks are retained",
        X,
        "begin",
        ("r.table[: len(match.blocks)]", "r.table[-len(match.blocks) :]"),
        laws=(memory.test_who_comes_back_from_the_host_retains_its_blocks_again,),
    ),
    mutant(
        "hits retain nothing",
        X,
        "begin",
        ("if r.group.retention and", "if False and"),
        laws=(partial(memory.test_a_hit_retains_what_it_hit_as_long_as_it_asks, 5.0),),
    ),
    mutant("retained from the start of time", S, "_publish", ("self.step.now + ", ""), laws=(memory.test_blocks_are_retained_from_when_they_were_computed,)),
    mutant(
        "copies counted twice",
        S,
        "schedule",
        ("self.counts.submitted(copies)", "self.counts.submitted(copies * 2)"),
        laws=(partial(memory.test_bytes_are_those_of_the_blocks_that_steps_copy, "swap"),),
    ),
    mutant(
        "copies of forks count as swapped",
        counts.Counts,
        "_copied",
        ("elif source.on_host:", "else:"),
        laws=(partial(memory.test_bytes_are_those_of_the_blocks_that_steps_copy, "swap"),),
    ),
    mutant(
        "looked up at every admission",
        S,
        "_admitted",
        ("if r.fresh:", "if True:"),
        laws=(partial(memory.test_a_prompt_is_counted_once_however_often_it_is_admitted, "swap", False, 2),),
    ),
    mutant("a full host is not counted", P, "park", ("+= ticket is None", "+= 0"), laws=(memory.test_a_full_host_is_counted_and_the_victim_computes_again,)),
    mutant(
        "never ran, and counts as begun",
        waiting.WaitingList,
        "remove",
        ("r.queued = False", "r.queued = False; self.began(r)"),
        laws=(awaiting.test_those_who_wait_for_a_prefix_count_as_waiting_and_as_queued,),
    ),
    # room, and layers that break their word
    mutant(
        "who lacks room looks for all of its prefix each time",
        T,
        "_is_still_short",
        ("not self.residents or", "True or"),
        laws=(partial(broken.test_who_lacks_room_looks_for_its_prefix_once, 0),),
    ),
    mutant(
        "who lacked room waits for more than it lacked",
        T,
        "_is_still_short",
        (">= short.num_lacking", ">= short.num_lacking + 99"),
        laws=(partial(broken.test_who_lacks_room_looks_for_its_prefix_once, 0),),
    ),
    mutant(
        "a ticket that is not taken back is asked for again",
        T,
        "_mistrust",
        ("if r.ticket is not None:", "if False:"),
        laws=(broken.test_who_is_never_given_back_what_was_parked_computes_it_again,),
    ),
    mutant(
        "a hit that is not given is asked for again", T, "_mistrust", ("r.mistrusts = True", "pass"), laws=(broken.test_a_hit_that_is_never_held_is_computed,)
    ),
]
