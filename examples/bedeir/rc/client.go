package rc

import (
	"context"

	"cinnabar/verbs/rdmacm"
)

// ClientLoop connects to hostport, "host:port", and works until the connection is
// over (rc_client_loop). Data becomes [Conn.Data]. It returns nil after an orderly
// end by either side: a client that wants more knows from its callbacks whether
// it had finished. When ctx ends, the connection is ended in order and the cause
// returned.
func (l *Library) ClientLoop(ctx context.Context, hostport string, data any) error {
	ch := rdmacm.NewEventChannel(nil)
	id, err := ch.NewID(l.dev)
	if err != nil {
		return err
	}
	c := &Conn{lib: l, id: id, ch: ch, peer: hostport, op: opConnect, Data: data}
	return c.work(ctx, func() error { return id.ResolveAddr(hostport, connectTimeout) })
}
