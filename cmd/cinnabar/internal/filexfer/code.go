package filexfer

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/onetime"
	"cinnabar/identity"
	"cinnabar/verbs/iwarp"
	"cinnabar/xfer"
)

// codeLimit is the time for which a one-time code is good.
const codeLimit = 10 * time.Minute

// meeting is the result of the exchange of a one-time code: the token that both prove to each other, bound to the TLS connection.
type meeting struct {
	token identity.Token
	tls   *tls.Config
}

// newMeeting makes it of the key of the exchange. The certificate is new and signed by itself, and the peer's is not verified, because the proof of the
// token covers the exporter value of TLS (ADR 0048).
func newMeeting(key []byte) (*meeting, error) {
	token, err := identity.TokenOf(key)
	if err != nil {
		return nil, err
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, err
	}
	cert := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
	return &meeting{token: token, tls: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}}, nil
}

// apply sets the fields of a device's configuration.
func (m *meeting) apply(cfg *iwarp.Config) {
	if m != nil {
		cfg.Token, cfg.TLS = m.token, m.tls
	}
}

// notWithCode are the options that --code does the work of.
var notWithCode = []string{"token-file", "tls-cert", "tls-key", "tls-ca", "tls-name"}

// checkCode refuses options that --code cannot go with.
func (o *options) checkCode(cmd *cobra.Command) error {
	for _, name := range notWithCode {
		if cmd.Flags().Changed(name) {
			return cli.Usagef("--%s was given with --code, which makes a secret and encrypts by itself; leave one of them out", name)
		}
	}
	if o.device != "" && o.device != cli.SoftwareDevice {
		return cli.Usagef("--code is for %s, not for --device %s", cli.SoftwareDevice, o.device)
	}
	return nil
}

// codeEvent is the first line of send --code --json.
type codeEvent struct {
	Event string `json:"event"` // "code"
	Code  string `json:"code"`
}

// meet prints a code, and waits until a receiver has proved it.
func (o *sendOptions) meet(ctx context.Context, r *reporter) error {
	code := onetime.New()
	err := r.resultf("code %s, for %v; on the receiver run: cinnabar recv --code %s", code, codeLimit, code)
	if o.json {
		err = r.event(codeEvent{"code", code.String()})
	}
	if err != nil {
		return err
	}
	limited, cancel := withCodeLimit(ctx)
	defer cancel()
	key, peer, err := onetime.Offer(limited, code, o.peers, func(peer netip.AddrPort, err error) {
		r.notef("no receiver with the code yet: %s: %s", peer, cli.Printable(err.Error()))
	})
	if err != nil {
		return fmt.Errorf("one-time code: peer %s: %w", peer, err)
	}
	o.peers = []netip.AddrPort{peer}
	o.meeting, err = newMeeting(key)
	return err
}

// errCodeExpired is the cause of the end of a wait for the other side of a code.
var errCodeExpired = fmt.Errorf("%v have passed, after which a code is not good any more; run send --code again", codeLimit)

func withCodeLimit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, codeLimit, errCodeExpired)
}

// mostCodeLine is the longest line that is read as a code, in bytes.
const mostCodeLine = 100

// readCode parses --code of recv; - is the first line of standard input, so that other users do not see the code in the list of processes.
func (o *recvOptions) readCode(in io.Reader) (err error) {
	text := o.codeText
	if text == standard {
		line, err := bufio.NewReader(io.LimitReader(in, mostCodeLine)).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read the code from standard input: %w", err)
		}
		text = line
	}
	if o.code, err = onetime.Parse(text); err != nil {
		return cli.Usagef("invalid --code: %w", err)
	}
	return nil
}

// meet listens, announces the address, and waits until a sender has proved the code. The socket that it listens at is for openDevice then.
func (r *receiving) meet(ctx context.Context, addrs []netip.AddrPort) error {
	var errs []error
	for _, a := range addrs {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(a))
		if err == nil {
			r.o.socket = l
			break
		}
		errs = append(errs, fmt.Errorf("listen on %s: %w", a, err))
	}
	if r.o.socket == nil {
		return errors.Join(errs...)
	}
	if err := r.announce(r.o.socket.Addr().String()); err != nil {
		return err
	}
	limited, cancel := withCodeLimit(ctx)
	defer cancel()
	key, peer, err := onetime.Accept(limited, r.o.code, r.o.socket)
	switch {
	case err != nil && peer.IsValid():
		return fmt.Errorf("one-time code: peer %s: %w; never type this code again, and end the send --code that has printed it", peer, err)
	case err != nil:
		return fmt.Errorf("one-time code: %w", err)
	}
	r.o.meeting, err = newMeeting(key)
	return err
}

// untilOpened returns open, and a context that ends when the sender has not begun a file within the timeout, or open has refused its file, because
// a code is good for one file.
func (r *receiving) untilOpened(ctx context.Context, open opener) (context.Context, context.CancelCauseFunc, opener) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(r.o.timeout, func() {
		cancel(fmt.Errorf("the sender has proved the code, and has not begun a file within %v", r.o.timeout))
	})
	return ctx, cancel, func(ofFile context.Context, from netip.AddrPort, name string, meta xfer.Meta, size int64) (xfer.File, error) {
		f, err := open(ofFile, from, name, meta, size)
		timer.Stop()
		if err != nil {
			end := func() { cancel(fmt.Errorf("the file of the sender was refused, and the code is used up: %w", err)) }
			r.refused.Store(&end)
		}
		return f, err
	}
}

// endRefused ends the command if the file of a code was refused. It is called when the sender has got the reason.
func (r *receiving) endRefused() {
	if end := r.refused.Load(); end != nil {
		(*end)()
	}
}
