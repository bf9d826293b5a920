package oob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"cinnabar/verbs"
)

// Exchange sends local to the peer and returns the peer's QPInfo. Each side sends one line
// of text (see [QPInfo]) over a plain socket, as ibv_rc_pingpong does. Both sides call
// Exchange. It reads no byte behind the peer's line, so the program can use the socket
// before and after it.
//
// Exchange returns the context's error when ctx ends. If the settings of the two
// sides differ, the error is a [*SettingsError] on both sides, and the peer's
// QPInfo is returned as well.
func Exchange(ctx context.Context, sock net.Conn, local QPInfo) (QPInfo, error) {
	line, err := local.AppendText(nil)
	if err != nil {
		return QPInfo{}, err
	}
	var answer string
	err = interruptible(ctx, sock, func() error {
		answer, err = swapLines(sock, string(line), maxInfoLine)
		return err
	})
	if err != nil {
		return QPInfo{}, exchangeError(err)
	}
	remote, err := ParseQPInfo(answer)
	if err != nil {
		return QPInfo{}, err
	}
	return remote, CompareSettings(local.Settings, remote.Settings)
}

// exchangeError adds the operation to an error of the socket; nil: no error.
func exchangeError(err error) error {
	if err == nil {
		return nil
	}
	return &verbs.Error{Op: "exchange out of band", Err: err}
}

// interruptible runs f. When ctx ends, the reads and writes of sock fail, and interruptible
// returns the context's error if f fails. Afterwards sock has no deadline.
func interruptible(ctx context.Context, sock net.Conn, f func() error) error {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = sock.SetDeadline(time.Unix(1, 0)) // long past; fails only on a closed socket
		close(interrupted)
	})
	err := f()
	if !stop() {
		<-interrupted
	}
	_ = sock.SetDeadline(time.Time{})
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// swapLines writes a line and reads one at the same time, because both sides write first,
// and on a socket without buffers each write waits for the other side's read.
func swapLines(sock net.Conn, line string, limit int) (string, error) {
	wrote := make(chan error, 1)
	go func() {
		_, err := io.WriteString(sock, line+"\n")
		wrote <- err
	}()
	answer, err := readLine(sock, limit)
	if err != nil {
		// The peer may not read either, and the write must not outlive the call.
		_ = sock.SetWriteDeadline(time.Unix(1, 0))
	}
	return answer, errors.Join(err, <-wrote)
}

// readLine reads a line and returns it without the line feed. It reads byte by byte, because
// the bytes behind the line belong to the program.
func readLine(r io.Reader, limit int) (string, error) {
	var line strings.Builder
	b := make([]byte, 1)
	for line.Len() < limit {
		if _, err := io.ReadFull(r, b); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return "", err
		}
		if b[0] == '\n' {
			return line.String(), nil
		}
		line.WriteByte(b[0])
	}
	return "", fmt.Errorf("the peer's line is over the limit of %d bytes", limit)
}
