package check

import (
	"context"
	"errors"
	"fmt"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// exact gives writes and sends exact statuses.
var exact = iwarp.Config{ConfirmWrites: true}

// access reads or writes 8 bytes of the peer, and returns the memory and the status.
func access(ctx context.Context, client *lab.End, op verbs.Opcode, remote verbs.RemoteAddr) (*verbs.MR, verbs.WCStatus, error) {
	mr, err := client.Alloc(8, verbs.LocalWrite)
	if err != nil {
		return nil, 0, err
	}
	if err := client.Send(verbs.SendWR{Op: op, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 8)}, Remote: remote}); err != nil {
		return nil, 0, err
	}
	wc, err := client.Next(ctx)
	return mr, wc.Status, err
}

// want is access with an expected status.
func want(ctx context.Context, client *lab.End, op verbs.Opcode, remote verbs.RemoteAddr, status verbs.WCStatus, event string) (*verbs.MR, error) {
	mr, got, err := access(ctx, client, op, remote)
	if err == nil && got != status {
		err = fmt.Errorf("%s: the status of the %s is %q, not %q", event, op, got.String(), status.String())
	}
	return mr, err
}

// Lend checks the exercise of lesson 5.
func Lend(student func(server *lab.End, data []byte) (verbs.Region, func() error, error)) Exercise {
	return func(ctx context.Context) error {
		for _, revoked := range []bool{false, true} {
			err := withPair(ctx, exact, func(client, server *lab.End) (err error) {
				data := []byte("first 8, and more")
				region, revoke, err := student(server, data)
				if err != nil {
					return err
				}
				if revoke == nil {
					return errors.New("the function returns no revoke")
				}
				closed := false
				defer func() {
					if !closed {
						err = errors.Join(err, revoke())
					}
				}()
				if region.Size != uint64(len(data)) {
					return fmt.Errorf("the region has %d bytes, not %d", region.Size, len(data))
				}
				copy(data, "changed!")
				mr, err := want(ctx, client, verbs.OpRead, region.RemoteAddr, verbs.StatusSuccess, "a read of the lent memory")
				if err != nil {
					return err
				}
				if string(mr.Bytes()) != "changed!" {
					return fmt.Errorf("the peer reads %q after data was changed to %q: register data itself, not a copy", mr.Bytes(), data[:8])
				}
				if !revoked {
					_, err = want(ctx, client, verbs.OpWrite, region.RemoteAddr, verbs.StatusRemAccessErr, "a write to memory that is lent for reading")
					return err
				}
				closed = true
				if err := revoke(); err != nil {
					return fmt.Errorf("revoke: %w", err)
				}
				_, err = want(ctx, client, verbs.OpRead, region.RemoteAddr, verbs.StatusRemAccessErr, "a read after revoke")
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// Tenants checks the exercise of lesson 6.
func Tenants(student func(dev *verbs.Device, memories [][]byte) ([]*lab.End, []*verbs.MR, error)) Exercise {
	return func(ctx context.Context) error {
		return withLab(iwarp.Config{}, func(l *lab.Lab) (err error) {
			memories := [][]byte{[]byte("memory of tenant 0"), []byte("memory of tenant 1"), []byte("memory of tenant 2")}
			ends, regions, err := student(l.Server, memories)
			for _, e := range ends {
				l.Adopt(e)
			}
			defer func() {
				for _, mr := range regions {
					err = errors.Join(err, mr.Close())
				}
			}()
			if err != nil {
				return err
			}
			if len(ends) != 3 || len(regions) != 3 {
				return fmt.Errorf("%d ends and %d regions for 3 memories", len(ends), len(regions))
			}
			var clients []*lab.End
			for i := range ends {
				client, err := l.Dial(ctx, ends[i])
				if err != nil {
					return fmt.Errorf("connection of tenant %d: %w", i, err)
				}
				clients = append(clients, client)
			}
			for i, c := range clients {
				mr, err := want(ctx, c, verbs.OpRead, regions[i].Remote(), verbs.StatusSuccess, fmt.Sprintf("tenant %d reads its own memory", i))
				if err != nil {
					return err
				}
				if string(mr.Bytes()) != string(memories[i][:8]) {
					return fmt.Errorf("tenant %d reads %q, its memory has %q", i, mr.Bytes(), memories[i])
				}
				if _, err := want(ctx, c, verbs.OpWrite, regions[i].Remote(), verbs.StatusSuccess, fmt.Sprintf("tenant %d writes its own memory", i)); err != nil {
					return err
				}
			}
			for i, c := range clients {
				if _, err := want(ctx, c, verbs.OpRead, regions[(i+1)%3].Remote(), verbs.StatusRemAccessErr, fmt.Sprintf("tenant %d reads the memory of tenant %d", i, (i+1)%3)); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// Max checks the exercise of lesson 7.
func Max(student func(ctx context.Context, client *lab.End, remote verbs.RemoteAddr, value uint64) error) Exercise {
	const clients, values = 4, 25
	return func(ctx context.Context) error {
		return withLab(iwarp.Config{}, func(l *lab.Lab) (err error) {
			word := make([]uint64, 1)
			var regions []*verbs.MR
			defer func() {
				for _, mr := range regions {
					err = errors.Join(err, mr.Close())
				}
			}()
			var ends []*lab.End
			for range clients {
				client, server, err := l.Connect(ctx, verbs.ConnParam{})
				if err != nil {
					return err
				}
				mr, err := verbs.RegSlice(server.PD, word, verbs.LocalWrite|verbs.RemoteAtomic)
				if err != nil {
					return err
				}
				ends, regions = append(ends, client), append(regions, mr)
			}
			for _, step := range [][2]uint64{{5, 5}, {3, 5}, {1 << 63, 1 << 63}, {7, 1 << 63}} {
				if err := student(ctx, ends[0], regions[0].Remote(), step[0]); err != nil {
					return err
				}
				// The peer's word is looked at by an atomic that does not change it.
				old, err := fetch(ctx, ends[0], regions[0].Remote(), 0)
				if err != nil {
					return err
				}
				if old != step[1] {
					return fmt.Errorf("after Max with the value %d the word is %d, not %d", step[0], old, step[1])
				}
			}
			if _, err := fetch(ctx, ends[0], regions[0].Remote(), 1<<63); err != nil { // the sum is 0
				return err
			}
			errs := make(chan error, clients)
			for i, c := range ends {
				go func() {
					var err error
					for v := uint64(1); v <= values && err == nil; v++ {
						err = student(ctx, c, regions[i].Remote(), v*clients+uint64(i))
					}
					errs <- err
				}()
			}
			for range ends {
				err = errors.Join(err, <-errs)
			}
			if err != nil {
				return err
			}
			got, err := fetch(ctx, ends[0], regions[0].Remote(), 0)
			if err == nil && got != values*clients+clients-1 {
				err = fmt.Errorf("%d clients with values up to %d at the same time leave the word at %d", clients, values*clients+clients-1, got)
			}
			return err
		})
	}
}

// fetch adds to a word of the peer and returns the value that it had before.
func fetch(ctx context.Context, client *lab.End, remote verbs.RemoteAddr, add uint64) (uint64, error) {
	old, mr, err := client.Words(1, verbs.LocalWrite)
	if err != nil {
		return 0, err
	}
	if err := client.Send(verbs.SendWR{Op: verbs.OpFetchAdd, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 8)}, Remote: remote, CompareAdd: add}); err != nil {
		return 0, err
	}
	_, err = wait(ctx, client, "an atomic operation of the check")
	return old[0], err
}
