// Threads that wait for work with a short spin and then sleep, so that two pools or a busy neighbour never fight for a core.
// Knows no work. Linux futexes; elsewhere a condition variable.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "corekit/pool.h"

namespace corekit {

// A counter that threads wait on until it moves. How long a wait spins before it sleeps is learnt: to be woken may take longer than
// what is waited for, but who spins while a neighbour has the other thread's core uses up its own time for nothing.
class Gate {
public:
    // most_patience: microseconds that a wait spins at most, after its first pauses.
    explicit Gate(int most_patience) : most_patience_(most_patience), patience_(most_patience) {}
    uint32_t seen() const { return value_.load(std::memory_order_acquire); }
    // spin: pauses that every wait begins with.
    void wait_beyond(uint32_t seen, int spin);
    void open();

private:
    bool spin_on(uint32_t seen, int microseconds) const;
    void sleep_on(uint32_t seen);

    alignas(64) std::atomic<uint32_t> value_{0};
    alignas(64) std::atomic<uint32_t> num_sleepers_{0};
    const int most_patience_;
    alignas(64) std::atomic<int> patience_; // any thread may write what it learnt
    std::atomic<uint32_t> num_waits_{0};
#ifndef __linux__
    std::mutex mutex_;
    std::condition_variable moved_;
#endif
};

class ThreadPool {
public:
    // Threads start at once. spin: pauses before a thread sleeps.
    ThreadPool(int num_threads, int spin);
    ~ThreadPool();
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;

    void run(corekit_job job, void *arg);
    void barrier();
    corekit_pool *handle() { return &handle_.pool; }
    int num_threads() const { return num_threads_; }

private:
    void serve(int thread);

    struct Handle {
        corekit_pool pool; // first, so that its address is the handle's
        ThreadPool *owner;
    };
    static void run_on(corekit_pool *pool, corekit_job job, void *arg);
    static void barrier_on(corekit_pool *pool);

    const int num_threads_;
    const int spin_;
    Handle handle_;
    // Between two steps a thread stays awake: one that sleeps beside a busy neighbour is given its core back a tick of the clock later.
    Gate start_{250}, done_{64}, together_{64};
    alignas(64) std::atomic<int> num_left_{0};
    alignas(64) std::atomic<int> num_arrived_{0};
    corekit_job job_ = nullptr;
    void *arg_ = nullptr;
    int core_ = -1; // of the caller; -1: not known
    bool stopping_ = false;
    std::mutex turn_;
    std::vector<std::thread> threads_;
};

} // namespace corekit
