package hgproc

// ID is an RPC identifier (hg_id_t) as C programs send it: hg_proc_hg_id_t is Mercury's routine for uint32, so only
// the low 32 bits travel and the upper ones are zero at the receiver. Use uint64 where both sides can agree on it.
type ID uint64

// ConstString is a string that C programs declare as hg_const_string_t. It differs from a plain string, which is
// hg_string_t, in one flag byte that C receivers ignore. Use it where the bytes must be the same as a C sender's.
type ConstString string
