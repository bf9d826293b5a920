package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"cinnabar"
)

func TestInfoExitCodes(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
		text string
	}{
		{"info", 0, ""},
		{"info tcp", 0, ""},
		{"info ofi+tcp", 0, ""},
		{"info ofi+tcp://127.0.0.1:1234", 0, ""},
		{"info -c", 0, ""},
		{"info -j tcp", 0, ""},
		{"info nosuch", 1, `HG_PROTONOSUPPORT: there is no protocol "nosuch"; there is ofi+tcp`},
		{"info ofi", 1, "HG_PROTONOSUPPORT"},
		{"info na+sm", 1, "HG_PROTONOSUPPORT: na+sm cannot be used: there is no transport over shared memory"},
		{"info na+tcp", 1, "there is no protocol"},
		{"info a b", 2, "usage: cinnabar info"},
		{"info -s tcp", 0, ""},
		{"info -s nosuch", 1, "HG_PROTONOSUPPORT"},
		{"info -c -j", 2, "choose one"},
		{"info --frobnicate", 2, "cinnabar info --help"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			var o output
			if got := run(t.Context(), strings.Fields(tt.args), o.streams()); got != tt.code {
				t.Errorf("exit code %d, want %d; stderr: %s", got, tt.code, &o.err)
			}
			if !strings.Contains(o.err.String(), tt.text) {
				t.Errorf("stderr %q does not mention %q", &o.err, tt.text)
			}
			if (tt.code == 0 && !strings.Contains(tt.args, "-s ")) != (o.out.Len() > 0) {
				t.Errorf("exit code %d with %q on standard output", tt.code, &o.out)
			}
		})
	}
}

// The formats for programs name the loopback, which every machine has.
func TestInfo(t *testing.T) {
	infoOf := func(args ...string) string {
		var o output
		if code := run(t.Context(), append([]string{"info"}, args...), o.streams()); code != 0 {
			t.Fatalf("%v: exit code %d: %s", args, code, &o.err)
		}
		return o.out.String()
	}
	if got := infoOf("--csv"); !strings.HasPrefix(got, "class,protocol,device\nofi,tcp,") {
		t.Errorf("as csv:\n%s", got)
	}
	var r infoReport
	if err := json.Unmarshal([]byte(infoOf("--json")), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Protocols) == 0 || len(r.Unavailable) < 4 || len(r.Chosen) != 1 || r.Chosen[0].Protocol != "ofi+tcp" || r.Chosen[0].Reason == "" {
		t.Fatalf("%+v", r)
	}
	for _, l := range r.Protocols {
		if l.Class != "ofi" || l.Protocol != "tcp" || l.Device == "" || !strings.HasPrefix(l.Address, "ofi+tcp://") || l.Reason != "" {
			t.Errorf("usable: %+v", l)
		}
	}
	for _, l := range r.Unavailable {
		if l.Reason == "" || l.Address != "" {
			t.Errorf("not usable: %+v", l)
		}
	}
	// The address that would be chosen is the one that is chosen.
	e, err := cinnabar.Listen("ofi+tcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if !strings.HasPrefix(e.Addr(), r.Chosen[0].Address+":") {
		t.Errorf("chosen is %s, but an engine listens at %s", r.Chosen[0].Address, e.Addr())
	}
}

func TestInfoTable(t *testing.T) {
	r := &infoReport{Chosen: []infoChosen{{"ofi+tcp", "ofi+tcp://10.9.0.1", "the only address"}}}
	r.add(cinnabar.Protocol{Class: "ofi", Name: "tcp", Device: "lo", Addr: "ofi+tcp://127.0.0.1"})
	r.add(cinnabar.Protocol{Class: "ofi", Name: "tcp", Device: "eth0", Addr: "ofi+tcp://10.9.0.1"})
	r.add(cinnabar.Protocol{Class: "ofi", Name: "tcp", Device: "eth1",
		Err: &cinnabar.Error{Op: "choose address", Addr: "eth1", Code: cinnabar.CodeAddrNotAvail, Err: errors.New("the interface is down")}})
	r.add(cinnabar.Protocol{Class: "na", Name: "sm", Err: errors.New("there is no such transport")})
	var b bytes.Buffer
	if err := r.write(&infoOptions{}, &b); err != nil {
		t.Fatal(err)
	}
	golden(t, "info.golden", b.String())
	full := errors.New("disk full")
	for _, o := range []infoOptions{{}, {csv: true}, {json: true}} {
		if err := r.write(&o, writerFunc(func([]byte) (int, error) { return 0, full })); !errors.Is(err, full) {
			t.Errorf("%+v: error %v, want %v", o, err, full)
		}
	}
}

// Where no interface can be used, the reasons are those of the interfaces.
func TestInfoWithoutInterfaces(t *testing.T) {
	r := &infoReport{}
	all := []cinnabar.Protocol{{Class: "ofi", Name: "tcp", Device: "eth1", Err: errors.New("the interface is down")}}
	r.add(all[0])
	wantError(t, r.unsupported("tcp", all), "HG_PROTONOSUPPORT", "eth1 the interface is down")
}
