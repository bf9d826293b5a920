/*
 * peer.h: the parts that hg_peer and margo_peer share: reports, the commands
 * and their table, and memory in segments.
 */
#ifndef PEER_H
#define PEER_H

#include <mercury.h>

#include "types.h"
#include "words.h"

/* report prints one line of results and flushes it. */
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* fatal reports a failure of the rig itself and ends the program. */
void fatal(const char *what, hg_return_t ret);

/* A command that the program knows. */
struct command {
    const char *name;
    void (*run)(const struct words *);
};

/* command_run runs the command of the table that w names. Another name ends
 * the program, and so does a command other than "target" before the program
 * has a target. */
void command_run(const struct command *table, size_t count, hg_addr_t target,
                 const struct words *w);

/* command runs one command and prints its result. */
void command(const struct words *w);

/* run_arguments runs the commands of argv, which "," separates. */
void run_arguments(int argc, char **argv);

/* serve_register registers every RPC with its handler. */
void serve_register(void);

/* local_bulk allocates size bytes in the given number of nearly equal
 * segments. The caller frees *memory, one allocation, after *bulk. */
hg_return_t local_bulk(uint64_t size, uint32_t segments, uint8_t mode,
                       void **memory, hg_bulk_t *bulk);

/* bulk_create is the library's function that creates a bulk handle. Each
 * program defines it, for local_bulk. */
hg_return_t bulk_create(uint32_t segments, void **base, const hg_size_t *len,
                        uint8_t mode, hg_bulk_t *bulk);

#endif /* PEER_H */
