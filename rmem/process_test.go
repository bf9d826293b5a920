package rmem

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/internal/devicetest"
	"cinnabar/internal/testproc"
)

// roles are what other processes do. They speak by lines.
var roles = map[string]func(args []string) error{"holder": beHolder, "third": beThird, "late": beLate}

// spawn starts a process in a role. It is killed with the test, if not before.
func spawn(t *testing.T, role string, args ...string) *testproc.Process {
	t.Helper()
	return testproc.Start(t, testproc.Command{Role: role, Args: args})
}

// check ends a process whose part has failed.
func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// dialAs makes a client of the server at addr.
func dialAs(addr string) (*Client, *cinnabar.Engine) {
	e, err := cinnabar.Open(context.Background(), protocol(), nil)
	check(err)
	ep, err := e.Lookup(addr)
	check(err)
	c, err := Dial(context.Background(), ep.Provider(provider))
	check(err)
	return c, e
}

// beHolder allocates a region without and one with a lease, tells their names, and waits to be killed.
func beHolder(args []string) error {
	c, _ := dialAs(args[0])
	r, err := c.Alloc(context.Background(), 1000)
	check(err)
	leased, err := c.AllocLease(context.Background(), 1000, time.Hour)
	check(err)
	fmt.Println(r.Handle(), leased.Token())
	select {}
}

// TestClientDies frees what a killed client had without a lease, and keeps the rest.
// parity: S22
func TestClientDies(t *testing.T) {
	t.Parallel()
	s, e := serve(t, Config{Grace: 2 * time.Second})
	p := spawn(t, "holder", e.Addr())
	line := p.Stdout.Line()
	handle, token, ok := strings.Cut(line, " ")
	if !ok || len(s.Stats().Regions) != 2 {
		t.Fatalf("%q", line)
	}
	p.Kill()
	eventually(t, "the region is freed", func() bool { return len(s.Stats().Regions) == 1 })
	_, me := dial(t, e)
	h, err := ParseHandle(handle)
	must(t, err)
	_, err = Open(devicetest.Context(t), me, h)
	wantError(t, "without a lease", err, ErrFreed)
	r, err := OpenToken(devicetest.Context(t), me, token)
	must(t, err)
	must(t, r.Free(devicetest.Context(t)))
}

// beThird reads and writes the region of a handle, counts in it, and tries to free it.
func beThird(args []string) error {
	e, err := cinnabar.Open(context.Background(), protocol(), nil)
	check(err)
	ctx := context.Background()
	r, err := OpenString(ctx, e, args[0])
	check(err)
	data := make([]byte, r.Size())
	_, err = r.ReadAt(data, 0)
	check(err)
	_, err = r.WriteAt(bytes.ToUpper(data), 0)
	check(err)
	_, err = r.FetchAdd(ctx, r.Size()-8, 1<<40)
	check(err)
	fmt.Println(errors.Is(r.Free(ctx), ErrNotOwner))
	return e.Close()
}

// TestHandleInThirdProcess has a process that is neither the server nor the client use a region, which it knows by its handle.
// parity: S21
func TestHandleInThirdProcess(t *testing.T) {
	_, e := serve(t, Config{})
	c, _ := dial(t, e)
	for _, size := range []int64{16, 2 << 20} { // of the heap, and of pages of its own
		r := alloc(t, c, size)
		data := bytes.Repeat([]byte("cinnabar"), int(size/8))
		if _, err := r.WriteAt(data, 0); err != nil {
			t.Fatal(err)
		}
		if got := spawn(t, "third", r.Handle().String()).Stdout.Line(); got != "true" {
			t.Errorf("the third process says %q", got)
		}
		want := bytes.ToUpper(data)
		want[size-3]++
		got := make([]byte, size)
		if _, err := r.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%.32q, want %.32q: %v", got, want, err)
		}
	}
}

// beLate allocates a region, and once it is told that this is revoked, asks for it again in every way but the last two: reads
// and writes, if the argument begins with "all ".
func beLate(args []string) error {
	addr, all := strings.CutPrefix(args[0], "all ")
	c, e := dialAs(addr)
	ctx := context.Background()
	r, err := c.Alloc(ctx, 64)
	check(err)
	fmt.Println(r.Handle())
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	check(err)
	_, opened := Open(ctx, e, r.Handle())
	_, added := r.FetchAdd(ctx, 0, 1)
	errs := []error{opened, added, r.Free(ctx), r.CopyFrom(ctx, 0, r, 8, 8)}
	if all {
		_, read := r.ReadAt(make([]byte, 8), 0)
		_, written := r.WriteAt(make([]byte, 8), 0)
		errs = append(errs, read, written)
	}
	named := 0
	for _, err := range errs {
		if errors.Is(err, ErrRevoked) {
			named++
		}
	}
	fmt.Printf("%d of %d\n", named, len(errs))
	return errors.Join(c.Close(), e.Close())
}

// TestRevokedInOtherProcess revokes a region that another process has: that hears the reason, whatever it asks. Reads and
// writes are refused where the server sees them: over any network if it is strict, otherwise not over na+sm, where the
// process is trusted to make none.
// parity: Y10
func TestRevokedInOtherProcess(t *testing.T) {
	for _, strict := range []bool{false, true} {
		t.Run(fmt.Sprintf("strict %v", strict), func(t *testing.T) {
			s, e := serve(t, Config{Strict: strict})
			arg, want := "all "+e.Addr(), "6 of 6"
			if byTheKernel() && !strict {
				arg, want = e.Addr(), "4 of 4"
			}
			p := spawn(t, "late", arg)
			h, err := ParseHandle(p.Stdout.Line())
			must(t, err)
			if !s.Revoke(h.ID) {
				t.Error("not revoked")
			}
			p.Send("revoked")
			if got := p.Stdout.Line(); got != want {
				t.Errorf("%s accesses are told that the region is revoked, want %s", got, want)
			}
		})
	}
}
