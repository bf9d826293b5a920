/*
 * hashids: prints the RPC ids that the C libraries give to names.
 *
 * Reads one name per line from standard input and prints, for each,
 *
 *     mercury ID name=NAME          the id of HG_Register_name
 *     margo PROVIDER ID name=NAME   the id of margo_provider_register_name
 *
 * with ID as 16 hexadecimal digits. The margo lines need a build with
 * -DWITH_MARGO; one is printed for each provider id of the table below.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mercury.h>
#ifdef WITH_MARGO
#    include <margo.h>
#endif

#define INIT_STRING "ofi+tcp://127.0.0.1"
#define MAX_NAMES   1000
#define MAX_NAME    512

static void die(const char *what)
{
    fprintf(stderr, "hashids: %s failed\n", what);
    exit(1);
}

/* The djb2 ids: both libraries refuse a second registration of one name, so
 * Mercury's table is asked first and then left alone. */
static void print_mercury(char names[][MAX_NAME], int n)
{
    hg_class_t *cls = HG_Init(INIT_STRING, 0);
    int         i;

    if (cls == NULL)
        die("HG_Init");
    for (i = 0; i < n; i++)
        printf("mercury %016" PRIx64 " name=%s\n",
               (uint64_t) HG_Register_name(cls, names[i], NULL, NULL, NULL),
               names[i]);
    HG_Finalize(cls);
}

#ifdef WITH_MARGO
static const uint16_t providers[] = {0, 1, 42, 0x1234, 65534, 65535};

static void print_margo(char names[][MAX_NAME], int n)
{
    margo_instance_id mid = margo_init(INIT_STRING, MARGO_CLIENT_MODE, 0, 0);
    size_t            p;
    int               i;

    if (mid == MARGO_INSTANCE_NULL)
        die("margo_init");
    for (i = 0; i < n; i++) {
        for (p = 0; p < sizeof(providers) / sizeof(*providers); p++) {
            hg_id_t id = margo_provider_register_name(
                mid, names[i], NULL, NULL, NULL, providers[p], ABT_POOL_NULL);
            printf("margo %u %016" PRIx64 " name=%s\n", providers[p], (uint64_t) id,
                   names[i]);
        }
    }
    margo_finalize(mid);
}
#endif

int main(void)
{
    static char names[MAX_NAMES][MAX_NAME];
    int         n = 0;

    HG_Set_log_stream("warning", stderr);
    HG_Set_log_stream("error", stderr);
    while (n < MAX_NAMES && fgets(names[n], MAX_NAME, stdin) != NULL) {
        names[n][strcspn(names[n], "\n")] = '\0';
        n++;
    }
    print_mercury(names, n);
#ifdef WITH_MARGO
    print_margo(names, n);
#endif
    return 0;
}
