package authz

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"unicode/utf8"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/identity"
	"cinnabar/internal/audit"
)

// Limits of a file.
const (
	MaxBytes = 1 << 20 // of the file
	MaxRules = 4096    // lines that allow calls
	MaxLine  = 4096    // bytes of a line
)

// administrative begins the names of the RPCs that packages of this module serve for themselves.
const administrative = "__"

// carriers are the RPCs by which package native moves the elements of streams and cancels calls. They are allowed to every peer that a rule
// matches, because each acts only on streams and calls of the connection over which it comes, and the list has allowed these when they began.
var carriers = map[string]bool{"__native_stream__": true, "__native_cancel__": true}

// List is a list of the calls that peers may make. The zero List, and a nil *List, allow none. Its methods are safe for concurrent use.
type List struct {
	path string

	reload sync.Mutex // held while the file is read
	rules  atomic.Pointer[[]rule]
}

// Load reads a list from the file at path. The error names the file, the line and the remedy.
func Load(path string) (*List, error) {
	l := &List{path: path}
	if err := l.Reload(); err != nil {
		return nil, err
	}
	return l, nil
}

// Parse returns the list in text. The error has the number of the line.
func Parse(text string) (*List, error) {
	rules, err := parse(text)
	if err != nil {
		return nil, err
	}
	l := &List{}
	l.rules.Store(&rules)
	return l, nil
}

// Reload reads the file again. The new list decides about requests that come afterwards. After an error the old list stays in force, and the program
// should log the error.
func (l *List) Reload() error {
	if l.path == "" {
		return errors.New("this list was not loaded from a file")
	}
	l.reload.Lock()
	defer l.reload.Unlock()
	rules, err := read(l.path)
	if err == nil {
		l.rules.Store(&rules)
	}
	return err
}

// read reads the rules from the file at path.
func read(path string) ([]rule, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // so that a pipe without a writer does not hold up Reload
	if err != nil {
		return nil, fmt.Errorf("access list: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	if info, err := f.Stat(); err != nil {
		return nil, fmt.Errorf("access list: %w", err)
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("access list %s is no regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("access list %s: %w", path, err)
	}
	rules, err := parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("access list %s: %w", path, err)
	}
	return rules, nil
}

// Allows reports whether the list allows a peer to call an RPC of a provider.
func (l *List) Allows(p identity.Peer, rpc string, provider uint16) bool {
	if l == nil {
		return false
	}
	rules := l.rules.Load()
	if rules == nil {
		return false
	}
	carrier := carriers[rpc]
	for i := range *rules {
		r := &(*rules)[i]
		if (carrier || r.names(rpc) && (r.anyProvider || r.provider == provider)) && r.peer.matches(p) {
			return true
		}
	}
	return false
}

// Interceptor returns an interceptor for Config.Interceptors that refuses the requests which the list does not allow. It should be the first
// one, so that no other one acts on a refused request. It passes the calls that the process itself makes.
func (l *List) Interceptor() cinnabar.Interceptor {
	return func(ctx context.Context, c *cinnabar.CallInfo, next func(context.Context) error) error {
		if !c.Server || l.Allows(c.Identity, c.RPC, c.Provider) {
			return next(ctx)
		}
		audit.RecordIn(ctx, audit.Refused, "a call that the access list does not allow")
		return &cinnabar.Error{Op: "authorize", RPC: c.RPC, Code: codes.Permission, Err: fmt.Errorf("the access list of the server does not allow %q of provider %d for %v", c.RPC, c.Provider, c.Identity)}
	}
}

// rule allows the calls of one line.
type rule struct {
	peer        condition
	rpc         string // the name, or its beginning
	prefix      bool
	provider    uint16
	anyProvider bool
}

// names reports whether the rule names an RPC.
func (r *rule) names(rpc string) bool {
	if !r.prefix {
		return rpc == r.rpc
	}
	return strings.HasPrefix(rpc, r.rpc) && (strings.HasPrefix(r.rpc, administrative) || !strings.HasPrefix(rpc, administrative))
}

// fact is the kind of a condition.
type fact uint8

const (
	factAny fact = iota + 1 // 0 matches no peer
	factSelf
	factToken
	factAddr
	factUID
	factSubject
	factName
)

// condition is the identity in a rule.
type condition struct {
	fact   fact
	text   string // of factSubject and factName
	prefix netip.Prefix
	uid    uint32
}

// matches reports whether a fact about p meets the condition.
func (c *condition) matches(p identity.Peer) bool {
	switch c.fact {
	case factAny:
		return true
	case factSelf:
		return p.Kind == identity.Self
	case factToken:
		return p.Token
	case factAddr:
		return p.Host.IsValid() && c.prefix.Contains(p.Host.Unmap().WithZone(""))
	case factUID:
		return p.Kind == identity.Process && p.UID == c.uid
	case factSubject:
		return p.Kind == identity.Certificate && p.Subject == c.text
	case factName:
		return p.Kind == identity.Certificate && slices.Contains(p.Names, c.text)
	}
	return false
}

// parse returns the rules of a text.
func parse(text string) ([]rule, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("more than %d bytes", MaxBytes)
	}
	rules := []rule{}
	lines := map[rule]int{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		r, ok, err := parseLine(strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if !ok {
			continue
		}
		if before := lines[r]; before > 0 {
			return nil, fmt.Errorf("line %d repeats line %d; remove one of them", n, before)
		}
		if len(rules) == MaxRules {
			return nil, fmt.Errorf("line %d: more than %d rules", n, MaxRules)
		}
		lines[r] = n
		rules = append(rules, r)
	}
	return rules, nil
}

// parseLine returns the rule of a line; ok is false for a comment and an empty line.
func parseLine(line string) (r rule, ok bool, err error) {
	if len(line) > MaxLine {
		return r, false, fmt.Errorf("%d bytes; a line has at most %d", len(line), MaxLine)
	}
	if !utf8.ValidString(line) {
		return r, false, errors.New("bytes that are no UTF-8")
	}
	f, err := fields(line)
	if err != nil || len(f) == 0 {
		return r, false, err
	}
	if f[0] != "allow" {
		return r, false, fmt.Errorf("%q; a line begins with allow, or with # if it is a comment", f[0])
	}
	if len(f) != 4 {
		return r, false, fmt.Errorf("%d fields; want allow IDENTITY RPC PROVIDER, with * for any RPC or provider", len(f))
	}
	if r.peer, err = parseCondition(f[1]); err != nil {
		return r, false, err
	}
	if r.rpc, r.prefix = strings.CutSuffix(f[2], "*"); strings.Contains(r.rpc, "*") {
		return r, false, fmt.Errorf("RPC %q; * stands at the end of a name only", f[2])
	} else if r.rpc == "" && !r.prefix {
		return r, false, errors.New("an empty name of an RPC; want a name, or * for any")
	}
	if r.anyProvider = f[3] == "*"; !r.anyProvider {
		id, err := parseNumber(f[3], 16)
		if err != nil {
			return r, false, fmt.Errorf("provider %q; want a number from 0 to 65535, or * for any", f[3])
		}
		r.provider = uint16(id)
	}
	return r, true, nil
}

// parseNumber reads a decimal number without sign and without zeros before it.
func parseNumber(s string, bits int) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, bits)
	if err == nil && strconv.FormatUint(n, 10) != s {
		err = strconv.ErrSyntax
	}
	return n, err
}

