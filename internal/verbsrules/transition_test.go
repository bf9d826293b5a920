package verbsrules

import (
	"errors"
	"math/bits"
	"strings"
	"testing"

	"cinnabar/verbs"
)

// manPage is the table of ibv_modify_qp(3): the attributes that the steps from
// RESET to RTS must change, in C's words.
var manPage = []struct {
	t    verbs.QPType
	to   verbs.QPState
	need string
}{
	{verbs.UD, verbs.StateInit, "IBV_QP_STATE IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_QKEY"},
	{verbs.UD, verbs.StateRTR, "IBV_QP_STATE"},
	{verbs.UD, verbs.StateRTS, "IBV_QP_STATE IBV_QP_SQ_PSN"},
	{verbs.UC, verbs.StateInit, "IBV_QP_STATE IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_ACCESS_FLAGS"},
	{verbs.UC, verbs.StateRTR, "IBV_QP_STATE IBV_QP_AV IBV_QP_PATH_MTU IBV_QP_DEST_QPN IBV_QP_RQ_PSN"},
	{verbs.UC, verbs.StateRTS, "IBV_QP_STATE IBV_QP_SQ_PSN"},
	{verbs.RC, verbs.StateInit, "IBV_QP_STATE IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_ACCESS_FLAGS"},
	{verbs.RC, verbs.StateRTR, "IBV_QP_STATE IBV_QP_AV IBV_QP_PATH_MTU IBV_QP_DEST_QPN IBV_QP_RQ_PSN IBV_QP_MAX_DEST_RD_ATOMIC IBV_QP_MIN_RNR_TIMER"},
	{verbs.RC, verbs.StateRTS, "IBV_QP_STATE IBV_QP_SQ_PSN IBV_QP_MAX_QP_RD_ATOMIC IBV_QP_RETRY_CNT IBV_QP_RNR_RETRY IBV_QP_TIMEOUT"},
}

// cAttrs are the bits of the mask by the names that C gives them.
var cAttrs = map[string]verbs.QPAttrMask{
	"IBV_QP_STATE": verbs.AttrState, "IBV_QP_ACCESS_FLAGS": verbs.AttrAccess, "IBV_QP_PKEY_INDEX": verbs.AttrPKeyIndex,
	"IBV_QP_PORT": verbs.AttrPort, "IBV_QP_QKEY": verbs.AttrQKey, "IBV_QP_AV": verbs.AttrAV, "IBV_QP_PATH_MTU": verbs.AttrPathMTU,
	"IBV_QP_TIMEOUT": verbs.AttrTimeout, "IBV_QP_RETRY_CNT": verbs.AttrRetryCount, "IBV_QP_RNR_RETRY": verbs.AttrRNRRetry,
	"IBV_QP_RQ_PSN": verbs.AttrRQPSN, "IBV_QP_MAX_QP_RD_ATOMIC": verbs.AttrMaxRDAtomic, "IBV_QP_MIN_RNR_TIMER": verbs.AttrMinRNRTimer,
	"IBV_QP_SQ_PSN": verbs.AttrSQPSN, "IBV_QP_MAX_DEST_RD_ATOMIC": verbs.AttrMaxDestRDAtomic, "IBV_QP_DEST_QPN": verbs.AttrDestQPN,
}

// cMask reads a list of C names.
func cMask(t *testing.T, names string) verbs.QPAttrMask {
	t.Helper()
	var m verbs.QPAttrMask
	for n := range strings.FieldsSeq(names) {
		bit, ok := cAttrs[n]
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
		for rest := mask &^ verbs.AttrState; rest != 0; rest &= rest - 1 {
			bit := verbs.QPAttrMask(1) << bits.TrailingZeros32(uint32(rest))
			wantRefusal(t, CheckTransition(row.t, from, row.to, mask&^bit), "also needs "+bit.String())
		}
		for _, extra := range []verbs.QPAttrMask{verbs.AttrCap, verbs.AttrEnSQDAsyncNotify, 1 << 30} {
			wantRefusal(t, CheckTransition(row.t, from, row.to, mask|extra), "does not take "+extra.String())
		}
	}
}

// wantRefusal checks that err is ErrInvalid and says why.
func wantRefusal(t *testing.T, err error, text string) {
	t.Helper()
	if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want an verbs.ErrInvalid with %q", err, text)
	}
}

