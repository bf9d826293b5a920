package driver

import (
	"math/bits"
	"strings"
)

// qpAttrNames are the names of the bits of QPAttrMask, by bit number.
var qpAttrNames = [...]string{
	0: "AttrState", 1: "AttrCurState", 2: "AttrEnSQDAsyncNotify", 3: "AttrAccess", 4: "AttrPKeyIndex",
	5: "AttrPort", 6: "AttrQKey", 7: "AttrAV", 8: "AttrPathMTU", 9: "AttrTimeout", 10: "AttrRetryCount",
	11: "AttrRNRRetry", 12: "AttrRQPSN", 13: "AttrMaxRDAtomic", 15: "AttrMinRNRTimer", 16: "AttrSQPSN",
	17: "AttrMaxDestRDAtomic", 19: "AttrCap", 20: "AttrDestQPN",
}

// String lists the names of the bits, "none" if there are none.
func (m QPAttrMask) String() string {
	if m == 0 {
		return "none"
	}
	var s []string
	for rest := uint32(m); rest != 0; rest &= rest - 1 {
		s = append(s, nameOf(qpAttrNames[:], bits.TrailingZeros32(rest)))
	}
	return strings.Join(s, "|")
}

// step is a transition of the state machine of queue pairs.
type step struct{ from, to QPState }

// attrs are the attributes that a step needs and those that it takes besides.
// AttrState itself is not listed.
type attrs struct{ need, may QPAttrMask }

// attrTable is the state machine of one type of queue pair. Steps to RESET and
// to ERR are not listed: they are legal from every state and take no attribute.
type attrTable map[step]attrs

// The tables join ibv_modify_qp(3), which lists what the steps from RESET to RTS
// need, and the InfiniBand specification, volume 1, section 11.2.5.2 (Modify
// Queue Pair), which adds the other steps and what is optional.
var (
	rcSteps = attrTable{
		{StateReset, StateInit}: {need: AttrPKeyIndex | AttrPort | AttrAccess},
		{StateInit, StateInit}:  {may: AttrPKeyIndex | AttrPort | AttrAccess},
		{StateInit, StateRTR}: {
			need: AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRDAtomic | AttrMinRNRTimer,
			may:  AttrAccess | AttrPKeyIndex,
		},
		{StateRTR, StateRTS}: {
			need: AttrSQPSN | AttrMaxRDAtomic | AttrRetryCount | AttrRNRRetry | AttrTimeout,
			may:  AttrCurState | AttrAccess | AttrMinRNRTimer,
		},
		{StateRTS, StateRTS}: {may: AttrCurState | AttrAccess | AttrMinRNRTimer},
		{StateRTS, StateSQD}: {may: AttrEnSQDAsyncNotify},
		{StateSQD, StateRTS}: {may: AttrCurState | AttrAccess | AttrMinRNRTimer},
		{StateSQD, StateSQD}: {
			may: AttrPort | AttrAV | AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrMaxRDAtomic |
				AttrMaxDestRDAtomic | AttrAccess | AttrPKeyIndex | AttrMinRNRTimer,
		},
	}
	ucSteps = attrTable{
		{StateReset, StateInit}: {need: AttrPKeyIndex | AttrPort | AttrAccess},
		{StateInit, StateInit}:  {may: AttrPKeyIndex | AttrPort | AttrAccess},
		{StateInit, StateRTR}: {
			need: AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN,
			may:  AttrAccess | AttrPKeyIndex,
		},
		{StateRTR, StateRTS}: {need: AttrSQPSN, may: AttrCurState | AttrAccess},
		{StateRTS, StateRTS}: {may: AttrCurState | AttrAccess},
		{StateRTS, StateSQD}: {may: AttrEnSQDAsyncNotify},
		{StateSQD, StateRTS}: {may: AttrCurState | AttrAccess},
		{StateSQD, StateSQD}: {may: AttrAV | AttrAccess | AttrPKeyIndex},
		{StateSQE, StateRTS}: {may: AttrCurState | AttrAccess},
	}
	udSteps = attrTable{
		{StateReset, StateInit}: {need: AttrPKeyIndex | AttrPort | AttrQKey},
		{StateInit, StateInit}:  {may: AttrPKeyIndex | AttrPort | AttrQKey},
		{StateInit, StateRTR}:   {may: AttrPKeyIndex | AttrQKey},
		{StateRTR, StateRTS}:    {need: AttrSQPSN, may: AttrCurState | AttrQKey},
		{StateRTS, StateRTS}:    {may: AttrCurState | AttrQKey},
		{StateRTS, StateSQD}:    {may: AttrEnSQDAsyncNotify},
		{StateSQD, StateRTS}:    {may: AttrCurState | AttrQKey},
		{StateSQD, StateSQD}:    {may: AttrPKeyIndex | AttrQKey},
		{StateSQE, StateRTS}:    {may: AttrCurState | AttrQKey},
	}
)

// stepsOf returns the table of a type, nil if there is none.
func stepsOf(t QPType) attrTable {
	switch t {
	case RC:
		return rcSteps
	case UC:
		return ucSteps
	case UD:
		return udSteps
	default:
		return nil
	}
}

// CheckTransition tells whether a queue pair of type t in state from may be
// modified with the attributes of mask, to being the state that they ask for.
// Without AttrState in mask the queue pair stays, so to must be from. The error
// matches ErrInvalid and names the illegal step, or the attributes that are
// missing or out of place; for types other than RC, UC and UD it matches
// errors.ErrUnsupported.
//
// The rules are those of InfiniBand verbs. A device whose transport has others
// (iWARP connects queue pairs itself) says so instead of calling this.
func CheckTransition(t QPType, from, to QPState, mask QPAttrMask) error {
	const op = "modify queue pair"
	table := stepsOf(t)
	if table == nil {
		return Unsupported(op, "no state table for queue pairs of type %v", t)
	}
	if mask&AttrState == 0 && from != to {
		return Errorf(op, ErrInvalid, "from %v to %v without AttrState", from, to)
	}
	a, ok := table[step{from, to}]
	if leave := to == StateReset || to == StateErr; leave && mask&AttrState != 0 && int(from) < len(qpStateNames) {
		ok = true
	}
	if !ok {
		return Errorf(op, ErrInvalid, "type %v does not go from %v to %v", t, from, to)
	}
	mask &^= AttrState
	if missing := a.need &^ mask; missing != 0 {
		return Errorf(op, ErrInvalid, "type %v from %v to %v also needs %v", t, from, to, missing)
	}
	if extra := mask &^ (a.need | a.may); extra != 0 {
		return Errorf(op, ErrInvalid, "type %v from %v to %v does not take %v", t, from, to, extra)
	}
	return nil
}
