// Command 11 is the eleventh tutorial, timers: a timer runs a function once, some time after each Start.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/margo"
)

func run(ctx context.Context) error {
	engine, err := cinnabar.Open(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer engine.Close()
	fired := make(chan struct{})
	timer := margo.NewTimer(engine, func(context.Context) {
		fmt.Println("the timer has fired")
		fired <- struct{}{}
	})
	if err := timer.Start(10 * time.Millisecond); err != nil {
		return err
	}
	<-fired

	if err := timer.Start(time.Hour); err != nil {
		return err
	}
	fmt.Println("started again:", codes.Of(timer.Start(time.Second)))
	fmt.Println("cancelled:", timer.Cancel(ctx))
	if err := timer.Start(0); err != nil { // a cancelled timer can be started again
		return err
	}
	<-fired

	// A handler that waits calls Sleep, because Sleep leaves the handler's worker to other requests meanwhile.
	fmt.Println("slept:", margo.Sleep(ctx, time.Millisecond))
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
