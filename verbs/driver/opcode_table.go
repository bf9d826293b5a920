package driver

// The operations of each type of queue pair: the table of ibv_post_send(3).
// Those that are on no type's line but RC's need no entry.
const (
	udOps = 1<<OpSend | 1<<OpSendImm
	ucOps = udOps | 1<<OpWrite | 1<<OpWriteImm | 1<<OpSendInvalidate | 1<<OpLocalInv | 1<<OpBindMW
	rcOps = ucOps | 1<<OpRead | 1<<OpCompareSwap | 1<<OpFetchAdd
)

// CheckOpcode refuses an operation that queue pairs of type t do not have by the
// book: the error matches errors.ErrUnsupported and names operation and type.
// What the device lacks besides is its own to refuse. It allocates only on refusal.
func CheckOpcode(t QPType, op Opcode) error {
	var ops uint32
	var has string
	switch t {
	case RC:
		ops, has = rcOps, "sends, writes, reads and atomics"
	case UC:
		ops, has = ucOps, "sends and writes"
	case UD:
		ops, has = udOps, "sends"
	default:
		return Unsupported("post send", "%s: no operations are known of queue pairs of type %v", op, t)
	}
	if op > OpSendInvalidate || ops&(1<<op) == 0 {
		return Unsupported("post send", "%s (%d): queue pairs of type %v have %s only", op, uint32(op), t, has)
	}
	return nil
}
