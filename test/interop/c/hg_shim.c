/*
 * hg_shim: a program of plain Mercury that talks to programs of Margo, by
 * margo-hg-shim: the RPC "sum" with the id and the headers that Margo has.
 *
 *   hg_shim call ADDRESS A B   calls sum at ADDRESS and prints "sum value=N"
 *   hg_shim serve              prints "ready addr=ADDRESS" and serves sum until
 *                              its standard input ends
 */
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <margo-hg-shim.h>
#include <mercury.h>
#include <mercury_macros.h>

#include "types.h"

static hg_class_t   *hg_class;
static hg_context_t *context;
static hg_id_t       sum_id;

static void check(const char *what, hg_return_t ret)
{
    if (ret != HG_SUCCESS) {
        fprintf(stderr, "%s: %s\n", what, HG_Error_to_string(ret));
        exit(1);
    }
}

static void progress(void)
{
    unsigned int count = 0;
    hg_return_t  ret = HG_Progress(context, 10);

    if (ret != HG_TIMEOUT)
        check("HG_Progress", ret);
    do {
        ret = HG_Trigger(context, 0, 1, &count);
    } while (ret == HG_SUCCESS && count > 0);
}

static hg_return_t responded(const struct hg_cb_info *info)
{
    return HG_Destroy(info->info.respond.handle);
}

static hg_return_t serve_sum(hg_handle_t handle)
{
    sum_in_t  in;
    sum_out_t out;

    check("get input", HG_Get_input_from_margo(handle, hg_proc_sum_in_t, &in));
    out.ret = in.a + in.b;
    check("free input", HG_Free_input_from_margo(handle, hg_proc_sum_in_t, &in));
    check("respond", HG_Respond_to_margo(handle, responded, NULL, hg_proc_sum_out_t, &out));
    return HG_SUCCESS;
}

static bool done;

static hg_return_t forwarded(const struct hg_cb_info *info)
{
    sum_out_t out;

    check("forward", info->ret);
    check("get output", HG_Get_output_from_margo(info->info.forward.handle, hg_proc_sum_out_t, &out));
    printf("sum value=%d\n", (int) out.ret);
    check("free output", HG_Free_output_from_margo(info->info.forward.handle, hg_proc_sum_out_t, &out));
    done = true;
    return HG_SUCCESS;
}

static void call(const char *address, int a, int b)
{
    sum_in_t    in = {.a = a, .b = b};
    hg_addr_t   addr;
    hg_handle_t handle;

    check("lookup", HG_Addr_lookup2(hg_class, address, &addr));
    check("create", HG_Create(context, addr, sum_id, &handle));
    check("forward", HG_Forward_to_margo(handle, forwarded, NULL, hg_proc_sum_in_t, &in));
    while (!done)
        progress();
    HG_Destroy(handle);
    HG_Addr_free(hg_class, addr);
}

static void serve(void)
{
    char          text[256];
    hg_size_t     size = sizeof(text);
    hg_addr_t     self;
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};

    check("self", HG_Addr_self(hg_class, &self));
    check("address", HG_Addr_to_string(hg_class, text, &size, self));
    HG_Addr_free(hg_class, self);
    printf("ready addr=%s\n", text);
    fflush(stdout);
    while (poll(&input, 1, 0) == 0)
        progress();
}

int main(int argc, char **argv)
{
    bool server = argc == 2 && strcmp(argv[1], "serve") == 0;

    if (!server && (argc != 5 || strcmp(argv[1], "call") != 0)) {
        fprintf(stderr, "usage: hg_shim serve | hg_shim call ADDRESS A B\n");
        return 2;
    }
    hg_class = HG_Init("ofi+tcp://127.0.0.1", server);
    context = hg_class != NULL ? HG_Context_create(hg_class) : NULL;
    if (context == NULL) {
        fprintf(stderr, "hg_shim: cannot start Mercury\n");
        return 1;
    }
    sum_id = HG_Register_name_for_margo(hg_class, "sum", serve_sum);
    if (server)
        serve();
    else
        call(argv[2], atoi(argv[3]), atoi(argv[4]));
    HG_Context_destroy(context);
    HG_Finalize(hg_class);
    return 0;
}
