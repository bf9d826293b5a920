/*
 * types.h: the arguments and results of the RPCs that the peer programs and
 * the Go tests share. Field order is wire order.
 */
#ifndef TYPES_H
#define TYPES_H

#include <stdlib.h>
#include <string.h>

#include <mercury.h>
#include <mercury_macros.h>
#include <mercury_proc_string.h>

/* Whether Mercury was built with checksums, which its peers must know. */
#ifdef HG_HAS_CHECKSUMS
#    define CHECKSUMS 1
#else
#    define CHECKSUMS 0
#endif

/* Mercury has no routine for floating point: users copy the raw bytes. */
typedef float  cin_f32_t;
typedef double cin_f64_t;
typedef struct {
    uint8_t b[5];
} cin_raw5_t;

static inline hg_return_t hg_proc_cin_f32_t(hg_proc_t proc, void *data)
{
    return hg_proc_raw(proc, data, sizeof(cin_f32_t));
}

static inline hg_return_t hg_proc_cin_f64_t(hg_proc_t proc, void *data)
{
    return hg_proc_raw(proc, data, sizeof(cin_f64_t));
}

static inline hg_return_t hg_proc_cin_raw5_t(hg_proc_t proc, void *data)
{
    return hg_proc_raw(proc, data, sizeof(cin_raw5_t));
}

/* cin_blob_t is the usual hand-written type: a count and that many bytes. */
typedef struct {
    uint64_t len;
    void *   bytes;
} cin_blob_t;

static inline hg_return_t hg_proc_cin_blob_t(hg_proc_t proc, void *data)
{
    cin_blob_t *b   = (cin_blob_t *) data;
    hg_return_t ret = hg_proc_uint64_t(proc, &b->len);

    if (ret != HG_SUCCESS)
        return ret;
    switch (hg_proc_get_op(proc)) {
        case HG_DECODE:
            b->bytes = malloc(b->len + 1);
            if (b->bytes == NULL)
                return HG_NOMEM;
            return hg_proc_raw(proc, b->bytes, b->len);
        case HG_ENCODE:
            return hg_proc_raw(proc, b->bytes, b->len);
        default:
            free(b->bytes);
            b->bytes = NULL;
            return HG_SUCCESS;
    }
}

MERCURY_GEN_PROC(sum_in_t, ((int32_t)(a))((int32_t)(b)))
MERCURY_GEN_PROC(sum_out_t, ((int32_t)(ret)))
MERCURY_GEN_PROC(count_out_t, ((int32_t)(count)))
MERCURY_GEN_PROC(note_in_t, ((int32_t)(seq))((hg_string_t)(text)))
MERCURY_GEN_PROC(text_out_t, ((hg_string_t)(text)))

/* all_t has every type that has a proc routine, NULL and empty strings and
 * the raw types above. */
MERCURY_GEN_PROC(all_t,
    ((int8_t)(i8))((uint8_t)(u8))((int16_t)(i16))((uint16_t)(u16))(
        (int32_t)(i32))((uint32_t)(u32))((int64_t)(i64))((uint64_t)(u64))(
        (hg_bool_t)(flag))((hg_size_t)(size))((hg_ptr_t)(ptr))((hg_id_t)(id))(
        (cin_f32_t)(f32))((cin_f64_t)(f64))((cin_raw5_t)(raw))(
        (hg_string_t)(text))((hg_const_string_t)(fixed))(
        (hg_string_t)(nothing))((hg_string_t)(empty))((hg_bulk_t)(bulk)))

/* blob: the caller sends bytes of pattern seed and wants reply bytes of
 * pattern seed+1 back. */
MERCURY_GEN_PROC(blob_in_t,
    ((uint32_t)(seed))((uint64_t)(reply))((cin_blob_t)(bytes)))
MERCURY_GEN_PROC(blob_out_t, ((uint8_t)(ok))((cin_blob_t)(bytes)))

/* move: a pull or push of size bytes between the handle at offset and memory
 * of the server's own, local_size bytes in local_segments pieces, at
 * local_offset. origin says who holds the handle's memory: "" is the caller,
 * "bound" the address in the handle itself, anything else an address. A push
 * sends pattern seed. */
