package balance

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cinnabar"
	"cinnabar/codes"
)

// writeGroup replaces a group file as Flock does, by a rename.
func writeGroup(t *testing.T, name, text string) {
	t.Helper()
	must(t, os.WriteFile(name+".swp", []byte(text), 0o600))
	must(t, os.Rename(name+".swp", name))
}

// TestGroupFile reads files in the form that Flock writes.
// parity: N13
func TestGroupFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "store.flock")
	for _, tt := range []struct {
		text     string
		provider *uint16
		want     []string
	}{
		{`{"members":[{"address":"ofi+tcp://192.0.2.1:4321","provider_id":42},{"address":"na+sm://27842-0","provider_id":0}],"metadata":{"__type__":"static","__config__":"{}"}}`, nil, []string{"ofi+tcp://192.0.2.1:4321@42", "na+sm://27842-0@0"}},
		{`{"members":[{"address":"ofi+tcp://192.0.2.1:4321","provider_id":65535}]}`, new(uint16(7)), []string{"ofi+tcp://192.0.2.1:4321@7"}},
		{`{"digest":1, "members":[{"address":"a","provider_id":1,"rank":0}]}` + "\n", nil, []string{"a@1"}},
	} {
		writeGroup(t, name, tt.text)
		list, err := GroupFile{name, tt.provider}.Resolve(t.Context())
		must(t, err)
		var got []string
		for _, a := range list {
			got = append(got, a.String())
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s: %s", tt.text, d)
		}
	}
}

// TestGroupFileRefused wants errors with the name of the file and of the field.
// parity: N13
func TestGroupFileRefused(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "store.flock")
	member := func(fields string) string { return `{"members":[{"address":"a","provider_id":1},` + fields + `]}` }
	for _, tt := range []struct{ text, want string }{
		{"", "unexpected end of JSON input"},
		{`{"members":[{"address":"a","provider_id":1}]`, "unexpected end of JSON input"},
		{`{"members":[{"address":"a","provider_id":1}]} {}`, "after top-level value"},
		{`[]`, "the file is array, must be an object"},
		{`{}`, "members is absent or empty"},
		{`{"members":[]}`, "members is absent or empty"},
		{`{"members":{}}`, "members is object, must be an array"},
		{member(`7`), "members[1] is number, must be an object"},
		{member(`null`), "members[1].address is absent"},
		{member(`{"provider_id":1}`), "members[1].address is absent"},
		{member(`{"address":"","provider_id":1}`), "members[1].address is absent or empty"},
		{member(`{"address":7,"provider_id":1}`), "members[1].address is number, must be a string"},
		{member(`{"address":"b"}`), "members[1].provider_id is absent"},
		{member(`{"address":"b","provider_id":"1"}`), "members[1].provider_id is string, must be a number from 0 to 65535"},
		{member(`{"address":"b","provider_id":65536}`), "members[1].provider_id is number 65536, must be a number from 0 to 65535"},
		{member(`{"address":"b","provider_id":-1}`), "members[1].provider_id is number -1, must be"},
		{member(`{"address":"b","provider_id":1.5}`), "members[1].provider_id is number 1.5, must be"},
		{strings.Repeat("[", 100_000), "exceeded max depth"},
		{`{"members":[` + strings.Repeat(" ", maxGroupFile) + `]}`, "more than 1048576 bytes"},
	} {
		writeGroup(t, name, tt.text)
		_, err := GroupFile{Path: name}.Resolve(t.Context())
		wantError(t, err, codes.InvalidArg, name, tt.want)
	}
	_, err := GroupFile{Path: dir}.Resolve(t.Context())
	wantError(t, err, codes.InvalidArg, dir, "no regular file")
	name = filepath.Join(dir, "none")
	if _, err := (GroupFile{Path: name}).Resolve(t.Context()); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("%v", err)
	}
}

// TestGroupFileChanges follows a group whose members change. A file that is no group leaves the Client its servers.
// parity: N13
func TestGroupFileChanges(t *testing.T) {
	name := filepath.Join(t.TempDir(), "store.flock")
	group := func(addrs ...string) {
		var members []string
		for _, a := range addrs {
			members = append(members, `{"address":"`+a+`","provider_id":9}`)
		}
		writeGroup(t, name, `{"members":[`+strings.Join(members, ",")+`],"metadata":{}}`)
	}
	provided := func() *cinnabar.Engine {
		e, err := cinnabar.Listen(t.Context(), tcp, nil)
		must(t, err)
		t.Cleanup(func() { must(t, e.Close()) })
		p, err := e.NewProvider(9, "store")
		must(t, err)
		must(t, where.Handle(p, func(context.Context, uint32) (string, error) { return e.Addr(), nil }))
		return e
	}
	a, b := provided(), provided()
	group(a.Addr())
	c := dial(t, &Config{Resolver: GroupFile{Path: name}, Refresh: time.Millisecond, MinRefresh: time.Millisecond})
	await(t, c, "the first is ready", func(s []Server) bool { return len(s) == 1 && s[0].Ready })
	group(a.Addr(), b.Addr())
	await(t, c, "both are ready", func(s []Server) bool { return len(s) == 2 && s[0].Ready && s[1].Ready })
	group(b.Addr())
	await(t, c, "the first has left", func(s []Server) bool { return len(s) == 1 && s[0].Addr == b.Addr()+"@9" })
	addr, err := Call(patient(t), c, where, 0)
	must(t, err)
	if addr != b.Addr() {
		t.Errorf("%s answers, want %s", addr, b.Addr())
	}
	writeGroup(t, name, "{")
	await(t, c, "the file is refused", func([]Server) bool { _, err := c.Servers(); return err != nil })
	if list, _ := c.Servers(); len(list) != 1 || !list[0].Ready {
		t.Errorf("servers %+v after a bad file", list)
	}
}

// FuzzGroup parses any bytes. Each member of a group has an address and a provider.
func FuzzGroup(f *testing.F) {
	f.Add([]byte(`{"members":[{"address":"ofi+tcp://192.0.2.1:4321","provider_id":42}],"metadata":{"k":"v"}}`))
	f.Add([]byte(`{"members":[null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := parseGroup(data)
		if (err == nil) != (len(list) > 0) {
			t.Fatalf("%d members, %v", len(list), err)
		}
		for _, a := range list {
			if a.Addr == "" || a.Provider == nil {
				t.Errorf("member %+v", a)
			}
		}
	})
}