// parseCondition reads an identity.
func parseCondition(s string) (condition, error) {
	switch s {
	case "any":
		return condition{fact: factAny}, nil
	case "self":
		return condition{fact: factSelf}, nil
	case "token":
		return condition{fact: factToken}, nil
	}
	kind, value, _ := strings.Cut(s, ":")
	if value == "" {
		return condition{}, fmt.Errorf("identity %q; want subject:, DNS:, email:, IP:, URI:, uid: or addr: with a value, or token, self or any", s)
	}
	switch kind {
	case "subject":
		return condition{fact: factSubject, text: value}, nil
	case "DNS", "email", "URI":
		return condition{fact: factName, text: s}, nil
	case "IP":
		a, err := netip.ParseAddr(value)
		if err != nil || a.String() != value {
			return condition{}, fmt.Errorf("identity %q; want the IP address in a certificate, in its usual form", s)
		}
		return condition{fact: factName, text: s}, nil
	case "uid":
		n, err := parseNumber(value, 32)
		if err != nil {
			return condition{}, fmt.Errorf("identity %q; want the number of a user", s)
		}
		return condition{fact: factUID, uid: uint32(n)}, nil
	case "addr":
		p, err := parsePrefix(value)
		if err != nil {
			return condition{}, fmt.Errorf("identity %q: %w", s, err)
		}
		return condition{fact: factAddr, prefix: p}, nil
	}
	return condition{}, fmt.Errorf("identity %q of the unknown kind %q; want subject, DNS, email, IP, URI, uid, addr, token, self or any", s, kind)
}

// parsePrefix reads an IP address, or a prefix whose address has only zeros behind the prefix length.
func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" && !a.Is4In6() {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil || p.Addr().Is4In6():
		return p, errors.New("want an IP address, or a prefix such as 192.0.2.0/24")
	case p != p.Masked():
		return p, fmt.Errorf("the address has bits behind the length of the prefix; %v is meant, or the address alone", p.Masked())
	}
	return p, nil
}

// fields returns the fields of a line, up to a comment.
func fields(line string) (list []string, err error) {
	for rest := line; ; {
		rest = strings.TrimLeft(rest, " \t")
		if rest == "" || rest[0] == '#' {
			return list, nil
		}
		var field string
		if field, rest, err = nextField(rest); err != nil {
			return nil, err
		}
		list = append(list, field)
	}
}

// nextField returns the field at the start of s, without its quotes, and the rest of s.
func nextField(s string) (field, rest string, err error) {
	var b strings.Builder
	for s != "" && s[0] != ' ' && s[0] != '\t' {
		switch c := s[0]; {
		case c == '"':
			quoted, err := strconv.QuotedPrefix(s)
			if err != nil {
				return "", "", errors.New("a quote without its end, or with an unknown escape")
			}
			text, err := strconv.Unquote(quoted)
			if err != nil || !utf8.ValidString(text) {
				return "", "", fmt.Errorf("%s is no quoted text", quoted)
			}
			b.WriteString(text)
			s = s[len(quoted):]
		case c == '#' || c < ' ' || c == 0x7f:
			return "", "", fmt.Errorf("the character %q within a field; put the field in double quotes", c)
		default:
			b.WriteByte(c)
			s = s[1:]
		}
	}
	return b.String(), s, nil
}
