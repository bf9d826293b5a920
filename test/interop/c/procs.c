/*
 * procs: prints what Mercury's proc routines make of C values.
 *
 * One line per value: its type, the value as the Go side knows it, and the
 * encoding in hexadecimal ("-" when it is empty). The lines named all N are
 * whole structures, with the values of all_set in types.h. The lines named
 * bulk print, besides the encoding, the base pointers that occur in it.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "types.h"
#include "words.h"

static hg_class_t *  cls;
static hg_context_t *context;

static void must(hg_return_t ret, const char *what)
{
    if (ret == HG_SUCCESS)
        return;
    fprintf(stderr, "procs: %s: %s\n", what, HG_Error_to_string(ret));
    exit(1);
}

/* show encodes *value with routine and prints "label hex". */
static void show(hg_proc_cb_t routine, void *value, const char *format, ...)
{
    static uint8_t buf[1 << 20];
    hg_proc_t      proc;
    uint64_t       n, i;
    va_list        args;

    must(hg_proc_create_set(cls, buf, sizeof(buf), HG_ENCODE, HG_NOHASH, &proc),
         "hg_proc_create_set");
    must(routine(proc, value), "encode");
    must(hg_proc_flush(proc), "hg_proc_flush");
    n = hg_proc_get_size_used(proc);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf(n == 0 ? " -" : " ");
    for (i = 0; i < n; i++)
        printf("%02x", buf[i]);
    printf("\n");
    hg_proc_free(proc);
}