MERCURY_GEN_PROC(move_in_t,
    ((hg_string_t)(origin))((uint64_t)(offset))((uint64_t)(size))(
        (uint64_t)(local_size))((uint64_t)(local_offset))(
        (uint32_t)(local_segments))((uint32_t)(seed))((uint8_t)(cancel))(
        (hg_bulk_t)(bulk)))

/* hash is FNV-1a over the server's whole local memory after the transfer. */
MERCURY_GEN_PROC(move_out_t,
    ((int32_t)(ret))((uint64_t)(count))((uint64_t)(hash)))

/* relay: the server sends move on to another process, as pull or push. */
MERCURY_GEN_PROC(relay_in_t,
    ((hg_string_t)(to))((uint8_t)(push))((move_in_t)(move)))

/* all_set gives v the values that the Go side and the golden files know:
 * variant 0 has ordinary ones, 1 the smallest, 2 the largest. */
static inline void all_set(all_t *v, int variant)
{
    static const uint8_t raw[3][5] = {
        {1, 2, 3, 4, 5}, {0, 0, 0, 0, 0}, {255, 255, 255, 255, 255}};
    static const char *const text[3] = {
        "hello", "", "gr\xc3\xbc\xc3\x9f \xe6\x97\xa5\xe6\x9c\xac"};

    memset(v, 0, sizeof(*v));
    v->i8    = (int8_t[]){-2, INT8_MIN, INT8_MAX}[variant];
    v->u8    = (uint8_t[]){0xa5, 0, UINT8_MAX}[variant];
    v->i16   = (int16_t[]){-300, INT16_MIN, INT16_MAX}[variant];
    v->u16   = (uint16_t[]){0x1122, 0, UINT16_MAX}[variant];
    v->i32   = (int32_t[]){-70000, INT32_MIN, INT32_MAX}[variant];
    v->u32   = (uint32_t[]){0x33445566, 0, UINT32_MAX}[variant];
    v->i64   = (int64_t[]){-5000000000, INT64_MIN, INT64_MAX}[variant];
    v->u64   = (uint64_t[]){0x1122334455667788, 0, UINT64_MAX}[variant];
    v->flag  = (hg_bool_t[]){1, 0, 1}[variant];
    v->size  = (hg_size_t[]){99, 0, UINT64_MAX}[variant];
    v->ptr   = (hg_ptr_t[]){0x7ffd12345678, 0, UINT64_MAX}[variant];
    v->id    = (hg_id_t[]){0x0b88ab9a, 0, UINT32_MAX}[variant];
    v->f32   = (float[]){1.5f, -0.0f, 3.4028235e38f}[variant];
    v->f64   = (double[]){-2.25, 5e-324, 1.7976931348623157e308}[variant];
    memcpy(v->raw.b, raw[variant], sizeof(v->raw.b));
    v->text    = (hg_string_t) text[variant];
    v->fixed   = "const";
    v->nothing = NULL;
    v->empty   = (hg_string_t) "";
    v->bulk    = HG_BULK_NULL;
}

/* text_equal compares strings of which either may be NULL. */
static inline int text_equal(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* all_equal compares field by field, since the struct has padding. */
static inline int all_equal(const all_t *a, const all_t *b)
{
    return a->i8 == b->i8 && a->u8 == b->u8 && a->i16 == b->i16
        && a->u16 == b->u16 && a->i32 == b->i32 && a->u32 == b->u32
        && a->i64 == b->i64 && a->u64 == b->u64 && a->flag == b->flag
        && a->size == b->size && a->ptr == b->ptr
        && (uint32_t) a->id == (uint32_t) b->id
        && memcmp(&a->f32, &b->f32, sizeof(a->f32)) == 0
        && memcmp(&a->f64, &b->f64, sizeof(a->f64)) == 0
        && memcmp(a->raw.b, b->raw.b, sizeof(a->raw.b)) == 0
        && text_equal(a->text, b->text) && text_equal(a->fixed, b->fixed)
        && text_equal(a->nothing, b->nothing)
        && text_equal(a->empty, b->empty) && a->bulk == b->bulk;
}

#endif /* TYPES_H */
