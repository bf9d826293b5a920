package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rdmacm"
)

// The client and the server of rdma_client(1) and rdma_server(1): one message each way.
func Example() {
	ctx := context.Background()
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	l, err := rdmacm.ListenEndpoints(dev, netip.MustParseAddrPort("127.0.0.1:0"), rdmacm.EndpointConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() { served <- serve(ctx, l) }()

	ep, err := rdmacm.NewEndpoint(dev, rdmacm.EndpointConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer ep.Close()
	mr, err := ep.RegMsgs([]byte("ping...."))
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	if err := errors.Join(ep.PostRecv(0, mr, 4, 4), ep.Connect(ctx, l.Addr(), verbs.ConnParam{}), ep.PostSend(0, mr, 0, 4, 0)); err != nil {
		log.Fatal(err)
	}
	if _, err := ep.RecvComp(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", mr.Bytes())
	if err := errors.Join(ep.Disconnect(ctx), <-served); err != nil {
		log.Fatal(err)
	}
	// Output: pingpong
}

// serve answers one message with "pong".
func serve(ctx context.Context, l *rdmacm.EndpointListener) (err error) {
	ep, err := l.GetRequest(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	mr, err := ep.RegMsgs([]byte("....pong"))
	if err != nil {
		return err
	}
	defer mr.Close()
	if err := errors.Join(ep.PostRecv(0, mr, 0, 4), ep.Accept(ctx, verbs.ConnParam{})); err != nil {
		return err
	}
	if _, err := ep.RecvComp(ctx); err != nil {
		return err
	}
	if err := ep.PostSend(0, mr, 4, 4, 0); err != nil {
		return err
	}
	_, err = ep.SendComp(ctx)
	return err
}

// Calls on an identifier return at once, and events report how they ended.
func ExampleEventChannel() {
	ctx := context.Background()
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	ch := rdmacm.NewEventChannel(nil)
	defer ch.Close()
	id, err := ch.NewID(dev)
	if err != nil {
		log.Fatal(err)
	}
	if err := id.ResolveAddr("127.0.0.1:7174", time.Minute); err != nil {
		log.Fatal(err)
	}
	event, err := ch.Get(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(event, id.RemoteAddr())
	event.Ack()
	// Output: RDMA_CM_EVENT_ADDR_RESOLVED 127.0.0.1:7174
}