#define SHOW(TYPE, FORMAT, CAST, ...)                                          \
    do {                                                                       \
        TYPE   v[] = {__VA_ARGS__};                                            \
        size_t i;                                                              \
        for (i = 0; i < sizeof(v) / sizeof(*v); i++)                           \
            show(hg_proc_##TYPE, &v[i], #TYPE " %" FORMAT, (CAST) v[i]);       \
    } while (0)

static void numbers(void)
{
    SHOW(int8_t, PRId64, int64_t, 0, 1, -1, -2, INT8_MIN, INT8_MAX);
    SHOW(uint8_t, PRIu64, uint64_t, 0, 1, 0xa5, UINT8_MAX);
    SHOW(int16_t, PRId64, int64_t, 0, -300, INT16_MIN, INT16_MAX);
    SHOW(uint16_t, PRIu64, uint64_t, 0, 0x1122, UINT16_MAX);
    SHOW(int32_t, PRId64, int64_t, 0, -70000, INT32_MIN, INT32_MAX);
    SHOW(uint32_t, PRIu64, uint64_t, 0, 0x33445566, UINT32_MAX);
    SHOW(int64_t, PRId64, int64_t, 0, -5000000000, INT64_MIN, INT64_MAX);
    SHOW(uint64_t, PRIu64, uint64_t, 0, 0x1122334455667788, UINT64_MAX);
    SHOW(hg_bool_t, PRIu64, uint64_t, 0, 1);
    SHOW(hg_size_t, PRIu64, uint64_t, 0, 99, UINT64_MAX);
    SHOW(hg_ptr_t, PRIu64, uint64_t, 0, 0x7ffd12345678);
    SHOW(hg_id_t, PRIu64, uint64_t, 0, 0x0b88ab9a, 0x1c8857ad0000002a);
    SHOW(cin_f32_t, ".9g", double, 0, 1.5f, -0.0f, 3.4028235e38f);
    SHOW(cin_f64_t, ".17g", double, 0, -2.25, 5e-324, 1.7976931348623157e308);
}

static void texts(void)
{
    static const char *const value[] = {
        "", "a", "hello", "gr\xc3\xbc\xc3\x9f", NULL};
    char   longer[301];
    size_t i;

    for (i = 0; i < sizeof(value) / sizeof(*value); i++) {
        const char *q = value[i] == NULL ? "" : "\"";
        const char *s = value[i] == NULL ? "NULL" : value[i];

        show(hg_proc_hg_string_t, (void *) &value[i], "hg_string_t %s%s%s", q,
             s, q);
        show(hg_proc_hg_const_string_t, (void *) &value[i],
             "hg_const_string_t %s%s%s", q, s, q);
    }
    memset(longer, 'x', 300);
    longer[300] = '\0';
    {
        hg_string_t s = longer;
        show(hg_proc_hg_string_t, &s, "hg_string_t \"%s\"", s);
    }
}

static void structures(void)
{
    uint8_t    bytes[20];
    cin_blob_t blob  = {sizeof(bytes), bytes};
    cin_blob_t none  = {0, bytes};
    sum_in_t   sum   = {42, -7};
    note_in_t  note  = {3, (hg_string_t) "bob"};
    move_out_t moved = {0, 16, 0x0123456789abcdef};
    int        i;

    pattern_fill(bytes, sizeof(bytes), 1);
    show(hg_proc_cin_blob_t, &blob, "cin_blob_t 20");
    show(hg_proc_cin_blob_t, &none, "cin_blob_t 0");
    show(hg_proc_sum_in_t, &sum, "sum_in_t {42,-7}");
    show(hg_proc_note_in_t, &note, "note_in_t {3,\"bob\"}");
    show(hg_proc_move_out_t, &moved, "move_out_t {0,16,0x0123456789abcdef}");
    for (i = 0; i < 3; i++) {
        all_t all;
        all_set(&all, i);
        show(hg_proc_all_t, &all, "all_t %d", i);
    }
}

/* bulks prints handles of 1 and 3 segments, bound or not. The proc routine
 * alone never embeds data: that is decided by the RPC that carries it. */
static void bulks(void)
{
    static uint8_t memory[3][64];
    void *         base[]    = {memory[0], memory[1], memory[2]};
    hg_size_t      len[]     = {16, 20, 30};
    hg_bulk_t      null_bulk = HG_BULK_NULL;
    uint8_t        flags;
    int            n, bind;

    show(hg_proc_hg_bulk_t, &null_bulk, "hg_bulk_t NULL");
    for (flags = HG_BULK_READ_ONLY; flags <= HG_BULK_READWRITE; flags++) {
        for (n = 1; n <= 3; n += 2) {
            for (bind = 0; bind <= 1; bind++) {
                hg_bulk_t bulk;

                must(HG_Bulk_create(cls, n, base, len, flags, &bulk),
                     "HG_Bulk_create");
                if (bind)
                    must(HG_Bulk_bind(bulk, context), "HG_Bulk_bind");
                show(hg_proc_hg_bulk_t, &bulk,
                     "hg_bulk_t mode=%d,segments=%d,bound=%d,"
                     "base=%" PRIx64 "+%" PRIx64 "+%" PRIx64,
                     flags, n, bind, (uint64_t) (uintptr_t) base[0],
                     (uint64_t) (uintptr_t) base[1],
                     (uint64_t) (uintptr_t) base[2]);
                HG_Bulk_free(bulk);
            }
        }
    }
}

int main(void)
{
    char      self[128];
    hg_size_t size = sizeof(self);
    hg_addr_t addr;

    HG_Set_log_stream("error", stderr);
    cls = HG_Init("ofi+tcp://127.0.0.1", 1);
    if (cls == NULL)
        must(HG_OTHER_ERROR, "HG_Init");
    context = HG_Context_create(cls);
    if (context == NULL)
        must(HG_OTHER_ERROR, "HG_Context_create");
    must(HG_Addr_self(cls, &addr), "HG_Addr_self");
    must(HG_Addr_to_string(cls, self, &size, addr), "HG_Addr_to_string");
    printf("# bound handles carry the address %s\n", self);
    numbers();
    texts();
    structures();
    bulks();
    HG_Addr_free(cls, addr);
    HG_Context_destroy(context);
    HG_Finalize(cls);
    return 0;
}
