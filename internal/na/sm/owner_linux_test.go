package sm

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
)

// otherUser is a user that is neither root nor the one that runs the tests.
const otherUser = 65534

// needRoot skips a test that gives files to another user.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to another user")
	}
}

// give gives a file to another user.
func give(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.Lchown(path, otherUser, otherUser), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

// foreign checks that err names the file and its owner.
func foreign(t *testing.T, err error, path string, want string) {
	t.Helper()
	if !isForeign(err) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error that names %s and has %q", err, path, want)
	}
}

// TestForeignServerIsRefused has a client call a server whose region, socket or directory another user owns, or can write
// to. Such a server can be put up by any user of the host under a name that clients expect; it would get the clients'
// arguments, and answer them.
func TestForeignServerIsRefused(t *testing.T) {
	const uid = "uid 65534"
	for _, tt := range []struct {
		name string
		own  bool // the file stays this user's
		mode os.FileMode
		path func(cfg *Config, uri string) string
		want string
	}{
		{"region of another user", false, 0o666, (*Config).objectPath, uid},
		{"region that others can write to", true, 0o602, (*Config).objectPath, "mode 0602"},
		{"region that the group can write to", true, 0o620, (*Config).objectPath, "mode 0620"},
		{"socket of another user", false, 0o777, (*Config).socketPath, uid},
		{"directory of another user", false, 0o755, (*Config).socketDir, uid},
		{"directory that others can write to", true, 0o703, (*Config).socketDir, "mode 0703"},
	} {
		t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) {
			if !tt.own {
				needRoot(t)
			}
			cfg := Config{Prefix: privatePrefix("f"), Address: "na+sm://bank"}
			server, h := serve(t, cfg)
			path := tt.path(&server.cfg, server.own.uri)
			if tt.own {
				if err := os.Chmod(path, tt.mode); err != nil {
					t.Fatal(err)
				}
			} else {
				give(t, path, tt.mode)
			}
			client := open(t, Config{Prefix: cfg.Prefix})
			name, err := client.Lookup(server.own.String())
			if err != nil {
				t.Fatal(err)
			}
			to, err := name.(na.Named).Resolve(t.Context())
			if err == nil {
				_, err = newCaller(client, to).call(t, []byte("password"))
			}
			if na.KindOf(err) != na.Unreachable {
				t.Error(err)
			}
			foreign(t, err, path, tt.want)
			if n := h.requests.Load(); n != 0 {
				t.Errorf("the server has got %d requests", n)
			}
		})
	}
}

// TestUsersWithoutNumber: a user namespace that leaves users out shows all of them under one number, which is trusted in no
// process there, not even in one that runs under it.
func TestUsersWithoutNumber(t *testing.T) {
	const overflow = 65534
	for _, tt := range []struct {
		uid, own uint32
		all      bool
		want     bool
	}{
		{1000, 1000, true, true}, {1000, 1000, false, true}, {0, 1000, false, true}, {1001, 1000, true, false},
		{overflow, 1000, false, false}, {overflow, overflow, false, false}, {overflow, overflow, true, true},
	} {
		if got := (users{overflow, tt.all}).trusts(tt.uid, tt.own); got != tt.want {
			t.Errorf("uid %d trusts uid %d: %v, want %v; all users have numbers: %v", tt.own, tt.uid, got, tt.want, tt.all)
		}
	}
}

// TestUserNamespace has a process in a user namespace of its own, in which only root has a number, find that users are left
// out.
func TestUserNamespace(t *testing.T) {
	if !readUsers().all {
		t.Skip("this process is in a user namespace that leaves users out")
	}
	c := startWith(t, "users", syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
	})
	if c == nil {
		t.Skip("this host lets this user make no user namespace")
	}
	if got := c.expect("users "); got != "false 65534" {
		t.Errorf("got %q", got)
	}
}

// TestOtherProcessIsRefused has the number of a server's process belong to another process by now, or to one of another
// user, which would then be taken for the owner of the region that is left.
func TestOtherProcessIsRefused(t *testing.T) {
	own := int32(os.Getpid())
	started := startTime("self")
	if err := checkProcess(own, started); err != nil {
		t.Error(err)
	}
	if err := checkProcess(own, 0); err != nil {
		t.Errorf("start unknown: %v", err)
	}
	if err := checkProcess(own, started+1); !errors.Is(err, errDied) {
		t.Errorf("another start: %v", err)
	}
	needRoot(t)
	c := startAs(t, otherUser, "burner")
	pid := int32(c.Pid())
	eventually(t, "the process runs as the other user", func() bool {
		err := checkProcess(pid, 0)
		return err != nil && strings.Contains(err.Error(), "runs as uid 65534")
	})
}

