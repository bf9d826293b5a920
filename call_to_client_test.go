package cinnabar

import (
	"testing"

	"cinnabar/codes"
)

// TestCallToClient: an engine that does not listen refuses calls at once, and goes on with its own.
func TestCallToClient(t *testing.T) {
	client, other := calling(t, nil), calling(t, nil)
	to := reach(t, other, client)
	for range 3 {
		_, err := add.Call(patient(t), to, addIn{})
		wantCode(t, err, codes.NoEntry, "add", client.Addr())
	}
	if err := NewOneWay[addIn]("note").Send(patient(t), to, addIn{}); err != nil {
		t.Errorf("a one-way call: %v", err)
	}
	server := listening(t, nil)
	must(t, add.Handle(server, handleAdd))
	callAdd(t, reach(t, client, server))
	_, err := add.Call(patient(t), reach(t, server, client), addIn{}) // over the connection that the client made
	wantCode(t, err, codes.NoEntry)
	callAdd(t, reach(t, client, server))
}
