package verbsrules

import (
	"errors"
	"strings"
	"testing"

	"cinnabar/verbs"
)

// The table of ibv_post_send(3), and that of ibv_alloc_mw(3) and rdma-core's
// documentation for what needs memory windows.
// parity: V29
func TestOpcodesByType(t *testing.T) {
	has := map[verbs.QPType][]verbs.Opcode{
		verbs.UD: {verbs.OpSend, verbs.OpSendImm},
		verbs.UC: {verbs.OpSend, verbs.OpSendImm, verbs.OpWrite, verbs.OpWriteImm, verbs.OpSendInvalidate, verbs.OpLocalInv, verbs.OpBindMW},
		verbs.RC: {verbs.OpSend, verbs.OpSendImm, verbs.OpWrite, verbs.OpWriteImm, verbs.OpSendInvalidate, verbs.OpLocalInv, verbs.OpBindMW, verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd},
	}
	for typ, ops := range has {
		want := map[verbs.Opcode]bool{}
		for _, op := range ops {
			want[op] = true
		}
		for op := verbs.OpWrite; op <= verbs.OpSendInvalidate+1; op++ {
			err := CheckOpcode(typ, op)
			if want[op] != (err == nil) {
				t.Errorf("%v on %v: %v", op, typ, err)
			}
			if err != nil && (!errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), op.String()) || !strings.Contains(err.Error(), typ.String())) {
				t.Errorf("%v on %v: %v; want ErrUnsupported with both names", op, typ, err)
			}
		}
	}
	for _, typ := range []verbs.QPType{verbs.RawPacket, verbs.XRCSend, verbs.XRCRecv, 0} {
		if err := CheckOpcode(typ, verbs.OpSend); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("send on %v: %v, want ErrUnsupported", typ, err)
		}
	}
	if err := CheckOpcode(verbs.RC, 1<<31); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("an operation that is none: %v", err)
	}
}

func TestCheckOpcodeAllocs(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { _ = CheckOpcode(verbs.UD, verbs.OpSend) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
