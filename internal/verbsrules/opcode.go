// Package verbsrules holds the tables of InfiniBand verbs that devices share: the operations
// of each type of queue pair and the state machine of queue pairs.
package verbsrules

import "cinnabar/verbs"

// The operations of each type of queue pair: the table of ibv_post_send(3).
// CheckOpcode refuses values above OpSendInvalidate, which are in none of the sets.
const (
	udOps = 1<<verbs.OpSend | 1<<verbs.OpSendImm
	ucOps = udOps | 1<<verbs.OpWrite | 1<<verbs.OpWriteImm | 1<<verbs.OpSendInvalidate | 1<<verbs.OpLocalInv | 1<<verbs.OpBindMW
	rcOps = ucOps | 1<<verbs.OpRead | 1<<verbs.OpCompareSwap | 1<<verbs.OpFetchAdd
)

// CheckOpcode refuses an operation that queue pairs of type t do not have according to
// ibv_post_send(3). The error matches errors.ErrUnsupported and names operation and type.
// CheckOpcode does not know the operations that the device itself lacks. It allocates
// only on refusal.
func CheckOpcode(t verbs.QPType, op verbs.Opcode) error {
	var ops uint32
	var has string
	switch t {
	case verbs.RC:
		ops, has = rcOps, "sends, writes, reads and atomics"
	case verbs.UC:
		ops, has = ucOps, "sends and writes"
	case verbs.UD:
		ops, has = udOps, "sends"
	default:
		return verbs.Unsupported("post send", "%s: no operations are known of queue pairs of type %v", op, t)
	}
	if op > verbs.OpSendInvalidate || ops&(1<<op) == 0 {
		return verbs.Unsupported("post send", "%s (%d): queue pairs of type %v have %s only", op, uint32(op), t, has)
	}
	return nil
}
