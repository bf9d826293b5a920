package authz

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cinnabar/identity"
)

// TestMalformedLists checks that each fault is named with its line.
func TestMalformedLists(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"allow any *", "line 1: 3 fields"},
		{"\n# comment\nallow any * * *", "line 3: 5 fields"},
		{"deny any * *", `line 1: "deny"`},
		{"allow nemo * *", `line 1: identity "nemo"`},
		{"allow uid: * *", `line 1: identity "uid:"`},
		{"allow uid:01 * *", "number of a user"},
		{"allow uid:-1 * *", "number of a user"},
		{"allow uid:4294967296 * *", "number of a user"},
		{"allow user:7 * *", `unknown kind "user"`},
		{"allow addr:host * *", "want an IP address"},
		{"allow addr:192.0.2.7/24 * *", "192.0.2.0/24 is meant"},
		{"allow addr:::ffff:192.0.2.7 * *", "want an IP address"},
		{"allow addr:fe80::1%eth0 * *", "want an IP address"},
		{"allow IP:2001:DB8::1 * *", "usual form"},
		{"allow any st*re *", "* stands at the end"},
		{"allow any ** *", "* stands at the end"},
		{`allow any "" *`, "empty name"},
		{"allow any * 65536", `provider "65536"`},
		{"allow any * 07", `provider "07"`},
		{"allow any * -1", `provider "-1"`},
		{`allow subject:"CN=a * *`, "quote without its end"},
		{`allow "subject:\xff" * *`, "no quoted text"},
		{"allow any a#b *", "put the field in double quotes"},
		{"allow any a\x00b *", "put the field in double quotes"},
		{"allow any \xff *", "no UTF-8"},
		{"allow any * *\nallow  any\t*  * # again", "line 2 repeats line 1"},
		{"allow any " + strings.Repeat("n", MaxLine) + " *", "a line has at most 4096"},
		{strings.Repeat("\n", MaxBytes+1), "more than 1048576 bytes"},
		{many(MaxRules + 1), "line 4097: more than 4096 rules"},
	} {
		if _, err := Parse(test.text); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.60q: %v, want %q", test.text, err, test.want)
		}
	}
	if _, err := Parse(many(MaxRules)); err != nil {
		t.Error(err)
	}
}

func many(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("allow any n" + strconv.Itoa(i) + " *\n")
	}
	return b.String()
}

// Callers of the tests.
var (
	host  = netip.MustParseAddr("192.0.2.7")
	anna  = identity.Peer{Kind: identity.Certificate, Host: host, Subject: "CN=anna smith,O=x", Names: []string{"DNS:a.example", "URI:spiffe://c/a"}}
	plain = identity.Peer{Kind: identity.Address, Host: netip.MustParseAddr("2001:db8::1")}
	user  = identity.Peer{Kind: identity.Process, UID: 1000, PID: 7}
	self  = identity.Peer{Kind: identity.Self}
)

// TestAllows checks each kind of identity, names, prefixes of names and providers.
// parity: A02 Y06
func TestAllows(t *testing.T) {
	proven := plain
	proven.Token = true
	forged := anna // the facts of a certificate count only if it was verified
	forged.Kind = identity.Address
	unknown := identity.Peer{}
	for _, test := range []struct {
		line     string
		peer     identity.Peer
		rpc      string
		provider uint16
		want     bool
	}{
		{`allow subject:"CN=anna smith,O=x" get *`, anna, "get", 3, true},
		{`allow subject:"CN=anna smith,O=x" get *`, forged, "get", 3, false},
		{`allow subject:CN=anna get *`, anna, "get", 3, false},
		{`allow "subject:CN=anna smith,O=x" get 3`, anna, "get", 3, true},
		{`allow DNS:a.example get 3`, anna, "get", 4, false},
		{`allow DNS:a.example get 3`, anna, "getter", 3, false},
		{`allow DNS:a.example get* 3`, anna, "getter", 3, true},
		{`allow DNS:a.example * *`, forged, "get", 0, false},
		{`allow DNS:spiffe://c/a * *`, anna, "get", 0, false},
		{`allow URI:spiffe://c/a * *`, anna, "get", 0, true},
		{`allow addr:192.0.2.0/24 * *`, anna, "get", 0, true},
		{`allow addr:192.0.2.7 * *`, anna, "get", 0, true},
		{`allow addr:192.0.2.8 * *`, anna, "get", 0, false},
		{`allow addr:2001:db8::/32 * *`, plain, "get", 0, true},
		{`allow addr:0.0.0.0/0 * *`, user, "get", 0, false},
		{`allow uid:1000 * *`, user, "get", 0, true},
		{`allow uid:7 * *`, user, "get", 0, false},
		{`allow uid:0 * *`, plain, "get", 0, false},
		{`allow uid:0 * *`, unknown, "get", 0, false},
		{`allow token * *`, proven, "get", 0, true},
		{`allow token * *`, plain, "get", 0, false},
		{`allow self * *`, self, "get", 0, true},
		{`allow self * *`, unknown, "get", 0, false},
		{`allow any * *`, unknown, "get", 0, true},
		{`allow any * *`, unknown, "__shutdown__", 0, false},
		{`allow any _* *`, unknown, "__shutdown__", 0, false},
		{`allow any __* *`, unknown, "__shutdown__", 0, true},
		{`allow any __* *`, unknown, "get", 0, false},
		{`allow any __shutdown__ *`, unknown, "__shutdown__", 0, true},
		{`allow uid:1000 get 3`, user, "__native_stream__", 0, true},
		{`allow uid:1000 get 3`, user, "__native_cancel__", 0, true},
		{`allow uid:1000 get 3`, plain, "__native_stream__", 0, false},
		{`allow uid:1000 get 3`, user, "__native_health__", 0, false},
		{`# allow any * *`, self, "get", 0, false},
		{``, self, "get", 0, false},
	} {
		l, err := Parse(test.line)
		if err != nil {
			t.Errorf("%s: %v", test.line, err)
			continue
		}
		if got := l.Allows(test.peer, test.rpc, test.provider); got != test.want {
			t.Errorf("%s: %v of %v for %v is %v, want %v", test.line, test.rpc, test.provider, test.peer, got, test.want)
		}
	}
	if new(List).Allows(self, "get", 0) || (*List)(nil).Allows(self, "get", 0) {
		t.Error("a list without rules allows a call")
	}
}

