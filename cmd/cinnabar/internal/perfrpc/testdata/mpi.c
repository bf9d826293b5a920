/*
 * As much of MPI as Mercury's perf programs look for in libmpi.so (na_test_mpi.c), in MPICH's form, for processes of one
 * machine that a test has started: RANK of RANKS in the environment, and RANKS_FILE, an empty file that they share.
 * The file holds one object, so a communicator means nothing.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS_MAX = 64, BYTES_MAX = 4096, FAILED = 1 };

struct shared {
    atomic_uint arrived; /* at the barrier */
    atomic_uint passed;  /* how often it was passed */
    char data[RANKS_MAX][BYTES_MAX];
};

static struct shared *shared;
static int rank, ranks, finalized;

static int number(const char *name)
{
    const char *text = getenv(name);
    return text ? atoi(text) : -1;
}

int MPI_Init(int *argc, char ***argv)
{
    const char *path = getenv("RANKS_FILE");
    int fd;

    (void) argc;
    (void) argv;
    rank = number("RANK");
    ranks = number("RANKS");
    if (path == NULL || ranks < 1 || ranks > RANKS_MAX || rank < 0 || rank >= ranks)
        return FAILED;
    fd = open(path, O_RDWR);
    if (fd < 0 || ftruncate(fd, sizeof(struct shared)) != 0)
        return FAILED;
    shared = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return shared == MAP_FAILED ? FAILED : 0;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    *provided = required;
    return MPI_Init(argc, argv);
}

int MPI_Finalize(void)
{
    finalized = 1;
    return 0;
}

int MPI_Initialized(int *flag)
{
    *flag = shared != NULL;
    return 0;
}

int MPI_Finalized(int *flag)
{
    *flag = finalized;
    return 0;
}

int MPI_Comm_size(int comm, int *size)
{
    (void) comm;
    *size = ranks;
    return 0;
}

int MPI_Comm_rank(int comm, int *result)
{
    (void) comm;
    *result = rank;
    return 0;
}

int MPI_Comm_split(int comm, int color, int key, int *result)
{
    (void) color;
    (void) key;
    *result = comm;
    return 0;
}

int MPI_Comm_dup(int comm, int *result)
{
    *result = comm;
    return 0;
}

int MPI_Comm_free(int *comm)
{
    (void) comm;
    return 0;
}

int MPI_Barrier(int comm)
{
    unsigned passed = atomic_load(&shared->passed);

    (void) comm;
    if (atomic_fetch_add(&shared->arrived, 1) + 1 == (unsigned) ranks) {
        atomic_store(&shared->arrived, 0);
        atomic_fetch_add(&shared->passed, 1);
    } else {
        while (atomic_load(&shared->passed) == passed)
            sched_yield();
    }
    return 0;
}

/* Types are not looked at: the programs count in bytes. */
int MPI_Bcast(void *buffer, int count, int type, int root, int comm)
{
    (void) type;
    if (count < 0 || count > BYTES_MAX)
        return FAILED;
    if (rank == root)
        memcpy(shared->data[root], buffer, (size_t) count);
    MPI_Barrier(comm);
    memcpy(buffer, shared->data[root], (size_t) count);
    return MPI_Barrier(comm); /* before the next may write */
}

int MPI_Gather(const void *from, int count, int type, void *to, int to_count, int to_type, int root, int comm)
{
    (void) type;
    (void) to_type;
    if (count < 0 || count > BYTES_MAX || to_count != count)
        return FAILED;
    memcpy(shared->data[rank], from, (size_t) count);
    MPI_Barrier(comm);
    if (rank == root)
        for (int i = 0; i < ranks; i++)
            memcpy((char *) to + (size_t) i * (size_t) count, shared->data[i], (size_t) count);
    return MPI_Barrier(comm);
}
