package natest

// Kind says what a step is about.
type Kind uint8

const (
	kindReceive  Kind = iota // posted by RecvExpected; never a step
	KindRequest              // a request is taken from its sender, or arrives
	KindResponse             // an expected message
	KindGet                  // a part of a transfer
	KindPut
)

func (k Kind) String() string {
	return [...]string{"receive", "request", "response", "get", "put"}[k]
}

// Step is one thing that happens: a message is taken from its sender, a message arrives, a part of a transfer moves.
type Step struct {
	N        int // from 1 on
	Kind     Kind
	From, To *Endpoint // who has started the operation, and its peer
	Tag      uint32
	Arrives  bool   // a message that was taken before; Data may be changed
	Data     []byte // of a message
	Offset   int64  // of a transfer: how many bytes have moved
}

// Action is what a fault does.
type Action uint8

const (
	Proceed  Action = iota
	Lose            // the message vanishes; a transfer stops for ever
	CutLink         // the connection is lost before the step
	KillFrom        // the process vanishes before the step
	KillTo
)
