package verbsrules

import "cinnabar/verbs"

// step is a transition of the state machine of queue pairs.
type step struct{ from, to verbs.QPState }

// attrs are the attributes that a step needs and those that it takes besides.
// AttrState itself is not listed.
type attrs struct{ need, may verbs.QPAttrMask }

// attrTable is the state machine of one type of queue pair. Steps to RESET and
// to ERR are not listed: they are legal from every state and take no attribute.
type attrTable map[step]attrs

// The tables join ibv_modify_qp(3), which lists the attributes that the steps from RESET to
// RTS need, and the InfiniBand specification, volume 1, section 11.2.5.2 (Modify
// Queue Pair), which adds the other steps and the optional attributes.
var (
	rcSteps = attrTable{
		{verbs.StateReset, verbs.StateInit}: {need: verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrAccess},
		{verbs.StateInit, verbs.StateInit}:  {may: verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrAccess},
		{verbs.StateInit, verbs.StateRTR}: {
			need: verbs.AttrAV | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRQPSN | verbs.AttrMaxDestRDAtomic | verbs.AttrMinRNRTimer,
			may:  verbs.AttrAccess | verbs.AttrPKeyIndex,
		},
		{verbs.StateRTR, verbs.StateRTS}: {
			need: verbs.AttrSQPSN | verbs.AttrMaxRDAtomic | verbs.AttrRetryCount | verbs.AttrRNRRetry | verbs.AttrTimeout,
			may:  verbs.AttrCurState | verbs.AttrAccess | verbs.AttrMinRNRTimer,
		},
		{verbs.StateRTS, verbs.StateRTS}: {may: verbs.AttrCurState | verbs.AttrAccess | verbs.AttrMinRNRTimer},
		{verbs.StateRTS, verbs.StateSQD}: {may: verbs.AttrEnSQDAsyncNotify},
		{verbs.StateSQD, verbs.StateRTS}: {may: verbs.AttrCurState | verbs.AttrAccess | verbs.AttrMinRNRTimer},
		{verbs.StateSQD, verbs.StateSQD}: {
			may: verbs.AttrPort | verbs.AttrAV | verbs.AttrTimeout | verbs.AttrRetryCount | verbs.AttrRNRRetry | verbs.AttrMaxRDAtomic |
				verbs.AttrMaxDestRDAtomic | verbs.AttrAccess | verbs.AttrPKeyIndex | verbs.AttrMinRNRTimer,
		},
	}
	ucSteps = attrTable{
		{verbs.StateReset, verbs.StateInit}: {need: verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrAccess},
		{verbs.StateInit, verbs.StateInit}:  {may: verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrAccess},
		{verbs.StateInit, verbs.StateRTR}: {
			need: verbs.AttrAV | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRQPSN,
			may:  verbs.AttrAccess | verbs.AttrPKeyIndex,
		},
		{verbs.StateRTR, verbs.StateRTS}: {need: verbs.AttrSQPSN, may: verbs.AttrCurState | verbs.AttrAccess},
		{verbs.StateRTS, verbs.StateRTS}: {may: verbs.AttrCurState | verbs.AttrAccess},
		{verbs.StateRTS, verbs.StateSQD}: {may: verbs.AttrEnSQDAsyncNotify},
		{verbs.StateSQD, verbs.StateRTS}: {may: verbs.AttrCurState | verbs.AttrAccess},
		{verbs.StateSQD, verbs.StateSQD}: {may: verbs.AttrAV | verbs.AttrAccess | verbs.AttrPKeyIndex},
		{verbs.StateSQE, verbs.StateRTS}: {may: verbs.AttrCurState | verbs.AttrAccess},
	}
	udSteps = attrTable{
		{verbs.StateReset, verbs.StateInit}: {need: verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrQKey},
		{verbs.StateInit, verbs.StateInit}:  {may: verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrQKey},
		{verbs.StateInit, verbs.StateRTR}:   {may: verbs.AttrPKeyIndex | verbs.AttrQKey},
		{verbs.StateRTR, verbs.StateRTS}:    {need: verbs.AttrSQPSN, may: verbs.AttrCurState | verbs.AttrQKey},
		{verbs.StateRTS, verbs.StateRTS}:    {may: verbs.AttrCurState | verbs.AttrQKey},
		{verbs.StateRTS, verbs.StateSQD}:    {may: verbs.AttrEnSQDAsyncNotify},
		{verbs.StateSQD, verbs.StateRTS}:    {may: verbs.AttrCurState | verbs.AttrQKey},
		{verbs.StateSQD, verbs.StateSQD}:    {may: verbs.AttrPKeyIndex | verbs.AttrQKey},
		{verbs.StateSQE, verbs.StateRTS}:    {may: verbs.AttrCurState | verbs.AttrQKey},
	}
)

// stepsOf returns the table of a type, nil if there is none.
func stepsOf(t verbs.QPType) attrTable {
	switch t {
	case verbs.RC:
		return rcSteps
	case verbs.UC:
		return ucSteps
	case verbs.UD:
		return udSteps
	default:
		return nil
	}
}

// CheckTransition checks that a queue pair of type t in state from may be
// modified with the attributes of mask, to being the state that they ask for.
// Without AttrState in mask the queue pair stays, so to must be from. The error
// matches ErrInvalid and names the illegal step, or the attributes that are
// missing or out of place; for types other than RC, UC and UD it matches
// errors.ErrUnsupported.
//
// The rules are those of InfiniBand verbs. A device of a transport with others
// (iWARP connects queue pairs itself) says so instead of calling this.
func CheckTransition(t verbs.QPType, from, to verbs.QPState, mask verbs.QPAttrMask) error {
	const op = "modify queue pair"
	table := stepsOf(t)
	if table == nil {
		return verbs.Unsupported(op, "no state table for queue pairs of type %v", t)
	}
	if mask&verbs.AttrState == 0 && from != to {
		return verbs.Errorf(op, verbs.ErrInvalid, "from %v to %v without AttrState", from, to)
	}
	a, ok := table[step{from, to}]
	if leave := to == verbs.StateReset || to == verbs.StateErr; leave && mask&verbs.AttrState != 0 && from <= verbs.StateErr {
		ok = true
	}
	if !ok {
		return verbs.Errorf(op, verbs.ErrInvalid, "type %v does not go from %v to %v", t, from, to)
	}
	mask &^= verbs.AttrState
	if missing := a.need &^ mask; missing != 0 {
		return verbs.Errorf(op, verbs.ErrInvalid, "type %v from %v to %v also needs %v", t, from, to, missing)
	}
	if extra := mask &^ (a.need | a.may); extra != 0 {
		return verbs.Errorf(op, verbs.ErrInvalid, "type %v from %v to %v does not take %v", t, from, to, extra)
	}
	return nil
}
