/*
 * margo_sum.h: arguments of the tutorial's sum, whose server pulls the values.
 */
#ifndef MARGO_SUM_H
#define MARGO_SUM_H

#include <mercury.h>
#include <mercury_macros.h>

MERCURY_GEN_PROC(sum_in_t, ((int32_t)(n))((hg_bulk_t)(bulk)))
MERCURY_GEN_PROC(sum_out_t, ((int32_t)(ret)))

#endif /* MARGO_SUM_H */
