package check

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// Echo checks the exercise of lesson 1.
func Echo(student func(ctx context.Context, server *lab.End) error) Exercise {
	return func(ctx context.Context) error {
		for _, text := range []string{"ping", strings.Repeat("64 bytes", 8)} {
			err := withPair(ctx, iwarp.Config{}, func(client, server *lab.End) error {
				return beside(ctx,
					func(ctx context.Context) error { return student(ctx, server) },
					func(ctx context.Context) error { return ping(ctx, client, text) })
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// ping sends text and wants the same text back.
func ping(ctx context.Context, client *lab.End, text string) error {
	in, err := client.Alloc(128, verbs.LocalWrite)
	if err != nil {
		return err
	}
	out, err := client.Alloc(len(text), 0)
	if err != nil {
		return err
	}
	copy(out.Bytes(), text)
	if err := client.Receive(1, in); err != nil {
		return err
	}
	if err := client.Send(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{out.SGE(0, len(text))}}); err != nil {
		return err
	}
	wc, err := wait(ctx, client, "the peer waits for the answer")
	if err != nil {
		return err
	}
	if got := string(in.Bytes()[:wc.Len]); got != text {
		return fmt.Errorf("the peer has sent %q and received %q: send the first Len bytes of the receive's memory, with Len of its completion", text, got)
	}
	return nil
}

// Stream checks the exercise of lesson 8.
func Stream(student func(ctx context.Context, client *lab.End, messages []string, credits int) error) Exercise {
	return func(ctx context.Context) error {
		var messages []string
		for i := range 10 {
			messages = append(messages, fmt.Sprintf("message %d of 10", i+1))
		}
		for _, credits := range []int{1, 2, 3, 20} {
			err := withLab(iwarp.Config{}, func(l *lab.Lab) error {
				client, server, err := l.Connect(ctx, verbs.ConnParam{RNRRetry: -1}) // a message without a receive ends the connection
				if err != nil {
					return err
				}
				in, err := server.Alloc(64*credits, verbs.LocalWrite)
				if err != nil {
					return err
				}
				for id := range credits {
					if err := receiveAt(server, in, id); err != nil {
						return err
					}
				}
				err = beside(ctx,
					func(ctx context.Context) error { return student(ctx, client, messages, credits) },
					func(ctx context.Context) error { return consume(ctx, server, in, messages, credits) })
				if err != nil {
					return err
				}
				return noCreditLeft(ctx, client, server)
			})
			if err != nil {
				return fmt.Errorf("%d credits: %w", credits, err)
			}
		}
		return nil
	}
}

// noCreditLeft reports an error if a credit of server comes after the function has returned. A write with immediate data behind the
// credits has the last completion.
func noCreditLeft(ctx context.Context, client, server *lab.End) error {
	if err := client.Receive(0, nil); err != nil {
		return err
	}
	if err := server.Send(verbs.SendWR{Op: verbs.OpWriteImm}); err != nil {
		return err
	}
	for {
		wc, err := wait(ctx, client, "the check's own write behind the credits")
		if err != nil || wc.HasImm {
			return err
		}
		if wc.Op.IsRecv() {
			return errors.New("the function has returned before the peer has sent a credit for each message: wait for the missing credits after the last send")
		}
	}
}

// receiveAt posts the receive with number id into its 64 bytes of in.
func receiveAt(server *lab.End, in *verbs.MR, id int) error {
	_, err := server.QP.PostRecv([]verbs.RecvWR{{ID: uint64(id), SGL: []verbs.SGE{in.SGE(64*id, 64)}}})
	return err
}

// consume takes messages. It takes as many as it has receives before it posts these again, and sends their credits.
func consume(ctx context.Context, server *lab.End, in *verbs.MR, messages []string, credits int) error {
	var taken []int
	for i := 0; i < len(messages); {
		wc, err := server.Wait(ctx)
		if err != nil {
			return fmt.Errorf("the peer waits for message %d: %w (if the connection has ended: was a message sent without a credit?)", i+1, err)
		}
		if !wc.Op.IsRecv() {
			continue // the completion of a credit
		}
		if got := string(in.Bytes()[64*wc.ID:][:wc.Len]); got != messages[i] {
			return fmt.Errorf("the peer receives %q in the place of %q: a message belongs to the device until its completion, and messages keep their order", got, messages[i])
		}
		taken = append(taken, int(wc.ID))
		if i++; len(taken) < credits && i < len(messages) {
			continue
		}
		for _, id := range taken {
			if err := receiveAt(server, in, id); err != nil {
				return err
			}
			if err := server.Send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled}); err != nil {
				return err
			}
		}
		taken = taken[:0]
	}
	return nil
}