// legalSteps are, for each type and state, the states that follow, with the
// steps that leave the state as it is; every state can go to RESET and ERR.
var legalSteps = map[verbs.QPType]map[verbs.QPState][]verbs.QPState{
	verbs.RC: {
		verbs.StateReset: {verbs.StateInit}, verbs.StateInit: {verbs.StateInit, verbs.StateRTR}, verbs.StateRTR: {verbs.StateRTS},
		verbs.StateRTS: {verbs.StateRTS, verbs.StateSQD}, verbs.StateSQD: {verbs.StateRTS, verbs.StateSQD},
	},
	verbs.UC: {
		verbs.StateReset: {verbs.StateInit}, verbs.StateInit: {verbs.StateInit, verbs.StateRTR}, verbs.StateRTR: {verbs.StateRTS},
		verbs.StateRTS: {verbs.StateRTS, verbs.StateSQD}, verbs.StateSQD: {verbs.StateRTS, verbs.StateSQD}, verbs.StateSQE: {verbs.StateRTS},
	},
	verbs.UD: {
		verbs.StateReset: {verbs.StateInit}, verbs.StateInit: {verbs.StateInit, verbs.StateRTR}, verbs.StateRTR: {verbs.StateRTS},
		verbs.StateRTS: {verbs.StateRTS, verbs.StateSQD}, verbs.StateSQD: {verbs.StateRTS, verbs.StateSQD}, verbs.StateSQE: {verbs.StateRTS},
	},
}

// fullMask returns a mask that the step takes, if any does.
func fullMask(t verbs.QPType, from, to verbs.QPState) verbs.QPAttrMask {
	return verbs.AttrState | stepsOf(t)[step{from, to}].need
}

// parity: V26 D49
func TestEveryStep(t *testing.T) {
	for typ, legal := range legalSteps {
		for from := verbs.StateReset; from <= verbs.StateErr; from++ {
			want := map[verbs.QPState]bool{verbs.StateReset: true, verbs.StateErr: true}
			for _, to := range legal[from] {
				want[to] = true
			}
			for to := verbs.StateReset; to <= verbs.StateErr; to++ {
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
		t        verbs.QPType
		from, to verbs.QPState
		mask     verbs.QPAttrMask
		want     string // "" for legal
	}{
		{"rights may change while connected", verbs.RC, verbs.StateRTS, verbs.StateRTS, verbs.AttrAccess, ""},
		{"a timeout changes only when drained", verbs.RC, verbs.StateRTS, verbs.StateRTS, verbs.AttrTimeout, "does not take AttrTimeout"},
		{"drained", verbs.RC, verbs.StateSQD, verbs.StateSQD, verbs.AttrTimeout | verbs.AttrAV, ""},
		{"unreliable has no retries", verbs.UC, verbs.StateRTR, verbs.StateRTS, verbs.AttrState | verbs.AttrSQPSN | verbs.AttrRetryCount, "does not take AttrRetryCount"},
		{"datagrams have no address", verbs.UD, verbs.StateInit, verbs.StateRTR, verbs.AttrState | verbs.AttrAV, "does not take AttrAV"},
		{"to ERR with more", verbs.RC, verbs.StateRTS, verbs.StateErr, verbs.AttrState | verbs.AttrTimeout, "does not take AttrTimeout"},
		{"another state without AttrState", verbs.RC, verbs.StateInit, verbs.StateRTR, verbs.AttrAV, "without AttrState"},
		{"from a state that is none", verbs.RC, verbs.QPState(9), verbs.StateErr, verbs.AttrState, "does not go"},
		{"nothing at all in ERR", verbs.RC, verbs.StateErr, verbs.StateErr, 0, "does not go"},
		{"drained notice", verbs.UD, verbs.StateRTS, verbs.StateSQD, verbs.AttrState | verbs.AttrEnSQDAsyncNotify, ""},
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
	for _, typ := range []verbs.QPType{verbs.RawPacket, verbs.XRCSend, verbs.XRCRecv, 0} {
		if err := CheckTransition(typ, verbs.StateReset, verbs.StateInit, verbs.AttrState); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v: got %v, want ErrUnsupported", typ, err)
		}
	}
}

func TestQPAttrMaskString(t *testing.T) {
	for mask, want := range map[verbs.QPAttrMask]string{
		0: "none", verbs.AttrState: "AttrState", verbs.AttrState | verbs.AttrDestQPN: "AttrState|AttrDestQPN", 1 << 30: "unknown",
	} {
		if got := mask.String(); got != want {
			t.Errorf("%#x: got %q, want %q", uint32(mask), got, want)
		}
	}
}
