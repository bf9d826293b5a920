package driver

import (
	"errors"
	"strings"
	"testing"
)

// The table of ibv_post_send(3), and that of ibv_alloc_mw(3) and rdma-core's
// documentation for what needs memory windows.
// parity: V29
func TestOpcodesByType(t *testing.T) {
	has := map[QPType][]Opcode{
		UD: {OpSend, OpSendImm},
		UC: {OpSend, OpSendImm, OpWrite, OpWriteImm, OpSendInvalidate, OpLocalInv, OpBindMW},
		RC: {OpSend, OpSendImm, OpWrite, OpWriteImm, OpSendInvalidate, OpLocalInv, OpBindMW, OpRead, OpCompareSwap, OpFetchAdd},
	}
	for typ, ops := range has {
		want := map[Opcode]bool{}
		for _, op := range ops {
			want[op] = true
		}
		for op := OpWrite; op <= OpSendInvalidate+1; op++ {
			err := CheckOpcode(typ, op)
			if want[op] != (err == nil) {
				t.Errorf("%v on %v: %v", op, typ, err)
			}
			if err != nil && (!errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), op.String()) || !strings.Contains(err.Error(), typ.String())) {
				t.Errorf("%v on %v: %v; want ErrUnsupported with both names", op, typ, err)
			}
		}
	}
	for _, typ := range []QPType{RawPacket, XRCSend, XRCRecv, 0} {
		if err := CheckOpcode(typ, OpSend); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("send on %v: %v, want ErrUnsupported", typ, err)
		}
	}
	if err := CheckOpcode(RC, 1<<31); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("an operation that is none: %v", err)
	}
}

func TestCheckOpcodeAllocs(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { _ = CheckOpcode(UD, OpSend) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
