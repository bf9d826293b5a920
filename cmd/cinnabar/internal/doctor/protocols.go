package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/codes"
	"cinnabar/verbs/auto"
)

// pulledSize is the memory that the server of callOver pulls from its caller, in bytes.
const pulledSize = 256 << 10

// pullRPC pulls the caller's memory. Its result is the number of bytes that have the right value.
var pullRPC = cinnabar.NewRPC[cinnabar.BulkHandle, uint64]("cinnabar doctor pull")

// callOver opens two engines at an address of this host, and makes a call with a bulk transfer from one to the other. dev is the RDMA device over
// ofi+verbs, and nil over other networks.
func callOver(ctx context.Context, address string, dev *auto.Device) (err error) {
	cfg := func() *cinnabar.Config {
		c := &cinnabar.Config{}
		if dev != nil {
			c.Device = dev
		}
		c = cli.Logged(ctx, c)
		c.Interface = "" // an interface that the environment names does not have the loopback address
		return c
	}
	server, err := cinnabar.Listen(ctx, address, cfg())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	err = pullRPC.Handle(server, func(ctx context.Context, in cinnabar.BulkHandle) (uint64, error) {
		b, err := server.Alloc(cinnabar.WriteOnly, pulledSize)
		if err != nil {
			return 0, err
		}
		_, err = in.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, b)
		n := uint64(bytes.Count(b.Bytes(), []byte{probeByte}))
		return n, errors.Join(err, b.Close())
	})
	if err != nil {
		return err
	}
	client, err := cinnabar.Open(ctx, address, cfg())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	data, err := client.Alloc(cinnabar.ReadOnly, pulledSize)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	fill(data.Bytes(), probeByte)
	ep, err := client.Lookup(server.Addr())
	if err != nil {
		return err
	}
	n, err := pullRPC.Call(ctx, ep, data.Handle())
	if err == nil && n != pulledSize {
		err = fmt.Errorf("the server pulled %d bytes of %d with the right value", n, pulledSize)
	}
	return err
}

// protocol adds the finding about one protocol.
func (x *exam) protocol(ctx context.Context, address string, dev *auto.Device, remedy string) {
	began := time.Now()
	if err := callOver(ctx, address, dev); err != nil {
		x.add(levelFault, fmt.Sprintf("a call over %s within this host fails", x.probe), cli.OneLine(err), remedy)
		return
	}
	x.ok("a call pulled %s, %v with the start of both engines", cli.SizeText(pulledSize), time.Since(began).Round(time.Millisecond))
}

func probeOfiTCP(ctx context.Context, x *exam) {
	x.protocol(ctx, "ofi+tcp://127.0.0.1:0", nil, "see the findings of loopback, memory and nofile")
}

func probeSM(ctx context.Context, x *exam) {
	x.protocol(ctx, "na+sm://", nil, "see the findings of shm, tmp and attach")
}

func probeOfiVerbs(ctx context.Context, x *exam) {
	dev, err := auto.Software(nil)
	if err != nil {
		x.add(levelFault, "the software device cannot be opened", cli.OneLine(err), "see the findings of memory and nofile")
		return
	}
	defer cli.Shut(dev)
	x.protocol(ctx, "ofi+verbs://127.0.0.1:0", dev, "see the findings of loopback, memory and nofile")
}

// maxAddresses bounds the arguments.
const maxAddresses = 64

// target is an argument of the command.
type target struct {
	text     string
	hostPort string // for TCP; "" for na+sm
	engine   bool   // text is the address of an engine on ofi+tcp or na+sm
}

// parseTarget reads HOST:PORT or the address of an engine.
func parseTarget(text string) (target, error) {
	last := text
	if cli.Combined(text) {
		last = text[strings.LastIndexByte(text, '#')+1:] // the address on the network
	}
	protocol, where, ok := strings.Cut(last, "://")
	t := target{text: text, hostPort: where, engine: ok}
	switch protocol {
	case "ofi+tcp", "tcp":
		t.engine = true
	case "na+sm", "sm":
		t.hostPort = ""
		return t, nil
	case "ofi+tcps", "tcps":
		return t, cli.Usagef("address %q: doctor has no certificate for a call to it; give HOST:PORT", text)
	default:
		if ok {
			return t, cli.Usagef("address %q: doctor reaches HOST:PORT and addresses of ofi+tcp and na+sm; cinnabar ping reaches others", text)
		}
		t.hostPort = text
	}
	host, port, err := net.SplitHostPort(t.hostPort)
	if n, numErr := strconv.ParseUint(port, 10, 16); err != nil || numErr != nil || n == 0 || host == "" {
		return t, cli.Usagef("address %q is not HOST:PORT, [IPV6]:PORT or PROTOCOL://HOST:PORT with a port from 1 to 65535", text)
	}
	return t, nil
}

func probeAddresses(ctx context.Context, x *exam) {
	if len(x.addresses) == 0 {
		x.notTried("no ADDRESS was given")
		return
	}
	for n, a := range x.addresses {
		one, cancel := share(ctx, len(x.addresses)-n)
		x.address(one, a)
		cancel()
	}
}

// address connects to an address, and makes a round trip to the RPC layer of an engine.
func (x *exam) address(ctx context.Context, text string) {
	t, err := parseTarget(text)
	if err != nil {
		x.notTried("%v", err)
		return
	}
	if t.hostPort != "" {
		c, err := x.dial(ctx, t.hostPort)
		if err != nil {
			kind, cause, remedy := unreachable(err)
			x.add(levelFault, fmt.Sprintf("%s: %s", text, kind), cause, remedy)
			return
		}
		local := c.LocalAddr()
		cli.Shut(c)
		if !t.engine {
			x.ok("%s accepts connections, from %v", text, local)
			return
		}
	}
	began := time.Now()
	if err := roundTrip(ctx, text); err != nil {
		finding := text + " does not answer a call"
		if t.hostPort != "" {
			finding = text + " accepts connections, and does not answer a call"
		}
		x.add(levelFault, finding, cli.OneLine(err), "see whether the process serves this protocol, and is neither frozen nor overloaded; cinnabar ping names the layer that does not answer")
		return
	}
	x.ok("%s answered a call within %v", text, time.Since(began).Round(100*time.Microsecond))
}

// absentRPC is an RPC that no process serves. The RPC layer of a process, which is Mercury in C, answers requests for it with HG_NOENTRY.
var absentRPC = cinnabar.NewRPC[struct{}, struct{}]("cinnabar doctor", cinnabar.WithFlavor(cinnabar.Mercury))

// roundTrip makes one round trip to the RPC layer of the process at address.
func roundTrip(ctx context.Context, address string) (err error) {
	e, err := cinnabar.Open(ctx, cli.LocalFor(ctx, address), cli.Logged(ctx, &cinnabar.Config{AutoSM: cli.Combined(address)}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	ep, err := e.Lookup(address)
	if err != nil {
		return err
	}
	_, err = absentRPC.Call(ctx, ep, struct{}{})
	if answer, ok := errors.AsType[*cinnabar.Error](err); ok && answer.Remote && answer.Code == codes.NoEntry {
		return nil
	}
	return err
}
