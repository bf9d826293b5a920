package cinnabar

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/codes"
	"cinnabar/internal/testproc"
)

func init() { peers["sharing"] = peerSharing }

// peerSharing calls add at the address args[0] on an engine with AutoSM, and serves add itself. If args[1] is "private", it has a /dev/shm
// of its own.
func peerSharing(args []string) error {
	if args[1] == "private" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", "/dev/shm", "tmpfs", 0, ""); err != nil {
			return err
		}
	}
	ctx := context.Background()
	e, err := Listen(ctx, "ofi+tcp://127.0.0.1", &Config{AutoSM: true})
	if err != nil {
		return err
	}
	if err := add.Handle(e, handleAdd); err != nil {
		return err
	}
	ep, err := e.Lookup(args[0])
	if err != nil {
		return err
	}
	if _, err := add.Call(ctx, ep, addIn{}); err != nil {
		return err
	}
	s := e.Stats()
	fmt.Println("shared", s.RequestsShared == s.RequestsSent, s.RequestsShared > 0)
	return serveOn(e)
}

// TestAutoSMProcesses makes calls between this process and another, in both directions. They use shared memory if they can, and otherwise the network: processes of
// other users, and those in another namespace of processes or with another /dev/shm, as containers have them.
// parity: N06
func TestAutoSMProcesses(t *testing.T) {
	const otherUser = 65534
	e := autoSM(t, nil)
	callers := make(chan *Endpoint, 1)
	must(t, add.Handle(e, func(ctx context.Context, in addIn) (addOut, error) {
		callers <- InfoFrom(ctx).Peer
		return handleAdd(ctx, in)
	}))
	for _, tc := range []struct {
		name   string
		devShm string // "private", or "common"
		attr   *syscall.SysProcAttr
		shared bool
	}{
		{"same user", "common", nil, true},
		{"other user", "common", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}, false},
		{"other process namespace", "common", &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}, false},
		{"other process namespace and files", "private", &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}, false},
		{"other files", "private", &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}, false},
	} {
		t.Run(strings.ReplaceAll(tc.name, " ", "_"), func(t *testing.T) {
			if tc.attr != nil && os.Geteuid() != 0 {
				t.Skip("only root starts processes of other users and in other namespaces")
			}
			c := testproc.Command{Role: "sharing", Args: []string{e.Addr(), tc.devShm}, Attr: tc.attr, Limit: testLimit}
			if tc.attr != nil && tc.attr.Credential != nil {
				c.Path, c.Dir = "/proc/self/exe", "/" // the directory of the test's program is closed to others
			}
			p, err := testproc.TryStart(t, c)
			if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSPC) {
				t.Skipf("this host starts no such process: %v", err)
			}
			must(t, err)
			scheme := "ofi+tcp://"
			if tc.shared {
				scheme = "na+sm://"
			}
			if got := p.Stdout.Line(); got != fmt.Sprintf("shared %v %v", tc.shared, tc.shared) {
				t.Errorf("the other process prints %q", got)
			}
			if caller := soon(t, "the caller", callers); !strings.HasPrefix(caller.String(), scheme) {
				t.Errorf("the call comes from %s", caller)
			}
			ep := find(t, e, p.Stdout.Line())
			before := e.Stats().RequestsShared
			callAdd(t, ep)
			if got := e.Stats().RequestsShared - before; got > 0 != tc.shared {
				t.Errorf("%d requests to %s traveled over shared memory", got, ep)
			}
			lost := ep.named.Done()
			if tc.attr == nil {
				p.Kill()
			} else { // because other users and namespaces do not remove the files of a process that was killed
				p.CloseInput()
			}
			soon(t, "the end of the connection", lost)
			_ = p.Wait() // the process of the next case may have the same number in its namespace, and so the same file names
			_, err = add.Call(patient(t), ep, addIn{})
			wantCode(t, err, codes.HostUnreach, "")
			autoSM(t, nil) // which removes the files of the process
		})
	}
}
