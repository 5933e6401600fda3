/* The thread pool of one rank as native code sees it: a C struct, so that modules need share neither compiler nor runtime.
 * Its address is `ThreadPool.address`. Valid as long as that Python object lives. */
#ifndef COREKIT_POOL_H
#define COREKIT_POOL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define COREKIT_POOL_ABI 1

/* Called on every thread of the pool with its number; must not throw, and must not take Python's lock. */
typedef void (*corekit_job)(void *arg, int thread, int num_threads);

typedef struct corekit_pool corekit_pool;

struct corekit_pool {
    uint32_t abi;        /* COREKIT_POOL_ABI: check it before anything else */
    int32_t num_threads; /* the caller of run included */
    /* Runs job on every thread at once, the caller being thread 0, and returns when all have returned. Callers take turns. */
    void (*run)(corekit_pool *pool, corekit_job job, void *arg);
    /* Inside a job, called by every thread of it: returns when all have come. */
    void (*barrier)(corekit_pool *pool);
};

#ifdef __cplusplus
}
#endif
#endif
