package sm

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
)

// cleanUp does to an endpoint what HG_Cleanup of C's Mercury does to all of the machine.
func cleanUp(t *testing.T, e *Endpoint) {
	t.Helper()
	for _, path := range []string{e.cfg.socketPath(e.own.uri), e.cfg.socketDir(e.own.uri), e.cfg.objectPath(e.own.uri)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			t.Error(err)
		}
	}
}

// restored waits until an endpoint's files are there.
func restored(t *testing.T, e *Endpoint) {
	t.Helper()
	eventually(t, "the files are restored", func() bool {
		_, region := os.Lstat(e.cfg.objectPath(e.own.uri))
		_, socket := os.Lstat(e.cfg.socketPath(e.own.uri))
		return region == nil && socket == nil
	})
}

// TestCleanUp has the files of a living server removed, several times: its clients stay connected, new ones find it, and
// nothing is left in the end.
func TestCleanUp(t *testing.T) {
	cfg := Config{Prefix: privatePrefix("u")}
	server, _ := serve(t, cfg)
	old := open(t, cfg)
	c := newCaller(old, lookup(t, old, server.own.String()))
	for round := range 3 {
		if _, err := c.call(t, []byte("before")); err != nil {
			t.Fatal(err)
		}
		recv := newSignal()
		old.RecvExpected(&recv.op, c.to, 1<<20, make([]byte, 8))
		cleanUp(t, server)
		if round == 0 { // it takes a while
			old.checkServersFor(t, c.to)
		}
		if _, err := c.call(t, []byte("meanwhile")); err != nil {
			t.Error(err)
		}
		restored(t, server)
		fresh := open(t, cfg)
		calls(t, fresh, server.own.String())
		old.Cancel(&recv.op)
		if err := recv.wait(t); na.KindOf(err) != na.Canceled {
			t.Errorf("what waited: %v", err)
		}
		shut(t, fresh)
	}
	shut(t, old)
	settled(t, server)
	cleanUp(t, server)
	shut(t, server)
	if left := objects(t, &server.cfg); left != nil {
		t.Errorf("%q are left", left)
	}
}

// TestCleanUpKilled kills a server whose files were removed: what it has left under its other names goes at the next
// start, and a file of somebody else's under one of its names stays.
func TestCleanUpKilled(t *testing.T) {
	prefix := privatePrefix("q")
	s := start(t, "server", prefixEnv+"="+prefix)
	uri := strings.TrimPrefix(s.expect("ready "), scheme)
	cfg, err := Config{Prefix: prefix}.withDefaults(2)
	if err != nil {
		t.Fatal(err)
	}
	s.stop()
	for _, path := range []string{cfg.socketPath(uri), cfg.socketDir(uri), cfg.objectPath(uri)} {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
	open(t, Config{Prefix: prefix})
	if left := objects(t, &cfg); !slices.Equal(left, []string{"." + prefix + "-" + uri, "." + prefix + "-" + uri}) {
		t.Errorf("while it lives: %q", left)
	}
	s.signal(unix.SIGKILL)
	eventually(t, "the process has ended", func() bool { return processGone(int32(s.cmd.Process.Pid)) })
	open(t, Config{Prefix: prefix})
	if left := objects(t, &cfg); left != nil {
		t.Errorf("%q are left", left)
	}
}

func TestNotifyMask(t *testing.T) {
	event := func(mask byte, n byte) []byte {
		b := make([]byte, unix.SizeofInotifyEvent+int(n))
		b[4], b[12] = mask, n
		return b
	}
	b := slices.Concat(event(1, 0), event(2, 16), event(4, 0))
	if m := notifyMask(b); m != 7 {
		t.Errorf("%#x", m)
	}
	for i := range b {
		_ = notifyMask(b[:i])
	}
	if m := notifyMask(event(1, 200)[:20]); m != 1 {
		t.Errorf("%#x", m)
	}
}
