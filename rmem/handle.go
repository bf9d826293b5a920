package rmem

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"cinnabar"
)

// Handle names a region for any process: where it is, and which. It can be compared, printed and parsed
// ([ParseHandle]), and sent as bytes. It does not let its holder free the region, see [Region.Token].
type Handle struct {
	Server   string // address of the server's engine
	Provider uint16
	ID       uint64
}

// Handle returns the region's name.
func (r *Region) Handle() Handle {
	return r.srv.handle(r.id)
}

// Token returns the name of the region together with its owner's secret, for [OpenToken]; "" if this process does not own
// it. Every process with the token can free and renew the region.
func (r *Region) Token() string {
	if !r.owned {
		return ""
	}
	return encode(tokenScheme, r.Handle(), r.secret[:])
}

// Schemes of the printable forms.
const (
	handleScheme = "rmem:"
	tokenScheme  = "rmem-owner:"
)

// fixedLen is the size in bytes of provider and id, the fields of a handle beside the address.
const fixedLen = 10

// mostText is the longest handle or token that is parsed, in bytes.
const mostText = 1024

func encode(scheme string, h Handle, secret []byte) string {
	b := binary.BigEndian.AppendUint16(nil, h.Provider)
	b = binary.BigEndian.AppendUint64(b, h.ID)
	b = append(append(b, secret...), h.Server...)
	return scheme + base64.RawURLEncoding.EncodeToString(b)
}

// decode parses a text of encode, with a secret of secretLen bytes.
func decode(kind, scheme, s string, secretLen int) (h Handle, secret []byte, err error) {
	text, ok := strings.CutPrefix(s, scheme)
	if !ok {
		return h, nil, fmt.Errorf("rmem: %q is no %s, which begins with %q", clipped(s), kind, scheme)
	}
	if len(text) > mostText {
		return h, nil, fmt.Errorf("rmem: a %s of %d bytes is longer than any, which have at most %d; copy it again", kind, len(text), mostText)
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) <= fixedLen+secretLen {
		return h, nil, fmt.Errorf("rmem: %q is no whole %s; copy it again", clipped(s), kind)
	}
	h = Handle{Provider: binary.BigEndian.Uint16(b), ID: binary.BigEndian.Uint64(b[2:]), Server: string(b[fixedLen+secretLen:])}
	if bytes.ContainsFunc(b[fixedLen+secretLen:], func(c rune) bool { return c < ' ' || c > '~' }) {
		return h, nil, fmt.Errorf("rmem: the %s names a server with unprintable characters", kind)
	}
	return h, b[fixedLen : fixedLen+secretLen], nil
}

func clipped(s string) string { return s[:min(len(s), 40)] }

// String returns the handle in a printable form.
func (h Handle) String() string { return encode(handleScheme, h, nil) }

// ParseHandle parses a text of Handle.String. It sends nothing, so the region need not exist.
func ParseHandle(s string) (Handle, error) {
	h, _, err := decode("handle", handleScheme, s, 0)
	return h, err
}

// MarshalText implements [encoding.TextMarshaler], so that a Handle can be a part of JSON and the like.
func (h Handle) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (h *Handle) UnmarshalText(b []byte) (err error) {
	*h, err = ParseHandle(string(b))
	return err
}

// Open returns a region that another process has allocated. It asks the server whether it is there, and of which size.
func Open(ctx context.Context, e *cinnabar.Engine, h Handle) (*Region, error) {
	return openAt(ctx, e, h, nil)
}

func openAt(ctx context.Context, e *cinnabar.Engine, h Handle, secret []byte) (*Region, error) {
	ep, err := e.Lookup(h.Server)
	if err != nil {
		return nil, &Error{Op: "open", Server: h.Server, ID: h.ID, Err: err}
	}
	return open(ctx, server{wire: rpcWire{ep.Provider(h.Provider)}}, h.ID, secret)
}

// open asks a server about a region, as its owner if secret is not nil.
func open(ctx context.Context, srv server, id uint64, secret []byte) (*Region, error) {
	q := &request{Op: uint32(opStat), ID: id}
	copy(q.Secret[:], secret)
	a, err := srv.ask(ctx, q)
	if err != nil {
		return nil, srv.error("open", id, err)
	}
	srv.strict = a.Strict
	r, err := newRegion(srv, a)
	if err != nil {
		return nil, srv.error("open", id, err)
	}
	r.id, r.secret, r.owned = id, q.Secret, secret != nil
	return r, nil
}

