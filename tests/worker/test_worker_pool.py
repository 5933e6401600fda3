"""The rank's threads for native code: every thread runs every job, barriers hold, callers take turns, nothing is left behind."""

from __future__ import annotations

import ctypes
import os
import pickle
import threading
from time import sleep

import pytest

from corekit.worker.pool import NativePool, open_pool

Job = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)


class Struct(ctypes.Structure):
    """corekit/api/include/corekit/pool.h, as a plugin in any language would read it."""


Struct._fields_ = [
    ("abi", ctypes.c_uint32),
    ("num_threads", ctypes.c_int32),
    ("run", ctypes.CFUNCTYPE(None, ctypes.POINTER(Struct), Job, ctypes.c_void_p)),
    ("barrier", ctypes.CFUNCTYPE(None, ctypes.POINTER(Struct))),
]


@pytest.fixture(params=[1, 2, 5])
def pool(request: pytest.FixtureRequest) -> NativePool:
    pool = open_pool(request.param)
    if pool is None:
        pytest.skip("installed without native code")
    return pool


def struct(pool: NativePool) -> Struct:
    return Struct.from_address(pool.address)


def test_the_struct_says_what_it_is(pool: NativePool) -> None:
    native = struct(pool)
    assert (native.abi, native.num_threads) == (1, pool.num_threads)
    assert pool.address == pool.address


def test_every_thread_runs_a_job_once(pool: NativePool) -> None:
    native = struct(pool)
    seen: list[tuple[int, int]] = []
    job = Job(lambda arg, thread, num_threads: seen.append((thread, num_threads)))
    for _ in range(50):
        native.run(native, job, None)
    assert sorted(seen) == sorted([(thread, pool.num_threads) for thread in range(pool.num_threads)] * 50)


def test_nobody_passes_a_barrier_before_all_have_come(pool: NativePool) -> None:
    native = struct(pool)
    arrived, wrong = [0] * 20, []

    def job(arg: int | None, thread: int, num_threads: int) -> None:
        for at in range(20):
            arrived[at] += 1  # under Python's lock, so no addition is lost
            native.barrier(native)
            if arrived[at] != num_threads:
                wrong.append((at, thread, arrived[at]))

    native.run(native, Job(job), None)
    assert not wrong
    assert arrived == [pool.num_threads] * 20


def test_callers_take_turns(pool: NativePool) -> None:
    native, inside, most = struct(pool), [0], [0]

    def job(arg: int | None, thread: int, num_threads: int) -> None:
        if thread == 0:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            sleep(0.0005)  # gives Python's lock away: another caller's job, if it ran now, would be seen
            inside[0] -= 1

    kept = Job(job)
    callers = [threading.Thread(target=lambda: [native.run(native, kept, None) for _ in range(30)]) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert most == [1]


def test_threads_end_with_the_pool() -> None:
    pool = open_pool(3)
    if pool is None:
        pytest.skip("installed without native code")
    before = num_threads()
    assert pool.address
    assert num_threads() == before + 2
    del pool
    assert num_threads() == before


def test_another_process_gets_threads_of_its_own() -> None:
    pool = NativePool(2)
    assert pickle.loads(pickle.dumps(pool)).num_threads == 2


def test_a_fork_has_no_threads_and_is_told() -> None:
    pool = open_pool(2)
    if pool is None:
        pytest.skip("installed without native code")
    assert pool.address
    child = os.fork()
    if child == 0:
        try:
            said = pool.address
        except RuntimeError as error:
            said = str(error)
        os._exit(0 if "a fork copies no threads" in str(said) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.address


@pytest.mark.parametrize(("count", "spin", "said"), [(0, 0, "num_threads is 0"), (1025, 0, "num_threads is 1025"), (1, -1, "spin is -1")])
def test_bounds(count: int, spin: int, said: str) -> None:
    native = pytest.importorskip("corekit.worker._pool")
    with pytest.raises(ValueError, match=said):
        native.Pool(count, spin)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs hardware: two cores to choose from")
def test_a_thread_leaves_the_core_of_the_caller() -> None:
    pool = open_pool(2)
    if pool is None:
        pytest.skip("installed without native code")
    before = set(os.listdir("/proc/self/task"))
    native, cores = struct(pool), sorted(os.sched_getaffinity(0))
    (helper,) = set(os.listdir("/proc/self/task")) - before
    nothing = ctypes.cast(ctypes.CDLL(None).sched_yield, Job)
    together = 0
    try:
        for core in cores[:2] * 20:
            os.sched_setaffinity(0, {core})  # to where the other may be
            for _ in range(20):
                native.run(native, nothing, None)
            together += core_of(helper) == core
            assert os.sched_getaffinity(int(helper)) == set(cores)  # it moved; where it may be is for others to say
    finally:
        os.sched_setaffinity(0, cores)
    assert together <= 5  # it goes when it has work, and the kernel may move it between


def test_a_core_that_somebody_else_took_away_is_not_gone_to() -> None:
    pool = open_pool(2)
    if pool is None or not hasattr(os, "sched_setaffinity"):
        pytest.skip("installed without native code, or threads have no cores here")
    before = set(os.listdir("/proc/self/task"))
    native, cores = struct(pool), sorted(os.sched_getaffinity(0))
    (helper,) = set(os.listdir("/proc/self/task")) - before
    try:
        for only in (cores[0], cores[-1]):
            os.sched_setaffinity(0, {only})
            os.sched_setaffinity(int(helper), {only})
            for _ in range(20):
                native.run(native, ctypes.cast(ctypes.CDLL(None).sched_yield, Job), None)
            assert os.sched_getaffinity(int(helper)) == {only}
    finally:
        os.sched_setaffinity(0, cores)


def num_threads() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))


def core_of(thread: str) -> int:
    with open(f"/proc/self/task/{thread}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[36])
