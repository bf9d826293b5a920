package cinnabar_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"cinnabar"
)

// Tutorial 11, timers: a function that runs once, some time after each Start. A handler that wants to wait uses
// [cinnabar.Sleep], which leaves its worker to others.
// parity: G96
func Example_tutorial11() {
	engine, err := cinnabar.Open("ofi+tcp://127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	ctx := context.Background()
	fired := make(chan struct{})
	timer := engine.NewTimer(func(context.Context) {
		fmt.Println("the timer has fired")
		fired <- struct{}{}
	})

	if err := timer.Start(10 * time.Millisecond); err != nil {
		log.Fatal(err)
	}
	<-fired
	if err := timer.Start(time.Hour); err != nil {
		log.Fatal(err)
	}
	fmt.Println("started again:", cinnabar.CodeOf(timer.Start(time.Second)))
	fmt.Println("cancelled:", timer.Cancel(ctx))
	if err := timer.Start(0); err != nil { // it may be started after that
		log.Fatal(err)
	}
	<-fired
	fmt.Println("slept:", cinnabar.Sleep(ctx, time.Millisecond))
	// Output:
	// the timer has fired
	// started again: HG_BUSY
	// cancelled: <nil>
	// the timer has fired
	// slept: <nil>
}
