// Package solutions has a solution of each exercise of the course. Its tests show that the checks of the exercises accept the solutions.
// Read them after an attempt of your own.
package solutions

import (
	"context"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
)

// Echo solves the exercise of lesson 1.
func Echo(ctx context.Context, server *lab.End) error {
	mr, err := server.Alloc(64, verbs.LocalWrite)
	if err != nil {
		return err
	}
	if err := server.Receive(1, mr); err != nil {
		return err
	}
	wc, err := server.Wait(ctx)
	if err != nil {
		return err
	}
	if err := server.Send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, int(wc.Len))}}); err != nil {
		return err
	}
	_, err = server.Wait(ctx)
	return err
}