// TestReload checks that a wrong file leaves the old list in force.
func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "allow")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(path); err == nil {
		t.Error("a list without a file")
	}
	write("allow uid:1000 get *\n")
	l, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	write("allow uid:1000 put *\nalow any * *\n")
	if err := l.Reload(); err == nil || !strings.Contains(err.Error(), path+": line 2") {
		t.Errorf("%v", err)
	}
	if !l.Allows(user, "get", 0) || l.Allows(user, "put", 0) {
		t.Error("the old list is not in force")
	}
	write("\xef\xbb\xbfallow any * *") // a byte order mark
	if err := l.Reload(); err == nil {
		t.Error("a byte order mark is accepted")
	}
	write("allow uid:1000 put *\r\n")
	if err := l.Reload(); err != nil {
		t.Fatal(err)
	}
	if l.Allows(user, "get", 0) || !l.Allows(user, "put", 0) {
		t.Error("the new list is not in force")
	}
	if err := new(List).Reload(); err == nil {
		t.Error("a list without a path is read")
	}
}

// TestPipeIsNoList checks that a pipe is refused at once. A list is read again, and a pipe has its bytes once and may have no writer.
func TestPipeIsNoList(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if out, err := exec.Command("mkfifo", path).CombinedOutput(); err != nil {
		t.Skipf("mkfifo: %v, %s", err, out)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("%v", err)
	}
}

// format returns the line of a rule.
func (r *rule) format() string {
	var peer string
	switch c := r.peer; c.fact {
	case factAny:
		peer = "any"
	case factSelf:
		peer = "self"
	case factToken:
		peer = "token"
	case factAddr:
		peer = "addr:" + c.prefix.String()
	case factUID:
		peer = fmt.Sprintf("uid:%d", c.uid)
	case factSubject:
		peer = "subject:" + c.text
	case factName:
		peer = c.text
	}
	rpc, provider := r.rpc, "*"
	if r.prefix {
		rpc += "*"
	}
	if !r.anyProvider {
		provider = fmt.Sprint(r.provider)
	}
	return fmt.Sprintf("allow %q %q %s\n", peer, rpc, provider)
}

// FuzzParse checks that a list that is accepted means the same when its rules are written and read again, and that it opens no administrative RPC
// without two underscores in its text.
func FuzzParse(f *testing.F) {
	f.Add("allow any * *\n# x\nallow subject:\"CN=a b\" \"get it\" 7\nallow addr:10.0.0.0/8 __* *")
	f.Add("allow IP:192.0.2.7 a 0\nallow uid:0 b* 65535 # c")
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := parse(text)
		if err != nil {
			return
		}
		var b strings.Builder
		for i := range rules {
			b.WriteString(rules[i].format())
		}
		again, err := parse(b.String())
		if err != nil || len(again) != len(rules) {
			t.Fatalf("%q is written as %q: %v", text, b.String(), err)
		}
		for i := range rules {
			if rules[i] != again[i] {
				t.Errorf("%+v is read again as %+v", rules[i], again[i])
			}
		}
		l := &List{}
		l.rules.Store(&rules)
		for _, p := range []identity.Peer{{}, anna, plain, user, self} {
			if l.Allows(p, "__shutdown__", 0) && !strings.Contains(b.String(), `"__`) {
				t.Errorf("%q opens __shutdown__", text)
			}
		}
	})
}
