package systemd_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"cinnabar"
	"cinnabar/systemd"
)

// A service takes its socket from systemd if there is one, reports that it is ready, and serves the watchdog until it ends.
func Example() {
	ctx, cancel := context.WithCancel(context.Background()) // of signal.NotifyContext in a program
	if err := serve(ctx, cancel); err != nil {
		log.Fatal(err)
	}
	// Output:
	// serving
	// ended
}

func serve(ctx context.Context, served func()) (err error) {
	var cfg cinnabar.Config
	sockets, err := systemd.Listeners()
	if err != nil {
		return err
	}
	if len(sockets) > 0 {
		cfg.Listener = sockets[0]
	}
	e, err := cinnabar.Listen(ctx, "ofi+tcp://", &cfg)
	if err != nil {
		return err
	}
	probe, err := systemd.NewProbe(ctx, e)
	if err != nil {
		return errors.Join(err, e.Close())
	}
	if _, err := systemd.Notify(ctx, systemd.Ready, systemd.Status("serving at "+e.Addr())); err != nil {
		return errors.Join(err, probe.Close(), e.Close())
	}
	fmt.Println("serving")
	served()
	err = systemd.Watchdog(ctx, probe.Check, func(err error) { log.Print(err) }) // returns at once without a watchdog
	<-ctx.Done()
	_, nerr := systemd.Notify(context.Background(), systemd.Stopping)
	err = errors.Join(err, nerr, probe.Close(), e.Shutdown(context.Background()))
	fmt.Println("ended")
	return err
}
