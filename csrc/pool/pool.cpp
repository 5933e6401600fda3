#include "pool/pool.h"

#include <algorithm>
#include <chrono>
#include <climits>

#ifdef __linux__
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace corekit {

namespace {

constexpr int least_patience = 4;

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#else
    std::this_thread::yield();
#endif
}

// Threads that wait for each other look to the kernel as if one core were enough for them, and beside a busy neighbour it may leave two on
// one, where a step takes longer than one thread alone would. The mask of the calling thread is as it was afterwards: whoever set it, or
// will, knows nothing of this.
#ifdef __linux__
int current_core() { return sched_getcpu(); }

// Moves to another core that the mask allows, if it is on this one.
void leave_core(int core) {
    cpu_set_t allowed;
    if (core < 0 || current_core() != core || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    cpu_set_t others = allowed;
    CPU_CLR(core, &others);
    if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}
#else
int current_core() { return -1; }
void leave_core(int) {}
#endif

} // namespace

void Gate::wait_beyond(uint32_t seen, int spin) {
    for (int i = 0; i < spin; i++) {
        if (value_.load(std::memory_order_acquire) != seen) return;
        pause_briefly();
    }
    // Spinning that was answered was worth it, and the next wait may spin longer; what was not is halved. The thread waited for may have
    // lost its core, to this very thread even, and then to spin is what it waits for. Once patience is gone, a wait in 32 tries anew.
    // (Deciding by the waits before: Karlin, Li, Manasse and Owicki 1991.)
    const int patience = patience_.load(std::memory_order_relaxed);
    const bool tries_anew = patience == 0 && num_waits_.fetch_add(1, std::memory_order_relaxed) % 32 == 0;
    if (spin_on(seen, tries_anew ? most_patience_ : patience)) {
        patience_.store(std::min(most_patience_, std::max(least_patience, 2 * patience)), std::memory_order_relaxed);
        return;
    }
    sleep_on(seen);
    patience_.store(patience / 2, std::memory_order_relaxed);
}

bool Gate::spin_on(uint32_t seen, int microseconds) const {
    if (microseconds == 0) return false;
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
    do {
        for (int i = 0; i < 16; i++) {
            if (value_.load(std::memory_order_acquire) != seen) return true;
            pause_briefly();
        }
    } while (std::chrono::steady_clock::now() < end);
    return false;
}

void Gate::sleep_on(uint32_t seen) {
    // Sequentially consistent on both sides: either open() sees the sleeper, or the sleeper sees the moved value.
    num_sleepers_.fetch_add(1);
#ifdef __linux__
    while (value_.load() == seen) syscall(SYS_futex, reinterpret_cast<uint32_t *>(&value_), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
    {
        std::unique_lock<std::mutex> lock(mutex_);
        moved_.wait(lock, [&] { return value_.load() != seen; });
    }
#endif
    num_sleepers_.fetch_sub(1);
}

void Gate::open() {
    value_.fetch_add(1);
    if (num_sleepers_.load() == 0) return;
#ifdef __linux__
    syscall(SYS_futex, reinterpret_cast<uint32_t *>(&value_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
    std::lock_guard<std::mutex> lock(mutex_);
    moved_.notify_all();
#endif
}

ThreadPool::ThreadPool(int num_threads, int spin) : num_threads_(num_threads), spin_(spin) {
    handle_.pool = {COREKIT_POOL_ABI, num_threads, &ThreadPool::run_on, &ThreadPool::barrier_on};
    handle_.owner = this;
    try {
        for (int thread = 1; thread < num_threads; thread++) threads_.emplace_back([this, thread] { serve(thread); });
    } catch (...) { // no more threads to be had: those that started are ended
        stopping_ = true;
        start_.open();
        for (auto &started : threads_) started.join();
        throw;
    }
}

ThreadPool::~ThreadPool() {
    stopping_ = true;
    start_.open();
    for (auto &thread : threads_) thread.join();
}

void ThreadPool::serve(int thread) {
    for (uint32_t seen = 0;; seen++) {
        start_.wait_beyond(seen, spin_);
        if (stopping_) return;
        leave_core(core_);
        job_(arg_, thread, num_threads_);
        if (num_left_.fetch_sub(1) == 1) done_.open();
    }
}

void ThreadPool::run(corekit_job job, void *arg) {
    std::lock_guard<std::mutex> lock(turn_);
    if (num_threads_ == 1) return job(arg, 0, 1);
    job_ = job;
    arg_ = arg;
    core_ = current_core();
    num_left_.store(num_threads_ - 1);
    const uint32_t before = done_.seen();
    start_.open();
    job(arg, 0, num_threads_);
    done_.wait_beyond(before, spin_);
}

void ThreadPool::barrier() {
    if (num_threads_ == 1) return;
    const uint32_t before = together_.seen();
    if (num_arrived_.fetch_add(1) == num_threads_ - 1) {
        num_arrived_.store(0);
        together_.open();
    } else {
        together_.wait_beyond(before, spin_);
    }
}

void ThreadPool::run_on(corekit_pool *pool, corekit_job job, void *arg) { reinterpret_cast<Handle *>(pool)->owner->run(job, arg); }

void ThreadPool::barrier_on(corekit_pool *pool) { reinterpret_cast<Handle *>(pool)->owner->barrier(); }

} // namespace corekit