// TestForeignDirectory has another user make the directory of a server's socket before the server does. In it, that user
// could replace the socket by another one and get the clients' commands.
func TestForeignDirectory(t *testing.T) {
	needRoot(t)
	cfg, err := Config{Prefix: privatePrefix("d"), Listen: true, Handler: &echo{}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	squat := func(uri string, mode os.FileMode) string {
		dir := cfg.socketDir(uri)
		if err := os.Mkdir(dir, mode); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		give(t, dir, mode)
		return dir
	}
	for name, mode := range map[string]os.FileMode{"open": 0o777, "shut": 0o700} {
		t.Run(name, func(t *testing.T) {
			dir := squat(name, mode)
			cfg.Address = scheme + name
			_, err := Open(context.Background(), cfg)
			foreign(t, err, dir, "uid 65534")
			if _, err := os.Lstat(cfg.objectPath(name)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the region is left: %v", err)
			}
		})
	}
	t.Run("link", func(t *testing.T) {
		dir := cfg.socketDir("link")
		if err := os.Symlink(t.TempDir(), dir); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		if err := os.Lchown(dir, otherUser, otherUser); err != nil {
			t.Fatal(err)
		}
		cfg.Address = "na+sm://link"
		_, err := Open(context.Background(), cfg)
		foreign(t, err, dir, "uid 65534")
	})
	// Numbers that are squatted are passed over.
	cfg.Address = ""
	numbers.mu.Lock()
	next := numbers.next
	numbers.mu.Unlock()
	for i := range uint8(5) {
		squat(identity{int32(os.Getpid()), next + i}.uri(), 0o700)
	}
	region := cfg.objectPath(identity{int32(os.Getpid()), next + 5}.uri())
	if err := os.WriteFile(region, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(region) })
	give(t, region, 0o600)
	ep, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := ep.Addr().String(), scheme+strconv.Itoa(os.Getpid())+"-"+strconv.Itoa(int(next+6)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	shut(t, ep)
}

// TestOwnDirectory has a directory of this user that a program with another umask has left: it is taken, without the
// rights of others.
func TestOwnDirectory(t *testing.T) {
	cfg := Config{Prefix: privatePrefix("o"), Address: "na+sm://left"}
	full, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	dir := full.socketDir("left")
	if err := errors.Join(os.Mkdir(dir, 0o777), os.Chmod(dir, 0o777), os.WriteFile(dir+"/other", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	server, _ := serve(t, cfg)
	for path, want := range map[string]os.FileMode{dir: 0o700, full.socketPath("left"): 0o600, full.objectPath("left"): 0o600} {
		if st, err := os.Lstat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, st.Mode(), err)
		}
	}
	client := open(t, Config{Prefix: cfg.Prefix})
	calls(t, client, server.own.String())
}

// TestRestoreComparesFiles has another user's file stand under the second name of a server's region or socket when the
// first one is removed. The server would give it the first name, and clients would map it.
func TestRestoreComparesFiles(t *testing.T) {
	server, _ := serve(t, Config{Prefix: privatePrefix("x")})
	for _, spare := range []string{server.cfg.spareObject(server.own.uri), server.cfg.spareSocket(server.own.uri)} {
		if err := os.Remove(spare); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(spare, []byte("not the server's"), 0o666); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.Remove(spare) }()
		if os.Geteuid() == 0 {
			give(t, spare, 0o666)
		}
	}
	seen := server.stats.restores.Load()
	cleanUp(t, server)
	eventually(t, "the files are looked at", func() bool { return server.stats.restores.Load() > seen })
	for _, path := range []string{server.cfg.objectPath(server.own.uri), server.cfg.socketPath(server.own.uri)} {
		if b, err := os.ReadFile(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s holds %q, %v", path, b, err)
		}
	}
}

// TestReclaimFollowsNoLinks has a link of a stranger lead from the name of a socket's directory to a directory of this
// user's with a dead socket, which is not removed.
func TestReclaimFollowsNoLinks(t *testing.T) {
	cfg, err := Config{Prefix: privatePrefix("y")}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	const dead = "2147483646-9"
	dir := t.TempDir()
	fd, err := openSocket()
	if err != nil {
		t.Fatal(err)
	}
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: dir + "/sock"})
	closeAll(fd)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, cfg.socketDir(dead)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Remove(cfg.socketDir(dead)) }()
	shut(t, open(t, Config{Prefix: cfg.Prefix}))
	if _, err := os.Lstat(dir + "/sock"); err != nil {
		t.Errorf("it is removed: %v", err)
	}
}

// TestCommandOfOtherUser has another user send commands, after the rights that keep him out were taken away.
func TestCommandOfOtherUser(t *testing.T) {
	needRoot(t)
	server, _ := serve(t, Config{Prefix: privatePrefix("z")})
	for path, mode := range map[string]os.FileMode{
		server.cfg.socketDir(server.own.uri): 0o711, server.cfg.socketPath(server.own.uri): 0o777, server.cfg.objectPath(server.own.uri): 0o666,
	} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	before := server.stats.violations.Load()
	startAs(t, otherUser, "raw", prefixEnv+"="+server.cfg.Prefix, targetEnv+"="+server.own.String(), stepEnv+"=announced").expect("at ")
	eventually(t, "it is refused", func() bool { return server.stats.violations.Load() > before })
	for _, c := range server.list() {
		if c.doorbell != nil {
			t.Errorf("%s is connected", c.addr)
		}
	}
}