// OpenToken is Open for a further owner of the region, by its token.
func OpenToken(ctx context.Context, e *cinnabar.Engine, token string) (*Region, error) {
	h, secret, err := decode("token", tokenScheme, token, len(request{}.Secret))
	if err != nil {
		return nil, err
	}
	return openAt(ctx, e, h, secret)
}

// OpenString is Open or OpenToken, whichever s is for.
func OpenString(ctx context.Context, e *cinnabar.Engine, s string) (*Region, error) {
	if strings.HasPrefix(s, tokenScheme) {
		return OpenToken(ctx, e, s)
	}
	h, err := ParseHandle(s)
	if err != nil {
		return nil, err
	}
	return Open(ctx, e, h)
}

// ServerAddress returns the address in a handle or token.
func ServerAddress(s string) (string, error) {
	if strings.HasPrefix(s, tokenScheme) {
		h, _, err := decode("token", tokenScheme, s, len(request{}.Secret))
		return h.Server, err
	}
	h, err := ParseHandle(s)
	return h.Server, err
}

// Usage is how much a server lends.
type Usage struct {
	Quota   int64 `json:"quota"` // bytes
	Used    int64 `json:"used"`  // bytes
	Regions int   `json:"regions"`
	Clients int   `json:"clients"`
	Strict  bool  `json:"strict"`
}

// QueryUsage asks a server how much it lends.
func QueryUsage(ctx context.Context, to cinnabar.ProviderHandle) (Usage, error) {
	srv := server{wire: rpcWire{to}}
	a, err := srv.ask(ctx, &request{Op: uint32(opUsage)})
	if err != nil {
		return Usage{}, srv.error("ask", 0, err)
	}
	return Usage{Quota: a.Limit, Used: a.Limit - a.Left, Regions: int(a.Value), Clients: int(a.Size), Strict: a.Strict}, nil
}

// FreeToken frees a region by its owner's token, also if it cannot be opened.
func FreeToken(ctx context.Context, e *cinnabar.Engine, token string) error {
	h, secret, err := decode("token", tokenScheme, token, len(request{}.Secret))
	if err != nil {
		return err
	}
	ep, err := e.Lookup(h.Server)
	if err != nil {
		return &Error{Op: "free", Server: h.Server, ID: h.ID, Err: err}
	}
	srv := server{wire: rpcWire{ep.Provider(h.Provider)}}
	q := &request{Op: uint32(opFree), ID: h.ID}
	copy(q.Secret[:], secret)
	_, err = srv.ask(ctx, q)
	return srv.error("free", h.ID, err)
}

// Part is a piece of a batch: memory of the caller's, and where in the region it belongs.
type Part struct {
	Data   []byte
	Offset int64 // in bytes
}

// inFlight is how many parts of a batch are under way at a time.
const inFlight = 16

// ReadParts reads many pieces at once, several under way at a time. All lie in the region, or none is read. It returns the
// first error.
func (r *Region) ReadParts(ctx context.Context, parts []Part) error {
	return r.parts(ctx, "read", parts, r.ReadAtContext)
}

// WriteParts writes many pieces at once, several under way at a time, in no order. All lie in the region, or none is
// written. It returns the first error.
func (r *Region) WriteParts(ctx context.Context, parts []Part) error {
	return r.parts(ctx, "write", parts, r.WriteAtContext)
}

func (r *Region) parts(ctx context.Context, operation string, parts []Part, do func(context.Context, []byte, int64) (int, error)) error {
	for i, p := range parts {
		if p.Offset < 0 || int64(len(p.Data)) > r.size || p.Offset > r.size-int64(len(p.Data)) {
			return r.srv.error(operation, r.id, fmt.Errorf("part %d: %w of %d bytes", i, ErrRange, r.size))
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next, ended := make(chan Part), make(chan error)
	workers := min(inFlight, len(parts))
	for range workers {
		go func() {
			var first error
			for p := range next {
				if first != nil {
					continue
				}
				if _, first = do(ctx, p.Data, p.Offset); first != nil {
					cancel(first)
				}
			}
			ended <- first
		}()
	}
	for _, p := range parts {
		next <- p
	}
	close(next)
	var errs []error
	for range workers {
		errs = append(errs, <-ended)
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause // the first, not those that it caused
	}
	return errors.Join(errs...)
}
