package native

import (
	"context"

	"cinnabar"
)

// SendCancel sends the cancel of calls by their ids.
func SendCancel(ctx context.Context, to cinnabar.Target, ids ...uint64) error {
	return cancelRPC.Send(ctx, to, cancelMessage{ids})
}

// CallID returns the id of the call that a handler serves.
func CallID(ctx context.Context) uint64 { return served(ctx).id }

// ReflectOnce asks for a page of descriptions without a repetition.
func ReflectOnce(ctx context.Context, to cinnabar.Target) error {
	_, err := reflectRPC.Call(ctx, to, reflectRequest{First: true})
	return err
}
