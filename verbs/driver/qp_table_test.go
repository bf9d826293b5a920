package driver

import (
	"errors"
	"math/bits"
	"strings"
	"testing"
)

// manPage is the table of ibv_modify_qp(3): the attributes that the steps from
// RESET to RTS must change, in C's words.
var manPage = []struct {
	t    QPType
	to   QPState
	need string
}{
	{UD, StateInit, "IBV_QP_STATE IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_QKEY"},
	{UD, StateRTR, "IBV_QP_STATE"},
	{UD, StateRTS, "IBV_QP_STATE IBV_QP_SQ_PSN"},
	{UC, StateInit, "IBV_QP_STATE IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_ACCESS_FLAGS"},
	{UC, StateRTR, "IBV_QP_STATE IBV_QP_AV IBV_QP_PATH_MTU IBV_QP_DEST_QPN IBV_QP_RQ_PSN"},
	{UC, StateRTS, "IBV_QP_STATE IBV_QP_SQ_PSN"},
	{RC, StateInit, "IBV_QP_STATE IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_ACCESS_FLAGS"},
	{RC, StateRTR, "IBV_QP_STATE IBV_QP_AV IBV_QP_PATH_MTU IBV_QP_DEST_QPN IBV_QP_RQ_PSN IBV_QP_MAX_DEST_RD_ATOMIC IBV_QP_MIN_RNR_TIMER"},
	{RC, StateRTS, "IBV_QP_STATE IBV_QP_SQ_PSN IBV_QP_MAX_QP_RD_ATOMIC IBV_QP_RETRY_CNT IBV_QP_RNR_RETRY IBV_QP_TIMEOUT"},
}

// cMask reads a list of C names.
func cMask(t *testing.T, names string) QPAttrMask {
	t.Helper()
	var m QPAttrMask
	for n := range strings.FieldsSeq(names) {
		bit, ok := enums[n].(QPAttrMask)
		if !ok {
			t.Fatalf("%s is no attribute", n)
		}
		m |= bit
	}
	return m
}

func TestTransitionsOfManPage(t *testing.T) {
	for _, row := range manPage {
		from, mask := row.to-1, cMask(t, row.need)
		if err := CheckTransition(row.t, from, row.to, mask); err != nil {
			t.Errorf("%v to %v: %v", row.t, row.to, err)
		}
		for rest := mask &^ AttrState; rest != 0; rest &= rest - 1 {
			bit := QPAttrMask(1) << bits.TrailingZeros32(uint32(rest))
			wantRefusal(t, CheckTransition(row.t, from, row.to, mask&^bit), "also needs "+bit.String())
		}
		for _, extra := range []QPAttrMask{AttrCap, AttrEnSQDAsyncNotify, 1 << 30} {
			wantRefusal(t, CheckTransition(row.t, from, row.to, mask|extra), "does not take "+extra.String())
		}
	}
}

// wantRefusal checks that err is ErrInvalid and says why.
func wantRefusal(t *testing.T, err error, text string) {
	t.Helper()
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want an ErrInvalid with %q", err, text)
	}
}

// legalSteps are, for each type and state, the states that follow, with the
// steps that leave the state as it is; every state can go to RESET and ERR.
var legalSteps = map[QPType]map[QPState][]QPState{
	RC: {
		StateReset: {StateInit}, StateInit: {StateInit, StateRTR}, StateRTR: {StateRTS},
		StateRTS: {StateRTS, StateSQD}, StateSQD: {StateRTS, StateSQD},
	},
	UC: {
		StateReset: {StateInit}, StateInit: {StateInit, StateRTR}, StateRTR: {StateRTS},
		StateRTS: {StateRTS, StateSQD}, StateSQD: {StateRTS, StateSQD}, StateSQE: {StateRTS},
	},
	UD: {
		StateReset: {StateInit}, StateInit: {StateInit, StateRTR}, StateRTR: {StateRTS},
		StateRTS: {StateRTS, StateSQD}, StateSQD: {StateRTS, StateSQD}, StateSQE: {StateRTS},
	},
}

// fullMask returns a mask that the step takes, if any does.
func fullMask(t QPType, from, to QPState) QPAttrMask {
	return AttrState | stepsOf(t)[step{from, to}].need
}

// parity: V26 D49
func TestEveryStep(t *testing.T) {
	for typ, legal := range legalSteps {
		for from := StateReset; from <= StateErr; from++ {
			want := map[QPState]bool{StateReset: true, StateErr: true}
			for _, to := range legal[from] {
				want[to] = true
			}
			for to := StateReset; to <= StateErr; to++ {
				err := CheckTransition(typ, from, to, fullMask(typ, from, to))
				if want[to] && err != nil {
					t.Errorf("%v from %v to %v: %v", typ, from, to, err)
				}
				if !want[to] {
					wantRefusal(t, err, "does not go from "+from.String()+" to "+to.String())
				}
			}
		}
	}
}

func TestStepDetails(t *testing.T) {
	for _, c := range []struct {
		name     string
		t        QPType
		from, to QPState
		mask     QPAttrMask
		want     string // "" for legal
	}{
		{"rights may change while connected", RC, StateRTS, StateRTS, AttrAccess, ""},
		{"a timeout changes only when drained", RC, StateRTS, StateRTS, AttrTimeout, "does not take AttrTimeout"},
		{"drained", RC, StateSQD, StateSQD, AttrTimeout | AttrAV, ""},
		{"unreliable has no retries", UC, StateRTR, StateRTS, AttrState | AttrSQPSN | AttrRetryCount, "does not take AttrRetryCount"},
		{"datagrams have no address", UD, StateInit, StateRTR, AttrState | AttrAV, "does not take AttrAV"},
		{"to ERR with more", RC, StateRTS, StateErr, AttrState | AttrTimeout, "does not take AttrTimeout"},
		{"another state without AttrState", RC, StateInit, StateRTR, AttrAV, "without AttrState"},
		{"from a state that is none", RC, QPState(9), StateErr, AttrState, "does not go"},
		{"nothing at all in ERR", RC, StateErr, StateErr, 0, "does not go"},
		{"drained notice", UD, StateRTS, StateSQD, AttrState | AttrEnSQDAsyncNotify, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := CheckTransition(c.t, c.from, c.to, c.mask)
			if c.want != "" {
				wantRefusal(t, err, c.want)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTransitionOfOtherTypes(t *testing.T) {
	for _, typ := range []QPType{RawPacket, XRCSend, XRCRecv, 0} {
		if err := CheckTransition(typ, StateReset, StateInit, AttrState); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v: got %v, want ErrUnsupported", typ, err)
		}
	}
}

func TestQPAttrMaskString(t *testing.T) {
	for mask, want := range map[QPAttrMask]string{
		0: "none", AttrState: "AttrState", AttrState | AttrDestQPN: "AttrState|AttrDestQPN", 1 << 30: "unknown",
	} {
		if got := mask.String(); got != want {
			t.Errorf("%#x: got %q, want %q", uint32(mask), got, want)
		}
	}
}
